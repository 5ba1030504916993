"""The door to SQLAlchemy: the database of plans, versions, runs, approvals, attempts and receipts."""
