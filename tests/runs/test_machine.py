"""Any sequence of starting, approving, ending in the middle, resuming, resolving, revising, cancelling and undoing runs keeps the promise.

A process ends at a crash point: from there on nothing of it reaches the store or the world, as after SIGKILL; the next one has a store
of its own and finds a owner that has died. `tests/faults` ends real processes; here hypothesis looks for the sequence.
"""

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from plan_adapter import ExecutionPlan, PlanRun, PlanStatus, PlanStore, RunConflictError, ToolRegistry, crash_points, tool
from plan_adapter.canonical import plan_digest
from plan_adapter.errors import NotApprovedError, PlanAdapterError, StoreError
from plan_adapter.gates.approval import answer_to
from plan_adapter.plan import Rollback, StepStatus
from plan_adapter.readable import call_name
from plan_adapter.record import ApprovalRequest, Attempt, Outcome, Receipt, RunReason
from plan_adapter.runner import acancel_run, aresolve_step, arevise_run
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store.leases import Owner
from plan_adapter.tools.tool import ToolContext
from plan_adapter.validation import bind_inputs, validate

T = TypeVar("T")

LABELS = (
    "claimed",
    "before-intent",
    "in-transaction",
    "after-intent",
    "mid-effect",
    "after-effect",
    "after-receipt",
    "before-end",
    "after-end",
)
ENDED = (PlanStatus.COMPLETED, PlanStatus.FAILED, PlanStatus.PARTIAL, PlanStatus.CANCELLED)

MEMORY = Path("/dev/shm")
"""Where syncing a file costs nothing: no process here loses what it has written."""

happened = Counter[str]()
"""How often each thing happened in all sequences: a machine that never got anywhere would prove nothing."""


class EndedError(Exception):
    """The process is no more."""


def name_of(called: ToolContext | Attempt | Receipt) -> str:
    """Return what a step is called, or what undoes it."""
    return call_name(called.step_id, None, kind=called.kind)


@dataclass
class World:
    """What was really done, by run and step (`rollback x` for what undoes a step), and the keys that it was done with."""

    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    keys: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def do(self, context: ToolContext) -> None:
        unit = (context.run_id, name_of(context))
        self.done[unit] += 1
        self.keys.setdefault(unit, set()).add(context.idempotency_key)


@dataclass
class Life:
    """One process: ends when the crash point `label` is reached for the `count`-th time."""

    label: str | None
    count: int
    has_ended: bool = False

    def reach(self, point: str, _detail: str = "") -> None:
        if self.has_ended:
            raise EndedError
        if point == self.label:
            self.count -= 1
            if not self.count:
                self.has_ended = True
                happened[f"ended at {point}"] += 1
                raise EndedError

    def guard(self, store: PlanStore) -> PlanStore:
        """Let nothing reach the store any more once the process has ended; a transaction is then rolled back."""
        database: Any = store._database
        work_on = database._run

        def run(work: Callable[..., Any], writes: bool) -> Any:
            if self.has_ended:
                raise StoreError("this process has ended")
            return work_on(work, writes)

        database._run = run
        return store


@dataclass
class Known:
    """What the model knows of a run."""

    id: str
    plan: ExecutionPlan
    approved: bool
    rejected: bool = False
    failing: frozenset[str] = frozenset()  # of its newest start that came to its end
    shown: tuple[PlanStatus, RunReason | None] | None = None  # what no one has changed since
    status: PlanStatus = PlanStatus.DRAFT  # as it was seen last; this and the next only choose what is worth trying
    in_doubt: bool = False
    aborted: bool = False  # somebody ended it without saying whether a write was done
    before: ExecutionPlan | None = None  # the version that was approved, where nobody has approved the one that it has now


def tools_of(world: World, life: Life, failing: frozenset[str]) -> ToolRegistry:
    def act(step: str, context: ToolContext) -> str:
        """Do what `step` says, or fail before anything is done."""
        if life.has_ended:
            raise EndedError
        if name_of(context) in failing:
            raise ValueError(f"{step} fails")
        world.do(context)
        life.reach("mid-effect")
        return f"{step} was done"

    return ToolRegistry([tool(effect=effect, name=effect)(act) for effect in ("read", "idempotent_write", "write")])  # type: ignore[call-overload]


@st.composite
def plans(draw: st.DrawFn, tools: tuple[str, ...] = ("write", "write", "idempotent_write", "read")) -> ExecutionPlan:
    plan, is_undoable = ExecutionPlan(description="Any plan"), draw(st.booleans())
    for index in range(draw(st.integers(1, 5))):
        before = [step.id for step in plan.steps]
        plan.add_step(
            draw(st.sampled_from(tools)),
            f"step {index}",
            {"step": f"s{index}"},
            id=f"s{index}",
            depends_on=sorted(draw(st.sets(st.sampled_from(before), max_size=2))) if before else [],
            rollback=Rollback(tool_name="write", parameters={"step": f"undo s{index}"}) if is_undoable else None,
        )
    plan.options.require_approval = draw(st.sampled_from((False, False, True)))
    plan.options.stop_on_error = draw(st.booleans())
    plan.options.allow_parallel = draw(st.booleans())
    return plan


ENDS = st.just((None, 0)) | st.tuples(st.sampled_from(LABELS), st.sampled_from((1, 1, 2, 3)))
FAILING = st.just(frozenset[str]()) | st.frozensets(
    st.sampled_from([f"s{index}" for index in range(5)] + ["rollback s0", "rollback s1"]), max_size=2
)


class Machine(RuleBasedStateMachine):
    """Each rule is a process of its own; between two of them everything must hold."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="machine-", dir=MEMORY if MEMORY.is_dir() else None)
        self.world = World()
        self.runs: list[Known] = []
        self.touched: Known | None = None
        self.reader = PlanStore(self.url)
        self.lives = 0
        self.this, Owner.this = Owner.this, classmethod(lambda _: Owner(self.place, os.getpid(), f"life {self.lives}"))  # type: ignore
        self.place = self.this().place

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for known in self.runs:
                self.hold(known)
            asyncio.run(self.reader.close())
            Owner.this = self.this  # type: ignore[method-assign]
            shutil.rmtree(self.folder)

    def live(self, work: Callable[[PlanStore, ToolRegistry], Awaitable[T]], life: Life, failing: frozenset[str] = frozenset()) -> T | None:
        """Return what a process makes of `work`, None where it ended in the middle."""

        async def whole() -> T:
            async with life.guard(PlanStore(self.url)) as store:
                return await work(store, tools_of(self.world, life, failing))

        self.lives += 1
        crash_points.listener = life.reach
        try:
            return asyncio.run(whole())
        except (EndedError, PlanAdapterError):
            if life.has_ended:
                return None
            raise
        finally:
            crash_points.listener = None

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/plans.db"

    def read(self, work: Callable[[PlanStore], Awaitable[T]]) -> T:
        """Return what somebody sees who only looks."""

        async def look() -> T:
            return await work(self.reader)

        return asyncio.run(look())

    def pick(self, data: st.DataObject, fits: Callable[[Known], bool] = lambda _: True) -> Known:
        """Return a run, three times of four one that `fits`."""
        fitting = [known for known in self.runs if fits(known)]
        among = fitting if fitting and data.draw(st.integers(0, 3), "whether it fits") else self.runs
        self.touched = data.draw(st.sampled_from(among), "which run")
        return self.touched

    # What people and processes do

    @rule(plan=plans(), end=ENDS, failing=FAILING, approves=st.sampled_from((None, None, True, True, False)))
    def start(self, plan: ExecutionPlan, end: tuple[str | None, int], failing: frozenset[str], approves: bool | None) -> None:
        self.begin_run(plan, end, failing)
        # Here, too: hypothesis leaves out rules in many sequences, and without answers little comes of a run that waits for one.
        if approves is not None and self.runs and not self.runs[-1].approved:
            self.give(self.runs[-1], approves=approves)

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
        if undone or self.is_ending(before):  # it goes on undoing what was done under a version that was approved
            known.shown = (run.status, run.reason)
            happened["resumed"] += 1
            return
        if known.rejected and run.reason is RunReason.REJECTED:  # nobody was there to end it when the answer came
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
        # Whoever looks at the world says what is true there.
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
        # A rule of its own: most runs that are cancelled by the rule above have completed, or an outcome of theirs is unknown.
        plan.options.require_approval = False
        self.begin_run(plan, (None, 0), frozenset({plan.steps[-1].id}))
        self.cancel_run(self.runs[-1], (None, 0), undo=True, failing=frozenset())

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
        if before.status not in ENDED and not undone:  # else it goes on undoing, and ends for the reason that it had
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
        # What has only failed, and somebody knows it, may be mended.
        assert run is not None and step.id not in succeeded | unknown and before.status is not PlanStatus.COMPLETED
        happened["revised"] += 1
        known.before = known.plan if known.approved else known.before
        known.plan, known.approved, known.shown = changed, not changed.options.require_approval, None
        known.rejected = False

    # What holds

    def effects(self, known: Known) -> int:
        return sum(count for (run_id, _), count in self.world.done.items() if run_id == known.id)

    def state(self, known: Known) -> tuple[PlanRun, set[str], set[str], bool]:
        """Return a run, its steps that have succeeded, those of which nobody knows it, and whether anything of it was undone."""

        async def work(store: PlanStore) -> tuple[PlanRun, set[str], set[str], bool]:
            receipts, attempts = await store.receipts(known.id), await store.attempts(known.id)
            succeeded = {name_of(receipt) for receipt in receipts if receipt.outcome is Outcome.SUCCEEDED}
            unknown = {name_of(attempt) for attempt in await store.outcomes.unknown(known.id)}
            return await store.run(known.id), succeeded, unknown, any(attempt.kind == "rollback" for attempt in attempts)

        return self.read(work)

    def is_ending(self, run: PlanRun) -> bool:
        """Return whether the process that undoes a run died before it had begun to."""
        kept = self.read(lambda store: store.ledger.reason(run.id)) if run.reason is RunReason.INTERRUPTED else None
        return kept not in (None, RunReason.UNKNOWN, RunReason.INTERRUPTED)

    def see_version(self, known: Known) -> None:
        """Note that the version which was approved is back, because what it did is undone."""
        if known.before is not None and self.read(lambda store: store.run(known.id)).digest == plan_digest(known.before):
            happened["version put back"] += 1
            known.plan, known.approved, known.before = known.before, True, None

    def compare(self, known: Known, run: PlanRun, succeeded: set[str], unknown: set[str]) -> None:
        """Hold a start that came to its end against what must come of it, unless chance decides: one of several at once stops all."""
        known.shown = (run.status, run.reason)
        happened[f"ended {run.status}"] += 1
        options = known.plan.options
        if options.allow_parallel and options.on_error == "stop" and known.failing:
            return
        expected = expected_statuses(known.plan, known.failing, succeeded, unknown)
        assert {step.id: step.status for step in run.steps} == expected
        failed = [step_id for step_id, status in expected.items() if status is StepStatus.FAILED]
        reason = RunReason.UNKNOWN if any(step_id in unknown for step_id in failed) else RunReason.STEP_FAILED if failed else None
        broken = PlanStatus.PARTIAL if StepStatus.COMPLETED in expected.values() else PlanStatus.FAILED
        assert (run.status, run.reason) == (broken if failed else PlanStatus.COMPLETED, reason)

    @invariant()
    def what_was_promised_holds(self) -> None:
        if getattr(self, "touched", None) is not None:
            self.hold(self.touched)

    def hold(self, known: Known) -> None:
        async def work(store: PlanStore) -> Any:
            return await store.verify(known.id), await store.receipts(known.id), await store.attempts(known.id), await store.run(known.id)

        verified, receipts, attempts, run = self.read(work)
        known.status, known.in_doubt = run.status, any(step.outcome is Outcome.UNKNOWN for step in run.steps)
        assert verified.ok, verified
        if known.shown is not None:
            assert (run.status, run.reason) == known.shown, "nobody has changed the run since"
        assert run.status is not PlanStatus.EXECUTING or run.reason is RunReason.INTERRUPTED, "no process is there that could execute it"
        effect_of = {name_of(attempt): attempt.effect for attempt in attempts}
        succeeded = Counter(name_of(receipt) for receipt in receipts if receipt.outcome is Outcome.SUCCEEDED)
        for step_id, effect in effect_of.items():
            done = self.world.done[known.id, step_id]
            assert succeeded[step_id] <= 1, "what has succeeded is not run again"
            assert effect != "write" or done <= 1, f"`{step_id}` was done {done} times"
            assert not succeeded[step_id] or done >= 1, f"`{step_id}` has a receipt, and was never done"
            assert len(self.world.keys.get((known.id, step_id), set())) <= 1, "each try has the same key"
        began = {step_id for run_id, step_id in self.world.done if run_id == known.id}
        assert began <= effect_of.keys(), "what was done has an intent"
        if run.status is PlanStatus.COMPLETED:
            assert all(succeeded[step.id] == 1 for step in run.steps)
        for step in run.steps:
            assert step.status is not StepStatus.COMPLETED or succeeded[step.id] == 1
            assert step.rolled_back <= succeeded[f"rollback {step.id}"]


def expected_statuses(plan: ExecutionPlan, failing: frozenset[str], succeeded: set[str], unknown: set[str]) -> dict[str, StepStatus]:
    """Return how the steps of `plan` end when they run one after the other; the ids are in an order of their dependencies."""
    ended, halted = dict[str, StepStatus](), False
    for step in plan.steps:
        if any(ended[dependency] is not StepStatus.COMPLETED for dependency in step.depends_on):
            ended[step.id] = StepStatus.SKIPPED
        elif step.id in succeeded:
            ended[step.id] = StepStatus.COMPLETED
        elif step.id in unknown:
            ended[step.id] = StepStatus.FAILED
        elif halted:
            ended[step.id] = StepStatus.SKIPPED
        elif step.id in failing:
            ended[step.id] = StepStatus.FAILED
            halted = plan.options.on_error == "stop"
        else:
            ended[step.id] = StepStatus.COMPLETED
    return ended


def explore(examples: int, steps: int) -> None:
    """Try sequences that follow from nothing but their number, and print what happened in them."""
    happened.clear()
    # Without shrinking: a sequence of seconds is told as it was found, and not tried for minutes to find a shorter one.
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
    """Try as many sequences as it takes for everything to have happened in some."""
    explore(examples, steps)
    for what in ("approved", "resumed", "resume refused", "revised", "cancelled", "undone", "ended completed", "ended partial"):
        assert happened[what], f"nothing was ever {what}"


def test_a_few_sequences_of_what_people_and_processes_do_keep_the_promise() -> None:
    explore(examples=5, steps=14)
    assert sum(happened[f"ended at {label}"] for label in LABELS), "no process ever ended in the middle"
    assert any(what.startswith("ended ") for what in happened), "no run ever came to its end"


@pytest.mark.thorough
def test_any_sequence_of_what_people_and_processes_do_keeps_the_promise() -> None:
    explore_all(examples=24, steps=25)
    assert sum(happened[f"ended at {label}"] > 0 for label in LABELS) >= 4, "processes ended at several places"


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_many_more_sequences_do() -> None:
    explore_all(examples=60, steps=30)
    missing = [label for label in LABELS if not happened[f"ended at {label}"]]
    assert len(missing) < 3, f"no process ended at {missing}"
    assert happened["rejected"] and happened["resolved done"] and happened["resolved again"] and happened["resolved abort"]
