"""Execution plans as dynamically built Prefect flows."""
