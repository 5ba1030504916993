"""Outcomes that nobody knows: the attempts that have an intent and no receipt, and the word of a person that ends one.

The word is a receipt like any other, with whose it is. Functions of a connection.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import JsonValue
from sqlalchemy import Connection, Select, func, insert, select, update

from plan_adapter.errors import RunConflictError
from plan_adapter.execution.history import is_rollback, undone_by
from plan_adapter.execution.standing import NEVER_KNOWN, label_of
from plan_adapter.plan import PlanStatus, StepStatus, new_id
from plan_adapter.readable import call_name
from plan_adapter.record import ABORTED, Attempt, Outcome, Receipt, Resolution, RunReason
from plan_adapter.store import chain, entries, gates, plans, runs, undoing
from plan_adapter.store.changes import signal
from plan_adapter.store.columns import database_now, now_of
from plan_adapter.store.digests import plain
from plan_adapter.store.rows import Row, attempt_of, attempt_row, context_of, item_column, receipt_row, whose
from plan_adapter.store.steps import history_of, labels_of
from plan_adapter.store.tables import attempts, audit, receipts, step_runs
from plan_adapter.store.tables import runs as run_table


@dataclass(frozen=True, slots=True)
class Word:
    """What a person says about an attempt whose outcome is unknown, and how they were known."""

    resolution: Resolution
    by: str
    known_by: str
    note: str = ""
    result: JsonValue = None  # of the step, where it was done
    digest: str | None = None  # what it is said of, where its giver was shown that: then it is a word about nothing else
    signature: str | None = None  # an armored SSH signature of `signed_resolution`, which was verified


def outcome_digest(attempt_id: str) -> str:
    """Return what an answer to the question binds to how this attempt ended; never a digest that an approval could be of."""
    return hashlib.sha256(f"plan_adapter.outcome {attempt_id}".encode()).hexdigest()


def by_hand_digest(*, run_id: str, step_id: str, item: int | None, number: int) -> str:
    """Return what a word binds to that takes the place of an attempt: of this step, or item, and of this number."""
    return hashlib.sha256(f"plan_adapter.by_hand {run_id} {number} {'' if item is None else item} {step_id}".encode()).hexdigest()


def resolution_digest(
    connection: Connection, tenant: str | None, run_id: str, step_id: str, item: int | None, resolution: Resolution
) -> str:
    """Return what this word about a step binds to, as `resolve` would keep it now; raises RunConflictError as that does."""
    run = _locked(connection, tenant, run_id)
    return _subject(connection, tenant, run, step_id, item, resolution, at=now_of(connection))[1]


def start_of(connection: Connection, attempt: Attempt) -> str | None:
    """Return in words the start of the run, and its process, that made the attempt; None for a run of a version that kept no audit."""
    same = (audit.c.run_id == attempt.run_id, audit.c.kind == "run_started", audit.c.at <= attempt.started_at)
    return connection.scalar(select(audit.c.message).where(*same).order_by(audit.c.number.desc()).limit(1))


def unknown_of(connection: Connection, run_id: str) -> list[Attempt]:
    """Return the writes of a run that were begun and of which nobody knows the outcome, in their order."""
    return _unknown(connection, select(attempts).where(attempts.c.run_id == run_id))


def unknown_of_all(connection: Connection, tenant: str | None) -> list[Attempt]:
    """Return the same of all runs that have not completed."""
    unfinished = select(run_table.c.id).where(run_table.c.status != PlanStatus.COMPLETED.value)
    return _unknown(connection, plans.seen_by(tenant, select(attempts).where(attempts.c.run_id.in_(unfinished)), attempts))


def _unknown(connection: Connection, which: Select[Any]) -> list[Attempt]:
    same = (receipts.c.run_id == attempts.c.run_id, receipts.c.step_id == attempts.c.step_id, receipts.c.item == attempts.c.item)
    ended = (receipts.c.number == attempts.c.number) | (receipts.c.outcome == Outcome.SUCCEEDED.value)
    done = select(receipts.c.number).where(*same, ended)
    query = which.where(attempts.c.effect == "write", ~done.exists())
    return [attempt_of(row) for row in connection.execute(query.order_by(attempts.c.started_at, attempts.c.id)).mappings()]


def resolve(connection: Connection, tenant: str | None, run_id: str, step_id: str, item: int | None, word: Word) -> Receipt:
    """Keep what a person says about the outcome of a step and return it as the receipt that it is.

    A step of which nothing is unknown and that has not succeeded can be said to be done, too: somebody did it by hand; and of one that
    was left in doubt by `abort`, or of an idempotent write that may have been done, it can be said that it is to be done again. So it is
    with what undoes a step. Where a process executes
    the run only what it asks about can be told, at a gate that is closed by the word. Raises RunConflictError for anything
    else then, for other words about a step of which nothing is unknown, and where an item must be named.
    """
    run, ended_at = _locked(connection, tenant, run_id), now_of(connection)
    attempt, digest = _subject(connection, tenant, run, step_id, item, word.resolution, at=ended_at)
    if word.digest not in (None, digest):
        raise RunConflictError(f"another attempt of `{step_id}` in run {run['id']} is in doubt by now: look again, and say it of that one")
    told = list[entries.Entry]()
    if digest != outcome_digest(attempt.id):
        begun = {**whose(context_of(run)), **attempt_row(attempt)}
        connection.execute(insert(attempts).values(begun))
        told.append(entries.of_attempt(plain(attempts, begun)))
    receipt = Receipt(
        attempt_id=attempt.id,
        run_id=attempt.run_id,
        step_id=attempt.step_id,
        item=attempt.item,
        number=attempt.number,
        outcome=Outcome.SUCCEEDED if word.resolution == "done" else Outcome.FAILED,
        result=word.result if word.resolution == "done" else None,
        error=None if word.resolution == "done" else _ERRORS[word.resolution],
        ended_at=ended_at,
        duration_ms=0,
        by=word.by,
        known_by=word.known_by,
        note=word.note or None,
    )
    row = {**whose(context_of(run)), **receipt_row(receipt)}
    connection.execute(insert(receipts).values(row))
    told.append(entries.of_receipt(plain(receipts, row)))
    if word.signature is not None:
        told.append(entries.of_signature(plain(receipts, row), word.signature))
    if (gate_id := gates.outcome_asked(connection, run["id"]).get(digest)) is not None:
        told.append(gates.close_told(connection, gate_id, word.resolution, at=ended_at))
    if runs.owner_of(connection, tenant, run["id"]) is None:
        told += _tell_run(connection, run, attempt, word)
    elif word.resolution == "abort":  # should the process end before it has ended the run
        told += runs.ask_to_cancel(connection, tenant, run["id"], resolution_of(attempt, word), rollback=False)
    chain.append(connection, run["id"], told)
    signal(connection)
    return receipt


def resolution_of(attempt: Attempt, word: Word) -> str:
    """Return in words who said what of an attempt."""
    call = call_name(attempt.step_id, attempt.item, attempt.label)
    return f"{word.by} says of `{call}`: {word.resolution}" + (f" ({word.note})" if word.note else "")


_ERRORS = {"again": "it was not done, and is to be done again", "abort": ABORTED}


def _locked(connection: Connection, tenant: str | None, run_id: str) -> Row:
    found: str = runs.row_of(connection, tenant, run_id)["id"]
    return connection.execute(select(run_table).where(run_table.c.id == found).with_for_update(key_share=True)).mappings().one()


def _subject(
    connection: Connection, tenant: str | None, run: Row, step_id: str, item: int | None, resolution: Resolution, *, at: datetime
) -> tuple[Attempt, str]:
    """Return the attempt that a word is about, a new one where somebody did the step by hand, and the digest that the word binds to."""
    unknown = unknown_of(connection, run["id"])
    if (owner := runs.owner_of(connection, tenant, run["id"])) is not None:
        asked = gates.outcome_asked(connection, run["id"])
        unknown = [attempt for attempt in unknown if outcome_digest(attempt.id) in asked]  # the others may be under way
        if all(attempt.step_id != step_id for attempt in unknown):
            raise RunConflictError(
                f"run {run['id']} is executed by {owner}, which says itself how its steps end; wait for its end, or cancel it"
            )
    if all(attempt.step_id != step_id for attempt in unknown) and (
        resolution == "done" or (resolution == "again" and _is_left(connection, run["id"], step_id, item))
    ):
        by_hand = _by_hand(connection, run, step_id, item, at=at)
        return by_hand, by_hand_digest(run_id=run["id"], step_id=step_id, item=item, number=by_hand.number)
    attempt = _meant(unknown, run["id"], step_id, item)
    return attempt, outcome_digest(attempt.id)


def _by_hand(connection: Connection, run: Row, step_id: str, item: int | None, *, at: datetime) -> Attempt:
    """Return the attempt of a step, or of what undoes it, that a person made in place of its tool."""
    step = next((step for step in plans.of_run(connection, run).steps if step.id == undone_by(step_id)), None)
    if step is None:
        raise RunConflictError(f"no step of run {run['id']} is called `{undone_by(step_id)}`")
    tool_name = step.tool_name or ""
    if is_rollback(step_id):
        if step.rollback is None:
            raise RunConflictError(f"`{step.id}` declares no rollback: there is nothing to say about one")
        tool_name = step.rollback.tool_name
    if step.for_each is not None and item is None:
        raise RunConflictError(f"`{step_id}` has a `for_each`: name an item with --item")
    same = (attempts.c.run_id == run["id"], attempts.c.step_id == step_id, attempts.c.item == item_column(item))
    if _has_succeeded(connection, run["id"], step_id, item):
        raise RunConflictError(f"`{step_id}` has succeeded: there is nothing to say about it")
    is_done = _has_succeeded(connection, run["id"], step.id, item) if is_rollback(step_id) else True
    if not is_done and not (step.rollback_failed and (step.id, item) in history_of(connection, run["id"]).failed):
        raise RunConflictError(f"`{step.id}` was not done: there is nothing to undo")
    number = (connection.scalar(select(func.max(attempts.c.number)).where(*same)) or 0) + 1
    label = label_of((step_id, item), labels_of(connection, run["id"]))
    return Attempt(new_id(), run["id"], step_id, item, number, tool_name, "write", {}, "", at, label=label)


def _has_succeeded(connection: Connection, run_id: str, step_id: str, item: int | None) -> bool:
    same = (receipts.c.run_id == run_id, receipts.c.step_id == step_id, receipts.c.item == item_column(item))
    return connection.scalar(select(receipts.c.number).where(*same, receipts.c.outcome == Outcome.SUCCEEDED.value)) is not None


def _is_left(connection: Connection, run_id: str, step_id: str, item: int | None) -> bool:
    """Return whether nobody has said more of a step, or an item, since the run was ended over it, or an idempotent write was cut off."""
    history = history_of(connection, run_id)
    return (step_id, item) in history.aborted or (step_id, item) in history.repeatable


def _meant(unknown: Sequence[Attempt], run_id: str, step_id: str, item: int | None) -> Attempt:
    of_step = [attempt for attempt in unknown if attempt.step_id == step_id]
    meant = [attempt for attempt in of_step if item is None or attempt.item == item]
    if len(meant) == 1:
        return meant[0]
    if meant:
        items = ", ".join(call_name(step_id, attempt.item, attempt.label) for attempt in meant)
        raise RunConflictError(f"of several items of `{step_id}` the outcome is unknown ({items}): name one with --item")
    names = ", ".join(f"`{call_name(a.step_id, a.item, a.label)}`" for a in unknown)
    raise RunConflictError(f"the outcome of `{step_id}` in run {run_id} is not unknown" + (f"; that of {names} is" if names else ""))


def _tell_run(connection: Connection, run: Row, attempt: Attempt, word: Word) -> list[entries.Entry]:
    """Let the run and its step say what was decided, and return what the audit is told; the next start goes on from the receipts."""
    left = unknown_of(connection, run["id"])
    said = resolution_of(attempt, word)
    changed: dict[str, object] = {"message": said, "updated_at": database_now()}
    if is_rollback(attempt.step_id):  # why the run ended stays as it is, and with `abort` only its rollback ends
        changed |= undoing.told(connection, run, said, ends=word.resolution == "abort")
    elif word.resolution == "abort":
        changed |= {"status": PlanStatus.CANCELLED.value, "reason": RunReason.CANCELLED.value, "completed_at": database_now()}
    elif left:
        names = ", ".join(sorted({f"`{other.step_id}`" for other in left}))
        changed["message"] = f"{said}; whether {names} was done is still unknown"
    elif run["reason"] == RunReason.UNKNOWN.value:
        changed["reason"] = RunReason.INTERRUPTED.value
    renewed = update(run_table).where(run_table.c.id == run["id"]).values(**changed).returning(run_table)
    now = plain(run_table, connection.execute(renewed).mappings().one())
    told = list[entries.Entry]()
    if all(other.step_id != attempt.step_id for other in left):
        ended = (step_runs.c.run_id == run["id"], step_runs.c.step_id == attempt.step_id, step_runs.c.status == StepStatus.FAILED.value)
        steps = update(step_runs).where(*ended).values(**_end_of_step(attempt, word, said)).returning(step_runs)
        told = [entries.of_step(plain(step_runs, row)) for row in connection.execute(steps).mappings()]
    is_end = now["completed_at"] is not None
    return [*told, entries.of_run_end(now) if is_end else entries.of_run(now, "run_changed", message=said)]


def _end_of_step(attempt: Attempt, word: Word, said: str) -> dict[str, object]:
    """Return what the step is shown with until the run goes on; of a step with items only the next start knows whether all are done."""
    if word.resolution == "done" and attempt.item is None:
        return {"status": StepStatus.COMPLETED.value, "outcome": Outcome.SUCCEEDED.value, "error": None, "reason": said}
    return {"outcome": Outcome.FAILED.value, "error": said if word.resolution != "abort" else f"{said}; {NEVER_KNOWN}"}
