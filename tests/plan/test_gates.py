"""Which steps of a plan wait at a gate of their own, and how a preview and the text of a plan say who may approve."""

from typing import Any

import pytest

from plan_adapter.formatting import format_plan
from plan_adapter.options import ApprovalPolicy, Effect
from plan_adapter.plan import ExecutionPlan, Step
from plan_adapter.preview import Preview, preview_plan, preview_text
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import validate


@tool(effect="read")
def look(at: str = "") -> None:
    """Look at something."""


@tool
def push(value: int = 0) -> None:
    """Push a value."""


def made(**fields: Any) -> ExecutionPlan:
    """A plan that looks and then pushes twice, the last time at a gate."""
    steps = [
        Step(id="look", tool_name="look", description="Look"),
        Step(id="push", tool_name="push", description="Push", depends_on=["look"]),
        Step(id="each", tool_name="push", description="Push each", for_each="${{ [1, 2] }}", requires_approval=True),
    ]
    return ExecutionPlan(**{"description": "Push things", "steps": steps} | fields)


def previewed(plan: ExecutionPlan, *, requires_approval: bool = True, gate_effects: tuple[Effect, ...] = ()) -> Preview:
    """The preview of a sound plan without inputs."""
    checked = validate(plan, ToolRegistry([look, push]))
    return preview_plan(checked, inputs={}, approval_digest="0" * 64, requires_approval=requires_approval, gate_effects=gate_effects)


def gated(preview: Preview) -> list[str]:
    """The steps of `preview` that wait for an approval of their own."""
    return [step["id"] for step in preview.as_json()["steps"] if step["gate"]]


@pytest.mark.parametrize(
    ("policy", "of_settings", "steps"),
    [
        (None, (), ["each"]),
        (ApprovalPolicy(effects=["write"]), (), ["push", "each"]),
        (None, ("write",), ["push", "each"]),
        (ApprovalPolicy(effects=["write"]), ("read",), ["look", "push", "each"]),
    ],
    ids=["the step", "the plan", "the settings", "all of them"],
)
def test_a_step_waits_because_it_says_so_or_because_of_its_effect(
    policy: ApprovalPolicy | None, of_settings: tuple[Effect, ...], steps: list[str]
) -> None:
    shown = previewed(made(approval=policy), gate_effects=of_settings)
    assert sorted(gated(shown)) == sorted(steps)
    assert preview_text(shown).count("**waits for an approval of its own**") == len(steps)
    assert "   - **waits for an approval of its own**, each item\n" in preview_text(shown)


@pytest.mark.parametrize(
    ("declared", "said", "asked", "waits"),
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
@pytest.mark.parametrize("asks", ["the plan", "the settings"])
def test_the_effect_that_a_tool_declares_decides_and_a_step_can_only_raise_it(
    declared: Effect | None, said: Effect | None, asked: list[Effect], waits: bool, asks: str
) -> None:
    step = Step(id="push", tool_name="push", description="Push", effect=said)
    plan = ExecutionPlan(description="Push", steps=[step], approval=ApprovalPolicy(effects=asked) if asks == "the plan" else None)
    assert plan.has_gate(step, declared, gate_effects=asked if asks == "the settings" else ()) is waits


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
- a gate waits 1 h for an answer, with a reminder every 10 min; without one, the plan is rejected, and a step is skipped; while it waits, \
the run releases its worker
"""


def test_the_policy_is_shown_before_anything_runs() -> None:
    plan = made(approval=POLICY, options={"approval_timeout_ms": 3_600_000})
    assert FACTS in preview_text(previewed(plan))
    assert FACTS in format_plan(plan)
    assert previewed(plan, gate_effects=("read",)).as_json()["approval"] == {
        "approvers": ["sre", "a`b <i>小明"],
        "operators": ["deployers", "值班/夜间"],
        "self_approval": False,
        "known_by": ["ssh_signature", "totp"],
        "effects": ["read", "write"],
        "always_execute": [],
        "expires": "skip",
        "remind_after_ms": 600_000,
        "release": True,
        "timeout_ms": 3_600_000,
    }


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"approval": ApprovalPolicy()}, "a gate waits for an answer without limit"),
        ({"options": {"approval_timeout_ms": 60_000}}, "a gate waits 1 min for an answer; without one, the plan or step is rejected"),
    ],
    ids=["a policy", "a time"],
)
def test_the_defaults_of_the_policy_are_shown_too(fields: dict[str, Any], told: str) -> None:
    for text in (preview_text(previewed(made(**fields))), format_plan(made(**fields))):
        assert "- who may approve: anyone\n- how an approver must prove who they are: in any way\n" in text
        assert f"- {told}\n" in text


def test_a_plan_that_asks_nobody_shows_no_policy() -> None:
    plan = made(steps=made().steps[:2], approval=ApprovalPolicy(approvers=["ana"]), options={"require_approval": False})
    for text in (preview_text(previewed(plan, requires_approval=False)), format_plan(plan)):
        assert "who may" not in text
    plan.approval = ApprovalPolicy(operators=["deployers"])
    for text in (preview_text(previewed(plan, requires_approval=False)), format_plan(plan)):
        assert "- who may run, resume, revise, cancel and roll back: `deployers`\n" in text
        assert "who may approve" not in text
