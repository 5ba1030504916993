"""The steps of runs, put together from what was known before, from the ends that were written, and from attempts and receipts.

A step with an end has ended; one without an end but with an attempt of the current start is running. Of a run that somebody ended while
no process executed it such a step was cut off, and one that was not begun is skipped; any other is pending.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pydantic import JsonValue
from sqlalchemy import ColumnElement, Connection, Table, and_, select

from plan_adapter.execution.carry import Past, Unit
from plan_adapter.plan import PlanStatus, StepStatus
from plan_adapter.record import Attempt, Outcome, Receipt, StepEnd, StepRun, pending_steps
from plan_adapter.store.known_steps import known_steps
from plan_adapter.store.rows import (
    END,
    NO_ITEM,
    RECEIPT,
    SHORT_RECEIPT,
    Row,
    ShortReceipt,
    attempt_of,
    load_json,
    put_end,
    receipt_of,
)
from plan_adapter.store.tables import attempts, gates, receipts, step_runs


@dataclass(slots=True)
class _Found:
    """What the tables say about the steps of one run, by step id."""

    claimed_at: datetime | None
    why_ended: str | None = None  # of a run that was cancelled or rejected, or has expired
    ends: dict[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    attempts: defaultdict[str, list[Row]] = field(default_factory=lambda: defaultdict[str, list[Row]](list))
    lists: set[str] = field(default_factory=set[str])  # the steps whose results are lists
    results: defaultdict[str, dict[int, str]] = field(default_factory=lambda: defaultdict[str, dict[int, str]](dict))


def step_runs_of(
    connection: Connection, rows: Sequence[Row], *, interrupted: Collection[str], with_results: bool
) -> dict[str, list[StepRun]]:
    """Return the step runs of each run of `rows`, by run id; writes in the middle of an interrupted run are unknown."""
    found = {row["id"]: _Found(row["claimed_at"], _why_ended(row)) for row in rows}
    ended = select(step_runs.c.run_id, step_runs.c.step_id, *END).where(step_runs.c.run_id.in_(found))
    for run_id, step_id, *end in connection.execute(ended).all():
        found[run_id].ends[step_id] = end
    known = known_steps(connection, rows)
    lack_ends = {run_id for run_id, one in found.items() if one.why_ended is not None and len(one.ends) < len(known[run_id].documents)}
    unended = [row for row in rows if row["status"] == PlanStatus.EXECUTING or row["id"] in lack_ends]
    for attempt in _current_attempts(connection, unended):
        found[attempt["run_id"]].attempts[attempt["step_id"]].append(attempt)
    if with_results:
        _read_results(connection, found)
    for run_id, (documents, _) in known.items():
        found[run_id].lists = {document["id"] for document in documents if "for_each" in document}
    return {
        run_id: [_put(step, found[run_id], run_id in interrupted, with_results) for step in pending_steps(*of_run, attempts={})]
        for run_id, of_run in known.items()
    }


def past_of(connection: Connection, run_id: str) -> Past:
    """Return what the earlier starts of a run have left in its record; what people have left out is not among it."""
    query = select(*SHORT_RECEIPT).where(receipts.c.run_id == run_id).order_by(receipts.c.ended_at, receipts.c.attempt_id)
    past = Past.of(open_attempts_of(connection, run_id), map(ShortReceipt._make, connection.execute(query).all()))
    if not past.attempts:
        return past
    asked = select(gates.c.step_id).join_from(gates, step_runs, _is_same_step(gates)).where(gates.c.run_id == run_id)
    is_told = past.has_rollbacks or past.aborted or past.repeatable or past.unknown  # else nobody names an item by its record
    labels = labels_of(connection, run_id) if is_told else {}
    return replace(past, unkept=_unkept(connection, run_id), asked=frozenset(connection.scalars(asked)), labels=labels)


def _unkept(connection: Connection, run_id: str) -> frozenset[str]:
    """Return the steps that have succeeded, perhaps in part, and are not kept as completed; seldom any."""
    completed = and_(_is_same_step(receipts), step_runs.c.status == StepStatus.COMPLETED.value)
    query = select(receipts.c.step_id).outerjoin_from(receipts, step_runs, completed)
    succeeded = (receipts.c.run_id == run_id, receipts.c.outcome == Outcome.SUCCEEDED.value)
    return frozenset(connection.scalars(query.where(*succeeded, step_runs.c.run_id.is_(None))))


def _is_same_step(table: Table) -> ColumnElement[bool]:
    return and_(step_runs.c.run_id == table.c.run_id, step_runs.c.step_id == table.c.step_id)


def completed_ends_of(connection: Connection, run_id: str) -> dict[str, StepEnd]:
    """Return how the steps of a run were completed, by id."""
    columns = [step_runs.c[name] for name in ("step_id", *StepEnd._fields)]
    rows = connection.execute(select(*columns).where(step_runs.c.run_id == run_id, step_runs.c.status == StepStatus.COMPLETED.value))
    return {step_id: StepEnd(*rest) for step_id, *rest in rows.all()}


def attempts_of(connection: Connection, run_id: str) -> list[Attempt]:
    """Return the intents of a run in the order in which they were written."""
    query = select(attempts).where(attempts.c.run_id == run_id).order_by(attempts.c.started_at, attempts.c.id)
    return [attempt_of(row) for row in connection.execute(query).mappings()]


def open_attempts_of(connection: Connection, run_id: str) -> list[Attempt]:
    """Return the intents of a run that have no receipt, in the order in which they were written."""
    query = select(attempts).outerjoin_from(attempts, receipts).where(attempts.c.run_id == run_id, receipts.c.run_id.is_(None))
    return [attempt_of(row) for row in connection.execute(query.order_by(attempts.c.started_at, attempts.c.id)).mappings()]


def labels_of(connection: Connection, run_id: str) -> dict[Unit, str]:
    """Return what the items of a run are called that were begun or asked about; one that its number names has none."""
    found = dict[Unit, str]()
    for table in (gates, attempts):
        query = select(table.c.step_id, table.c.item, table.c.label).where(table.c.run_id == run_id, table.c.label.is_not(None))
        found |= {(step_id, item): label for step_id, item, label in connection.execute(query)}
    return found


def receipts_of(connection: Connection, run_id: str) -> list[Receipt]:
    """Return the receipts of a run in the order in which its attempts ended."""
    query = select(*RECEIPT).where(receipts.c.run_id == run_id).order_by(receipts.c.ended_at, receipts.c.attempt_id)
    return [receipt_of(row) for row in connection.execute(query).all()]


def _current_attempts(connection: Connection, rows: Sequence[Row]) -> list[Row]:
    """Return the attempts that these runs made since they were last begun."""
    since = {row["id"]: row["claimed_at"] for row in rows if row["claimed_at"] is not None}
    if not since:
        return []
    columns = (attempts.c.run_id, attempts.c.step_id, attempts.c.item, attempts.c.effect, attempts.c.started_at, receipts.c.outcome)
    query = select(*columns).outerjoin_from(attempts, receipts).where(attempts.c.run_id.in_(since)).order_by(attempts.c.started_at)
    return [row for row in connection.execute(query).mappings() if row["started_at"] >= since[row["run_id"]]]


def _read_results(connection: Connection, found: dict[str, _Found]) -> None:
    columns = (receipts.c.run_id, receipts.c.step_id, receipts.c.item, receipts.c.result)
    succeeded = receipts.c.outcome == Outcome.SUCCEEDED.value
    query = select(*columns).where(receipts.c.run_id.in_(found), succeeded).order_by(receipts.c.item, receipts.c.number)
    for run_id, step_id, item, result in connection.execute(query):
        found[run_id].results[step_id][item] = result


def _put(step: StepRun, found: _Found, is_interrupted: bool, with_results: bool) -> StepRun:
    """Write into `step` what the tables say about it, and return it."""
    tries = found.attempts.get(step.id)
    if (end := found.ends.get(step.id)) is not None:
        put_end(step, end)
        # What was there when the run was begun again stays as it was written.
        step.carried = step.carried or (step.status is StepStatus.COMPLETED and _is_before(step, found.claimed_at))
        if with_results and step.status is StepStatus.COMPLETED:
            step.result = _result(found.results[step.id], is_list=step.id in found.lists)
    elif tries:
        step.status, step.started_at, step.attempts = StepStatus.RUNNING, tries[0]["started_at"], len(tries)
        step.retry_count = len(tries) - len({row["item"] for row in tries})
        is_unknown = any(row["outcome"] is None and row["effect"] == "write" for row in tries)
        if found.why_ended is not None and any(row["outcome"] == Outcome.SUCCEEDED and row["item"] == NO_ITEM for row in tries):
            step.status, step.outcome = StepStatus.COMPLETED, Outcome.SUCCEEDED
            step.result = _result(found.results[step.id], is_list=False) if with_results else None
        elif found.why_ended is not None:
            step.status, step.error = StepStatus.FAILED, found.why_ended
            step.outcome = Outcome.UNKNOWN if is_unknown else Outcome.FAILED
        elif is_interrupted and is_unknown:
            step.outcome = Outcome.UNKNOWN
    elif found.why_ended is not None:
        step.status, step.reason = StepStatus.SKIPPED, found.why_ended
    return step


def _why_ended(row: Row) -> str | None:
    return (row["message"] or row["reason"]) if row["status"] == PlanStatus.CANCELLED else None


def _is_before(step: StepRun, claimed_at: datetime | None) -> bool:
    return claimed_at is not None and step.completed_at is not None and step.completed_at < claimed_at


def _result(results: dict[int, str], *, is_list: bool) -> JsonValue:
    if is_list:
        return [load_json(text) for _item, text in sorted(results.items())]
    return load_json(results[NO_ITEM]) if NO_ITEM in results else None
