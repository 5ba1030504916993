"""The problems of questions, at their places."""

from typing import Any

import pytest

from plan_adapter.model.options import ExecutionOptions, Input, Question
from plan_adapter.model.plan import Rollback, Step
from plan_adapter.validation import lint, validate
from tests.validation.builders import TOOLS, found, plan, step


def question(**step_fields: Any) -> Step:
    fields = step_fields.pop("fields", {"choice": Input(enum=["switch", "wait"])})
    return Step(id="decide", ask=Question(question=step_fields.pop("asks", "Switch?"), fields=fields), **step_fields)


def test_a_question_may_have_approvers_a_condition_and_an_expiry() -> None:
    asked = question(approvers=["值班经理"], expires="reject", when="${{ true }}", description="Decide", tags=["ops"], on_error="continue")
    used = step("use", parameters={"value": "${{ steps.decide.result.choice }}"})
    checked = plan(asked, used, options=ExecutionOptions(approval_timeout_ms=1000))
    assert found(checked) == []
    assert validate(checked, TOOLS).dependencies["use"] == ("decide",)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tool_name", "push"),
        ("goal", "Decide"),
        ("parameters", {"value": 1}),
        ("for_each", "${{ [1] }}"),
        ("max_retries", 1),
        ("requires_approval", True),
        ("rollback", Rollback(tool_name="push", parameters={"value": 1})),
        ("timeout_ms", 0),
        ("done_when", "${{ result.choice == 'wait' }}"),
    ],
)
def test_a_question_cannot_have_fields_of_a_tool_call(field: str, value: Any) -> None:
    assert found(plan(question(**{field: value}))) == [("bad-question", f"steps[0].{field}")]


def test_every_mistake_in_a_question_is_reported_at_its_place() -> None:
    fields = {
        "note": Input(),
        "api_token": Input(),
        "class": Input(),
        "nodes": Input(type="integer", pattern="x"),
    }
    asked = question(asks=" ", fields=fields, approvers=["ana", " bo"], expires="default")
    others = [step("b", approvers=["ana"]), step("c", expires="skip"), Step(id="d", ask=Question(question="${{ secrets.a }}?", fields={}))]
    assert sorted(found(plan(asked, *others)), key=lambda problem: problem[1]) == [
        ("bad-approver", "steps[0].approvers[1]"),
        ("bad-question", "steps[0].ask.fields.api_token"),
        ("bad-name", "steps[0].ask.fields.class"),
        ("bad-input-definition", "steps[0].ask.fields.nodes.pattern"),
        ("bad-name", "steps[0].ask.fields.note"),
        ("bad-question", "steps[0].ask.question"),
        ("bad-question", "steps[0].expires"),
        ("idle-policy", "steps[0].expires"),
        ("bad-question", "steps[1].approvers"),
        ("bad-question", "steps[2].expires"),
        ("bad-question", "steps[3].ask.fields"),
        ("misplaced-secret", "steps[3].ask.question"),
    ]


def test_an_expiry_without_a_time_limit_is_reported() -> None:
    warned = [(problem.code, problem.at) for problem in lint(plan(question(expires="reject")), TOOLS)]
    assert warned == [("idle-policy", "steps[0].expires")]
