"""The store: plans, versions, runs, approvals, attempts and receipts in a database. The only package that uses SQLAlchemy."""
