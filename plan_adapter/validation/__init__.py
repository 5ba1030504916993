"""Checks a plan and reports every problem at once, or returns a `ValidatedPlan`; with the inputs of a run, a `BoundPlan`."""

from plan_adapter.validation.validated import BoundPlan, ValidatedPlan, bind_inputs, find_problems, lint, validate, validate_recorded

__all__ = ["BoundPlan", "ValidatedPlan", "bind_inputs", "find_problems", "lint", "validate", "validate_recorded"]
