"""State machine test of the gate: any sequence of questions, answers, new versions, expiries and starts allows only what was approved.

Several people answer for two runs of the same plan, on a real store. `gate_model` knows what must come out of each call.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from sqlalchemy import false, true

from plan_adapter.gates.approval import policy_in_force, why_not_taken_back
from plan_adapter.model.approvals import Decision, GatePolicy
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus
from plan_adapter.store.recorder import StoreRecorder
from tests.gates.gate_model import APPROVERS, ESCALATES_AFTER, ESCALATES_TO, GateModel, ModelApproval, ModelGate, person
from tests.store.builders import a_delegation, a_gate, a_plan, an_answer, an_approval, an_attempt, created, validated
from tests.store.machine import StoreMachine, explore, require_events

FREE, GATED = "check", "restart"
CALLS = ("b" * 64, "c" * 64)
"""The two contents that the gated call may have."""

RUNS = st.sampled_from((0, 0, 1))
NUMBERS = st.integers(0, 99)
PEOPLE = st.sampled_from(("ana", "bo", "安娜"))
NAMES = st.sampled_from((*APPROVERS, "zoe", ESCALATES_TO))
OTHERS = st.sampled_from(("zoe", "bo", "chi", "Ana"))
PROOFS = st.sampled_from(("totp", "form"))
QUORUMS = st.sampled_from((1, 1, 2, 3))
DECISIONS = st.sampled_from(("approve", "approve", "approve", "reject", "request_changes"))
MOSTLY = st.sampled_from((True, True, True, False))
SECONDS = st.sampled_from((None, None, 60))
"""How long a gate waits, or an approval is valid; None: without a limit."""


def content_of(version: int) -> str:
    return f"{version:064x}"


class GateMachine(StoreMachine):
    """Two runs, their gates and the approvals of both, in the store and in the model."""

    def __init__(self, empty_store: Path) -> None:
        super().__init__(empty_store)
        self.store, self.model, self.attempts = self.open_store(), GateModel(), 0
        self.ids = list[str]()
        self.recorders = dict[str, StoreRecorder]()
        self.approved = dict[str, set[str]]()  # by gate, who has approved there, as far as the store accepted it
        self.gate_of = dict[str, str]()  # by approval
        for _ in range(2):
            run = self.do(created(self.store, a_plan("version 0"), approval_digest=content_of(0)))
            self.ids.append(run.id)
            self.model.contents[run.id] = content_of(0)
            self.begin(run)

    def begin(self, run: PlanRun) -> None:
        run.status, run.reason = PlanStatus.EXECUTING, None
        self.do(self.store.ledger.claim(run))
        self.recorders[run.id] = self.do(self.store.ledger.recorder(run))
        self.model.starts[run.id] += 1

    @rule(seconds=st.sampled_from((10, 30, 60)))
    def wait(self, seconds: int) -> None:
        self.time += timedelta(seconds=seconds)
        self.model.now += seconds

    @rule(run=RUNS, call=st.sampled_from((None, *CALLS)), seconds=SECONDS, quorum=QUORUMS)
    def open(self, run: int, call: str | None, seconds: int | None, quorum: int = 1) -> None:
        run_id, step = self.ids[run], None if call is None else GATED
        content = call or self.model.contents[run_id]
        policy = GatePolicy(approvers=tuple(APPROVERS), quorum=quorum, delegate=True)
        policy = replace(policy, escalate_after_ms=ESCALATES_AFTER * 1000, escalate_to=(ESCALATES_TO,))
        asked = a_gate(self.do(self.store.run(run_id)), step, approval_digest=content, gate_policy=policy)
        opened = self.do(self.store.gates.open(asked, timeout_ms=(seconds or 0) * 1000))
        deadline = None if seconds is None else self.model.now + seconds
        assert opened.id == self.model.open(asked.id, ModelGate(run_id, step, content, deadline, quorum=quorum, opened=self.model.now))

    @precondition(lambda self: self.model.gates)
    @rule(number=NUMBERS, newest=MOSTLY, decision=DECISIONS, by=NAMES, seconds=SECONDS, same=MOSTLY, proof=PROOFS)
    def answer(self, number: int, newest: bool, decision: Decision, by: str, seconds: int | None, same: bool, proof: str = "totp") -> None:
        gate = self.do(self.store.gates.get(self.pick(self.model.gates, number, newest)))
        content = gate.approval_digest if same else content_of(number % 3)
        given = an_answer(gate, approval_digest=content, decision=decision, by=by, known_by=proof, expires_at=self.after(seconds))
        expected = self.model.answer(gate.id, given.id, content, decision, by, self.model_after(seconds))
        self.compare("answer", self.store.gates.answer(gate.id, given), expected)
        if expected is None and decision == "approve":
            self.approved.setdefault(gate.id, set()).add(person(by))
            self.gate_of[given.id] = gate.id

    @precondition(lambda self: self.model.gates)
    @rule(number=NUMBERS, newest=MOSTLY, by=NAMES, to=OTHERS)
    def delegate(self, number: int, newest: bool, by: str, to: str) -> None:
        gate = self.do(self.store.gates.get(self.pick(self.model.gates, number, newest)))
        given = a_delegation(gate, by=by, to=to)
        self.compare("delegate", self.store.gates.delegate(given), self.model.delegate(gate.id, by, to))

    @precondition(lambda self: any(gate.in_force for gate in self.model.gates.values()))
    @rule(number=NUMBERS, which=NUMBERS, is_right=MOSTLY)
    def take_delegation_back(self, number: int, which: int, is_right: bool) -> None:
        gate_id = self.pick({key: gate for key, gate in self.model.gates.items() if gate.in_force}, number, False)
        given = self.model.gates[gate_id].in_force
        by, to = given[which % len(given)].by, given[which % len(given)].to
        by = by if is_right else "zoe"
        taken_back = a_delegation(self.do(self.store.gates.get(gate_id)), by=by, to=to, decision="take_back")
        self.compare("take back", self.store.gates.delegate(taken_back), self.model.take_back(gate_id, by, to))

    @rule(run=RUNS, by=PEOPLE, to=OTHERS, then=st.sampled_from(("they answer", "both answer", "delegate again")))
    def delegate_and_take_back(self, run: int, by: str, to: str, then: str) -> None:
        # A separate rule, because few sequences do these steps at one open gate.
        self.open(run, None, None, 2)
        self.delegate(0, True, by, to)
        if then == "both answer":
            self.answer(0, True, "approve", to, None, True)
        gate_id = self.pick(self.model.gates, 0, True)
        if self.model.gates[gate_id].end is None:
            taken_back = a_delegation(self.do(self.store.gates.get(gate_id)), by=by, to=to, decision="take_back")
            self.compare("take back", self.store.gates.delegate(taken_back), self.model.take_back(gate_id, by, to))
        if then == "delegate again":
            self.delegate(0, True, by, to)
        for name in (to, by):
            if self.model.gates[gate_id].end is None:
                self.answer(0, True, "approve", name, None, True)

    @rule(run=RUNS, call=st.sampled_from((None, *CALLS)), quorum=st.sampled_from((2, 3)), by=st.lists(NAMES, min_size=1, max_size=5))
    def approve_together(self, run: int, call: str | None, quorum: int, by: list[str]) -> None:
        self.open(run, call, None, quorum)
        gate_id = self.pick(self.model.gates, 0, True)
        for name in by:
            if self.model.gates[gate_id].end is None:
                self.answer(0, True, "approve", name, None, True)
        if not self.model.approvals:
            return
        if call is None:
            self.use(run, 0, True)
            self.call_without_a_gate(run)
        else:
            self.call(self.ids[run], call, self.pick(self.model.approvals, 0, True))

    @rule(version=st.integers(0, 2), decision=DECISIONS, by=PEOPLE, run=st.sampled_from((None, 0, 1)), seconds=SECONDS)
    def decide_without_a_gate(self, version: int, decision: Decision, by: str, run: int | None, seconds: int | None) -> None:
        run_id, content = None if run is None or decision == "approve" else self.ids[run], content_of(version)
        self.read_clock()  # no two decisions have the same time: a rejection of that time would count as a later one
        given = an_approval(
            approval_digest=content, decision=decision, by=by, run_id=run_id, at=self.after(0), expires_at=self.after(seconds)
        )
        self.model.approvals[given.id] = ModelApproval(run_id, None, content, decision, self.model_after(seconds))
        self.do(self.store.add_approval(given))

    @precondition(lambda self: self.model.gates)
    @rule(number=NUMBERS, newest=MOSTLY, expires=st.booleans())
    def withdraw_or_expire(self, number: int, newest: bool, expires: bool) -> None:
        gate_id = self.pick(self.model.gates, number, newest)
        self.model.close(gate_id, "expired" if expires else "cancelled")
        self.do(self.store.gates.expire(gate_id) if expires else self.store.gates.close(gate_id, "cancelled"))

    @rule(run=RUNS, call=st.sampled_from(CALLS), by=PEOPLE)
    def answer_too_late(self, run: int, call: str, by: str) -> None:
        # A separate rule, like the next one, because few sequences do these steps in this order.
        self.open(run, call, 60)
        self.wait(60)
        self.answer(0, True, "approve", by, None, True)

    @rule(run=RUNS)
    def revise(self, run: int) -> None:
        run_id = self.ids[run]
        version = int(self.model.contents[run_id], 16) + 1
        self.do(self.store.ledger.release(run_id))
        plan = validated(a_plan(f"version {version}"))
        self.model.revise(run_id, content_of(version))
        self.begin(self.do(self.store.revisions.revise(run_id, plan, content_of(version), by="bo", note="")))

    @rule(run=RUNS)
    def resume(self, run: int) -> None:
        self.do(self.store.ledger.release(self.ids[run]))
        self.begin(self.do(self.store.run(self.ids[run])))

    @precondition(lambda self: self.model.approvals)
    @rule(run=RUNS, number=NUMBERS, newest=MOSTLY)
    def use(self, run: int, number: int, newest: bool) -> None:
        approval_id = self.pick(self.model.approvals, number, newest)
        kept = self.do(self.approval(approval_id))
        expected = self.model.use(self.ids[run], approval_id)
        self.compare("use", self.store.ledger.use_approval(kept, run_id=self.ids[run]), expected)

    @rule(run=RUNS)
    def call_without_a_gate(self, run: int) -> None:
        expected = self.model.call(self.ids[run], FREE, None, None)
        self.compare("call", self.intent(self.ids[run], FREE), expected)
        if expected is None:
            content = self.model.contents[self.ids[run]]
            used = [key for key, row in self.model.approvals.items() if (row.run, row.step, row.content) == (self.ids[run], None, content)]
            assert any(self.has_enough_people(key) for key in used), "a plan ran without its quorum"

    @rule(run=RUNS, call=st.sampled_from(CALLS), number=NUMBERS, newest=MOSTLY)
    def call_with_a_gate(self, run: int, call: str, number: int, newest: bool) -> None:
        approval_id = self.pick(self.model.approvals, number, newest) if self.model.approvals else None
        self.call(self.ids[run], call, approval_id)

    @rule(run=RUNS, decision=st.sampled_from(("reject", "request_changes")))
    def take_back(self, run: int, decision: Decision) -> None:
        self.open(run, None, None)
        self.answer(0, True, "approve", "ana", None, True)
        self.decide_without_a_gate(int(self.model.contents[self.ids[run]], 16), decision, "bo", run, None)
        for number in (-1, -2):
            self.use(run, number % len(self.model.approvals), False)

    @rule(run=RUNS, call=st.sampled_from(CALLS), seconds=SECONDS, then=st.sampled_from(("call", "wait", "other content", "resume")))
    def approve_and_call(self, run: int, call: str, seconds: int | None, then: str) -> None:
        self.open(run, None, None)
        self.answer(0, True, "approve", "ana", None, True)
        if not self.model.approvals:  # the gate was open and needs others as well
            return
        self.use(run, 0, True)
        self.call_without_a_gate(run)
        self.open(run, call, None)
        self.answer(0, True, "approve", "bo", seconds, True)
        approval_id = self.pick(self.model.approvals, 0, True)
        if then == "wait":
            self.wait(60)
        self.call(self.ids[run], CALLS[call == CALLS[0]] if then == "other content" else call, approval_id)
        if then == "resume":
            self.resume(run)
            self.call(self.ids[run], call, approval_id)

    def call(self, run_id: str, content: str, approval_id: str | None) -> None:
        expected = self.model.call(run_id, GATED, content, approval_id)
        self.compare("gated call", self.intent(run_id, GATED, approval_id=approval_id, approval_digest=content), expected)
        assert expected is not None or self.has_enough_people(approval_id or ""), "a call was made without its quorum"

    def has_enough_people(self, approval_id: str) -> bool:
        """Return whether as many different people approved as the gate needs, all of them allowed to. Counted apart from the model."""
        if (gate_id := self.gate_of.get(approval_id)) is None:
            return True  # given in advance
        gate, people = self.do(self.store.gates.get(gate_id)), self.approved[gate_id]
        same = gate.approval_digest == self.model.approvals[approval_id].content
        allowed = {*APPROVERS.values(), ESCALATES_TO, *(person(each.to) for each in self.model.gates[gate_id].in_force)}
        return same and len(people) >= gate.gate_policy.quorum and (gate.gate_policy.quorum == 1 or people <= allowed)

    async def intent(self, run_id: str, step_id: str, **fields: Any) -> None:
        self.attempts += 1
        run, recorder = await self.store.run(run_id), self.recorders[run_id]
        await recorder.intent(an_attempt(run, step_id, at=recorder.now(), number=self.attempts, **fields))

    async def approval(self, approval_id: str) -> Any:
        content = self.model.approvals[approval_id].content
        return next(each for each in await self.store.approvals(content) if each.id == approval_id)

    def pick(self, known: dict[str, Any], number: int, newest: bool) -> str:
        return [*known][-1 if newest else number % len(known)]

    def after(self, seconds: int | None) -> Any:
        return None if seconds is None else self.time + timedelta(seconds=seconds)

    def model_after(self, seconds: int | None) -> float | None:
        return None if seconds is None else self.model.now + seconds

    @invariant()
    def the_gates_are_those_of_the_model(self) -> None:
        stored = {gate.id: gate.end for gate in self.do(self.store.gates.find(open_only=False))}
        assert stored == {key: gate.end for key, gate in self.model.gates.items()}

    def teardown(self) -> None:
        for gate_id, gate in self.model.gates.items():
            answer = self.do(self.store.gates.answer_to(gate_id))
            assert (answer and answer.by) == gate.by, "the first answer counts"
        for run_id in self.ids:
            assert self.do(self.store.verify(run_id)).ok
        super().teardown()


EVENTS = ("answer: done", "answer: refused", "use: done", "use: refused", "call: done", "call: refused", "gated call: done")


def test_a_few_sequences_allow_what_was_approved_and_nothing_else(migrated_file: Path) -> None:
    explore(partial(GateMachine, migrated_file), examples=4, steps=15)
    require_events(*EVENTS, "gated call: refused")


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_many_sequences_allow_what_was_approved_and_nothing_else(migrated_file: Path) -> None:
    explore(partial(GateMachine, migrated_file), examples=100, steps=40)
    require_events(*EVENTS, "gated call: refused")


@pytest.mark.thorough
@pytest.mark.timeout(14400)
def test_no_history_of_ten_thousand_passes_without_its_quorum(migrated_file: Path) -> None:
    explore(partial(GateMachine, migrated_file), examples=10_000, steps=20)
    require_events(*EVENTS, "gated call: refused")


def _adding(in_force: GatePolicy, opened: GatePolicy) -> GatePolicy:
    return replace(in_force, approvers=(*(in_force.approvers or ()), *(opened.approvers or ())))


STORE, GATES = "plan_adapter.store", "plan_adapter.gates"
BROKEN: dict[str, dict[str, Callable[..., Any]]] = {
    "an answer covers any content": {f"{STORE}.permission.is_same_content": lambda *_: True},
    "the use of a call's approval is not counted": {f"{STORE}.permission.is_use_left": lambda _: True},
    "an approval that was taken back is used": {f"{STORE}.approvals._is_usable": lambda _: true()},
    "a run needs no approval": {f"{STORE}.permission.why_plan_not_approved": lambda *_: None},
    "a gate never expires": {f"{STORE}.gates._is_in_time": true},
    "answers count instead of people": {
        f"{STORE}.gates.agreements_that_count": lambda _policy, given, **_: [*given],
        f"{STORE}.gates.why_already_given": lambda *_: None,
    },
    "one person may approve twice": {f"{STORE}.gates.why_already_given": lambda *_: None},
    "a gate needs one approval": {f"{STORE}.gates._has_quorum": false},
    "the names of a quorum are not checked": {f"{STORE}.gates.refusal": lambda *_, **__: None},
    "a gate escalates at once": {
        f"{STORE}.gates.policy_in_force": lambda gate_policy, **given: policy_in_force(gate_policy, **{**given, "is_escalated": True})
    },
    "who delegated may still approve": {
        f"{STORE}.gates.policy_in_force": lambda gate_policy, **given: _adding(policy_in_force(gate_policy, **given), gate_policy)
    },
    "a delegation that was taken back still counts": {
        f"{GATES}.approval.delegations_in_force": lambda given: [each for each in given if each.decision == "delegate"]
    },
    "a delegation is taken back after the other person has approved": {
        f"{STORE}.gates.why_not_taken_back": lambda gate_policy, **given: why_not_taken_back(gate_policy, **{**given, "agreements": ()})
    },
    "a gate that was withdrawn or replaced takes answers": {f"{STORE}.gates._is_open": true},
}


QUICK = {"an answer covers any content", "one person may approve twice"}
"""`make test` covers these: one rule of approvals, and one of a quorum."""


@pytest.mark.parametrize(
    "broken", [pytest.param(broken, id=name, marks=[] if name in QUICK else pytest.mark.thorough) for name, broken in BROKEN.items()]
)
def test_a_store_that_breaks_the_promise_is_found(broken: dict[str, Any], migrated_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, replacement in broken.items():
        monkeypatch.setattr(name, replacement)
    with pytest.raises(AssertionError):
        explore(partial(GateMachine, migrated_file), examples=200)
