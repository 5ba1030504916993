"""Approval: gates, who may answer at them, and what they show. Knows neither Prefect nor a database."""
