"""A failed step fails the run but raises no exception. The run records what failed and which steps were skipped because of it."""

import pytest

from plan_adapter import ExecutionPlan, ToolRegistry, run_plan, tool
from plan_adapter.errors import RunFailedError, ToolError


@tool(effect="read")
def probe(host: str) -> str:
    """Check whether a host answers."""
    if host == "web-2":
        raise ToolError("web-2 does not answer")
    return host


def plan_of_three_hosts() -> ExecutionPlan:
    plan = ExecutionPlan(description="Look at three hosts")
    plan.options.require_approval = False
    for host in ("web-1", "web-2", "web-3"):
        plan.add_step("probe", f"Look at {host}", {"host": host}, id=host.replace("-", "_"))
    return plan


def test_no_further_step_starts_after_a_failure_by_default() -> None:
    run = run_plan(plan_of_three_hosts(), tools=ToolRegistry([probe]), offline=True)
    assert (run.status, run.reason) == ("partial", "step_failed")
    assert run.step("web_2").error == "web-2 does not answer"
    assert (run.step("web_3").status, run.step("web_3").reason) == ("skipped", "stopped because `web_2` failed")


def test_continue_on_error_runs_steps_that_do_not_depend_on_the_failed_step() -> None:
    plan = plan_of_three_hosts()
    plan.options.continue_on_error = True
    run = run_plan(plan, tools=ToolRegistry([probe]), offline=True)
    assert [step.status for step in run.steps] == ["completed", "failed", "completed"]


def test_raise_for_status_raises_an_exception_if_the_run_failed() -> None:
    run = run_plan(plan_of_three_hosts(), tools=ToolRegistry([probe]), offline=True)
    with pytest.raises(RunFailedError, match="web-2 does not answer"):
        run.raise_for_status()
