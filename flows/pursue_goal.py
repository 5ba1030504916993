"""The flow `plan_adapter.flows.pursue_goal`, for deployments by path: `flows/pursue_goal.py:pursue_goal`."""

from plan_adapter.flows import pursue_goal

__all__ = ["pursue_goal"]
