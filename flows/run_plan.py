"""Deployed by path, `flows/run_plan.py:run_plan`; the same flow as the entrypoint `plan_adapter.flows.run_plan`."""

from plan_adapter.flows import run_plan

__all__ = ["run_plan"]
