"""What a gate shows of secrets: the literals beside them, and which are missing."""

from typing import Any

import pytest

from plan_adapter import ExecutionPlan, Input, PlanStore, ToolRegistry, arun_plan, load_plan, run_plan, tool
from plan_adapter.tools.shell import run_command
from tests.attacks.approving import Approves


def gate_texts(parameters: dict[str, Any], inputs: dict[str, Any] | None = None) -> tuple[str, str]:
    """Return what is shown at the gates of a plan and of its step, which is called with `parameters`."""

    @tool(effect="write")
    def send(headers: dict[str, Any], password: str = "") -> str:
        """Send something."""
        return "sent"

    @tool(effect="read")
    def make() -> str:
        """Make a password."""
        return "made-by-a-step"

    plan = ExecutionPlan(description="Send it", inputs={"salt": Input(default="pinch"), "token": Input(default="hunter22")})
    plan.add_step("make", "Make it", {}, id="make")
    plan.add_step("send", "Send it", parameters, id="send", requires_approval=True, depends_on=["make"])
    approver = Approves()
    run = run_plan(plan, tools=ToolRegistry([send, make]), inputs=inputs, approver=approver, offline=True)
    assert run.is_completed, [step.error for step in run.steps]
    return approver.texts[0], approver.texts[1]


BESIDE: dict[str, tuple[str, str, str]] = {
    "a scheme": ("Bearer ${{ secrets.t }}", "Bearer ${{ secrets.t }}", "Bearer ${{ secrets.t }}"),
    "both sides": ("user:${{ secrets.t }}@host", "user:${{ secrets.t }}@host", "user:${{ secrets.t }}@host"),
    "Chinese": ("令牌 ${{ secrets.t }}", "令牌 ${{ secrets.t }}", "令牌 ${{ secrets.t }}"),
    "an input": ("${{ inputs.salt }}-${{ secrets.t }}", "pinch-", "***${{ secrets.t }}"),
    "a secret input": ("x${{ inputs.token }}-${{ secrets.t }}", "hunter22", "***${{ secrets.t }}"),
    "a result": ("${{ steps.make.result }}-${{ secrets.t }}", "made-by-a-step-", "***${{ secrets.t }}"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_literal_beside_a_secret_is_shown_at_the_gates_and_a_value_beside_it_is_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_T", "value-of-the-secret")
    written, other, shown = BESIDE[name]
    of_plan, of_step = gate_texts({"headers": {"Authorization": written}, "password": written})
    assert shown in of_step
    assert (shown == written) == (shown in of_plan)
    assert other == shown or other not in of_step
    assert "value-of-the-secret" not in of_plan + of_step


def test_a_literal_that_is_a_secret_by_its_place_stays_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_T", "value-of-the-secret")
    of_plan, of_step = gate_texts({"headers": {"Authorization": "Basic aGVsbG8=", "X": "${{ secrets.t }}"}, "password": "written-out"})
    assert "aGVsbG8=" not in of_plan + of_step
    assert "written-out" not in of_plan + of_step


LATE = """
description: Rotate a key
options: {require_approval: %s}
steps:
  - {id: rotate, tool_name: run_command, parameters: {argv: ["true"]}}
  - {id: use, tool_name: run_command, parameters: {argv: [echo, "${{ secrets.made }}"]}, depends_on: [rotate]}
"""
LATE_SAYS = "`use` uses it after steps that write, and fails unless one of them creates it"


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "there"])
async def test_runner_and_approver_see_that_a_secret_for_later_is_missing(
    is_missing: bool, store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not is_missing:
        monkeypatch.setenv("PLAN_ADAPTER_SECRET_MADE", "made-already")
    approver = Approves()
    async with PlanStore(store_url) as store:
        run = await arun_plan(load_plan(LATE % "true"), tools=ToolRegistry([run_command]), store=store, approver=approver, offline=True)
    assert run.step("use").status == ("failed" if is_missing else "completed")
    warnings = [record.getMessage() for record in caplog.records if LATE_SAYS in record.getMessage()]
    assert [message.partition(";")[0] for message in warnings] == (["there is no secret `made`"] if is_missing else [])
    assert ("The process that asks has no secret `made`" in approver.texts[0]) == is_missing
    assert (LATE_SAYS in approver.texts[0]) == is_missing
