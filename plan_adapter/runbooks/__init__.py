"""Runbooks: promoting a good run to a runbook, deploying it, and importing the documents of other programs."""
