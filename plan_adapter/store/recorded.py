"""What is on record of a run that goes on, all of one moment: its head, its plan, and what its earlier starts have left."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from plan_adapter.execution.carry import Past
from plan_adapter.record import PlanRun, RunReason
from plan_adapter.store import gates, runs, steps, wishes
from plan_adapter.store.known_steps import plan_of_texts, stored_texts
from plan_adapter.stored_plan import StoredPlan


class Recorded(NamedTuple):
    """A run without its steps, the plan that it has now, and what its earlier starts have left."""

    run: PlanRun
    plan: StoredPlan
    past: Past
    kept: RunReason | None  # why the run ends, as the process that executed it last has kept it, also where that one was interrupted
    has_open_gates: bool


def past_of(connection: Connection, run_id: str) -> Past:
    """Return what the earlier starts of a run have left, without the steps that people have left out."""
    return steps.past_of(connection, run_id).leaving_out(wishes.left_out_of(connection, run_id))


def recorded_of(connection: Connection, tenant: str | None, beginning: str) -> Callable[[], Recorded]:
    """Return what puts together the record of the run with this id, or with the only id that begins so.

    To be called in another thread than the store's: one that is not the first of its process pays for much memory.
    """
    row = runs.row_of(connection, tenant, beginning)
    run, texts, past = runs.head_of(connection, row), stored_texts(connection, row), past_of(connection, row["id"])
    has_open_gates = run.completed_at is None and gates.are_open(connection, run.id)  # of one that has ended they were closed
    return partial(_put_together, run, texts, past, runs.kept_reason(row), has_open_gates)


def _put_together(run: PlanRun, texts: tuple[str, str, str | None], past: Past, kept: RunReason | None, has_open_gates: bool) -> Recorded:
    return Recorded(run, plan_of_texts(*texts), past, kept, has_open_gates)
