"""Runbooks: promoting a good run to a runbook."""
