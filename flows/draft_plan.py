"""The flow `plan_adapter.flows.draft_plan`, for deployments by path: `flows/draft_plan.py:draft_plan`."""

from plan_adapter.flows import draft_plan

__all__ = ["draft_plan"]
