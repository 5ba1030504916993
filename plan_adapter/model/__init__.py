"""The values that everything shares: plans, options, records, approvals, statuses, errors and problems."""
