"""Tests of the gate policy: invalid values, settings without effect, and proofs that prove nothing."""

from typing import Any

import pytest

from plan_adapter.documents import load_plan
from plan_adapter.model.options import ApprovalPolicy, ExecutionOptions
from plan_adapter.validation import lint, validate
from tests.validation.builders import TOOLS, found, plan, step

UNASKED = ExecutionOptions(require_approval=False)


def test_a_plan_with_a_full_policy_and_gated_steps_has_no_problems() -> None:
    policy = ApprovalPolicy(
        approvers=["sre", "小明"],
        operators=["deployers", "小明", "run-plan/nightly"],
        self_approval=False,
        known_by=["ssh_signature", "totp"],
        effects=["write"],
        expires="skip",
        remind_after_ms=600_000,
        release=True,
    )
    checked = plan(step("a", requires_approval=True), approval=policy, options=ExecutionOptions(approval_timeout_ms=3_600_000))
    assert found(checked) == []
    assert validate(checked, TOOLS).plan.approval == policy


@pytest.mark.parametrize("name", ["", " ", "\n", " ana", "ana\t", "a\u200bna", "\u202eana", "an\x1ba"], ids=ascii)
@pytest.mark.parametrize(("field", "code"), [("approvers", "bad-approver"), ("operators", "bad-operator")])
def test_an_impossible_account_or_group_name_is_refused(field: str, code: str, name: str) -> None:
    assert found(plan(approval={field: ["ana", name]})) == [(code, f"approval.{field}[1]")]


@pytest.mark.parametrize("name", ["ana", "小明", "Ana Müller", "ana@example.com", "CORP\\ana", "on-call"])
def test_names_and_groups_can_be_any_visible_text(name: str) -> None:
    assert found(plan(approval={"approvers": [name]})) == []


@pytest.mark.parametrize(
    ("field", "entries"),
    [
        ("approvers", ["ana", "bo", "ana"]),
        ("operators", ["a", "b", "a"]),
        ("known_by", ["totp", "os_user", "totp"]),
        ("effects", ["write", "read", "write"]),
    ],
    ids=["approvers", "operators", "known_by", "effects"],
)
def test_a_duplicate_entry_counts_once_and_is_a_warning(field: str, entries: list[str]) -> None:
    checked = plan(approval={field: entries})
    assert found(checked) == [("duplicate-entry", f"approval.{field}[2]")]
    assert lint(checked, TOOLS)[0].severity == "warning"


@pytest.mark.parametrize("field", ["approvers", "operators", "known_by", "effects"])
@pytest.mark.parametrize("entry", [["ana"], {"name": "ana"}, 3, None], ids=repr)
def test_an_entry_that_is_not_text_is_a_problem_at_its_place(field: str, entry: Any) -> None:
    checked = plan()
    checked.approval = ApprovalPolicy.model_construct(**{field: [entry]})
    ((code, at),) = found(checked)
    assert code in ("wrong-type", "bad-value")
    assert at == f"approval.{field}[0]"


@pytest.mark.parametrize(
    ("known_by", "weak"),
    [
        (["ssh_signature", "unverified"], [1]),
        (["unverified", "os_user"], [0]),
        (["unverified", "form"], [0]),
        (["totp", "form"], [1]),
        (["totp", "form", "unverified"], [1, 2]),
        (["os_user", "form"], []),
        (["ssh_signature", "totp", "os_user"], []),
        (["unverified"], []),
        (["form"], []),
    ],
    ids=lambda value: "+".join(map(str, value)) or "none",
)
def test_accepting_an_unproven_name_makes_a_stronger_proof_worthless(known_by: list[str], weak: list[int]) -> None:
    assert found(plan(approval={"known_by": known_by})) == [("weak-proof", f"approval.known_by[{index}]") for index in weak]


@pytest.mark.parametrize("options", [UNASKED, ExecutionOptions(auto_approve=True)], ids=["not required", "approved by itself"])
def test_a_gate_policy_without_gates_is_reported_as_unused(options: ExecutionOptions) -> None:
    assert found(plan(options=options, approval={"approvers": ["ana"]})) == [("idle-policy", "approval")]


def test_operators_apply_even_without_gates() -> None:
    assert found(plan(options=UNASKED, approval={"operators": ["ana"]})) == []
    assert found(plan(options=UNASKED, approval={"operators": ["ana"], "self_approval": False})) == [("idle-policy", "approval")]


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({"requires_approval": True}, {}),
        ({}, {"effects": ["write"]}),
        ({"tool_name": "fetch_page", "parameters": {"url": "x"}}, {"effects": ["read"]}),
    ],
    ids=["the step says so", "by the effect of the step", "by the effect of its tool"],
)
def test_a_gated_step_makes_the_policy_useful(fields: dict[str, Any], policy: dict[str, Any]) -> None:
    assert found(plan(step("a", **fields), options=UNASKED, approval={"approvers": ["ana"], **policy})) == []


def test_a_gate_on_an_effect_no_step_has_is_unused() -> None:
    assert found(plan(step("a"), options=UNASKED, approval={"effects": ["read"]})) == [("idle-policy", "approval")]


@pytest.mark.parametrize(
    ("policy", "code", "field"),
    [
        ({"expires": "skip"}, "idle-policy", "expires"),
        ({"release": True}, "endless-gate", "release"),
        ({"remind_after_ms": 1000}, "endless-gate", "remind_after_ms"),
    ],
    ids=["skip", "release", "remind"],
)
def test_a_field_that_needs_a_timeout_is_reported_without_one(policy: dict[str, Any], code: str, field: str) -> None:
    assert found(plan(approval=policy)) == [(code, f"approval.{field}")]
    assert found(plan(approval=policy, options=ExecutionOptions(approval_timeout_ms=5000))) == []


def test_a_reminder_after_the_timeout_is_reported() -> None:
    checked = plan(approval={"remind_after_ms": 5000}, options=ExecutionOptions(approval_timeout_ms=5000))
    assert found(checked) == [("idle-policy", "approval.remind_after_ms")]


@pytest.mark.parametrize(("count", "warns"), [(20, False), (21, True)])
def test_many_gated_items_are_a_warning(count: int, warns: bool) -> None:
    each = f"${{{{ {list(range(count))} }}}}"
    assert found(plan(step("a", for_each=each, requires_approval=True))) == ([("many-gates", "steps[0].for_each")] if warns else [])
    assert found(plan(step("a", for_each=each), approval={"effects": ["write"]})) == (
        [("many-gates", "steps[0].for_each")] if warns else []
    )
    assert found(plan(step("a", for_each=each))) == []


def test_items_unknown_before_the_run_are_not_a_warning() -> None:
    checked = plan(step("a"), step("b", for_each="${{ steps.a.result }}", requires_approval=True))
    assert found(checked) == []


DOCUMENT = """\
description: Push things
options: {require_approval: false}
steps:
  - tool_name: push
    description: Push it
approval:
  approvers: [ana, ""]
  known_by:
    - totp
    - unverified
"""


def test_problems_of_the_policy_carry_their_line_and_column() -> None:
    assert [(problem.code, problem.line, problem.column) for problem in lint(load_plan(DOCUMENT), TOOLS)] == [
        ("idle-policy", 6, 1),
        ("bad-approver", 7, 20),
        ("weak-proof", 10, 7),
    ]
