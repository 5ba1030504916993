"""Tests of step gates: which steps have one, and how previews and plan texts show who may approve."""

from typing import Any

import pytest

from plan_adapter.model.options import ApprovalPolicy, Effect, Escalation
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.text.formatting import format_plan
from plan_adapter.text.preview import Preview, preview_plan, preview_text
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import validate


@tool(effect="read")
def look(at: str = "") -> None:
    """Look at something."""


@tool
def push(value: int = 0) -> None:
    """Push a value."""


def push_plan(**fields: Any) -> ExecutionPlan:
    """Return a plan that looks and then pushes twice, the second time at a gate."""
    steps = [
        Step(id="look", tool_name="look", description="Look"),
        Step(id="push", tool_name="push", description="Push", depends_on=["look"]),
        Step(id="each", tool_name="push", description="Push each", for_each="${{ [1, 2] }}", requires_approval=True),
    ]
    return ExecutionPlan(**{"description": "Push things", "steps": steps} | fields)


def preview_of(plan: ExecutionPlan, *, requires_approval: bool = True, gate_effects: tuple[Effect, ...] = ()) -> Preview:
    """Return the preview of a valid plan without inputs."""
    checked = validate(plan, ToolRegistry([look, push]))
    return preview_plan(checked, inputs={}, approval_digest="0" * 64, requires_approval=requires_approval, gate_effects=gate_effects)


def gated(preview: Preview) -> list[str]:
    """Return the ids of the steps in `preview` that have a gate."""
    return [step["id"] for step in preview.as_json()["steps"] if step["gate"]]


@pytest.mark.parametrize(
    ("policy", "settings_effects", "steps"),
    [
        (None, (), ["each"]),
        (ApprovalPolicy(effects=["write"]), (), ["push", "each"]),
        (None, ("write",), ["push", "each"]),
        (ApprovalPolicy(effects=["write"]), ("read",), ["look", "push", "each"]),
    ],
    ids=["the step", "the plan", "the settings", "all of them"],
)
def test_a_step_has_a_gate_if_it_requires_approval_or_because_of_its_effect(
    policy: ApprovalPolicy | None, settings_effects: tuple[Effect, ...], steps: list[str]
) -> None:
    shown = preview_of(push_plan(approval=policy), gate_effects=settings_effects)
    assert sorted(gated(shown)) == sorted(steps)
    assert preview_text(shown).count("**waits for an approval of its own**") == len(steps)
    assert "   - **waits for an approval of its own**, each item\n" in preview_text(shown)


@pytest.mark.parametrize(
    ("declared", "step_effect", "gate_effects", "waits"),
    [
        ("write", None, ["write"], True),
        ("write", "read", ["write"], True),
        ("write", "idempotent_write", ["write"], True),
        ("idempotent_write", None, ["write"], True),
        ("idempotent_write", "read", ["write"], True),
        ("read", None, ["write"], False),
        ("read", "write", ["write"], True),
        ("read", "idempotent_write", ["write"], True),
        ("idempotent_write", "read", ["idempotent_write"], True),
        ("write", "idempotent_write", ["idempotent_write"], False),
        ("write", "read", ["read"], False),
        (None, "write", ["write"], True),
        (None, "read", ["write"], False),
        (None, None, ["write"], False),
        ("write", "read", [], False),
    ],
)
@pytest.mark.parametrize("source", ["the plan", "the settings"])
def test_the_tools_effect_decides_about_a_gate_and_a_step_can_only_raise_it(
    declared: Effect | None, step_effect: Effect | None, gate_effects: list[Effect], waits: bool, source: str
) -> None:
    step = Step(id="push", tool_name="push", description="Push", effect=step_effect)
    plan = ExecutionPlan(description="Push", steps=[step], approval=ApprovalPolicy(effects=gate_effects) if source == "the plan" else None)
    assert plan.has_gate(step, declared, gate_effects=gate_effects if source == "the settings" else ()) is waits


POLICY = ApprovalPolicy(
    approvers=["sre", "a`b <i>小明"],
    operators=["deployers", "值班/夜间"],
    self_approval=False,
    known_by=["ssh_signature", "totp"],
    effects=["write"],
    expires="skip",
    remind_after_ms=600_000,
    release=True,
)
FACTS = """\
- who may run, resume, revise, cancel and roll back: `deployers` or `值班/夜间`
- who may approve: `sre` or ``a`b <i>小明``, but not the person who started the run
- how an approver must prove who they are: ssh_signature or totp
- steps that wait for an approval of their own: those with the effect write
- a gate waits 1 h for an answer, with a reminder every 10 min; without one, the plan is rejected, and a step is skipped with the steps \
that depend on it; while it waits, the run releases its worker
"""


def test_previews_and_plan_texts_show_the_policy() -> None:
    plan = push_plan(approval=POLICY, options={"approval_timeout_ms": 3_600_000})
    assert FACTS in preview_text(preview_of(plan))
    assert FACTS in format_plan(plan)
    assert preview_of(plan, gate_effects=("read",)).as_json()["approval"] == {
        "approvers": ["sre", "a`b <i>小明"],
        "operators": ["deployers", "值班/夜间"],
        "quorum": 1,
        "self_approval": False,
        "author_approval": True,
        "escalate": None,
        "delegate": False,
        "known_by": ["ssh_signature", "totp"],
        "effects": ["read", "write"],
        "always_execute": [],
        "expires": "skip",
        "remind_after_ms": 600_000,
        "release": True,
        "timeout_ms": 3_600_000,
    }


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"approval": ApprovalPolicy()}, "a gate waits for an answer without limit"),
        ({"options": {"approval_timeout_ms": 60_000}}, "a gate waits 1 min for an answer; without one, the plan or step is rejected"),
    ],
    ids=["a policy", "a time"],
)
def test_previews_and_plan_texts_show_policy_defaults(fields: dict[str, Any], line: str) -> None:
    for text in (preview_text(preview_of(push_plan(**fields))), format_plan(push_plan(**fields))):
        assert "- who may approve: anyone\n- how an approver must prove who they are: in any way\n" in text
        assert f"- {line}\n" in text


def test_previews_and_plan_texts_say_who_else_may_answer_and_who_may_not() -> None:
    policy = ApprovalPolicy(
        approvers=["ana", "值班"], author_approval=False, delegate=True, escalate=Escalation(after_ms=1_800_000, to=["boss", "老板"])
    )
    plan = push_plan(approval=policy)
    for text in (preview_text(preview_of(plan)), format_plan(plan)):
        assert "- who may approve: `ana` or `值班`, but not an author of the plan; each may let another person answer\n" in text
        assert "- if a gate waits for 30 min, these may answer as well: `boss` or `老板`\n" in text


def test_a_plan_without_gates_shows_no_approvers() -> None:
    plan = push_plan(steps=push_plan().steps[:2], approval=ApprovalPolicy(approvers=["ana"]), options={"require_approval": False})
    for text in (preview_text(preview_of(plan, requires_approval=False)), format_plan(plan)):
        assert "who may" not in text
    plan.approval = ApprovalPolicy(operators=["deployers"])
    for text in (preview_text(preview_of(plan, requires_approval=False)), format_plan(plan)):
        assert "- who may run, resume, revise, cancel and roll back: `deployers`\n" in text
        assert "who may approve" not in text
