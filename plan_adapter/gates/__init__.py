"""Approval: the gates, who is allowed to answer them, and what they show. Depends on neither Prefect nor a database.

The public names are in the stub next to this file; the modules are internal.
"""

from plan_adapter.public_names import offer_names

offer_names(__name__)
