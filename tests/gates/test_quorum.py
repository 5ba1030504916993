"""Tests of gates that need several approvers: who counts, what voids an approval, and every way in which an approval is given."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanStore, approve
from plan_adapter.cli.asking import YesApprover
from plan_adapter.errors import ApprovalRequiredError, NotApprovedError, RunConflictError
from plan_adapter.execution.history import ResumeOptions
from plan_adapter.gates.approval import text_to_sign
from plan_adapter.gates.approvers import CallbackApprover
from plan_adapter.gates.coverage import standing_digest
from plan_adapter.gates.gate import closing_message, request_of
from plan_adapter.gates.policy import Policy
from plan_adapter.gates.signatures import sign, verify_signature
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Agreement, Answer, Approval, Gate, GatePolicy, people_in, person_of
from plan_adapter.model.hooks import Event
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.status import RunReason
from plan_adapter.runs import Hooks, arevise_run, arollback_run
from plan_adapter.runs.answers import GateAnswers
from plan_adapter.runs.operator_requests import record_operator_request
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus
from plan_adapter.store.policies import NewPolicy
from plan_adapter.store.proof.signed import signed_statements
from tests.gates.questions import plan_with_question
from tests.gates.test_attacks import standing
from tests.gates.test_starts import SCHEDULE
from tests.gates.unknown_outcome import UnknownOutcomeWorld
from tests.gates.world import FixedApprover, FormAnswers, World, another
from tests.store.conftest import on_both_databases

PEOPLE = ["ana", "ben", "chi"]
TWO = ApprovalPolicy(approvers=PEOPLE, quorum=2)


def a_plan(world: World, *, gated: bool = False, policy: ApprovalPolicy = TWO, **options: Any) -> ExecutionPlan:
    return world.plan(gated=gated, policy=policy, **options)


async def waiting(world: World, plan: ExecutionPlan | None = None) -> tuple[str, Gate]:
    run, gate = await world.detached(plan or a_plan(world))
    return run.id, gate


async def resumed(world: World, run_id: str, **given: Any) -> PlanStatus:
    run = await world.resume(run_id, **given)
    return run.status


async def rows(world: World, run_id: str) -> list[tuple[str, str]]:
    exported = await world.store.export(run_id)
    return [(row["decision"], row["by"]) for row in exported["approvals"]]


async def test_two_people_let_a_run_continue(world: World) -> None:
    run_id, gate = await waiting(world)
    first = await world.answer(gate, by="ana")
    assert (first.end, [row.by for row in first.agreements]) == (None, ["ana"])
    assert await rows(world, run_id) == [("agree", "ana")]
    with pytest.raises(ApprovalRequiredError):
        await world.resume(run_id)
    assert world.struck == []
    closed = await world.answer(gate, by="chi")
    assert closed.end == "answered"
    assert await rows(world, run_id) == [("agree", "ana"), ("approve", "chi")]
    run = await world.resume(run_id)
    assert (run.status, run.approved_by, world.struck) == (PlanStatus.COMPLETED, "ana and chi", ["a"])
    assert (await world.store.verify(run_id)).ok


async def test_a_closed_gate_says_what_each_person_wrote(world: World) -> None:
    _, gate = await waiting(world)
    await world.answer(gate, by="ana", note="went through")
    closed = await world.answer(gate, by="chi", note="go")
    answer = await world.store.gates.answer_to(gate.id)
    assert answer is not None and answer.agreements
    assert closing_message(closed, answer, None) == "approved by ana (os_user) and chi (os_user): ana: went through; chi: go"
    assert replace(answer, agreements=()).notes == "go"


async def test_three_of_three_and_a_late_fourth(world: World) -> None:
    policy = ApprovalPolicy(approvers=[*PEOPLE, "dan"], quorum=3)
    _, gate = await waiting(world, a_plan(world, policy=policy))
    for by in PEOPLE:
        gate = await world.answer(gate, by=by)
    assert gate.end == "answered"
    with pytest.raises(RunConflictError, match="chi answered"):
        await world.answer(gate, by="dan")


@pytest.mark.parametrize("again", ["ana", "Ana", "ＡＮＡ"])
async def test_one_person_counts_once_whatever_the_form_of_the_name(world: World, again: str) -> None:
    policy = ApprovalPolicy(approvers=[*PEOPLE, "Ana", "ＡＮＡ"], quorum=2)
    run_id, gate = await waiting(world, a_plan(world, policy=policy))
    await world.answer(gate, by="ana")
    with pytest.raises(NotApprovedError) as refused:
        await world.answer(gate, by=again, known_by="totp")
    assert str(refused.value) == f"{again} has already approved; 1 more approval needed, by ben or chi"
    assert await rows(world, run_id) == [("agree", "ana")]


def test_two_forms_of_a_name_are_one_person() -> None:
    assert people_in(["ana", "Ana", "ben", "ＡＮＡ"]) == ["ana", "ben"]
    assert person_of("ﬁ") == person_of("FI")
    assert person_of("安娜") != person_of("安")


async def test_nobody_else_counts(world: World) -> None:
    run_id, gate = await waiting(world)
    await world.answer(gate, by="ana")
    with pytest.raises(NotApprovedError, match="zoe may not answer here; only ana, ben, chi may"):
        await world.answer(gate, by="zoe")
    assert await rows(world, run_id) == [("agree", "ana")]


@pytest.mark.parametrize("decision", ["reject", "request_changes"])
async def test_a_person_takes_an_approval_back(world: World, decision: Any) -> None:
    run_id, gate = await waiting(world)
    await world.answer(gate, by="ana")
    closed = await world.answer(gate, decision, by="ana")
    assert closed.end == "answered"
    with pytest.raises(RunConflictError):
        await world.answer(gate, by="ben")
    with suppress(NotApprovedError):
        await world.resume(run_id)
    assert world.struck == []


async def test_changes_void_what_was_given(world: World) -> None:
    run_id, gate = await waiting(world)
    await world.answer(gate, by="ana")
    await world.answer(gate, "request_changes", by="ben")
    with pytest.raises(NotApprovedError):
        await world.resume(run_id, approver=FixedApprover(by="zoe"))
    again = await world.gate()
    assert (again.id == gate.id, again.agreements) == (False, ())


async def test_another_version_voids_what_was_given(world: World) -> None:
    run_id, gate = await waiting(world)
    await world.answer(gate, by="ana")
    changed = a_plan(world)
    changed.steps[1].description = "Strike it hard"
    await arevise_run(run_id, changed, tools=world.tools(), store=world.store, by="chi")
    with suppress(NotApprovedError):
        await world.resume(run_id, approver=FixedApprover(by="zoe"))
    new = await world.gate()
    assert new.id != gate.id
    assert (await world.answer(new, by="ben")).end is None
    # and back to the first version: its old gate stays closed
    await arevise_run(run_id, a_plan(world), tools=world.tools(), store=world.store, by="chi")
    with suppress(NotApprovedError):
        await world.resume(run_id, approver=FixedApprover(by="zoe"))
    back = await world.gate()
    assert back.approval_digest == gate.approval_digest
    assert (await world.answer(back, by="ben")).end is None, "ana approved at the gate that was replaced"
    assert world.struck == []


async def test_an_expired_gate_voids_what_was_given(world: World) -> None:
    plan = world.plan(gated=True, policy=ApprovalPolicy(approvers=PEOPLE, quorum=2), timeout_ms=3_600_000)
    task = world.start(plan)
    gate = await world.gate(step="strike")
    await world.answer(gate, by="ana")
    await world.sql("UPDATE gates SET expires_at = opened_at WHERE id = :id", id=gate.id)
    with pytest.raises(RunConflictError, match="nobody answered until"):
        await world.answer(gate, by="ben")
    run = await task
    assert run.reason is RunReason.EXPIRED
    again = asyncio.ensure_future(world.resume(run.id, approver=FixedApprover(by="ben")))
    world.tasks.append(again)
    new = await world.gate(step="strike")
    while not (new := await world.store.gates.get(new.id)).agreements:
        await world.store.changed(0.5)
    assert ([row.by for row in new.agreements], world.struck) == (["ben"], [])
    await world.answer(new, by="chi")
    assert (await again).status is PlanStatus.COMPLETED


WAITING_PROCESS = """
import asyncio, pathlib, sys
from plan_adapter import PlanStore
from tests.gates.test_quorum import a_plan
from tests.gates.world import World

async def main(url):
    async with PlanStore(url) as store:
        world = World(store, url, pathlib.Path())
        await world.start(a_plan(world))

asyncio.run(main(sys.argv[1]))
"""


async def test_a_killed_run_keeps_what_was_given(world: World) -> None:
    process = subprocess.Popen([sys.executable, "-c", WAITING_PROCESS, world.url])
    try:
        gate = await world.gate()
        await world.answer(gate, by="ana")
    finally:
        process.kill()
        process.wait()
    run = await world.resume(gate.run_id, approver=FixedApprover(by="ben"))
    assert (run.status, run.approved_by, world.struck) == (PlanStatus.COMPLETED, "ana and ben", ["a"])
    assert (await world.store.gates.get(gate.id)).openings == 2


async def test_each_gate_of_a_step_needs_the_quorum(world: World) -> None:
    task = world.start(a_plan(world, gated=True))
    gate = await world.gate(step="strike")
    assert "**Needs 2 approvals by different people.**" in (await world.store.gates.get(gate.id)).text
    await world.answer(gate, by="ana")
    assert world.struck == []
    await world.answer(gate, by="ben")
    assert ((await task).status, world.struck) == (PlanStatus.COMPLETED, ["a"])


async def test_one_person_says_how_an_outcome_ended(store_url: str) -> None:
    async with PlanStore(store_url) as store:
        world = UnknownOutcomeWorld(store, store_url)
        world.start_with_form(FormAnswers(()), world.plan(policy=ApprovalPolicy(approvers=PEOPLE, quorum=2)))
        gate = await world.gate()
        assert (gate.kind, gate.gate_policy) == ("outcome", GatePolicy(approvers=tuple(PEOPLE), requested_by="runner"))
        await world.close()


async def test_each_item_needs_the_quorum(world: World) -> None:
    plan = a_plan(world, gated=True)
    plan.steps[1].for_each = "${{ ['a', 'b'] }}"
    plan.steps[1].parameters = {"target": "${{ item }}"}
    task = world.start(plan)
    gates = [await world.gate(step="strike", count=1)]
    first = gates[0]
    await world.answer(first, by="ana")
    await world.answer(first, by="ben")
    while True:
        open_gates = [gate for gate in await world.store.gates.find() if gate.item != first.item]
        if open_gates:
            break
        await world.store.changed(0.5)
    (second,) = open_gates
    await world.answer(second, by="ana")
    assert "b" not in world.struck
    await world.answer(second, by="chi")
    assert ((await task).status, sorted(world.struck)) == (PlanStatus.COMPLETED, ["a", "b"])


@on_both_databases
async def test_two_people_at_once_both_count(world: World) -> None:
    run_id, gate = await waiting(world)
    await asyncio.gather(world.answer(gate, by="ana"), world.answer(gate, by="ben"))
    assert sorted(decision for decision, _ in await rows(world, run_id)) == ["agree", "approve"]
    assert (await resumed(world, run_id), world.struck) == (PlanStatus.COMPLETED, ["a"])


@on_both_databases
async def test_one_person_at_once_counts_once(world: World) -> None:
    run_id, gate = await waiting(world)
    answers = await asyncio.gather(*(world.answer(gate, by="ana") for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(answer, NotApprovedError) for answer in answers) == 4
    assert await rows(world, run_id) == [("agree", "ana")]


# What demands a quorum


@pytest.mark.parametrize(
    ("plan", "policy", "setting", "expected"),
    [(2, 1, 1, 2), (1, 2, 1, 2), (1, 1, 2, 2), (2, 3, 1, 3), (3, 2, 1, 3), (2, 1, 3, 3), (1, 1, 1, 1)],
)
async def test_the_strictest_quorum_applies(world: World, plan: int, policy: int, setting: int, expected: int) -> None:
    await world.store.policy.set(NewPolicy(Policy(quorum=policy), 1, "ana", "os_user"))
    world.settings = Settings(quorum=setting)
    _, gate = await waiting(world, a_plan(world, policy=ApprovalPolicy(approvers=PEOPLE, quorum=plan)))
    assert gate.gate_policy.quorum == expected
    for by in PEOPLE[: expected - 1]:
        assert (await world.answer(gate, by=by)).end is None
    assert (await world.answer(gate, by=PEOPLE[expected - 1])).end == "answered"


async def test_a_quorum_turns_no_approval_on(world: World) -> None:
    plan = a_plan(world)
    plan.options.require_approval = False
    run = await world.start(plan)
    assert (run.status, world.struck) == (PlanStatus.COMPLETED, ["a"])


@pytest.mark.parametrize(
    ("policy", "settings", "why"),
    [
        (ApprovalPolicy(approvers=["ana"], quorum=2), {}, "2 different people must approve, and only ana may"),
        (ApprovalPolicy(approvers=["ana", "Ana"], quorum=2), {}, "2 different people must approve, and only ana may"),
        (ApprovalPolicy(approvers=["sre"], quorum=3), {"groups": {"sre": ["ana", "ben"]}}, "only ana and ben may"),
        (ApprovalPolicy(), {"quorum": 2}, "no approvers are named"),
        (ApprovalPolicy(approvers=["ana", "runner"], quorum=2, self_approval=False), {}, "only ana may"),
        (ApprovalPolicy(approvers=PEOPLE, quorum=2), {"approvers": ("ana",)}, "only ana may"),
    ],
    ids=["one name", "two forms", "group", "nobody named", "requester", "settings"],
)
@pytest.mark.parametrize("gated", [False, True])
async def test_a_run_does_not_start_if_too_few_people_may_approve(
    world: World, policy: ApprovalPolicy, settings: dict[str, Any], why: str, gated: bool
) -> None:
    world.settings = Settings(**settings)
    with pytest.raises(NotApprovedError, match=why):
        await world.start(world.plan(policy=policy, gated=gated))
    assert await world.store.runs() == []


async def test_a_group_counts_as_its_members(world: World) -> None:
    world.settings = Settings(groups={"sre": ["ana", "ben"]})
    _, gate = await waiting(world, a_plan(world, policy=ApprovalPolicy(approvers=["sre"], quorum=2)))
    await world.answer(gate, by="ana")
    assert (await world.answer(gate, by="ben")).end == "answered"


async def test_typed_names_never_meet_a_quorum(world: World) -> None:
    _, gate = await waiting(world)
    await world.sql('UPDATE gates SET rules = replace(rules, \'["ana", "ben", "chi"]\', \'null\')')
    gate = await world.store.gates.get(gate.id)
    assert gate.gate_policy.approvers is None
    for by in ("x", "y"):
        with pytest.raises(NotApprovedError, match="no approvers are named"):
            await world.answer(gate, by=by)


async def test_one_person_answers_a_question(world: World) -> None:
    plan = plan_with_question()
    plan.approval = TWO
    task = world.start(plan)
    gate = await world.gate(step="decide")
    assert (gate.kind, gate.gate_policy.quorum) == ("question", 1)
    await world.end(task)


# Every way in which an approval is given


async def test_a_program_gives_one_approval(world: World) -> None:
    run = await world.start(a_plan(world), approver=CallbackApprover(lambda _: True, by="ana"))
    assert (run.status, run.approved_by, world.struck) == (PlanStatus.PENDING_APPROVAL, None, [])
    assert await rows(world, run.id) == [("agree", "ana")]
    with pytest.raises(NotApprovedError, match="ana has already approved; 1 more approval needed, by ben or chi"):
        await world.resume(run.id, approver=CallbackApprover(lambda _: True, by="ana"))
    run = await world.resume(run.id, approver=CallbackApprover(lambda _: True, by="ben"))
    assert (run.status, run.approved_by, world.struck) == (PlanStatus.COMPLETED, "ana and ben", ["a"])


async def test_a_program_gives_one_approval_of_a_step_and_the_run_waits(world: World) -> None:
    task = world.start(a_plan(world, gated=True), approver=CallbackApprover(lambda _: True, by="ana"))
    gate = await world.gate(step="strike")
    while not (await world.store.gates.get(gate.id)).agreements:
        await world.store.changed(0.5)
    assert (task.done(), world.struck) == (False, [])
    await world.answer(gate, by="ben")
    assert ((await task).status, world.struck) == (PlanStatus.COMPLETED, ["a"])


async def test_yes_gives_one_approval(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plan_adapter.gates.identity.os_user", lambda: "ana")
    monkeypatch.setattr("plan_adapter.cli.asking.os_user", lambda: "ana")
    run = await world.start(a_plan(world), approver=YesApprover())
    assert (run.status, world.struck, await rows(world, run.id)) == (PlanStatus.PENDING_APPROVAL, [], [("agree", "ana")])


async def test_a_form_asks_again_after_an_approval(world: World) -> None:
    form = FormAnswers(tuple(Answer("approve", by, channel="form") for by in ("ana", "ana", "ben")))
    events = list[Event]()
    task = world.start_with_form(a_plan(world), form)
    assert (await task).status is PlanStatus.COMPLETED
    assert form.replies == [None, "ana has already approved; 1 more approval needed, by ben or chi", None]
    assert ((await task).approved_by, world.struck, events) == ("ana and ben", ["a"], [])


async def test_an_approval_given_in_advance_is_refused(world: World) -> None:
    given = approve(a_plan(world), tools=world.tools(), by="ana")
    with pytest.raises(
        NotApprovedError, match="2 different people must approve, each at the gate; the approval that ana gave before is by"
    ):
        await world.start(a_plan(world), approval=given)
    assert world.struck == []


async def test_an_approval_waiting_in_the_store_is_no_quorum(world: World) -> None:
    for by in PEOPLE:
        await world.store.add_approval(approve(a_plan(world), tools=world.tools(), by=by))
    run_id, gate = await waiting(world)
    assert (gate.end, gate.agreements, world.struck) == (None, (), [])
    with pytest.raises(ApprovalRequiredError):
        await world.resume(run_id)


async def test_a_standing_approval_is_no_quorum(world: World) -> None:
    given = await standing(world)
    bound = world.bound(a_plan(world))
    await world.store.standing.add(replace(given, runbook_digest=standing_digest(bound.validated), by="ana"))
    run_request = replace(world.run_request(), schedule=SCHEDULE)
    run = await execute_plan(bound, run_request=run_request, store=world.store, offline=True, record_pending=True)
    assert (run.status, world.struck) == (PlanStatus.PENDING_APPROVAL, [])
    assert await rows(world, run.id) == []


async def left_at_the_gate_of_a_step(world: World) -> Gate:
    task = world.start(a_plan(world, gated=True))
    gate = await world.gate(step="strike")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return gate


async def test_one_person_cannot_skip_a_step(world: World) -> None:
    gate = await left_at_the_gate_of_a_step(world)
    refused = "the step is not skipped: 2 different people must approve, each at the gate; this request is by one person"
    options, run_request = ResumeOptions(skipped={"strike": "not today"}), world.run_request(requested_by="ana")
    with pytest.raises(NotApprovedError, match=refused):
        await execute_resume(gate.run_id, tools=world.tools(), run_request=run_request, store=world.store, offline=True, options=options)
    assert [entry.kind for entry in await world.store.audit(gate.run_id)][-1] == "refused"


async def test_one_person_cannot_roll_back_steps_with_gates(world: World) -> None:
    gate = await left_at_the_gate_of_a_step(world)
    with pytest.raises(NotApprovedError, match="the run is not rolled back: 2 different people must approve"):
        await arollback_run(gate.run_id, tools=world.tools(), store=world.store, offline=True, by="ana")


async def test_one_person_cannot_run_a_skipped_step(world: World) -> None:
    gate = await left_at_the_gate_of_a_step(world)
    run, request = await world.store.run(gate.run_id), world.run_request(requested_by="ana")
    with pytest.raises(NotApprovedError, match="the skipped step does not run: 2 different people must approve"):
        await record_operator_request("run_from", ["strike"], "", run, await world.store.get(run.digest), world.store, request)


def test_a_plan_around_another_meets_its_quorum_only_with_as_many_people() -> None:
    one, three = ApprovalPolicy(approvers=PEOPLE), ApprovalPolicy(approvers=PEOPLE, quorum=3)
    assert (TWO.is_met_by(one), TWO.is_met_by(TWO), TWO.is_met_by(three)) == (False, True, True)


async def test_a_one_time_code_is_not_used_up_by_a_second_approval(world: World) -> None:
    run, gate = await world.detached(a_plan(world))
    await world.answer(gate, by="ana")
    answers, gate = GateAnswers(world.store, world.settings), await world.store.gates.get(gate.id)
    with pytest.raises(NotApprovedError, match="ana has already approved"):
        await answers.close(gate, Answer("approve", "ana", code="000000"), request_of(gate))
    with pytest.raises(NotApprovedError, match="code"):
        await answers.close(gate, Answer("approve", "ben", code="000000"), request_of(gate))
    assert await rows(world, run.id) == [("agree", "ana")]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
async def test_signed_approvals_are_checked_again(world: World) -> None:
    signers = list[str]()
    for name in ("ana", "ben"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(world.folder / name)], check=True)
        signers.append(f"{name} {(world.folder / name).with_suffix('.pub').read_text()}")
    (world.folder / "signers").write_text("".join(signers), encoding="utf-8")
    world.settings = Settings(allowed_signers=world.folder / "signers")
    policy = ApprovalPolicy(approvers=["ana", "ben"], quorum=2, known_by=["ssh_signature"])
    run_id, gate = await waiting(world, a_plan(world, policy=policy))
    answers = GateAnswers(world.store, world.settings)
    for name in ("ana", "ben"):
        answer, request = Answer("approve", name), request_of(gate)
        signed = replace(answer, signature=sign(text_to_sign(answer, request), key=world.folder / name))
        gate = await answers.close(gate, signed, request)
    exported = await world.store.export(run_id)
    statements = [statement for statement in signed_statements(exported) if statement.table == "approvals"]
    assert [statement.by for statement in statements] == ["ana", "ben"]
    for statement in statements:
        verify_signature(statement.text, statement.signature or "", allowed=world.folder / "signers", by=statement.by)
    (world.folder / "signers").write_text(signers[1], encoding="utf-8")  # ana's key was taken back
    with pytest.raises(NotApprovedError, match="2 different people must approve, and only ben did"):
        await world.resume(run_id)
    assert world.struck == []


async def test_an_agreement_is_no_answer_that_a_program_may_record(world: World) -> None:
    run_id, gate = await waiting(world)
    with pytest.raises(RunConflictError, match="`agree` is no answer"):
        await world.store.add_approval(another(world.approval(gate), gate_id=None, decision="agree"))  # type: ignore[arg-type]
    assert await rows(world, run_id) == []


# The policy of today


async def test_an_approval_by_somebody_who_may_no_longer_approve_does_not_count(world: World) -> None:
    await world.store.policy.set(NewPolicy(Policy(groups={"sre": PEOPLE}), 1, "ana", "os_user"))
    plan = a_plan(world, policy=ApprovalPolicy(approvers=["sre"], quorum=2))
    run_id, gate = await waiting(world, plan)
    await world.answer(gate, by="ana")
    await world.store.policy.set(NewPolicy(Policy(groups={"sre": ["ben", "chi"]}), 2, "ana", "os_user"))
    ben = asyncio.ensure_future(world.resume(run_id, approver=FixedApprover(by="ben", known_by="unverified")))
    assert ((await ben).status, world.struck) == (PlanStatus.PENDING_APPROVAL, [])
    run = await world.resume(run_id, approver=FixedApprover(by="chi", known_by="unverified"))
    assert (run.status, world.struck) == (PlanStatus.COMPLETED, ["a"])


async def test_a_larger_quorum_makes_an_approval_stale(world: World) -> None:
    run_id, gate = await waiting(world)
    await world.answer(gate, by="ana")
    await world.answer(gate, by="ben")
    world.settings = Settings(quorum=3)
    with pytest.raises(NotApprovedError, match="3 different people must approve, and only ana and ben did"):
        await world.resume(run_id)
    assert world.struck == []


# The transaction of the intent, and the audit


async def approved_by_two(world: World) -> tuple[str, Gate]:
    run_id, gate = await waiting(world)
    await world.answer(gate, by="ana")
    await world.answer(gate, by="ben")
    return run_id, gate


Tampering = Callable[[World], Any]

TAMPERED: dict[str, str] = {
    "an approval is removed": "DELETE FROM approvals WHERE decision = 'agree'",
    "it is by the same person": "UPDATE approvals SET by = 'Ben' WHERE decision = 'agree'",
    "it is of other content": "UPDATE approvals SET approval_digest = 'x' WHERE decision = 'agree'",
    "it is at another gate": "UPDATE approvals SET result = '{\"gate\":\"x\"}' WHERE decision = 'agree'",
}


@pytest.mark.parametrize("statement", TAMPERED.values(), ids=TAMPERED)
async def test_a_removed_approval_stops_the_next_call_and_is_found(world: World, statement: str) -> None:
    async def tamper(*_: Any) -> None:
        await world.sql(statement)

    run_id, _ = await approved_by_two(world)
    run = await world.resume(run_id, hooks=Hooks(on_step_complete=tamper))
    assert (run.status, world.struck) == (PlanStatus.PARTIAL, [])
    assert "only ben did" in str(run.step("strike").error or run.message).casefold()
    assert not (await world.store.verify(run_id)).ok


async def test_a_removed_approval_of_a_step_stops_its_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    task = world.start(a_plan(world, gated=True))
    gate = await world.gate(step="strike")
    await world.answer(gate, by="ana")

    from plan_adapter.runs import step_gates

    async def never_stale(*_: Any) -> None:
        await world.sql("DELETE FROM approvals WHERE decision = 'agree'")

    monkeypatch.setattr(step_gates, "why_stale", never_stale)
    await world.answer(gate, by="ben")
    run = await task
    assert (run.status, world.struck) == (PlanStatus.PARTIAL, [])
    assert "2 different people must approve, and only ben did" in str(run.step("strike").error or run.message)


async def test_the_audit_names_everybody(world: World) -> None:
    run_id, _ = await approved_by_two(world)
    await world.resume(run_id)
    kinds = [(entry.kind, entry.by) for entry in await world.store.audit(run_id) if entry.kind in ("agreed", "gate_answered")]
    assert kinds == [("agreed", "ana"), ("gate_answered", "ben")]


def test_old_records_of_policies_do_not_change() -> None:
    from plan_adapter.store.database.rows import gate_policy_in, gate_policy_text

    assert "quorum" not in gate_policy_text(GatePolicy())
    assert gate_policy_in(gate_policy_text(GatePolicy(quorum=2))) == GatePolicy(quorum=2)
    assert gate_policy_in(gate_policy_text(GatePolicy())) == GatePolicy()


def test_an_approval_lists_its_people() -> None:
    from datetime import UTC, datetime

    at = datetime.now(UTC)
    given = Approval("a", "d", "approve", "ben", "totp", at, agreements=(Agreement("b", "g", "d", "ana", "form", at),))
    assert (given.people, given.givers) == (["ana", "ben"], "ana (form) and ben (totp)")
