"""Executes an approved plan. Depends on neither Prefect nor a database; callers pass in what it needs."""
