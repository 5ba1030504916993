"""Tests of who may answer and operate, what an answer says, what a signature binds, and which content an approval covers."""

import os
import pwd
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest

from plan_adapter import tool
from plan_adapter.gates import approval
from plan_adapter.gates.approval import answer_to, gate_policy_of, group_notices, refusal, strictest, text_to_sign, with_current_policy
from plan_adapter.gates.identity import recorded_identity
from plan_adapter.gates.policy import EffectivePolicy, Policy, effective_policy
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer, ApprovalRequest, Delegation, GatePolicy
from plan_adapter.model.errors import ContentChangedError, InvalidAnswerError, NotApprovedError
from plan_adapter.model.options import ApprovalPolicy, ExecutionOptions, Input
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.record import AUTHOR
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import bind_inputs, validate

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def a_plan(policy: ApprovalPolicy | None = None, **fields: Any) -> ExecutionPlan:
    return ExecutionPlan(name="发布", description="x", approval=policy, **fields)


def test_an_answer_names_everything_it_answers() -> None:
    request = ApprovalRequest("d" * 64, "发布", "x", "text", run_id="r-1", step_id="drain", item=2, gate_id="g-1")
    given = answer_to(request, decision="reject", by="ana", known_by="totp", note="no", signature="-----BEGIN", result={"n": 1})
    assert given == approval.Approval(
        id=given.id,
        approval_digest="d" * 64,
        decision="reject",
        by="ana",
        known_by="totp",
        at=given.at,
        note="no",
        run_id="r-1",
        step_id="drain",
        item=2,
        gate_id="g-1",
        signature="-----BEGIN",
        result={"n": 1},
    )
    assert given.id
    assert given.at.tzinfo is UTC
    plain = answer_to(request, decision="approve", by="ana", known_by="form")
    assert (plain.note, plain.signature, plain.result) == ("", None, None)
    assert plain.id != given.id


def test_the_gate_policy_of_a_plan_holds_all_that_plan_and_policy_demand() -> None:
    own = ApprovalPolicy(
        approvers=["sre", "ana"], known_by=["totp", "ssh_signature"], self_approval=False, expires="skip", remind_after_ms=5, release=True
    )
    policy = effective_policy(
        Settings(known_by=("ssh_signature", "os_user")), Policy(approvers=["bo", "ana", "cy"], groups={"sre": ["bo"]}), number=1
    )
    assert gate_policy_of(a_plan(own), policy, requested_by="di", revised_by="eve") == GatePolicy(
        approvers=("bo", "ana"),
        known_by=("ssh_signature",),
        self_approval=False,
        requested_by="di",
        revised_by="eve",
        expires="skip",
        remind_after_ms=5,
        release=True,
        excluded_by="",
    )
    assert gate_policy_of(a_plan(), EffectivePolicy(self_approval=False), requested_by="di") == GatePolicy(
        self_approval=False, requested_by="di"
    )
    assert gate_policy_of(a_plan(), EffectivePolicy(), requested_by="") == GatePolicy()


def test_the_gate_of_a_sub_plan_demands_what_it_and_the_plan_around_it_demand() -> None:
    inner = a_plan(
        ApprovalPolicy(known_by=["totp", "form"], self_approval=False, expires="skip", remind_after_ms=7, operators=["bo", "cy"])
    )
    outer = a_plan(ApprovalPolicy(known_by=["form", "ssh_signature"], operators=["ana", "bo"]), steps=[Step(id="s", pinned=inner)])
    assert gate_policy_of(outer, EffectivePolicy(), requested_by="", step_id="s") == GatePolicy(
        known_by=("form",), self_approval=False, expires="skip", remind_after_ms=7
    )
    assert gate_policy_of(outer, EffectivePolicy(), requested_by="").known_by == ("form", "ssh_signature")
    asking = a_plan(
        ApprovalPolicy(approvers=["ana", "bo"], effects=["write"]),
        steps=[Step(id="s", pinned=a_plan(ApprovalPolicy(approvers=["bo", "cy"])))],
    )
    assert gate_policy_of(asking, EffectivePolicy(), requested_by="", step_id="s").approvers == ("bo",)
    approval.refuse_operation(outer, EffectivePolicy(), by="bo", operation="run")
    for by in ("ana", "cy"):
        with pytest.raises(NotApprovedError, match=r"operators: bo$"):
            approval.refuse_operation(outer, EffectivePolicy(), by=by, operation="run")


@pytest.mark.parametrize(
    ("settings", "stored", "own", "excluded_by"),
    [
        ({"approvers": ("ana",)}, {"approvers": ["bo"]}, {}, "PLAN_ADAPTER_APPROVERS"),
        ({"approvers": ("ana",)}, {}, {"approvers": ["bo"]}, "PLAN_ADAPTER_APPROVERS"),
        ({"approvers": ("ana",)}, {"approvers": ["bo"]}, {"approvers": ["ana"]}, ""),
        ({}, {"approvers": ["bo"]}, {"approvers": ["ana"]}, ""),
        ({"known_by": ("totp",)}, {"known_by": ["form"]}, {}, "PLAN_ADAPTER_KNOWN_BY"),
        ({"known_by": ("totp",)}, {}, {"known_by": ["form"]}, "PLAN_ADAPTER_KNOWN_BY"),
        ({"known_by": ("totp",)}, {"known_by": ["form"]}, {"known_by": ["totp"]}, ""),
        ({}, {"known_by": ["form"]}, {"known_by": ["totp"]}, ""),
    ],
)
def test_what_excludes_everybody_is_named_if_it_is_the_environment(settings: Any, stored: Any, own: Any, excluded_by: str) -> None:
    policy = effective_policy(Settings(**settings), Policy(**stored), number=1)
    gate_policy = gate_policy_of(a_plan(ApprovalPolicy(**own)), policy, requested_by="")
    assert () in (gate_policy.approvers, gate_policy.known_by)
    assert gate_policy.excluded_by == excluded_by
    assert approval.why_nobody_may_answer(gate_policy) == (
        f"the environment variable {excluded_by} excludes everything that the plan and the store's policy allow"
        if excluded_by
        else "the plan, those around it and the policy contradict each other"
    )


def test_a_gate_that_somebody_may_answer_says_nothing_about_nobody() -> None:
    assert approval.why_nobody_may_answer(GatePolicy()) is None
    assert approval.why_nobody_may_answer(GatePolicy(approvers=("ana",), known_by=("totp",))) is None


def test_the_strictest_of_several_policies_accepts_what_all_accept() -> None:
    first = GatePolicy(approvers=("ana", "bo"), known_by=None, requested_by="di", expires="skip")
    second = GatePolicy(approvers=("bo", "cy"), known_by=("totp",), self_approval=False, excluded_by="PLAN_ADAPTER_KNOWN_BY")
    assert strictest(first) == first
    assert strictest(first, second) == replace(
        first, approvers=("bo",), known_by=("totp",), self_approval=False, excluded_by="PLAN_ADAPTER_KNOWN_BY"
    )
    assert strictest(replace(first, known_by=("form", "totp")), second).known_by == ("totp",)
    assert strictest(replace(first, excluded_by="x"), second).excluded_by == "x"
    assert not strictest(second, first).self_approval


STORED = effective_policy(Settings(), Policy(groups={"sre": ["ana", "new"]}), number=2)


@pytest.mark.parametrize(
    ("policy", "approvers"),
    [
        (STORED, ("ana", "new")),  # who left the group may no longer answer, who joined may
        (replace(STORED, number=None), ("ana", "gone")),
        (replace(STORED, number=None, groups={"sre": ["eve"]}), ("ana", "gone")),
        (effective_policy(Settings(), Policy(groups={"sre": ["new"]}, approvers=["sre", "bo"]), number=2), ("new",)),
        (effective_policy(Settings(), Policy(groups={"sre": ["new"], "all": ["new", "bo"]}, approvers=["all"]), number=2), ("new",)),
    ],
)
def test_people_who_join_a_group_of_the_stores_policy_may_answer_at_an_open_gate(
    policy: EffectivePolicy, approvers: tuple[str, ...]
) -> None:
    opened = GatePolicy(approvers=("ana", "gone"), requested_by="di", revised_by="eve")
    now = approval.with_current_policy(opened, a_plan(ApprovalPolicy(approvers=["sre"])), policy, step_id=None)
    assert now == replace(opened, approvers=approvers)
    proved = approval.with_current_policy(replace(opened, known_by=("totp",)), a_plan(), STORED, step_id=None)
    assert (proved.approvers, proved.known_by) == (opened.approvers, ("totp",))
    named = a_plan(ApprovalPolicy(approvers=["ana", "bo"]))
    by_name = approval.with_current_policy(replace(opened, approvers=("ana",)), named, STORED, step_id=None)
    assert by_name.approvers == ("ana",)
    unnamed = approval.with_current_policy(GatePolicy(approvers=None), a_plan(ApprovalPolicy(approvers=["sre"])), STORED, step_id=None)
    assert unnamed.approvers == ("ana", "new")


def test_an_open_gate_of_a_step_gets_the_current_approvers_of_that_step() -> None:
    ask = Step(id="ask", description="d", ask={"question": "?", "fields": {"n": {"type": "integer"}}}, approvers=["sre"])  # type: ignore[arg-type]
    plan = a_plan(ApprovalPolicy(approvers=["bo"]), steps=[ask])
    opened = gate_policy_of(plan, replace(STORED, groups={"sre": ["ana"]}), requested_by="", step_id="ask")
    assert opened.approvers == ("ana",)
    assert approval.with_current_policy(opened, plan, STORED, step_id="ask").approvers == ("ana", "new")
    assert group_notices(plan, EffectivePolicy(groups={"sre": ["x"], "bo": ["y"]}), "ask") == [notice("sre")]
    assert group_notices(plan, EffectivePolicy(groups={"sre": ["x"], "bo": ["y"]})) == [notice("bo"), notice("sre")]


def notice(name: str) -> str:
    return f"`{name}` is a group of PLAN_ADAPTER_GROUPS in the process that opened this gate: the store has no policy with groups."


def test_groups_of_the_environment_are_named_at_the_gate() -> None:
    plan = a_plan(ApprovalPolicy(approvers=["sre", "ana"]))
    settings = effective_policy(Settings(approvers=("all", "sre"), groups={"sre": ["bo"], "all": ["bo"], "other": ["bo"]}))
    assert group_notices(plan, settings) == [notice("sre"), notice("all")]
    assert group_notices(plan, replace(settings, number=1)) == []


def test_names_that_are_no_group_are_found_once() -> None:
    plan = a_plan(
        ApprovalPolicy(approvers=["sre", "ana", "bo"], operators=["ana", "cy", "run/nightly"]),
        steps=[Step(id="ask", description="d", ask={"question": "?", "fields": {"n": {"type": "integer"}}}, approvers=["di"])],  # type: ignore[arg-type]
    )
    assert approval.names_without_group(plan, EffectivePolicy(groups={"sre": ["bo"]})) == ["ana", "cy", "di"]


BY_ENVIRONMENT = "the environment variable PLAN_ADAPTER_{} excludes everything that the plan and the store's policy allow"
EXCLUDED = "the plan, those around it and the policy contradict each other"


@pytest.mark.parametrize(
    ("fields", "decision", "message"),
    [
        ({}, "approve", None),
        ({"approvers": ("ana",), "known_by": ("totp",), "self_approval": False, "requested_by": "bo"}, "approve", None),
        ({"approvers": ("bo", "cy")}, "reject", "ana may not answer here; only bo, cy may"),
        ({"approvers": ()}, "approve", f"ana may not answer here; nobody may: {EXCLUDED}"),
        ({"known_by": ("form", "ssh_signature")}, "reject", "ana is identified only by totp; an answer here needs form or ssh_signature"),
        ({"known_by": ()}, "approve", f"ana is identified only by totp; an answer here needs a proof that nobody can give: {EXCLUDED}"),
        (
            {"approvers": (), "excluded_by": "PLAN_ADAPTER_APPROVERS"},
            "approve",
            f"ana may not answer here; nobody may: {BY_ENVIRONMENT.format('APPROVERS')}",
        ),
        (
            {"known_by": (), "excluded_by": "PLAN_ADAPTER_KNOWN_BY"},
            "approve",
            f"ana is identified only by totp; an answer here needs a proof that nobody can give: {BY_ENVIRONMENT.format('KNOWN_BY')}",
        ),
        ({"requested_by": "ana"}, "approve", None),
        ({"requested_by": "ana", "self_approval": False}, "reject", None),
        ({"requested_by": "ana", "self_approval": False}, "request_changes", None),
        (
            {"requested_by": "ana", "self_approval": False},
            "approve",
            "ana started this run and may not approve it; somebody else must approve it",
        ),
        (
            {"requested_by": "bo", "revised_by": "ana", "self_approval": False, "approvers": ("ana", "bo", "cy", "di")},
            "approve",
            "ana changed this run and may not approve it; only cy, di may",
        ),
    ],
)
def test_a_refused_answer_says_who_may_answer_and_how(fields: Any, decision: Any, message: str | None) -> None:
    by_code = recorded_identity(replace(approval.approval_not_required(BOUND, now=NOW), by="ana", known_by="totp"))
    assert refusal(GatePolicy(**fields), by_code, decision=decision) == message


VERBS = {
    "run": "run",
    "resume": "resume runs of",
    "revise": "revise runs of",
    "cancel": "cancel runs of",
    "rollback": "roll back runs of",
    "prune": "prune runs of",
    "erase": "erase values in runs of",
}


@pytest.mark.parametrize(("operation", "verb"), VERBS.items())
def test_an_operator_who_is_not_named_is_told_who_is(operation: Any, verb: str) -> None:
    plan = a_plan(ApprovalPolicy(operators=["bo", "cy"]))
    with pytest.raises(NotApprovedError) as refused:
        approval.refuse_operation(plan, EffectivePolicy(), by="ana", operation=operation)
    assert str(refused.value) == f"ana may not {verb} `发布`; operators: bo, cy"
    approval.refuse_operation(plan, EffectivePolicy(), by="cy", operation=operation)


def test_only_operators_of_the_policy_may_prune() -> None:
    approval.refuse_prune(EffectivePolicy(), by="ana")
    approval.refuse_prune(EffectivePolicy(operators=("bo", "ana")), by="ana")
    for operators, who in ((("bo", "cy"), "bo, cy"), ((), "nobody")):
        with pytest.raises(NotApprovedError) as refused:
            approval.refuse_prune(EffectivePolicy(operators=operators), by="ana")
        assert str(refused.value) == f"ana may not prune runs; operators: {who}"


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


REQUEST = ApprovalRequest("d" * 64, "发布", "x", "text", run_id="r-1", gate_id="g-1")
FIELDS = {"n": Input(type="integer", default=3), "why": Input(type="string", default="没有")}
NAMED = r'{"to":"\u5c0f\u660e"}'
RESULT, RETURNED = r'{"n":1,"why":"\u6ca1\u6709"}', '{"a":[null,true],"b":1}'
DELEGATED = Delegation("d-1", "g-1", "d" * 64, "ana", "小明", "totp", datetime(2026, 6, 1, tzinfo=UTC))
ENDED = r'{"follows":"d-1","to":"\u5c0f\u660e"}'
SIGNED: dict[str, tuple[ApprovalRequest, Answer, str]] = {
    "an approval": (
        REQUEST,
        Answer("approve", "ana", result=5),
        f"prefect-plan-adapter approval\ndigest: {'d' * 64}\ndecision: approve\nrun: r-1\ngate: g-1\n",
    ),
    "a rejected question": (
        replace(REQUEST, kind="question", fields=FIELDS),
        Answer("reject", "ana"),
        f"prefect-plan-adapter approval\ndigest: {'d' * 64}\ndecision: reject\nrun: r-1\ngate: g-1\n",
    ),
    "an answer": (
        replace(REQUEST, kind="question", fields=FIELDS, gate_id=None),
        Answer("approve", "ana", result={"n": 1}),
        f"prefect-plan-adapter approval\ndigest: {'d' * 64}\ndecision: approve\nresult: {digest_of(RESULT)}\nrun: r-1\ngate: \n",
    ),
    "an outcome": (
        replace(REQUEST, kind="outcome"),
        Answer("done", "ana", result={"b": 1, "a": [None, True]}),
        f"prefect-plan-adapter outcome\ndigest: {'d' * 64}\nresolution: done\nresult: {digest_of(RETURNED)}\nrun: r-1\n",
    ),
    "a delegation": (
        REQUEST,
        Answer("delegate", "ana", to="小明"),
        f"prefect-plan-adapter approval\ndigest: {'d' * 64}\ndecision: delegate\nresult: {digest_of(NAMED)}\nrun: r-1\ngate: g-1\n",
    ),
    "the end of a delegation": (
        replace(REQUEST, gate_policy=replace(REQUEST.gate_policy, delegations=(DELEGATED,))),
        Answer("take_back", "ana", to="小明"),
        f"prefect-plan-adapter approval\ndigest: {'d' * 64}\ndecision: take_back\nresult: {digest_of(ENDED)}\nrun: r-1\ngate: g-1\n",
    ),
    "an operator request": (
        replace(REQUEST, gate_id=None, operator_request="skip"),
        Answer("approve", "ana", note="为什么"),
        f"prefect-plan-adapter operator request\ndigest: {'d' * 64}\nrequest: skip\nbecause: {digest_of('为什么')}\nrun: r-1\n",
    ),
}


@pytest.mark.parametrize(("request_", "answer", "text"), SIGNED.values(), ids=SIGNED)
def test_a_signature_binds_the_answer_to_its_gate(request_: ApprovalRequest, answer: Answer, text: str) -> None:
    assert text_to_sign(answer, request_) == text


@pytest.mark.parametrize("request_", [replace(REQUEST, run_id=None), replace(REQUEST, gate_id=None)])
def test_an_answer_outside_a_gate_cannot_be_signed(request_: ApprovalRequest) -> None:
    with pytest.raises(NotApprovedError, match=r"^only an answer at a gate of a run can be signed$"):
        text_to_sign(Answer("approve", "ana"), request_)


def test_an_answer_to_a_question_has_its_fields() -> None:
    question = replace(REQUEST, kind="question", fields=FIELDS)
    assert approval.read_answer(question, {"n": 4}) == {"n": 4, "why": "没有"}
    with pytest.raises(InvalidAnswerError, match=r"^this gate asks a question: answer with its fields `n`, `why`$"):
        approval.read_answer(question, None)
    with pytest.raises(InvalidAnswerError, match=r'^`n`: the value `"4"` is text, not an integer; `m`: the question has no field `m`$'):
        approval.read_answer(question, {"n": "4", "m": 1})


def test_a_resolution_is_no_decision() -> None:
    decisions: list[Any] = ["approve", "reject", "request_changes"]
    assert [approval.decision_of(Answer(decision, "ana")) for decision in decisions] == decisions
    with pytest.raises(InvalidAnswerError, match=r"^`done` records how a call ended; it cannot approve or reject anything$"):
        approval.decision_of(Answer("done", "ana"))


def noted(text: str) -> str:
    """Note it."""
    return text


BOUND = bind_inputs(
    validate(a_plan(steps=[Step(id="a", description="d", tool_name="noted", parameters={"text": "x"})]), ToolRegistry([noted])), {}
)


def test_an_approval_covers_the_content_that_it_names_until_it_expires() -> None:
    given = approval.approval_not_required(BOUND, now=NOW)
    assert (given.approval_digest, given.decision, given.known_by, given.at) == (BOUND.approval_digest, "approve", "not_required", NOW)
    assert given.by == AUTHOR
    assert given.id != approval.approval_not_required(BOUND, now=NOW).id
    lasting = replace(given, expires_at=NOW + timedelta(microseconds=1))
    for valid in (given, lasting):
        assert approval.approved_plan(BOUND, valid, now=NOW) == approval.ApprovedPlan(BOUND, valid)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (
            {"approval_digest": "e" * 64},
            ContentChangedError,
            "the approval by ana covers other content: it names the digest eeeeeeeeeeee…, and this plan with these inputs and tools has "
            f"{BOUND.approval_digest[:12]}…; approve it as it is now",
        ),
        ({"decision": "reject"}, NotApprovedError, "`发布` was rejected by ana"),
        ({"decision": "request_changes", "note": "太早"}, NotApprovedError, "`发布` was rejected by ana: 太早"),
        ({"expires_at": NOW}, NotApprovedError, "the approval by ana expired at 2026-06-01T00:00:00+00:00"),
    ],
)
def test_an_approval_that_covers_nothing_says_why(fields: Any, error: type[Exception], message: str) -> None:
    given = replace(approval.approval_not_required(BOUND, now=NOW), by="ana", **fields)
    with pytest.raises(error) as refused:
        approval.approved_plan(BOUND, given, now=NOW)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("options", "allow_unapproved", "is_required"),
    [
        ({}, True, True),
        ({"require_approval": False}, True, False),
        ({"auto_approve": True}, True, False),
        ({"require_approval": False}, False, True),
        ({"auto_approve": True}, False, True),
    ],
)
def test_the_policy_can_demand_an_approval_that_the_plan_does_not(options: Any, allow_unapproved: bool, is_required: bool) -> None:
    plan = a_plan(options=ExecutionOptions(**options))
    assert approval.requires_approval(plan, EffectivePolicy(allow_unapproved=allow_unapproved)) is is_required


def test_steps_with_an_effect_that_the_policy_names_wait_at_a_gate() -> None:
    @tool(effect="read")
    def look(text: str) -> str:
        """Look at it."""
        return text

    steps = [
        Step(id=name, description="d", tool_name=name_of_tool, parameters={"text": "x"}, requires_approval=is_gated)
        for name, name_of_tool, is_gated in (("look", "look", False), ("put", "noted", False), ("ask", "look", True))
    ]
    validated = validate(a_plan(steps=steps), ToolRegistry([noted, look]))
    assert approval.gated_steps(validated, EffectivePolicy()) == ["ask"]
    assert approval.gated_steps(validated, EffectivePolicy(gate_effects=("write",))) == ["put", "ask"]
    assert approval.needs_gate(steps[1], validated, EffectivePolicy(gate_effects=("write",)))
    assert not approval.needs_gate(steps[1], validated, EffectivePolicy())


def test_an_account_without_a_name_is_known_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_number: int) -> Any:
        raise KeyError

    assert approval.os_user() == pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setattr(pwd, "getpwuid", missing)
    assert approval.os_user() == str(os.getuid())


@pytest.mark.parametrize("says", [approval.approves_in_advance, approval.asks_again])
def test_an_approver_that_does_not_say_is_asked_once_and_about_what_exists(says: Callable[[Any], bool]) -> None:
    class Saying:
        approves_in_advance = asks_again = True

    assert (says(object()), says(Saying())) == (False, True)


def test_the_largest_quorum_counts_at_gates_that_approve() -> None:
    plan, policy = a_plan(ApprovalPolicy(approvers=["ana", "bo", "cy"], quorum=2)), effective_policy(Settings())
    larger = effective_policy(Settings(), Policy(quorum=3), number=1)
    assert gate_policy_of(plan, policy, requested_by="di").quorum == 2
    assert gate_policy_of(plan, larger, requested_by="di").quorum == 3
    assert gate_policy_of(a_plan(), policy, requested_by="di").quorum == 1
    for kind in ("question", "outcome"):
        assert gate_policy_of(plan, larger, requested_by="di", kind=kind).quorum == 1


def test_an_open_gate_asks_for_the_quorum_of_now_if_that_is_larger() -> None:
    plan, larger = a_plan(ApprovalPolicy(approvers=["ana", "bo", "cy"])), effective_policy(Settings(), Policy(quorum=2), number=1)
    opened = gate_policy_of(plan, effective_policy(Settings()), requested_by="di")
    assert with_current_policy(opened, plan, larger, step_id=None).quorum == 2
    assert with_current_policy(opened, plan, larger, step_id=None, kind="question").quorum == 1
    assert with_current_policy(replace(opened, quorum=3), plan, larger, step_id=None).quorum == 3
    assert strictest(opened, replace(opened, quorum=2)).quorum == strictest(replace(opened, quorum=2), opened).quorum == 2


def test_without_named_approvers_nobody_approves_at_a_gate_with_a_quorum() -> None:
    ana = recorded_identity(replace(approval.approval_not_required(BOUND, now=NOW), by="ana", known_by="totp"))
    two = GatePolicy(quorum=2)
    expected = "2 different people must approve, and no approvers are named, so one person could type several names"
    assert refusal(two, ana, decision="approve") == expected
    assert refusal(two, ana, decision="reject") is None
    assert refusal(replace(two, quorum=1), ana, decision="approve") is None
    assert refusal(replace(two, approvers=("ana", "bo")), ana, decision="approve") is None
