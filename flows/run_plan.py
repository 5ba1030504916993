"""The flow `plan_adapter.flows.run_plan`, for deployments by path: `flows/run_plan.py:run_plan`."""

from plan_adapter.flows import run_plan

__all__ = ["run_plan"]
