"""State machine tests: any sequence of starts, answers, crashes, resumes, revisions and rollbacks keeps the records consistent.

A simulated process ends at a crash point. From then on it reaches neither the store nor the world, as after SIGKILL. The next process opens
its own store and finds a dead owner. `tests/faults` kills real processes; here hypothesis searches for the sequence.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry
from plan_adapter.errors import RunConflictError
from plan_adapter.gates.approval import answer_to
from plan_adapter.model.approvals import ApprovalRequest
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.status import RunReason
from plan_adapter.runner import acancel_run, aresolve_step, arevise_run
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus
from plan_adapter.validation import bind_inputs, validate
from tests.runs.known_runs import KnownRuns
from tests.runs.lives import CRASH_POINTS, ENDS, FAILING, Known, Life, happened, name_of, plans

ENDED = (PlanStatus.COMPLETED, PlanStatus.FAILED, PlanStatus.PARTIAL, PlanStatus.CANCELLED)


class Machine(KnownRuns):
    """Each rule is a process of its own; between two of them everything must hold."""

    @rule(plan=plans(), end=ENDS, failing=FAILING, answered=st.booleans())
    def start(self, plan: ExecutionPlan, end: tuple[str | None, int], failing: frozenset[str], answered: bool) -> None:
        self.begin_run(plan, end, failing)
        # Answer here, too: hypothesis leaves out rules in many sequences, and a run without an answer does little.
        if answered and self.runs and not self.runs[-1].approved:
            self.give(self.runs[-1], approves=True)

    @rule(plan=plans(("write",)), end=st.tuples(st.sampled_from(("after-intent", "mid-effect")), st.sampled_from((1, 2))))
    def start_and_end_in_a_write(self, plan: ExecutionPlan, end: tuple[str | None, int]) -> None:
        plan.options.require_approval = False
        self.begin_run(plan, end, frozenset())

    def begin_run(self, plan: ExecutionPlan, end: tuple[str | None, int], failing: frozenset[str]) -> None:
        life = Life(*end)

        async def work(store: PlanStore, tools: ToolRegistry) -> PlanRun:
            bound = bind_inputs(validate(plan, tools))
            return await execute_plan(bound, run_request=RunRequest(tools=tools), store=store, offline=True, record_pending=True)

        run = self.live(work, life, failing)
        ids = {run.id for run in self.read(lambda store: store.runs())} - {known.id for known in self.runs}
        if not ids:
            assert life.has_ended, "a run that was started is there"
            return
        known = Known(ids.pop(), plan, approved=not plan.options.require_approval, failing=failing)
        self.runs.append(known)
        self.touched = known
        if run is not None and not life.has_ended:
            happened[f"started {run.status}"] += 1
            if not known.approved:
                assert (run.status, self.effects(known)) == (PlanStatus.PENDING_APPROVAL, 0)
            else:
                self.compare(known, run, set(), set())

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), approves=st.sampled_from((True, True, False)))
    def answer(self, data: st.DataObject, approves: bool) -> None:
        self.give(self.pick(data, lambda known: known.status is PlanStatus.PENDING_APPROVAL), approves=approves)

    def give(self, known: Known, *, approves: bool) -> None:
        """Answer at the gate of a run, where one is open."""

        async def work(store: PlanStore, _tools: ToolRegistry) -> bool:
            for gate in await store.gates.find(run_id=known.id):
                request = ApprovalRequest(gate.approval_digest, gate.name, "", "", run_id=gate.run_id, gate_id=gate.id)
                await store.gates.answer(
                    gate.id, answer_to(request, decision="approve" if approves else "reject", by="ana", known_by="os_user")
                )
                return True
            return False

        if self.live(work, Life(None, 0)):
            known.approved, known.rejected = approves, not approves
            known.before = None if approves else known.before
            happened["approved" if approves else "rejected"] += 1

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), end=ENDS, failing=FAILING)
    def resume(self, data: st.DataObject, end: tuple[str | None, int], failing: frozenset[str]) -> None:
        known = self.pick(data, lambda known: known.status is not PlanStatus.COMPLETED and known.approved and not known.rejected)
        before, succeeded, unknown, undone = self.state(known)
        effects, life = self.effects(known), Life(*end)
        may = before.status is not PlanStatus.COMPLETED and known.approved and not known.rejected
        try:
            run = self.live(
                lambda store, tools: execute_resume(known.id, tools=tools, run_request=RunRequest(tools=tools), store=store, offline=True),
                life,
                failing,
            )
        except (RunConflictError, NotApprovedError):
            assert not may or undone or known.aborted, "an approved run that has not completed goes on"
            assert self.effects(known) == effects, "what is refused does nothing"
            happened["resume refused"] += 1
            return
        if run is None or life.has_ended:
            assert may or undone or self.effects(known) == effects, "resuming approves nothing"
            known.shown = None
            return
        if undone or self.is_ending(before):  # it resumes the rollback of an approved version
            known.shown = (run.status, run.reason)
            happened["resumed"] += 1
            return
        if known.rejected and run.reason is RunReason.REJECTED:  # no process was waiting when it was rejected
            assert self.effects(known) == effects, "what was rejected does nothing"
            known.shown = (run.status, run.reason)
            return
        assert may, "resuming approves nothing, and what has completed or was rejected does not go on"
        happened["resumed"] += 1
        known.failing = failing
        self.compare(known, run, succeeded, unknown)

    @precondition(lambda self: any(known.in_doubt for known in self.runs))
    @rule(data=st.data(), end=ENDS, word=st.sampled_from(("truth", "truth", "truth", "abort")))
    def resolve(self, data: st.DataObject, end: tuple[str | None, int], word: str) -> None:
        known = self.pick(data, lambda known: known.in_doubt)
        open_writes = self.read(lambda store: store.outcomes.unknown(known.id))
        if not open_writes:
            return
        attempt = data.draw(st.sampled_from(open_writes), "which write")
        # The person looks at the world and records the truth.
        said: Any = word if word == "abort" else "done" if self.world.done[known.id, name_of(attempt)] else "again"
        life = Life(*end)
        of_rollback = attempt.kind == "rollback"
        run = self.live(
            lambda store, _: aresolve_step(known.id, attempt.step_id, said, by="ana", result="it was", rollback=of_rollback, store=store),
            life,
        )
        if run is not None and not life.has_ended:
            happened[f"resolved {said}"] += 1
            known.aborted = known.aborted or said == "abort"
            left = self.read(lambda store: store.outcomes.unknown(known.id))
            assert attempt.id not in {other.id for other in left}
        known.shown = None

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), end=ENDS, undo=st.booleans(), failing=FAILING)
    def cancel(self, data: st.DataObject, end: tuple[str | None, int], undo: bool, failing: frozenset[str]) -> None:
        self.cancel_run(self.pick(data), end, undo, failing)

    @rule(plan=plans())
    def fail_and_roll_back(self, plan: ExecutionPlan) -> None:
        # A separate rule, because most runs that the rule above cancels have completed or have an unknown outcome.
        plan.options.require_approval = False
        self.begin_run(plan, (None, 0), frozenset({plan.steps[-1].id}))
        self.cancel_run(self.runs[-1], (None, 0), undo=True, failing=frozenset())

    @rule(plan=plans())
    def start_and_reject(self, plan: ExecutionPlan) -> None:
        # A separate rule, because in most sequences few runs wait for an answer, and most answers approve.
        plan.options.require_approval = True
        self.begin_run(plan, (None, 0), frozenset())
        self.give(self.runs[-1], approves=False)

    def cancel_run(self, known: Known, end: tuple[str | None, int], undo: bool, failing: frozenset[str]) -> None:
        before, _succeeded, unknown, undone = self.state(known)
        life = Life(*end)
        try:
            run = self.live(
                lambda store, tools: acancel_run(known.id, reason="enough", rollback=undo, tools=tools, store=store, offline=True),
                life,
                failing,
            )
        except (RunConflictError, NotApprovedError):
            assert before.status in ENDED or unknown or undone or not known.approved
            happened["cancel refused"] += 1
            return
        finally:
            self.see_version(known)
        known.shown = None
        if run is None or life.has_ended:
            return
        happened["undone" if undo else "cancelled"] += 1
        assert run.status in ENDED
        if before.status not in ENDED and not undone:  # otherwise it resumes the rollback and keeps its reason
            assert run.status is PlanStatus.CANCELLED
        known.shown = (run.status, run.reason)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), place=st.integers(0, 4))
    def revise(self, data: st.DataObject, place: int) -> None:
        known = self.pick(data)
        before, succeeded, unknown, undone = self.state(known)
        changed = known.plan.model_copy(deep=True)
        step = changed.steps[place % len(changed.steps)]
        step.description += "!"
        begun = {attempt.step_id for attempt in self.read(lambda store: store.attempts(known.id))}
        try:
            run = self.live(lambda store, tools: arevise_run(known.id, changed, tools=tools, by="bo", store=store), Life(None, 0))
        except (RunConflictError, NotApprovedError):
            assert before.status in ENDED or step.id in begun or undone or known.rejected
            happened["revision refused"] += 1
            return
        # Only a step that certainly failed, or that was never called, may be revised.
        assert run is not None and step.id not in succeeded | unknown and before.status is not PlanStatus.COMPLETED
        happened["revised"] += 1
        known.before = known.plan if known.approved else known.before
        known.plan, known.approved, known.shown = changed, not changed.options.require_approval, None
        known.rejected = False


def explore(examples: int, steps: int) -> None:
    """Run deterministic sequences, and print what happened in them."""
    happened.clear()
    # No shrinking: a failing sequence is reported as found, because shrinking it would take minutes.
    given: dict[str, Any] = {
        "phases": [Phase.generate],
        "deadline": None,
        "derandomize": True,
        "database": None,
        "suppress_health_check": list(HealthCheck),
    }
    run_state_machine_as_test(Machine, settings=settings(max_examples=examples, stateful_step_count=steps, **given))
    print("\n" + ", ".join(f"{what}: {count}" for what, count in sorted(happened.items())))


def explore_all(examples: int, steps: int) -> None:
    """Run sequences, and check that every kind of event happened."""
    explore(examples, steps)
    for what in ("approved", "resumed", "resume refused", "revised", "cancelled", "undone", "ended completed", "ended partial"):
        assert happened[what], f"nothing was ever {what}"


def test_a_few_sequences_keep_the_records_consistent() -> None:
    explore(examples=4, steps=14)
    assert sum(happened[f"ended at {label}"] for label in CRASH_POINTS), "no process ever ended in the middle"
    assert any(what.startswith("ended ") for what in happened), "no run ever came to its end"


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_long_sequences_keep_the_records_consistent() -> None:
    explore_all(examples=24, steps=25)
    assert sum(happened[f"ended at {label}"] > 0 for label in CRASH_POINTS) >= 4, "processes ended at several places"


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_many_sequences_keep_the_records_consistent() -> None:
    explore_all(examples=60, steps=30)
    missing = [label for label in CRASH_POINTS if not happened[f"ended at {label}"]]
    assert len(missing) < 3, f"no process ended at {missing}"
    assert happened["rejected"] and happened["resolved done"] and happened["resolved again"] and happened["resolved abort"]
