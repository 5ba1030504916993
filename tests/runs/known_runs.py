"""The base of the state machine: runs with their expected state, and the invariants of their records."""

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry
from plan_adapter.local import crash_points
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.errors import PlanAdapterError
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.status import Outcome, RunReason, StepStatus
from plan_adapter.store import PlanStatus
from tests.runs.lives import MEMORY, EndedError, Known, Life, World, happened, name_of, tools_of

T = TypeVar("T")


class KnownRuns(RuleBasedStateMachine):
    """The runs of one sequence with their expected state, and the invariants checked after each rule."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="machine-", dir=MEMORY if MEMORY.is_dir() else None)
        self.world = World()
        self.runs: list[Known] = []
        self.touched: Known | None = None
        self.reader = PlanStore(self.url)
        self.lives = 0
        self.this, HostProcess.this = HostProcess.this, classmethod(lambda _: HostProcess(self.place, os.getpid(), f"life {self.lives}"))  # type: ignore
        self.place = self.this().place

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for known in self.runs:
                self.check_record(known)
            asyncio.run(self.reader.close())
            HostProcess.this = self.this  # type: ignore[method-assign]
            shutil.rmtree(self.folder)

    def live(self, work: Callable[[PlanStore, ToolRegistry], Awaitable[T]], life: Life, failing: frozenset[str] = frozenset()) -> T | None:
        """Do `work` in a simulated process. Return its result, or None if the process ended early."""

        async def whole() -> T:
            async with PlanStore(self.url) as store:
                return await work(store, tools_of(self.world, life, failing))

        self.lives += 1
        crash_points.listener = life.reach
        try:
            with life.guard():
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
        """Return the result of `work`, which only reads the store."""

        async def look() -> T:
            return await work(self.reader)

        return asyncio.run(look())

    def pick(self, data: st.DataObject, fits: Callable[[Known], bool] = lambda _: True) -> Known:
        """Return a run: in three of four cases one that `fits`, if there is one."""
        fitting = [known for known in self.runs if fits(known)]
        among = fitting if fitting and data.draw(st.integers(0, 3), "whether it fits") else self.runs
        self.touched = data.draw(st.sampled_from(among), "which run")
        return self.touched

    def effects(self, known: Known) -> int:
        return sum(count for (run_id, _), count in self.world.done.items() if run_id == known.id)

    def state(self, known: Known) -> tuple[PlanRun, set[str], set[str], bool]:
        """Return a run, its succeeded steps, its steps with an unknown outcome, and whether any rollback was attempted."""

        async def work(store: PlanStore) -> tuple[PlanRun, set[str], set[str], bool]:
            receipts, attempts = await store.receipts(known.id), await store.attempts(known.id)
            succeeded = {name_of(receipt) for receipt in receipts if receipt.outcome is Outcome.SUCCEEDED}
            unknown = {name_of(attempt) for attempt in await store.outcomes.unknown(known.id)}
            return await store.run(known.id), succeeded, unknown, any(attempt.kind == "rollback" for attempt in attempts)

        return self.read(work)

    def is_ending(self, run: PlanRun) -> bool:
        """Return whether the process that was about to roll the run back died first."""
        kept = self.read(lambda store: store.ledger.reason(run.id)) if run.reason is RunReason.INTERRUPTED else None
        return kept not in (None, RunReason.UNKNOWN, RunReason.INTERRUPTED)

    def see_version(self, known: Known) -> None:
        """Restore the approved version in the model if a rollback restored it in the store."""
        if known.before is not None and self.read(lambda store: store.run(known.id)).digest == plan_digest(known.before):
            happened["version put back"] += 1
            known.plan, known.approved, known.before = known.before, True, None

    def compare(self, known: Known, run: PlanRun, succeeded: set[str], unknown: set[str]) -> None:
        """Compare a start that ran to its end with the expected result, unless chance decides which parallel steps were stopped."""
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
    def the_touched_run_is_consistent(self) -> None:
        if getattr(self, "touched", None) is not None:
            self.check_record(self.touched)

    def check_record(self, known: Known) -> None:
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
    """Return the status of each step after a sequential run of `plan`. Every step comes after its dependencies."""
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
