"""The steps of runs, built from the plan, the recorded ends, and the attempts and receipts; and the history of a run.

A step with a recorded end has ended. A step without one, but with an attempt of the current start, is running. In a run that was ended
while no process executed it, such a step was cut off, and a step that was not started is skipped. Every other step is pending.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pydantic import JsonValue
from sqlalchemy import Column, Connection, Table, and_, func, select, tuple_

from plan_adapter.execution.groups import group_result
from plan_adapter.execution.history import RunHistory, Unit
from plan_adapter.model.errors import StoreError
from plan_adapter.model.options import CallKind
from plan_adapter.model.record import Attempt, Receipt, StepEnd, StepRun
from plan_adapter.model.status import Outcome, PlanStatus, StepStatus
from plan_adapter.store.database.rows import NO_ITEM, Row, apply_end, attempt_of, item_of, load_json, receipt_of
from plan_adapter.store.database.tables import attempts, gates, implied_dependencies, plans, receipts, step_runs
from plan_adapter.store.database.tables import audit as audit_log


@dataclass(slots=True)
class _StepRecords:
    """The records of the steps of one run, by step id."""

    claimed_at: datetime | None
    why_ended: str | None = None  # of a run that was cancelled, was rejected or has expired
    ends: dict[str, Row] = field(default_factory=dict[str, Row])
    attempts: defaultdict[str, list[Row]] = field(default_factory=lambda: defaultdict[str, list[Row]](list))
    lists: set[str] = field(default_factory=set[str])  # ids of the steps whose results are lists
    results: defaultdict[str, dict[int, str]] = field(default_factory=lambda: defaultdict[str, dict[int, str]](dict))


def step_runs_of(
    connection: Connection, rows: Sequence[Row], *, interrupted: Collection[str], with_results: bool
) -> dict[str, list[StepRun]]:
    """Return the step runs of each run in `rows`, by run id. In `interrupted` runs, the outcome of an unfinished write is unknown."""
    found = {row["id"]: _StepRecords(row["claimed_at"], _why_ended(row)) for row in rows}
    for end in connection.execute(select(step_runs).where(step_runs.c.run_id.in_(found))).mappings():
        found[end["run_id"]].ends[end["step_id"]] = end
    planned = _planned_steps(connection, rows)
    _drop_outdated_ends(connection, found, planned)
    lack_ends = {run_id for run_id, run in found.items() if run.why_ended is not None and len(run.ends) < len(planned[run_id])}
    unended = [row for row in rows if row["status"] == PlanStatus.EXECUTING or row["id"] in lack_ends]
    for attempt in _current_attempts(connection, unended):
        found[attempt["run_id"]].attempts[attempt["step_id"]].append(attempt)
    if with_results:
        _read_results(connection, found)
    for run_id, steps in planned.items():
        found[run_id].lists = {step["id"] for step in steps if "for_each" in step or "in_items" in step}
    read = dict[str, list[StepRun]]()
    for run_id, steps in planned.items():
        pending = [StepRun.pending(step, index, depends_on=step["depends_on"], group=step.get("group")) for index, step in enumerate(steps)]
        ended = [_fill_step(step, found[run_id], run_id in interrupted, with_results) for step in pending]
        names = {step["id"]: step.get("local_id", step["id"]) for step in steps}
        read[run_id] = _with_group_results(ended, found[run_id].results if with_results else None, names)
    return read


def _with_group_results(steps: list[StepRun], results: Mapping[str, dict[int, str]] | None, names: Mapping[str, str]) -> list[StepRun]:
    """Fill in the results of groups from `results`, the texts by step and item, and return `steps`. `names` are their ids in their plan."""
    for group in steps:
        if group.items and group.started_at is not None and results is not None:  # a group that did not begin has no result
            inner = {names[step.id]: results[step.id] for step in steps if step.group == group.id}
            each = [{step_id: load_json(of[item]) for step_id, of in inner.items() if item in of} for item in range(len(group.items))]
            group.result = group_result(group.items, each)
    return steps


def _planned_steps(connection: Connection, rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """Return the steps from each run's plan, by run id. Their `depends_on` includes implied dependencies; `is_finally` is added."""
    documents = _texts_by_digest(connection, plans, plans.c.document, {(row["tenant_id"], row["digest"]) for row in rows})
    wanted = {(row["tenant_id"], row["implied_dependencies_digest"]) for row in rows}
    implied = _texts_by_digest(connection, implied_dependencies, implied_dependencies.c.steps, wanted)
    read, found = dict[tuple[str, str, str], list[dict[str, Any]]](), dict[str, list[dict[str, Any]]]()
    for row in rows:
        key = (row["tenant_id"], row["digest"], row["implied_dependencies_digest"])
        if key not in read:
            document, others = documents.get(key[:2]), implied.get((key[0], key[2]))
            if document is None or others is None:
                raise StoreError(f"the plan or the step dependencies of run {row['id']} are missing: `plan verify {row['id']}` shows which")
            after, planned = load_json(others)["steps"], load_json(document)
            finals = {step["id"] for step in planned.get("finally", ())}
            read[key] = [
                {**step, "depends_on": after.get(step["id"]) or step.get("depends_on", ()), "is_finally": step["id"] in finals}
                for step in steps_of_document(planned)
            ]
        found[row["id"]] = read[key]
    return found


def steps_of_document(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a plan's document, each followed by the steps inside it, whose ids are those of the whole plan."""
    steps = list[dict[str, Any]]()
    for step in document["steps"]:
        steps += [step, *({**inner_step, "group": step["id"], "in_items": True} for inner_step in step.get("steps", ()))]
        if "pinned" in step:
            steps += [_inner_step(step, inner_step) for inner_step in steps_of_document(step["pinned"])]
    return [*steps, *document.get("finally", ())]


def _inner_step(outer: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Return a step of the plan that the step `outer` runs, as a step of the whole plan, with the inputs that `outer` passes."""
    prefix = outer["id"]
    return {
        **step,
        "id": f"{prefix}.{step['id']}",
        "depends_on": [f"{prefix}.{before}" for before in step.get("depends_on", ())],
        "group": f"{prefix}.{step['group']}" if "group" in step else prefix,
        "local_id": step.get("local_id", step["id"]),
        "given": [outer.get("inputs", {}), *step.get("given", ())],  # part of the digest: with other inputs it is another step
    }


def _texts_by_digest(connection: Connection, table: Table, column: Column[Any], keys: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return texts of a table by (tenant, digest)."""
    tenants, digests = {tenant for tenant, _ in keys}, {digest for _, digest in keys}
    query = select(table.c.tenant_id, table.c.digest, column).where(table.c.tenant_id.in_(tenants), table.c.digest.in_(digests))
    return {(tenant, digest): text for tenant, digest, text in connection.execute(query)}


def history_of(connection: Connection, run_id: str) -> RunHistory:
    """Return the history of a run from its record. Does not include the steps that operators skipped."""
    history, ends = (
        RunHistory.of(open_attempts_of(connection, run_id), receipts_of(connection, run_id)),
        _completed_ends(connection, run_id),
    )
    if not history.attempts:
        return replace(history, ends=ends)  # of steps without items
    is_same_step = and_(step_runs.c.run_id == gates.c.run_id, step_runs.c.step_id == gates.c.step_id)
    asked = select(gates.c.step_id).join_from(gates, step_runs, is_same_step)
    asked = asked.where(gates.c.run_id == run_id, gates.c.call_kind == "step")
    return replace(
        history,
        ends=ends,
        asked=frozenset(connection.scalars(asked)),
        labels=labels_of(connection, run_id),
    )


def call_order_of(connection: Connection, run_id: str) -> dict[tuple[CallKind, Unit], int]:
    """Return the number of the newest audit entry about an attempt of each call, by kind and unit."""
    call = (audit_log.c.call_kind, audit_log.c.step_id, audit_log.c.item)
    about_attempts = audit_log.c.kind.startswith("attempt_", autoescape=True)
    newest = func.max(audit_log.c.number).label("newest")
    query = select(*call, newest).where(audit_log.c.run_id == run_id, about_attempts).group_by(*call)
    rows = connection.execute(query).mappings()
    return {(row["call_kind"], (row["step_id"], item_of(row))): row["newest"] for row in rows}


def _completed_ends(connection: Connection, run_id: str) -> dict[str, StepEnd]:
    completed = select(step_runs).where(step_runs.c.run_id == run_id, step_runs.c.status == StepStatus.COMPLETED.value)
    return {
        row["step_id"]: StepEnd(row["reason"], row["retry_count"], row["started_at"], row["completed_at"], row["duration_ms"])
        for row in connection.execute(completed).mappings()
    }


def attempts_of(connection: Connection, run_id: str) -> list[Attempt]:
    """Return the intents of a run in the order in which they were written."""
    query = select(attempts).where(attempts.c.run_id == run_id).order_by(attempts.c.started_at, attempts.c.id)
    return [attempt_of(row) for row in connection.execute(query).mappings()]


def open_attempts_of(connection: Connection, run_id: str) -> list[Attempt]:
    """Return the intents of a run that have no receipt, in the order in which they were written."""
    query = select(attempts).outerjoin_from(attempts, receipts).where(attempts.c.run_id == run_id, receipts.c.run_id.is_(None))
    return [attempt_of(row) for row in connection.execute(query.order_by(attempts.c.started_at, attempts.c.id)).mappings()]


def labels_of(connection: Connection, run_id: str) -> dict[Unit, str]:
    """Return the labels of a run's items that were started or asked about. Items named only by number have none."""
    found = dict[Unit, str]()
    for table in (gates, attempts):
        query = select(table.c.step_id, table.c.item, table.c.label).where(table.c.run_id == run_id, table.c.label.is_not(None))
        found |= {(step_id, item): label for step_id, item, label in connection.execute(query)}
    return found


def receipts_of(connection: Connection, run_id: str) -> list[Receipt]:
    """Return the receipts of a run in the order in which its attempts ended."""
    query = select(receipts).where(receipts.c.run_id == run_id).order_by(receipts.c.ended_at, receipts.c.attempt_id)
    return [receipt_of(row) for row in connection.execute(query).mappings()]


def _drop_outdated_ends(connection: Connection, found: dict[str, _StepRecords], planned: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Remove the ends of completed `finally` steps that were called again since, if that call has not succeeded."""
    finals = {(run_id, step["id"]) for run_id, steps in planned.items() for step in steps if step["is_finally"]}
    completed = [(run_id, step_id) for run_id, step_id in finals if _is_completed(found[run_id].ends.get(step_id))]
    if not completed:
        return
    columns = (attempts.c.run_id, attempts.c.step_id, attempts.c.item, attempts.c.started_at, receipts.c.outcome)
    of_steps = (attempts.c.kind == "step", tuple_(attempts.c.run_id, attempts.c.step_id).in_(completed))
    query = select(*columns).outerjoin_from(attempts, receipts).where(*of_steps).order_by(attempts.c.number)
    last = {(row["run_id"], row["step_id"], row["item"]): row for row in connection.execute(query).mappings()}
    for (run_id, step_id, _), row in last.items():
        end = found[run_id].ends.get(step_id)
        if end is not None and row["outcome"] != Outcome.SUCCEEDED and row["started_at"] > end["completed_at"]:
            del found[run_id].ends[step_id]


def _is_completed(end: Row | None) -> bool:
    return end is not None and end["status"] == StepStatus.COMPLETED


def calls_of_item(connection: Connection, run_id: str, step_ids: Collection[str], item: int) -> tuple[list[Attempt], list[Receipt]]:
    """Return the attempts and receipts of one item of these steps."""
    begun = select(attempts).where(attempts.c.run_id == run_id, attempts.c.step_id.in_(step_ids), attempts.c.item == item)
    ended = select(receipts).where(receipts.c.run_id == run_id, receipts.c.step_id.in_(step_ids), receipts.c.item == item)
    return (
        [attempt_of(row) for row in connection.execute(begun.order_by(attempts.c.started_at, attempts.c.id)).mappings()],
        [receipt_of(row) for row in connection.execute(ended.order_by(receipts.c.ended_at, receipts.c.attempt_id)).mappings()],
    )


def _current_attempts(connection: Connection, rows: Sequence[Row]) -> list[Row]:
    """Return the attempts that these runs made since their current start."""
    since = {row["id"]: row["claimed_at"] for row in rows if row["claimed_at"] is not None}
    if not since:
        return []
    columns = (attempts.c.run_id, attempts.c.step_id, attempts.c.item, attempts.c.effect, attempts.c.started_at, receipts.c.outcome)
    of_steps = (attempts.c.run_id.in_(since), attempts.c.kind == "step")
    query = select(*columns).outerjoin_from(attempts, receipts).where(*of_steps).order_by(attempts.c.started_at)
    return [row for row in connection.execute(query).mappings() if row["started_at"] >= since[row["run_id"]]]


def _read_results(connection: Connection, found: dict[str, _StepRecords]) -> None:
    columns = (receipts.c.run_id, receipts.c.step_id, receipts.c.item, receipts.c.result)
    succeeded = (receipts.c.kind == "step", receipts.c.outcome == Outcome.SUCCEEDED.value)
    query = select(*columns).where(receipts.c.run_id.in_(found), *succeeded).order_by(receipts.c.item, receipts.c.number)
    for run_id, step_id, item, result in connection.execute(query):
        found[run_id].results[step_id][item] = result


def _fill_step(step: StepRun, found: _StepRecords, is_interrupted: bool, with_results: bool) -> StepRun:
    """Fill `step` from its records, and return it."""
    tries = found.attempts.get(step.id)
    if (end := found.ends.get(step.id)) is not None:
        apply_end(step, end)
        # A step that was complete before the current start keeps its recorded end.
        step.carried = step.carried or (step.status is StepStatus.COMPLETED and _ended_before(step, found.claimed_at))
        if with_results and step.status is StepStatus.COMPLETED and not step.plan:
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


def _ended_before(step: StepRun, claimed_at: datetime | None) -> bool:
    return claimed_at is not None and step.completed_at is not None and step.completed_at < claimed_at


def _result(results: dict[int, str], *, is_list: bool) -> JsonValue:
    if is_list:
        return [load_json(text) for _item, text in sorted(results.items())]
    return load_json(results[NO_ITEM]) if NO_ITEM in results else None
