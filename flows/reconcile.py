"""The flow `plan_adapter.flows.reconcile`, for deployments by path: `flows/reconcile.py:reconcile`."""

from plan_adapter.flows import reconcile

__all__ = ["reconcile"]
