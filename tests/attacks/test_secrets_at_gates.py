"""Tests of what a gate shows about secrets: the literals beside them, and which secrets are missing."""

from typing import Any

import pytest

from plan_adapter import ExecutionPlan, ToolRegistry, run_plan, tool
from plan_adapter.plans import Input
from tests.attacks.approving import RecordingApprover


def gate_texts(parameters: dict[str, Any], inputs: dict[str, Any] | None = None) -> tuple[str, str]:
    """Return the texts of the plan gate and of the step gate, for a step with `parameters`."""

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
    approver = RecordingApprover()
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
def test_gates_show_literals_beside_a_secret_but_not_resolved_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_T", "value-of-the-secret")
    written, other, shown = BESIDE[name]
    plan_text, step_text = gate_texts({"headers": {"Authorization": written}, "password": written})
    assert shown in step_text
    assert (shown == written) == (shown in plan_text)
    assert other == shown or other not in step_text
    assert "value-of-the-secret" not in plan_text + step_text


def test_literals_in_secret_parameters_stay_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_T", "value-of-the-secret")
    plan_text, step_text = gate_texts({"headers": {"Authorization": "Basic aGVsbG8=", "X": "${{ secrets.t }}"}, "password": "written-out"})
    assert "aGVsbG8=" not in plan_text + step_text
    assert "written-out" not in plan_text + step_text
