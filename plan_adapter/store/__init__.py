"""The store: plans, versions, runs, approvals, attempts and receipts in a database. The only package that uses SQLAlchemy.

The public names are in the stub next to this file; the modules are internal.
"""

from plan_adapter.public_names import offer_names

offer_names(__name__)
