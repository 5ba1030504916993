"""`RunLedger`: the records that processes write about the runs that they execute. Internal to this package."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import JsonValue
from sqlalchemy import Connection, delete, select, update

from plan_adapter.execution.history import RunHistory, Unit
from plan_adapter.model.approvals import Approval
from plan_adapter.model.canonical import canonical_document
from plan_adapter.model.errors import RunConflictError, RunNotFoundError
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.options import CallKind
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.record import PlanRun, RunContext, StartedCommand
from plan_adapter.model.status import PlanStatus, RunReason, StepStatus
from plan_adapter.model.triggers import EventClaim, TriggerRecord
from plan_adapter.store import approvals, concurrency, gates, leases, operator_requests, outcomes, plans, steps, trigger_events
from plan_adapter.store.concurrency import RunBefore
from plan_adapter.store.database.columns import clock_of, database_now, insert_into, now_of
from plan_adapter.store.database.database import Database, StorePart, reads, signal, writes
from plan_adapter.store.database.patience import PatientDatabase
from plan_adapter.store.database.rows import context_columns, dump_json, folder_column, load_json, rollback_column
from plan_adapter.store.database.tables import audit as audit_log
from plan_adapter.store.database.tables import runs, step_runs
from plan_adapter.store.leases import Claim
from plan_adapter.store.proof import audit, entries, tombstones
from plan_adapter.store.proof.digests import instant_text, json_row, new_salt
from plan_adapter.store.recorder import StoreRecorder
from plan_adapter.store.redaction import records, redactor_of, refuse_secrets
from plan_adapter.store.runs import UNENDED, find, id_of, matches, of_flow, owner_of, record_cancel_request, recorded_reason, row_of

if TYPE_CHECKING:
    from plan_adapter.validation import ValidatedPlan


class RunSnapshot(NamedTuple):
    """A run, its current plan and its history, from one snapshot of the store."""

    run: PlanRun
    plan: ExecutionPlan
    history: RunHistory
    commands: list[StartedCommand]
    last_reason: RunReason | None  # the reason recorded by the last process that executed the run, even if that process was interrupted
    has_open_gates: bool


class RunLedger(StorePart):
    """The runs of a store as their processes write them: created, claimed, recorded and released."""

    def __init__(
        self, database: Database | PatientDatabase, tenant_id: str | None, claims: dict[str, Claim], *, lease_seconds: float
    ) -> None:
        """`claims` are those of this process, by run id. A lease lasts for `lease_seconds` unless it is renewed."""
        super().__init__(database, tenant_id)
        self.lease_seconds = lease_seconds
        self._claims = claims

    # Executing a run

    async def create(
        self, run: PlanRun, validated: "ValidatedPlan", *, event: EventClaim | None = None, variables: Mapping[str, str] | None = None
    ) -> TriggerRecord | None:
        """Record a new run with its plan and tool definitions. If the store has a tenant, the run gets that tenant.

        `variables` are the Prefect variables that gave values, by input.

        If an `event` starts it, and another run was started for the same alert, count the event and return that one: no run is created.

        Raises InvalidPlanError, with every place, if its plan, inputs or context contain the value of a secret, and RunConflictError if
        there is a run with this id.
        """
        context: dict[str, JsonValue] = {"agent_id": run.agent_id, "org_id": run.org_id, "task_id": run.task_id}
        context["requested_by"] = run.requested_by
        await refuse_secrets({"": canonical_document(validated.plan), "inputs": run.inputs, **context}, validated.secrets)
        run.tenant_id = self._with_tenant(run).tenant_id
        # Built before the transaction begins, because it is slow for a large plan.
        plan, implied = plans.plan_row(validated.plan, run.digest, run), plans.implied_row(validated, run)
        return await self._create(plan, implied, _run_row(run, validated, implied["digest"]), event, variables or {})

    @writes
    def _create(
        self,
        connection: Connection,
        plan: dict[str, Any],
        implied: dict[str, Any],
        run: dict[str, Any],
        event: EventClaim | None,
        variables: Mapping[str, str],
    ) -> TriggerRecord | None:
        if event is not None and (other := trigger_events.claim(connection, run, event)) is not None:
            return other
        plans.put_plan(connection, plan)
        plans.put_implied(connection, implied)
        created = insert_into(runs, connection.dialect.name).values(run).on_conflict_do_nothing(index_elements=[runs.c.id])
        if connection.execute(created.returning(runs.c.id)).first() is None:
            raise RunConflictError(f"there is already a run {run['id']}")
        row = json_row(runs, run)
        read = [entries.of_variable(row, name, variable) for name, variable in variables.items()]
        audit.append(connection, run["id"], [entries.of_creation(row, audit.witness_of(connection, run)), *read])
        if event is not None:
            trigger_events.record(connection, run, event)
        return None

    @reads
    def variables(self, connection: Connection, run_id: str) -> dict[str, str]:
        """Return the Prefect variables that gave the run values, by input."""
        same = (audit_log.c.run_id == id_of(connection, self.tenant_id, run_id), audit_log.c.kind == "variable_read")
        query = select(audit_log.c.row_id, audit_log.c.message).where(*same).order_by(audit_log.c.number)
        return {row.row_id: row.message for row in connection.execute(query)}

    async def update(self, run: PlanRun) -> None:
        """Record the status, reason, message, outputs, times and approval of `run`. Releases the run unless it is executing.

        Once the run has ended, its open gates are closed as cancelled. Raises LeaseLostError, and records nothing, if this store claimed
        the run and another process has taken it over.
        """
        if run.rejection_note:  # the other words of a run are those of its gates and steps, which are redacted
            run.rejection_note = (await redactor_of(self, run_id=run.id)).text(run.rejection_note)
        run.updated_at = await self._update(run, self._claims.get(run.id))

    @writes
    def _update(self, connection: Connection, run: PlanRun, claim: Claim | None) -> datetime:
        statement = update(runs).where(*matches(run.id, self.tenant_id)).values(**_mutable_columns(run), updated_at=database_now())
        row = connection.execute(statement.returning(runs)).mappings().first()
        if row is None:
            raise RunNotFoundError(f"there is no run {run.id}")
        if claim is not None:
            leases.require(connection, run.id, claim.epoch)
        if run.status is not PlanStatus.EXECUTING:
            leases.release_lease(connection, run.id)
        written_run = json_row(runs, row)
        if run.status in UNENDED:
            audit.append(connection, run.id, [entries.of_run(written_run, "run_changed", message=run.status.value)])
        else:
            audit.append(connection, run.id, [*gates.close_all(connection, run.id, "cancelled"), entries.of_run_end(written_run)])
        signal(connection)
        return row["updated_at"]

    async def claim(self, run: PlanRun, *, keeps_ends: bool = False) -> None:
        """Make this process the owner of `run`, for as long as it renews its lease.

        Steps that an earlier start did not complete are pending again. With `keeps_ends`, for a run that is only rolled back, they keep
        their ends. A request to cancel the earlier start is cleared.

        Raises RunConflictError if the run changed since it was read, if values of it were erased, or if another process executes it. The
        other process can be displaced once it has ended, or has not renewed its lease for so long that it must be dead or stalled.
        """
        run.updated_at, self._claims[run.id] = await self._claim(run, keeps_ends=keeps_ends)

    @writes
    def _claim(self, connection: Connection, run: PlanRun, *, keeps_ends: bool) -> tuple[datetime, Claim]:
        # `key_share` lets other transactions insert rows that refer to the run, even while they hold the lock that this waits for.
        locked = select(runs.c.status, runs.c.cancel_reason).where(*matches(run.id, self.tenant_id)).with_for_update(key_share=True)
        row = connection.execute(locked).mappings().first()
        if row is None:
            raise RunNotFoundError(f"there is no run {run.id}")
        tombstones.refuse_erased(connection, run.id)
        owner = HostProcess.this()
        claim = leases.take(connection, run.id, owner, context_columns=context_columns(run), seconds=self.lease_seconds)
        written = {**_mutable_columns(run), "cancel_reason": None, "cancel_requested_at": None, "cancel_rollback": None}
        written |= {"claimed_at": database_now(), "updated_at": database_now()}
        statement = update(runs).where(runs.c.id == run.id, runs.c.updated_at == run.updated_at).values(written)
        claimed = connection.execute(statement.returning(runs)).mappings().first()
        if claimed is None:
            cause = f"; somebody asked to cancel it: {row['cancel_reason']}" if row["cancel_reason"] else ""
            raise RunConflictError(f"run {run.id} was changed by another process: it is {row['status']} now{cause}")
        if not keeps_ends:
            connection.execute(delete(step_runs).where(step_runs.c.run_id == run.id, step_runs.c.status != StepStatus.COMPLETED))
        message = f"start {claim.epoch}, by process {owner.pid} on {owner.host}"
        started = entries.of_run(json_row(runs, claimed), "run_started", message=message, row_id=str(claim.epoch))
        audit.append(connection, run.id, [started])
        return claimed["updated_at"], claim

    async def acquire_key(self, run: PlanRun, key: str) -> list[RunBefore]:
        """Give a claimed run its concurrency key. Return the runs that come before it; none if it has the key now."""
        return await self._acquire_key(run.id, key)

    @writes
    def _acquire_key(self, connection: Connection, run_id: str, key: str) -> list[RunBefore]:
        row = connection.execute(select(runs).where(*matches(run_id, self.tenant_id))).mappings().one()
        return concurrency.acquire(connection, row, key)

    @reads
    def runs_before(self, connection: Connection, key: str, context: RunContext) -> list[RunBefore]:
        """Return the runs that have the concurrency key, or wait for it."""
        return concurrency.runs_before(connection, self._with_tenant(context).tenant_id or "", key, None)

    async def renew(self, run_id: str) -> None:
        """Renew the lease of a run that this store claimed. Raises LeaseLostError if another process has taken the run."""
        epoch = self._claims[run_id].epoch
        await self._database.write(partial(leases.renew, run_id=run_id, epoch=epoch, seconds=self.lease_seconds))

    async def release(self, run_id: str) -> None:
        """Release a run that this store claimed. If its status is still executing, it is shown as interrupted."""
        if (claim := self._claims.get(run_id)) is not None:
            await self._release(run_id, claim.epoch)
            del self._claims[run_id]

    @writes
    def _release(self, connection: Connection, run_id: str, epoch: int) -> None:
        # Lock the run before its lease, as everywhere else, to avoid deadlocks.
        connection.execute(select(runs.c.id).where(runs.c.id == run_id).with_for_update(key_share=True))
        if leases.release_lease(connection, run_id, epoch):
            connection.execute(update(runs).where(runs.c.id == run_id).values(updated_at=database_now()))

    async def recorder(self, run: PlanRun) -> StoreRecorder:
        """Return a recorder for the intents and receipts of `run`. It belongs to the calling event loop.

        If this store has claimed the run, the recorder writes nothing once another process has taken it over.
        """
        claim = self._claims.get(run.id)
        clock = await self._database.read(clock_of) if claim is None else claim.clock
        return StoreRecorder(self._database, run, clock, epoch=claim and claim.epoch)

    # Approvals that are not answers at a gate

    @reads
    def find_approval(self, connection: Connection, approval_digest: str, *, context: RunContext | None = None) -> Approval | None:
        """Return an unused, unexpired approval of this digest in the tenant of `context`, or None."""
        return approvals.find(connection, approval_digest, context=self._with_tenant(context))

    @records
    def use_approval(self, connection: Connection, approval: Approval, *, run_id: str) -> Approval:
        """Use up `approval` for a run, and return it as used, with the run's context. It is recorded first if needed.

        If several runs want it at once, one gets it. Raises NotApprovedError for the others, for an approval that has expired by the
        database's clock, and for one that was followed by a rejection.
        """
        return approvals.use(connection, approval, run_id=run_id, context=self._with_tenant())

    # Cancelling

    @records
    def request_cancel(self, connection: Connection, run_id: str, reason: str, *, rollback: bool = False) -> None:
        """Ask the process that executes the run to cancel it, and with `rollback` also to roll it back. The first reason is kept.

        Without `rollback`, an earlier request to roll back is withdrawn.
        """
        audit.append(connection, run_id, record_cancel_request(connection, self.tenant_id, run_id, reason, rollback=rollback))
        signal(connection)

    @reads
    def cancel_request(self, connection: Connection, run_id: str) -> str | None:
        """Return the reason of the request to cancel the run, or None."""
        return connection.scalar(select(runs.c.cancel_reason).where(*matches(run_id, self.tenant_id)))

    @reads
    def is_rollback_requested(self, connection: Connection, run_id: str) -> bool | None:
        """Return whether a request to cancel the run also asks to roll back. False once that part was withdrawn."""
        return connection.scalar(select(runs.c.cancel_rollback).where(*matches(run_id, self.tenant_id)))

    @records
    def record_refusal(
        self,
        connection: Connection,
        run_id: str,
        message: str,
        *,
        by: str,
        known_by: str | None = None,
        step_id: str | None = None,
        call_kind: CallKind | None = None,
    ) -> None:
        """Record in a run's audit log that somebody was not allowed to do what they tried. Changes nothing else."""
        found, at = id_of(connection, self.tenant_id, run_id), instant_text(now_of(connection))
        refusal = entries.of_refusal(at, by=by, known_by=known_by, message=message, step_id=step_id, call_kind=call_kind)
        audit.append(connection, found, [refusal])

    # Reading what the next start needs

    @reads
    def snapshot(self, connection: Connection, run_id: str) -> RunSnapshot:
        """Return a consistent snapshot for resuming a run, by its id or prefix. Raises RunConflictError if values of it were erased."""
        row = row_of(connection, self.tenant_id, run_id)
        tombstones.refuse_erased(connection, row["id"])
        run = find(connection, self.tenant_id, row["id"])
        return RunSnapshot(
            run,
            plan=plans.of_run(connection, row),
            history=_history_of(connection, run.id),
            commands=outcomes.commands_of(connection, run.id),
            last_reason=recorded_reason(row),
            has_open_gates=run.completed_at is None and gates.are_open(connection, run.id),  # an ended run has none
        )

    @reads
    def history(self, connection: Connection, run_id: str) -> RunHistory:
        """Return the history of a run, without the steps that operators skipped."""
        return _history_of(connection, id_of(connection, self.tenant_id, run_id))

    @reads
    def call_order(self, connection: Connection, run_id: str) -> dict[tuple[CallKind, Unit], int]:
        """Return the number of the newest audit entry about an attempt of each call, by kind and unit."""
        return steps.call_order_of(connection, id_of(connection, self.tenant_id, run_id))

    @reads
    def run_of_flow(self, connection: Connection, flow_run_id: str) -> PlanRun | None:
        """Return the newest run for this flow run, or None."""
        return of_flow(connection, self.tenant_id, flow_run_id)

    @reads
    def owner(self, connection: Connection, run_id: str) -> str | None:
        """Return a description of the process that may be executing the run, or None."""
        return owner_of(connection, self.tenant_id, run_id)

    @reads
    def reason(self, connection: Connection, run_id: str) -> RunReason | None:
        """Return the reason recorded by the last process that executed the run, even if that process was interrupted since."""
        return recorded_reason(row_of(connection, self.tenant_id, run_id, runs.c.id, runs.c.reason))

    @reads
    def definitions(self, connection: Connection, run_id: str) -> list[dict[str, JsonValue]]:
        """Return the tool definitions that the run's approval digest covers."""
        return load_json(row_of(connection, self.tenant_id, run_id, runs.c.id, runs.c.definitions)["definitions"])

    @reads
    def labels(self, connection: Connection, run_id: str) -> dict[tuple[str, int | None], str]:
        """Return labels by (step, item) for a run's items that were started or asked about. Items without a label go by number."""
        return steps.labels_of(connection, id_of(connection, self.tenant_id, run_id))


def _history_of(connection: Connection, run_id: str) -> RunHistory:
    return steps.history_of(connection, run_id).with_skipped(operator_requests.skipped_steps_of(connection, run_id))


def _run_row(run: PlanRun, validated: "ValidatedPlan", implied_digest: str) -> dict[str, Any]:
    return {
        **context_columns(run),
        "id": run.id,
        "plan_id": run.plan_id,
        "name": run.name,
        "description": run.description,
        "digest": run.digest,
        "approval_digest": run.approval_digest,
        "requested_by": run.requested_by,
        "inputs": dump_json(run.inputs),
        "implied_dependencies_digest": implied_digest,
        "definitions": dump_json(list(validated.definitions)),
        "folder": folder_column(run.folder),
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "salt": new_salt(),
        **_mutable_columns(run),
    }


def _mutable_columns(run: PlanRun) -> dict[str, Any]:
    """Return the columns that change while a run exists."""
    return {
        "status": run.status.value,
        "reason": run.reason and run.reason.value,
        "message": run.message,
        "rollback": rollback_column(run.rollback),
        "outputs": dump_json(run.outputs),
        "metadata": dump_json(run.metadata),
        "flow_run_id": run.flow_run_id,
        "started_at": run.started_at,
        "completed_at": run.completed_at,
        "total_duration_ms": run.total_duration_ms,
        "approved_at": run.approved_at,
        "approved_by": run.approved_by,
        "rejection_note": run.rejection_note,
    }
