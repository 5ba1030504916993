"""`StoreRecorder`: records the intents and receipts of one run, grouping them into few commits."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, TextClause, bindparam, insert, select, text

from plan_adapter.local.crash_points import reached
from plan_adapter.model.errors import NotApprovedError, StoreError
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.record import Attempt, PlanRun, Receipt, StepRun
from plan_adapter.store import leases, permission
from plan_adapter.store.database.columns import Clock
from plan_adapter.store.database.database import Database
from plan_adapter.store.database.patience import PatientDatabase
from plan_adapter.store.database.rows import attempt_row, command_row, context_columns, end_row, receipt_row
from plan_adapter.store.database.tables import approvals, attempts, commands, receipts, step_runs
from plan_adapter.store.proof import audit, entries
from plan_adapter.store.proof.digests import JsonRow, instant_text, json_row
from plan_adapter.store.steps import calls_of_item

GATHER_SECONDS = 0.01
"""How long a receipt waits for an intent to share its commit."""


@dataclass(frozen=True, slots=True)
class _Intent:
    """An attempt to record, and the future of the caller that waits for it."""

    attempt: Attempt
    row: dict[str, Any]
    written: asyncio.Future[None]


@dataclass(slots=True)
class _Batch:
    """Rows to commit together, and the futures of the callers that wait for them."""

    run_id: str
    epoch: int | None
    intents: list["_Intent"] = field(default_factory=list["_Intent"])
    receipts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    ends: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    commands: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    command_entries: list[entries.Entry] = field(default_factory=list[entries.Entry])
    waiting: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])

    @property
    def is_empty(self) -> bool:
        return not (self.intents or self.receipts or self.ends or self.commands or self.waiting)

    def add_waiters(self, later: "_Batch") -> None:
        """Move the waiters of `later` to this batch."""
        self.intents += later.intents
        self.waiting += later.waiting

    def write(self, connection: Connection) -> dict[str, str]:
        """Write everything except intents without an approval. Return, by attempt id, which approval is missing."""
        if self.epoch is not None:
            leases.require(connection, self.run_id, self.epoch)
        refused, rows = dict[str, str](), list[dict[str, Any]]()
        gated = [intent.attempt.approval_id for intent in self.intents if intent.attempt.approval_id is not None]
        unused = _unused_approvals(connection, gated) if gated else []
        if self.intents:
            refused = permission.refusals(connection, self.run_id, [intent.attempt for intent in self.intents])
            rows = [intent.row for intent in self.intents if intent.attempt.id not in refused] if refused else [i.row for i in self.intents]
            if rows:
                connection.execute(_INSERT_ATTEMPTS, rows)
        # After the attempts, because receipts refer to them.
        if self.receipts:
            connection.execute(_INSERT_RECEIPTS, self.receipts)
        if self.ends:
            connection.execute(_UPSERT_ENDS, self.ends)
        if self.commands:
            connection.execute(_INSERT_COMMANDS, self.commands)
        audit_entries = [entries.of_receipt(json_row(receipts, row)) for row in self.receipts]
        audit_entries += [entries.of_step(json_row(step_runs, row)) for row in self.ends if row["completed_at"] is not None]
        audit_entries += [entries.of_use(row) for row in _used_approvals(connection, unused)] if unused else []
        audit_entries += [entries.of_attempt(json_row(attempts, row)) for row in rows]
        audit_entries += [
            entries.of_always_executed(attempt, attempt.allowed_by)
            for attempt in (intent.attempt for intent in self.intents)
            if attempt.allowed_by is not None and attempt.id not in refused
        ]
        audit.append(connection, self.run_id, entries.sort_by_time(audit_entries + self.command_entries))
        return refused


class StoreRecorder:
    """Implements `record.Recorder`. Belongs to one event loop.

    Rows collect while a commit is in progress, and the next commit takes all of them. After a failed commit nothing more is written: every
    call that promises durability raises the same StoreError, so that no further step starts.
    """

    def __init__(self, database: Database | PatientDatabase, run: PlanRun, clock: Clock, *, epoch: int | None) -> None:
        """Record for `run` under the lease with this epoch. Nothing is written yet."""
        self._epoch = epoch
        self._database = database
        self._clock = clock
        self._run_id = run.id
        self._context_columns: Mapping[str, str | None] = context_columns(run)
        self._batch = _Batch(run.id, epoch)
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failure: StoreError | None = None

    def now(self) -> datetime:
        """Return the store's time."""
        return self._clock.now()

    async def intent(self, attempt: Attempt) -> None:
        """Write `attempt` together with everything passed before it. Returns when it is durable.

        Raises NotApprovedError, with what is missing, unless the same transaction finds a valid approval of the run and, for a gated step,
        of this call. Then this attempt is not written; everything else is. Uses up the approval of the call. Raises StoreError.
        """
        if self._failure is not None:
            raise self._failure
        intent = _Intent(attempt, {**self._context_columns, **attempt_row(attempt)}, asyncio.get_running_loop().create_future())
        self._batch.intents.append(intent)
        self._start_writer()
        await intent.written

    def receipt(self, receipt: Receipt) -> None:
        """Queue `receipt`. It is durable once the next intent or `flush` returns, and soon without one."""
        self._batch.receipts.append({**self._context_columns, **receipt_row(receipt)})
        self._write_later()

    def command_started(self, attempt: Attempt, process: HostProcess) -> None:
        """Queue the process of a command that the tool of `attempt` has started."""
        row = {**self._context_columns, **command_row(attempt, process)}
        self._batch.commands.append(row)
        self._batch.command_entries.append(entries.of_command(json_row(commands, row), at=instant_text(self.now())))
        self._write_later()

    def step_ended(self, step: StepRun) -> None:
        """Queue the end of a step in its current state."""
        self._batch.ends.append({**self._context_columns, "run_id": self._run_id, **end_row(step)})
        self._write_later()

    async def calls_of_item(self, step_ids: Collection[str], item: int) -> tuple[Sequence[Attempt], Sequence[Receipt]]:
        """Return the attempts and receipts of one item of these steps, from all starts of the run. Raises StoreError."""
        await self.flush()
        return await self._database.read(partial(calls_of_item, run_id=self._run_id, step_ids=step_ids, item=item))

    async def flush(self) -> None:
        """Return when everything queued is durable. Raises StoreError if something could not be written."""
        if self._failure is not None:
            raise self._failure
        done = asyncio.get_running_loop().create_future()
        self._batch.waiting.append(done)
        self._start_writer()
        await done

    def _write_later(self) -> None:
        # Usually the next step's intent follows at once and shares the commit. If not, the receipt must not wait for it.
        if self._writer is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._start_writer)

    def _start_writer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writer is None and self._failure is None:
            # A task starts in the loop's next turn, so rows queued in this turn share the commit.
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while True:
                batch, self._batch = self._batch, _Batch(self._run_id, self._epoch)
                await self._commit(batch)
                if self._failure is not None or not (self._batch.waiting or self._batch.intents):
                    break
        finally:
            self._writer = None
        if not self._batch.is_empty:
            self._write_later()

    async def _commit(self, batch: _Batch) -> None:
        refused: dict[str, str] = {}
        try:
            refused = await self._database.write(batch.write)
            if batch.receipts:
                reached("after-receipt")
            for row in batch.commands:
                reached("command-recorded", row["attempt_id"])
        except BaseException as error:
            self._failure = _as_store_error(error)
            batch.add_waiters(self._batch)
            self._batch = _Batch(self._run_id, self._epoch)
            if not isinstance(error, Exception):  # the loop is shutting down
                raise
        finally:
            for done in batch.waiting:
                _settle(done, self._failure)
            for intent in batch.intents:
                why = refused.get(intent.attempt.id)
                _settle(intent.written, self._failure or (NotApprovedError(why) if why is not None else None))


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():  # the waiting caller was cancelled
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _as_store_error(error: BaseException) -> StoreError:
    if isinstance(error, StoreError):
        return error
    failure = StoreError(f"the record could not be written: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _unused_approvals(connection: Connection, approval_ids: Sequence[str]) -> list[str]:
    """Return the ids of the approvals that are not used yet."""
    return list(connection.scalars(select(approvals.c.id).where(approvals.c.id.in_(approval_ids), approvals.c.used_at.is_(None))))


def _used_approvals(connection: Connection, approval_ids: Sequence[str]) -> list[JsonRow]:
    """Return the rows of the approvals that are used now."""
    query = select(approvals).where(approvals.c.id.in_(approval_ids), approvals.c.used_at.is_not(None)).order_by(approvals.c.used_at)
    return [json_row(approvals, row) for row in connection.execute(query).mappings()]


_INSERT_ATTEMPTS = insert(attempts)
_INSERT_RECEIPTS = insert(receipts)
_INSERT_COMMANDS = insert(commands)


def _upsert_ends() -> TextClause:
    """Return the statement that writes the ends of steps. A step that failed or was skipped ends again when its run is resumed.

    It is a text because SQLAlchemy compiles its own INSERT with ON CONFLICT again for each commit, which takes a fifth of a step's time.
    """
    names = [column.name for column in step_runs.c]
    columns, values = ", ".join(f'"{name}"' for name in names), ", ".join(f":{name}" for name in names)
    updates = ", ".join(f'"{column.name}" = excluded."{column.name}"' for column in step_runs.c if not column.primary_key)
    sql = f"INSERT INTO step_runs ({columns}) VALUES ({values}) ON CONFLICT (run_id, step_id) DO UPDATE SET {updates}"  # noqa: S608  # names of our own
    return text(sql).bindparams(*(bindparam(column.name, type_=column.type) for column in step_runs.c))


_UPSERT_ENDS = _upsert_ends()
