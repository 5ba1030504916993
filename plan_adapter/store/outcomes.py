"""`UnknownOutcomes`: attempts with an intent but no receipt, and the resolutions that people give.

A resolution is stored as a receipt that names the person.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import JsonValue
from sqlalchemy import Connection, Select, insert, or_, select, update

from plan_adapter.execution.history import RunHistory, Unit
from plan_adapter.execution.rollback_status import OUTCOME_UNKNOWN
from plan_adapter.execution.rollback_units import rolled_back_items
from plan_adapter.model.approvals import Resolution
from plan_adapter.model.errors import RunConflictError, RunNotFoundError
from plan_adapter.model.host_process import HostProcess, marked_leaders
from plan_adapter.model.options import CallKind
from plan_adapter.model.plan import ExecutionPlan, Step, new_id
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import call_in_words, call_name
from plan_adapter.model.record import ABORTED, Attempt, Receipt, StartedCommand
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.store import gates, plans, runs
from plan_adapter.store.database.columns import database_now, now_of
from plan_adapter.store.database.database import StorePart, reads, signal, writes
from plan_adapter.store.database.rows import Row, attempt_of, attempt_row, context_columns, context_of, receipt_row
from plan_adapter.store.database.tables import attempts, commands, receipts, step_runs
from plan_adapter.store.database.tables import audit as audit_log
from plan_adapter.store.database.tables import runs as run_table
from plan_adapter.store.proof import audit, entries
from plan_adapter.store.proof.digests import json_row
from plan_adapter.store.redaction import records
from plan_adapter.store.steps import history_of, labels_of
from plan_adapter.text.commands import resolve_command


@dataclass(frozen=True, slots=True)
class ResolutionRecord:
    """A person's resolution of an attempt whose outcome is unknown, and how the person was identified."""

    resolution: Resolution
    by: str
    known_by: str
    note: str = ""
    result: JsonValue = None  # of the step, if it was done
    digest: str | None = None  # what the person was shown, if anything; the resolution then applies to that only
    signature: str | None = None  # a verified armored SSH signature of `resolution_text_to_sign`


def outcome_digest(attempt_id: str) -> str:
    """Return the digest that a resolution of this attempt binds to. It never equals the digest of an approval."""
    return hashlib.sha256(f"plan_adapter.outcome {attempt_id}".encode()).hexdigest()


class CallPlace(NamedTuple):
    """A call of a run: a step, one of its items, or the rollback of either."""

    step_id: str
    item: int | None
    kind: CallKind

    @property
    def unit(self) -> Unit:
        """The step or the item."""
        return self.step_id, self.item

    def name(self) -> str:
        """Return the name of the step or its rollback, without the item."""
        return call_name(self.step_id, None, kind=self.kind)


def by_hand_digest(*, run_id: str, step_id: str, item: int | None, number: int, kind: CallKind) -> str:
    """Return the digest that a resolution binds to if it replaces an attempt. It covers the call and the attempt's number."""
    call = f"{run_id} {kind} {number} {'' if item is None else item} {step_id}"
    return hashlib.sha256(f"plan_adapter.by_hand {call}".encode()).hexdigest()


class UnknownOutcomes(StorePart):
    """The writes of a store's runs whose outcome is unknown, and their resolutions."""

    @reads
    def unknown(self, connection: Connection, run_id: str) -> list[Attempt]:
        """Return the writes of a run whose outcome is unknown, in the order in which they started."""
        return unknown_of(connection, runs.id_of(connection, self.tenant_id, run_id))

    @reads
    def unknown_of_all(self, connection: Connection) -> list[Attempt]:
        """Return the writes with an unknown outcome of all runs that have not completed. Processes may be executing some of these runs."""
        unfinished = select(run_table.c.id).where(run_table.c.status != PlanStatus.COMPLETED.value)
        return _find_unknown(connection, plans.seen_by(self.tenant_id, select(attempts).where(attempts.c.run_id.in_(unfinished)), attempts))

    @reads
    def commands(self, connection: Connection, run_id: str) -> list[StartedCommand]:
        """Return the commands of a run's attempts that no tool has recorded an end of, in the order in which the attempts started.

        A person may have resolved such an attempt. Which of the commands still run is only known of those on this host.
        """
        return commands_of(connection, runs.id_of(connection, self.tenant_id, run_id))

    @reads
    def start_of(self, connection: Connection, attempt: Attempt) -> str | None:
        """Return a description of the start of the run and the process that made `attempt`, or None if the audit log has no start."""
        same = (audit_log.c.run_id == attempt.run_id, audit_log.c.kind == "run_started", audit_log.c.at <= attempt.started_at)
        return connection.scalar(select(audit_log.c.message).where(*same).order_by(audit_log.c.number.desc()).limit(1))

    @records
    def resolve(
        self,
        connection: Connection,
        run_id: str,
        step_id: str,
        record: ResolutionRecord,
        *,
        item: int | None = None,
        kind: CallKind = "step",
    ) -> Receipt:
        """Record a person's resolution of the unknown outcome of a step or one of its items. Return it as a receipt.

        With `kind` "rollback", it resolves the step's rollback. The run resumes from there. If a process waits for the resolution at an
        outcome gate, that gate is closed and the run continues at once; otherwise it continues when it is resumed. `abort` ends the run as
        cancelled.

        Two more cases are allowed: `done` for a call that has not succeeded, because somebody did it by hand; and `again` for a call that
        was aborted with an unknown outcome, or for a read or an idempotent write that was interrupted.

        Raises RunConflictError if a process executes the run and does not ask about this call, for any other resolution of a call whose
        outcome is known, if an item must be named, and for `again` while a command of the call still runs on this host.
        """
        call = CallPlace(step_id, item, kind)
        run, ended_at = runs.lock_run(connection, self.tenant_id, run_id), now_of(connection)
        attempt, digest = _resolved_attempt(connection, self.tenant_id, run, call, record.resolution, at=ended_at)
        if record.digest not in (None, digest):
            raise RunConflictError(
                f"another attempt of `{call.name()}` in run {run['id']} has an unknown outcome now: look again, and record that one"
            )
        if record.resolution == "again":
            refuse_running(connection, run["id"], call._replace(item=attempt.item))
        audit_entries = list[entries.Entry]()
        if digest != outcome_digest(attempt.id):
            begun = {**context_columns(context_of(run)), **attempt_row(attempt)}
            connection.execute(insert(attempts).values(begun))
            audit_entries.append(entries.of_attempt(json_row(attempts, begun)))
        receipt = Receipt(
            attempt_id=attempt.id,
            run_id=attempt.run_id,
            step_id=attempt.step_id,
            item=attempt.item,
            number=attempt.number,
            outcome=Outcome.SUCCEEDED if record.resolution == "done" else Outcome.FAILED,
            result=record.result if record.resolution == "done" else None,
            error=None if record.resolution == "done" else _ERRORS[record.resolution],
            ended_at=ended_at,
            duration_ms=0,
            by=record.by,
            known_by=record.known_by,
            note=record.note or None,
            kind=attempt.kind,
        )
        row = {**context_columns(context_of(run)), **receipt_row(receipt)}
        connection.execute(insert(receipts).values(row))
        audit_entries.append(entries.of_receipt(json_row(receipts, row)))
        if record.signature is not None:
            audit_entries.append(entries.of_signature(json_row(receipts, row), record.signature))
        if (gate_id := gates.open_outcome_gates(connection, run["id"]).get(digest)) is not None:
            audit_entries.append(gates.close_resolved(connection, gate_id, record.resolution, at=ended_at))
        if runs.owner_of(connection, self.tenant_id, run["id"]) is None:
            audit_entries += _apply_to_run(connection, run, attempt, record)
        elif record.resolution == "abort":  # in case the process dies before it has ended the run
            audit_entries += runs.record_cancel_request(
                connection, self.tenant_id, run["id"], describe_resolution(attempt, record), rollback=False
            )
        audit.append(connection, run["id"], audit_entries)
        signal(connection)
        return receipt

    @writes
    def digest_of(
        self, connection: Connection, run_id: str, step_id: str, resolution: Resolution, *, item: int | None = None, kind: CallKind = "step"
    ) -> str:
        """Return the digest that a resolution and its signature bind to. Raises the same errors as `resolve`."""
        run, call = runs.lock_run(connection, self.tenant_id, run_id), CallPlace(step_id, item, kind)
        return _resolved_attempt(connection, self.tenant_id, run, call, resolution, at=now_of(connection))[1]


def commands_of(connection: Connection, run_id: str) -> list[StartedCommand]:
    """Return the commands of a run's attempts that no tool has recorded an end of, in the order in which the attempts started."""
    unended = or_(receipts.c.run_id.is_(None), receipts.c.by.is_not(None))
    query = select(attempts).outerjoin_from(attempts, receipts).where(attempts.c.run_id == run_id, unended)
    found = [attempt_of(row) for row in connection.execute(query.order_by(attempts.c.started_at, attempts.c.id)).mappings()]
    if not found:
        return []
    recorded = defaultdict[str, list[HostProcess]](list)
    for attempt_id, process in connection.execute(select(commands.c.attempt_id, commands.c.process).where(commands.c.run_id == run_id)):
        recorded[attempt_id].append(HostProcess.parse(process))
    # A process may die after it has started a command, before it is recorded; and what a row says may be wrong.
    if unseen := [attempt.id for attempt in found if not any(process.session for process in recorded[attempt.id])]:
        marked = marked_leaders()
        recorded |= {attempt_id: [marked[attempt_id]] for attempt_id in unseen if attempt_id in marked}
    return [StartedCommand(attempt, process) for attempt in found for process in recorded.get(attempt.id, ())]


def unknown_of(connection: Connection, run_id: str) -> list[Attempt]:
    """Return the writes of a run whose outcome is unknown, in the order in which they started."""
    return _find_unknown(connection, select(attempts).where(attempts.c.run_id == run_id))


def _find_unknown(connection: Connection, candidates: Select[Any]) -> list[Attempt]:
    same = [receipts.c[name] == attempts.c[name] for name in ("run_id", "step_id", "kind", "item")]
    later_success = (receipts.c.number > attempts.c.number) & (receipts.c.outcome == Outcome.SUCCEEDED.value)
    ended = (receipts.c.number == attempts.c.number) | later_success
    done = select(receipts.c.number).where(*same, ended)
    query = candidates.where(attempts.c.effect == "write", ~done.exists())
    return [attempt_of(row) for row in connection.execute(query.order_by(attempts.c.started_at, attempts.c.id)).mappings()]


def describe_resolution(attempt: Attempt, record: ResolutionRecord) -> str:
    """Return a sentence that says who resolved an attempt and how."""
    call = call_name(attempt.step_id, attempt.item, attempt.label, kind=attempt.kind)
    return f"{record.by} recorded `{record.resolution}` for `{call}`" + (f" ({record.note})" if record.note else "")


_ERRORS = {"again": "it was not done; it will be called again", "abort": ABORTED}


def _resolved_attempt(
    connection: Connection, tenant: str | None, run: Row, call: CallPlace, resolution: Resolution, *, at: datetime
) -> tuple[Attempt, str]:
    """Return the attempt that a resolution is about, and the digest it binds to. If a person did the step by hand, the attempt is new."""
    unknown = unknown_of(connection, run["id"])
    if (owner := runs.owner_of(connection, tenant, run["id"])) is not None:
        asked = gates.open_outcome_gates(connection, run["id"])
        unknown = [attempt for attempt in unknown if outcome_digest(attempt.id) in asked]  # the others may still be running
        if not _attempts_of_call(unknown, call):
            raise RunConflictError(
                f"run {run['id']} is executed by {owner}, which records how its steps end; wait until it ends, or cancel it"
            )
    if not _attempts_of_call(unknown, call) and (
        resolution == "done" or (resolution == "again" and _may_be_repeated(connection, run["id"], call))
    ):
        by_hand = _manual_attempt(connection, run, call, at=at)
        return by_hand, by_hand_digest(run_id=run["id"], step_id=call.step_id, item=call.item, number=by_hand.number, kind=call.kind)
    attempt = _named_attempt(unknown, run["id"], call)
    return attempt, outcome_digest(attempt.id)


def refuse_running(connection: Connection, run_id: str, call: CallPlace) -> None:
    """Raise RunConflictError while a command of the call still runs on this host: `again` would run it twice at once."""
    for command in commands_of(connection, run_id):
        attempt = command.attempt
        if (attempt.step_id, attempt.item, attempt.kind) == call and command.state == "running":
            again = resolve_command(run_id, call.unit, "again", label=attempt.label, kind=call.kind)
            raise RunConflictError(
                f"`{command.call}` in run {run_id} {command.in_words}, so it is not called again: wait until it has ended, or "
                f"`{again} --end` ends it first"
            )


def _attempts_of_call(unknown: Sequence[Attempt], call: CallPlace) -> list[Attempt]:
    """Return the attempts of this step, or of its rollback, for any item."""
    return [attempt for attempt in unknown if (attempt.step_id, attempt.kind) == (call.step_id, call.kind)]


def _manual_attempt(connection: Connection, run: Row, call: CallPlace, *, at: datetime) -> Attempt:
    """Return the attempt that a person made by hand in place of the tool of a step or its rollback."""
    plan = plans.of_run(connection, run)
    step = plan.find_step(call.step_id)
    if step is None:
        hint = did_you_mean(call.step_id, [known.id for known in plan.all_steps])
        raise RunNotFoundError(f"no step of run {run['id']} is called `{call.step_id}`", hint=hint)
    if step.inner:
        names, what = ", ".join(f"`{inner_step.id}`" for inner_step in step.inner[:5]), "is a group" if step.is_group else "runs a plan"
        raise RunNotFoundError(f"`{step.id}` {what} and calls no tool: name one of its steps, {names}")
    if step.ask is not None:
        raise RunConflictError(f"`{step.id}` asks a question: answer it with `plan answer {run['id']} {step.id}`")
    if step.goal is not None and call.item is not None:
        raise RunConflictError(
            f"`{call.name()}` has no call with an unknown outcome in round {call.item + 1}; `done` without --item ends the step"
        )
    tool_name = step.called
    if call.kind == "rollback":
        if step.rollback is None:
            raise RunConflictError(f"`{step.id}` declares no rollback: there is nothing to resolve")
        tool_name = step.rollback.tool_name
    if (step.for_each is not None or step.group is not None) and call.item is None:
        raise RunNotFoundError(f"`{call.name()}` is called once per item: name an item with --item")
    history = history_of(connection, run["id"])
    made = history.calls(call.kind)
    if call.unit in made.succeeded:
        raise RunConflictError(f"`{call.name()}` has succeeded: there is nothing to resolve")
    _refuse_rolled_back_item(plan, step, call, history)
    is_done = call.unit in history.succeeded or (step.rollback_failed and call.unit in history.failed)
    if call.kind == "rollback" and not is_done:
        raise RunConflictError(f"`{step.id}` was not done: there is nothing to undo")
    return Attempt(
        id=new_id(),
        run_id=run["id"],
        step_id=call.step_id,
        item=call.item,
        number=made.attempts.get(call.unit, 0) + 1,
        tool_name=tool_name,
        effect="write",
        parameters={},
        idempotency_key="",
        started_at=at,
        label=labels_of(connection, run["id"]).get(call.unit),
        kind=call.kind,
    )


def _refuse_rolled_back_item(plan: ExecutionPlan, step: Step, call: CallPlace, history: RunHistory) -> None:
    """Raise RunConflictError for a step of an item that was rolled back by itself: nothing of the item is called again."""
    group = plan.find_step(step.group)
    if call.kind == "step" and group is not None and call.item in rolled_back_items(group, plan, history):
        raise RunConflictError(
            f"the item of `{call.name()}` was rolled back, so no step of it is called or recorded again: start a new run"
        )


def _may_be_repeated(connection: Connection, run_id: str, call: CallPlace) -> bool:
    """Return whether the call was aborted with an unknown outcome and not resolved since, or is an interrupted read or idempotent write."""
    made = history_of(connection, run_id).calls(call.kind)
    return call.unit in {*made.aborted, *made.repeatable, *made.interrupted_reads}


def _named_attempt(unknown: Sequence[Attempt], run_id: str, call: CallPlace) -> Attempt:
    meant = [attempt for attempt in _attempts_of_call(unknown, call) if call.item is None or attempt.item == call.item]
    if len(meant) == 1:
        return meant[0]
    if meant:
        items = ", ".join(call_name(a.step_id, a.item, a.label, kind=a.kind) for a in meant)
        raise RunConflictError(f"several items of `{call.name()}` have an unknown outcome ({items}): name one with --item")
    names = ", ".join(f"`{call_name(a.step_id, a.item, a.label, kind=a.kind)}`" for a in unknown)
    raise RunConflictError(f"the outcome of `{call.name()}` in run {run_id} is not unknown" + (f"; that of {names} is" if names else ""))


def _apply_to_run(connection: Connection, run: Row, attempt: Attempt, record: ResolutionRecord) -> list[entries.Entry]:
    """Write the resolution to the run and its step, and return the audit entries. The next start resumes from the receipts."""
    left = unknown_of(connection, run["id"])
    summary = describe_resolution(attempt, record)
    changed: dict[str, object] = {"message": summary, "rollback": None, "updated_at": database_now()}
    if attempt.kind == "rollback" and runs.has_begun_rollback(connection, run):
        # The reason why the run ended stays; `abort` ends only the rollback.
        changed |= runs.columns_of_resolved_rollback(connection, run, summary, ends=record.resolution == "abort")
    elif record.resolution == "abort":
        changed |= {"status": PlanStatus.CANCELLED.value, "reason": RunReason.CANCELLED.value, "completed_at": database_now()}
    elif left:
        names = ", ".join(sorted({call_in_words(other.step_id, other.kind) for other in left}))
        changed["message"] = f"{summary}; the outcome of {names} is still unknown"
    elif run["reason"] == RunReason.UNKNOWN.value:
        changed["reason"] = RunReason.INTERRUPTED.value
    renewed = update(run_table).where(run_table.c.id == run["id"]).values(**changed).returning(run_table)
    now = json_row(run_table, connection.execute(renewed).mappings().one())
    audit_entries = list[entries.Entry]()
    if attempt.kind == "step" and all((other.step_id, other.kind) != (attempt.step_id, "step") for other in left):
        ended = (step_runs.c.run_id == run["id"], step_runs.c.step_id == attempt.step_id, step_runs.c.status == StepStatus.FAILED.value)
        steps = update(step_runs).where(*ended).values(**_end_of_step(attempt, record, summary)).returning(step_runs)
        audit_entries = [entries.of_step(json_row(step_runs, row)) for row in connection.execute(steps).mappings()]
    is_end = now["completed_at"] is not None
    return [*audit_entries, entries.of_run_end(now) if is_end else entries.of_run(now, "run_changed", message=summary)]


def _end_of_step(attempt: Attempt, record: ResolutionRecord, summary: str) -> dict[str, object]:
    """Return the step's columns until the run is resumed. Only the next start knows whether all items of a step are done."""
    if record.resolution == "done" and attempt.item is None:
        return {"status": StepStatus.COMPLETED.value, "outcome": Outcome.SUCCEEDED.value, "error": None, "reason": summary}
    return {"outcome": Outcome.FAILED.value, "error": summary if record.resolution != "abort" else f"{summary}; {OUTCOME_UNKNOWN}"}
