"""Deployed by path, `flows/reconcile.py:reconcile`; the same flow as the entrypoint `plan_adapter.flows.reconcile`."""

from plan_adapter.flows import reconcile

__all__ = ["reconcile"]
