"""Approval: the gates, who is allowed to answer them, and what they show. Depends on neither Prefect nor a database."""
