"""Simulated processes that end at crash points, the plans that they execute, and the real effects of their tools."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event

from plan_adapter import ExecutionPlan, ToolRegistry, tool
from plan_adapter.model.errors import StoreError
from plan_adapter.model.plan import Rollback
from plan_adapter.model.readable import call_name
from plan_adapter.model.record import Attempt, Receipt
from plan_adapter.model.status import RunReason
from plan_adapter.store import PlanStatus
from plan_adapter.tools.tool import ToolContext

CRASH_POINTS = (
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

MEMORY = Path("/dev/shm")
"""A folder in memory, where syncing a file is free. No simulated process loses data that it has written."""

happened = Counter[str]()
"""How often each event happened in all sequences. The tests check that the sequences covered enough."""


class EndedError(Exception):
    """The simulated process has ended."""


def name_of(called: ToolContext | Attempt | Receipt) -> str:
    """Return the name of a step, or of its rollback."""
    return call_name(called.step_id, None, kind=called.kind)


@dataclass
class World:
    """The real effects by run and step (`rollback x` for the rollback of `x`), and the idempotency keys of their calls."""

    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    keys: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def do(self, context: ToolContext) -> None:
        unit = (context.run_id, name_of(context))
        self.done[unit] += 1
        self.keys.setdefault(unit, set()).add(context.idempotency_key)


@dataclass
class Life:
    """A simulated process that ends when it reaches the crash point `label` for the `count`-th time."""

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

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Keep an ended process away from any store: no transaction begins, and an open one is rolled back."""

        def begin(_connection: Connection) -> None:
            if self.has_ended:
                raise StoreError("this process has ended")

        event.listen(Engine, "begin", begin)
        try:
            yield
        finally:
            event.remove(Engine, "begin", begin)


@dataclass
class Known:
    """The expected state of a run."""

    id: str
    plan: ExecutionPlan
    approved: bool
    rejected: bool = False
    failing: frozenset[str] = frozenset()  # in the newest start that ran to its end
    shown: tuple[PlanStatus, RunReason | None] | None = None  # the last result, unless something changed the run since
    status: PlanStatus = PlanStatus.DRAFT  # last seen; this and `in_doubt` only guide which run a rule picks
    in_doubt: bool = False
    aborted: bool = False  # `abort` was recorded for an unknown outcome
    before: ExecutionPlan | None = None  # the approved version, if the current one is not approved


def tools_of(world: World, life: Life, failing: frozenset[str]) -> ToolRegistry:
    def act(step: str, context: ToolContext) -> str:
        """Do `step`, or fail before it has an effect."""
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


ENDS = st.just((None, 0)) | st.tuples(st.sampled_from(CRASH_POINTS), st.sampled_from((1, 1, 2, 3)))
FAILING = st.just(frozenset[str]()) | st.frozensets(
    st.sampled_from([f"s{index}" for index in range(5)] + ["rollback s0", "rollback s1"]), max_size=2
)
