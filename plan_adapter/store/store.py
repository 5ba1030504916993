"""`PlanStore`: plans, versions, runs, approvals and receipts, in a SQLite file or on PostgreSQL."""

import os
from collections.abc import Callable, Sequence
from copy import copy
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from pydantic import JsonValue
from sqlalchemy import Connection

from plan_adapter.canonical import plan_digest
from plan_adapter.errors import PlanAdapterError, RunConflictError, StoreError
from plan_adapter.execution.history import RunHistory
from plan_adapter.gates.policy import EffectivePolicy, effective_policy
from plan_adapter.plan import CallKind, ExecutionPlan, PlanStatus
from plan_adapter.record import (
    Approval,
    Attempt,
    Gate,
    GateEnd,
    OperatorRequestKind,
    PlanRun,
    Receipt,
    Resolution,
    RunContext,
    RunFolder,
    RunReason,
    StandingApproval,
)
from plan_adapter.settings import Settings
from plan_adapter.store import (
    approvals,
    audit,
    codes,
    gates,
    leases,
    operator_requests,
    outcomes,
    plans,
    policies,
    revisions,
    runs,
    standing,
    steps,
)
from plan_adapter.store.audit import AuditEntry, entries_of
from plan_adapter.store.columns import Clock, clock_of, now_of
from plan_adapter.store.database import Database
from plan_adapter.store.drafts import Drafts
from plan_adapter.store.export import document_of, parts_of
from plan_adapter.store.leases import Owner
from plan_adapter.store.operator_requests import OperatorRequest
from plan_adapter.store.outcomes import CallPlace, ResolutionRecord
from plan_adapter.store.patience import PatientDatabase
from plan_adapter.store.plans import PlanVersion
from plan_adapter.store.policies import NewPolicy, PolicyVersion
from plan_adapter.store.recorder import StoreRecorder
from plan_adapter.store.revisions import Revision
from plan_adapter.store.rows import HasContext
from plan_adapter.store.tables import runs as run_table
from plan_adapter.store.urls import open_database, refuse_local_under_worker
from plan_adapter.store.verification import Verification, verify

if TYPE_CHECKING:
    from plan_adapter.validation import ValidatedPlan

T = TypeVar("T")


class Recorded(NamedTuple):
    """A run, its current plan and its history."""

    run: PlanRun
    plan: ExecutionPlan
    history: RunHistory
    kept: RunReason | None  # the reason recorded by the last process that executed the run, even if that process was interrupted
    has_open_gates: bool


class PlanStore:
    """The store at `url`; None: the settings' URL. Usable from any event loop and thread. Every method raises StoreError.

    Nothing is opened before the first call. That call creates or migrates a SQLite file if needed; only `upgrade` migrates a PostgreSQL
    database.

    With a `tenant_id`, the store reads and writes only this tenant's rows. Without one, it sees the runs and contents of all tenants, and
    the names that were saved without a tenant.
    """

    def __init__(self, url: str | None = None, *, tenant_id: str | None = None) -> None:
        """Check the URL without connecting."""
        settings = Settings()
        url = url or settings.store_url
        refuse_local_under_worker(url, settings, os.environ)
        self.tenant_id = tenant_id or None
        self.lease_seconds = settings.lease_seconds
        self._database: Database | PatientDatabase = open_database(url, home=settings.home)
        self._epochs = dict[str, int]()  # lease epochs of the runs claimed through this store
        self._clocks = dict[str, Clock]()  # the clock of each claimed run

    def __repr__(self) -> str:
        """Return the store in words, without a password."""
        return f"<PlanStore: {self.label}>"

    @property
    def label(self) -> str:
        """The database in words, without a password."""
        return self._database.label

    async def __aenter__(self) -> Self:
        """Return the store. It is closed at the end of the block."""
        return self

    async def __aexit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """Close the store."""
        await self.close()

    async def close(self) -> None:
        """Close every connection. Later calls raise StoreError."""
        await self._database.close()

    def patient(self, seconds: float) -> "PlanStore":
        """Return a view of this store for a run in progress, on the same connections. It retries for up to `seconds`.

        Retries failures that may pass: a database that is unreachable, starting, locked or out of space. Nothing is written twice.
        """
        if isinstance(self._database, PatientDatabase):
            return self
        patient = copy(self)
        patient._database = PatientDatabase(self._database, seconds)
        return patient

    async def upgrade(self) -> str:
        """Migrate to the newest schema and return its revision. Concurrent processes wait for each other."""
        return await self._database.upgrade()

    async def now(self) -> datetime:
        """Return the database's time."""
        return await self._database.read(now_of)

    async def changed(self, seconds: float) -> None:
        """Return when gates, approvals, standing approvals, cancel requests, revisions or the status of runs may have changed.

        Returns once any process has committed such a change since the calling task's last read of this store, and after `seconds` at the
        latest. Call it in a loop that reads and then waits; then no change is missed. The first wait returns soon, because changes from
        before the watch are unknown, so read again whenever it returns.

        A read counts for the task that makes it and for tasks that this task starts afterwards. Do not read in one task and wait in another
        that runs beside it. All waiters share one watch: 30 checks of the file per second on SQLite, one more connection on PostgreSQL.
        """
        await self._database.changed(seconds)

    # Plans

    async def save(self, plan: ExecutionPlan, *, author: str, name: str | None = None, context: RunContext | None = None) -> PlanVersion:
        """Save `plan` as the next version of `name` (default: the plan's own) and return that version.

        If the newest version has the same digest and author, returns that one instead. Another author who saves the same content creates a
        new version, which records who saved it and when.
        """
        whose = self._whose(context or RunContext())
        row = plans.plan_row(plan, plan_digest(plan), whose)
        return await self._database.write(partial(plans.save, row=row, name=name or plan.name, author=author, context=whose))

    async def get(self, name_or_digest: str, version: int | None = None) -> ExecutionPlan:
        """Return a plan by its name (newest version unless one is given), its digest, or an unambiguous prefix of the digest."""
        return await self._database.read(lambda connection: plans.get(connection, self.tenant_id, name_or_digest, version))

    async def versions(self, name: str) -> list[PlanVersion]:
        """Return the versions of a named plan, newest first."""
        return await self._database.read(lambda connection: plans.versions_of(connection, self.tenant_id, name))

    async def names(self) -> list[str]:
        """Return the names of the plans that have versions, sorted."""
        return await self._database.read(lambda connection: plans.names(connection, self.tenant_id))

    # Reading runs

    async def runs(
        self,
        limit: int = 50,
        *,
        status: PlanStatus | None = None,
        name: str | None = None,
        digest: str | None = None,
        context: RunContext | None = None,
    ) -> list[PlanRun]:
        """Return the runs that match every filter, newest first. Their steps have no results; `run` reads those."""
        whose = context or RunContext()
        return await self._database.read(
            lambda connection: runs.listed(connection, self.tenant_id, limit=limit, status=status, name=name, digest=digest, context=whose)
        )

    async def run(self, run_id: str, *, with_steps: bool = True, with_results: bool = True) -> PlanRun:
        """Return the current state of a run by its id or an unambiguous prefix. Raises RunConflictError if there is none.

        Reading the steps of a long run, and their results, is slow; leave them out if they are not needed.
        """
        found = partial(runs.find, tenant=self.tenant_id, beginning=run_id, with_steps=with_steps, with_results=with_results)
        return await self._database.read(found)

    async def recorded(self, run_id: str) -> Recorded:
        """Return a consistent snapshot for resuming a run, by its id or an unambiguous prefix."""
        return await self._database.read(partial(_recorded, tenant=self.tenant_id, beginning=run_id))

    async def run_of_flow(self, flow_run_id: str) -> PlanRun | None:
        """Return the run for this flow run, or None."""
        return await self._database.read(lambda connection: runs.of_flow(connection, self.tenant_id, flow_run_id))

    async def attempts(self, run_id: str) -> list[Attempt]:
        """Return the intents of a run in order."""
        return await self._read_of_run(run_id, steps.attempts_of)

    async def receipts(self, run_id: str) -> list[Receipt]:
        """Return the receipts of a run in order."""
        return await self._read_of_run(run_id, steps.receipts_of)

    async def labels(self, run_id: str) -> dict[tuple[str, int | None], str]:
        """Return labels by (step, item) for a run's items that were started or asked about. Items without a label go by number."""
        return await self._read_of_run(run_id, steps.labels_of)

    async def history(self, run_id: str) -> RunHistory:
        """Return the history of a run, without the steps that operators skipped."""
        return await self._read_of_run(run_id, _history)

    async def definitions(self, run_id: str) -> list[dict[str, JsonValue]]:
        """Return the tool definitions that the run's approval digest covers."""
        return await self._read_of_run(run_id, runs.definitions)

    async def audit(self, run_id: str) -> list[AuditEntry]:
        """Return the audit log of a run, in the order in which it was recorded."""
        return await self._read_of_run(run_id, entries_of)

    async def note_refusal(
        self,
        run_id: str,
        message: str,
        *,
        by: str,
        known_by: str | None = None,
        step_id: str | None = None,
        call_kind: CallKind | None = None,
    ) -> None:
        """Record in a run's audit log that somebody was not allowed to do what they tried."""
        note = partial(audit.note_refusal, message=message, by=by, known_by=known_by, step_id=step_id, call_kind=call_kind)
        await self._database.write(lambda connection: note(connection, self._id_of(connection, run_id)))

    async def export(self, run_id: str) -> dict[str, JsonValue]:
        """Return everything that the store holds about a run, each row as stored. Pass it to `verification.verify`."""
        return await self._database.read(lambda connection: document_of(connection, self._id_of(connection, run_id)))

    async def read_export(self, run_id: str, look: Callable[[dict[str, Any]], T]) -> T:
        """Return the result of `look` for the document that `export` would return. Its lists read one row at a time, repeatedly if needed.

        `look` is called in a thread of the store. All its reads see one snapshot.
        """
        return await self._database.read(lambda connection: look(parts_of(connection, self._id_of(connection, run_id))))

    async def verify(self, run_id: str) -> Verification:
        """Return whether the record of a run is unaltered, and otherwise the first row that is altered.

        Rows are read one at a time. A run without audit entries is `not_verifiable`, and not `ok`.
        """
        return await self.read_export(run_id, verify)

    # Writing runs

    async def create_run(self, run: PlanRun, validated: "ValidatedPlan") -> None:
        """Record a new run with its plan and tool definitions. If the store has a tenant, the run gets that tenant."""
        run.tenant_id = self._whose(run).tenant_id
        plan, steps = plans.plan_row(validated.plan, run.digest, run), plans.implied_row(validated, run)
        await self._database.write(partial(runs.create, plan=plan, steps=steps, run=runs.run_row(run, validated, steps)))

    async def update_run(self, run: PlanRun) -> None:
        """Record the status, reason, message, outputs, times and approval of `run`. Releases the run unless it is executing.

        Raises LeaseLostError, and records nothing, if this store claimed the run and another process has taken it over.
        """
        row = await self._write(runs.change, run=run, epoch=self._epochs.get(run.id))
        run.updated_at = row["updated_at"]

    async def claim(self, run: PlanRun, *, keeps_ends: bool = False) -> None:
        """Make this process the owner of `run`, for as long as it renews its lease.

        What an earlier start left undone is pending again, unless `keeps_ends`, which is for a run that is only rolled back. Raises
        RunConflictError if the run changed since it was read, or if another process executes it. The other process loses the run when it
        has ended, or has not renewed its lease for so long that it must be dead or stalled.
        """
        row, self._epochs[run.id], self._clocks[run.id] = await self._write(
            runs.claim, run=run, owner=Owner.this(), lease_seconds=self.lease_seconds, keeps_ends=keeps_ends
        )
        run.updated_at = row["updated_at"]

    async def renew(self, run_id: str) -> None:
        """Renew the lease of a run that this store claimed. Raises LeaseLostError if another process has taken the run."""
        epoch = self._epochs[run_id]
        await self._database.write(partial(leases.renew, run_id=run_id, epoch=epoch, seconds=self.lease_seconds))

    async def release(self, run_id: str) -> None:
        """Release a run that this store claimed. If its status is still executing, it is shown as interrupted."""
        if (epoch := self._epochs.get(run_id)) is not None:
            await self._database.write(partial(runs.release, run_id=run_id, epoch=epoch))
            del self._epochs[run_id], self._clocks[run_id]

    async def owner(self, run_id: str) -> str | None:
        """Return, in words, the process that may be executing the run, or None."""
        return await self._database.read(partial(runs.owner_of, tenant=self.tenant_id, run_id=run_id))

    async def unknown(self, run_id: str) -> list[Attempt]:
        """Return the writes of a run whose outcome is unknown, in order."""
        return await self._read_of_run(run_id, outcomes.unknown_of)

    async def unknown_of_all(self) -> list[Attempt]:
        """Return the writes with an unknown outcome of all runs that have not completed. Processes may be executing some of these runs."""
        return await self._database.read(partial(outcomes.unknown_of_all, tenant=self.tenant_id))

    async def start_of(self, attempt: Attempt) -> str | None:
        """Return, in words, the start of the run and the process that made `attempt`, or None if the record does not say."""
        return await self._database.read(partial(outcomes.start_of, attempt=attempt))

    async def resolve(
        self, run_id: str, step_id: str, word: ResolutionRecord, *, item: int | None = None, kind: CallKind = "step"
    ) -> Receipt:
        """Record a person's resolution of the unknown outcome of a step or one of its items. Return it as a receipt.

        With `kind` "rollback", it resolves the step's rollback. The run resumes from there. If a process waits for the resolution at an
        outcome gate, that gate is closed and the run continues at once; otherwise it continues when it is resumed. `abort` ends the run as
        cancelled.

        Raises RunConflictError if a process executes the run and does not ask about this call, and if the outcome is known.
        """
        return await self._write(outcomes.resolve, run_id=run_id, call=CallPlace(step_id, item, kind), word=word)

    async def resolution_digest(
        self, run_id: str, step_id: str, resolution: Resolution, *, item: int | None = None, kind: CallKind = "step"
    ) -> str:
        """Return the digest that a resolution and its signature bind to. Raises the same errors as `resolve`."""
        return await self._write(outcomes.resolution_digest, run_id=run_id, call=CallPlace(step_id, item, kind), resolution=resolution)

    async def record_operator_request(self, run_id: str, request: OperatorRequest) -> datetime:
        """Record an operator request and return the run's new change time.

        Raises RunConflictError if another request came in between, and for steps of a run that a process executes.
        """
        return await self._write(operator_requests.keep, run_id=run_id, request=request)

    async def operator_request_digest_of(self, run_id: str, kind: OperatorRequestKind, steps: Sequence[str]) -> str:
        """Return the digest of this request for `OperatorRequest.digest` and its signature. Without `steps`, it is about the run."""
        return await self._database.read(
            partial(operator_requests.operator_request_digest_of, tenant=self.tenant_id, run_id=run_id, kind=kind, steps=steps)
        )

    async def skipped_steps(self, run_id: str) -> dict[str, str]:
        """Return the steps of the run that operators skipped, with who skipped each and why."""
        return await self._read_of_run(run_id, operator_requests.skipped_steps_of)

    async def revise_run(
        self, run_id: str, validated: "ValidatedPlan", approval_digest: str, *, by: str, note: str, folder: RunFolder | None = None
    ) -> PlanRun:
        """Give a run a new version of its plan and return the run. Its inputs stay, and it waits for a new approval.

        Its open gates are closed as superseded, and `revisions` lists the replaced version. With `folder`, the run works there from now on.

        Raises RunConflictError for a run that has completed or that a living process executes, and for a version that changes nothing. Also
        raises it, naming all of them, for changed steps that have succeeded or may have been done.
        """
        return await self._database.write(
            lambda connection: revisions.revise(
                connection, self.tenant_id, run_id, validated, approval_digest, by=by, note=note, folder=folder
            )
        )

    async def put_back(self, run_id: str, version: Revision, validated: "ValidatedPlan", *, by: str) -> PlanRun:
        """Restore a replaced version of the plan in a run that has ended, and return the run, which stays ended.

        `validated` is the plan of `version`. The run's current version becomes a replaced one. Raises RunConflictError for a run that has
        not ended.
        """
        return await self._database.write(
            lambda connection: revisions.put_back(connection, self.tenant_id, run_id, version, validated, by=by)
        )

    async def revisions(self, run_id: str) -> list[Revision]:
        """Return the replaced versions of a run's plan, oldest first, each with who replaced it and why."""
        return await self._read_of_run(run_id, revisions.revisions_of)

    async def recorder(self, run: PlanRun) -> StoreRecorder:
        """Return a recorder for the intents and receipts of `run`. It belongs to the calling event loop.

        If this store has claimed the run, the recorder writes nothing once another process has taken it over.
        """
        clock = self._clocks.get(run.id) or await self._database.read(clock_of)
        return StoreRecorder(self._database, run, clock, epoch=self._epochs.get(run.id))

    async def request_cancel(self, run_id: str, reason: str, *, rollback: bool = False) -> None:
        """Ask the process that executes the run to cancel it, and with `rollback` to roll it back, too. The first reason stays.

        Without `rollback`, an earlier request to roll back is withdrawn.
        """
        await self._write(runs.request_cancel, run_id=run_id, reason=reason, rollback=rollback)

    async def cancel(self, run_id: str, reason: str, *, rollback: bool = False) -> None:
        """Request a run's cancellation. If no process can be executing it, it is cancelled at once.

        `rollback` also asks the process that executes it to roll back. Raises RunConflictError if the run has ended.
        """
        await self._write(runs.cancel, run_id=run_id, reason=reason, rollback=rollback)

    async def cancel_request(self, run_id: str) -> str | None:
        """Return the reason of the request to cancel the run, or None."""
        return await self._database.read(partial(runs.cancel_request, tenant=self.tenant_id, run_id=run_id))

    async def asks_rollback(self, run_id: str) -> bool | None:
        """Return whether a request to cancel the run also asks to roll back. False once that part was withdrawn."""
        return await self._database.read(partial(runs.asks_rollback, tenant=self.tenant_id, run_id=run_id))

    async def reason_of(self, run_id: str) -> RunReason | None:
        """Return the reason recorded by the last process that executed the run, even if that process was interrupted since."""
        return await self._read_of_run(run_id, runs.reason_of)

    # Approvals

    async def add_approval(self, approval: Approval, *, context: RunContext | None = None) -> None:
        """Record an answer, whatever its decision. An answer for a run takes the run's context."""
        await self._database.write(partial(approvals.add, approval=approval, context=self._whose(context or RunContext())))

    async def approvals(self, run_or_digest: str) -> list[Approval]:
        """Return the answers given for or used by a run, or those of an approval digest, oldest first."""
        rows = await self._database.read(lambda connection: approvals.rows_of(connection, self.tenant_id, run_or_digest))
        return [approvals.approval_of(row) for row in rows]

    async def find_approval(self, approval_digest: str, *, context: RunContext | None = None) -> Approval | None:
        """Return an unused, unexpired approval of this digest in the tenant of `context`, or None."""
        whose = self._whose(context or RunContext())
        return await self._database.read(lambda connection: approvals.find(connection, approval_digest, context=whose))

    async def use_approval(self, approval: Approval, *, run_id: str) -> Approval:
        """Use up `approval` for a run, whose context it takes, and return it as used. It is recorded first if needed.

        If several runs want it at once, one gets it. Raises NotApprovedError for the others, for an approval that has expired by the
        database's clock, and for one that was followed by a rejection.
        """
        whose = self._whose(RunContext())
        return await self._database.write(lambda connection: approvals.use(connection, approval, run_id=run_id, context=whose))

    # Gates

    async def open_gate(self, gate: Gate, *, timeout_ms: int) -> Gate:
        """Open `gate` for this process and return it as stored. Times follow the database's clock; `timeout_ms` 0 means no limit.

        An open gate for the same run, step, item and content is reused: it keeps its id and times, gets the new text and policy, and counts
        one more opening. An open gate for other content is closed as superseded.

        Raises RunConflictError if another living process of this host waits there, and for a run that has ended. Raises LeaseLostError for
        a step gate if this store claimed the run and another process has taken it over.
        """
        epoch = self._epochs.get(gate.run_id)
        return await self._write(gates.open_gate, gate=gate, timeout_ms=timeout_ms, owner=Owner.this(), epoch=epoch)

    async def answer_gate(self, gate_id: str, approval: Approval) -> Gate:
        """Close an open gate with its first answer and return it. The answer is recorded for the gate's run, step and item.

        Raises RunConflictError for a closed gate, with how it was closed, and for an overdue gate, which is then closed; the database's
        clock decides. Raises NotApprovedError for an answer to other content; the gate stays open.
        """
        taken = await self._write(gates.answer, gate_id=gate_id, approval=approval)
        if isinstance(taken, PlanAdapterError):
            raise taken
        return taken

    async def answer_to_gate(self, gate_id: str) -> Approval | None:
        """Return the answer that closed the gate, or None."""
        return await self._database.read(partial(gates.answer_to, tenant=self.tenant_id, gate_id=gate_id))

    async def changes_asked(self) -> dict[str, Approval]:
        """Return the last request for changes of the same content by id of the open gate."""
        return await self._database.read(partial(gates.changes_asked, tenant=self.tenant_id))

    async def expire_gate(self, gate_id: str) -> Gate:
        """Close the gate as expired if it is open and overdue by the database's clock. Return its current state."""
        return await self._write(gates.expire, gate_id=gate_id)

    async def close_gate(self, gate_id: str, end: GateEnd) -> Gate:
        """Close the gate without an answer and return it. A closed gate, or one where another process waits, is returned unchanged."""
        return await self._write(gates.close, gate_id=gate_id, end=end, owner=Owner.this())

    async def leave_gate(self, gate_id: str) -> None:
        """Record that this process no longer waits at the gate, so that another one can. The gate stays open."""
        await self._write(gates.leave, gate_id=gate_id, owner=Owner.this())

    async def show_gate(self, gate_id: str, *, flow_run_id: str, keyset: str) -> None:
        """Record where the gate's form is shown."""
        await self._write(gates.show, gate_id=gate_id, flow_run_id=flow_run_id, keyset=keyset)

    async def gate(self, gate_id: str) -> Gate:
        """Return the gate with this id. Raises RunConflictError if there is none."""
        return await self._database.read(partial(gates.find, tenant=self.tenant_id, gate_id=gate_id))

    async def gates(self, *, run_id: str | None = None, open_only: bool = True, limit: int = 1000) -> list[Gate]:
        """Return gates, oldest first. Gates of all runs come without their texts; `gate` returns those."""
        listed = partial(gates.listed, tenant=self.tenant_id, run_id=run_id, open_only=open_only, limit=limit)
        return await self._database.read(listed)

    # Drafts

    @property
    def drafts(self) -> Drafts:
        """The drafts of plans that models made."""
        return Drafts(self._database, self.tenant_id, self._whose(RunContext()))

    # The policy

    async def policy(self) -> PolicyVersion | None:
        """Return the store's policy, or None if there is none. Raises StoreError if it was altered."""
        return await self._database.read(policies.newest)

    async def policy_history(self) -> tuple[list[PolicyVersion], str | None]:
        """Return every version of the store's policy, oldest first, and the first problem: an altered version, or None."""
        return await self._database.read(policies.history)

    async def set_policy(self, new: NewPolicy) -> PolicyVersion:
        """Set the policy for every run of this store, from now on.

        If the previous policy names operators, only they are allowed to; otherwise anybody who can write to the store is. Raises
        NotApprovedError, and RunConflictError if somebody else set one meanwhile. Raises StoreError if the store has a tenant, because the
        policy applies to all tenants.
        """
        if self.tenant_id is not None:
            raise StoreError("a policy holds for all tenants: set it with a store that is not open for one of them")
        return await self._database.write(partial(policies.add, new=new))

    async def effective_policy(self, settings: Settings) -> EffectivePolicy:
        """Return the combined demands of `settings` and the store's current policy. Read it again for each decision."""
        version = await self.policy()
        return effective_policy(settings) if version is None else effective_policy(settings, version.policy, number=version.number)

    # Standing approvals and one-time codes

    async def add_standing(self, approval: StandingApproval, *, context: RunContext | None = None) -> None:
        """Record a standing approval, with no run counted."""
        whose = self._whose(context or RunContext())
        await self._database.write(partial(standing.add, standing=approval, context=whose))

    async def standing(self, *, include_ended: bool = False) -> list[StandingApproval]:
        """Return the usable standing approvals, oldest first. `include_ended` adds those that are revoked, expired or used up."""
        return await self._database.read(partial(standing.listed, tenant=self.tenant_id, include_ended=include_ended))

    async def revoke_standing(self, id_beginning: str, *, by: str) -> StandingApproval:
        """Revoke the standing approval with this id prefix, and return it. No step of any run starts under it any more."""
        return await self._write(standing.revoke, beginning=id_beginning, by=by)

    async def use_standing(self, standing_id: str, *, run_id: str, approval_digest: str) -> Approval:
        """Count a run, and return its approval of this content, recorded as used. Each run and content counts once.

        Raises NotApprovedError for a standing approval of another tenant than the run's, and for one that is revoked, expired or used up.
        """
        return await self._write(standing.use, standing_id=standing_id, run_id=run_id, approval_digest=approval_digest)

    async def totp_seed(self, person: str) -> str | None:
        """Return the encrypted seed of a person's one-time codes, or None."""
        return await self._database.read(partial(policies.totp_seed, person=person))

    async def refuse_enrolling(self, person: str, *, by: str) -> None:
        """Raise NotApprovedError if `by` is not allowed to create one-time codes for `person`. The error says who is."""
        await self._database.read(partial(policies.refuse_enrolling, person=person, by=by))

    async def add_totp_seed(self, person: str, seed: str, *, by: str, known_by: str, replaces: bool) -> None:
        """Add an encrypted seed. Earlier seeds stay in the store but are no longer valid.

        Raises NotApprovedError if `by` is not allowed to enroll `person`. Raises RunConflictError if the person has a seed, unless it
        `replaces` that.
        """
        add = partial(policies.add_totp_seed, person=person, seed=seed, by=by, known_by=known_by, replaces=replaces)
        await self._database.write(add)

    async def try_code(self, name: str) -> float:
        """Count a try of a one-time code of `name` and return 0.0. The try counts as wrong unless `use_code` follows.

        After 5 wrong tries within 5 minutes, in any process, nothing is counted. Then returns the seconds until the next try.
        """
        return await self._database.write(partial(codes.begin_try, name=name, context=self._whose(RunContext())))

    async def use_code(self, name: str, counter: int) -> bool:
        """Return True for the first use of this name and counter, which also marks the try as right, and False afterwards."""
        context = self._whose(RunContext())
        return await self._database.write(partial(codes.use, name=name, counter=counter, context=context))

    async def _write(self, work: Callable[..., T], **what: Any) -> T:
        return await self._database.write(partial(work, tenant=self.tenant_id, **what))

    async def _read_of_run(self, run_id: str, read: Callable[[Connection, str], T]) -> T:
        found = (self.tenant_id, run_id, run_table.c.id)
        return await self._database.read(lambda connection: read(connection, runs.row_of(connection, *found)["id"]))

    def _id_of(self, connection: Connection, beginning: str) -> str:
        # Reads only the id, so that altered or missing rows can still be found and reported.
        try:
            return runs.row_of(connection, self.tenant_id, beginning, run_table.c.id)["id"]
        except RunConflictError:
            if self.tenant_id is None and entries_of(connection, beginning):
                return beginning
            raise

    def _whose(self, context: HasContext) -> RunContext:
        """Return `context` with this store's tenant. Raises RunConflictError if it has another tenant."""
        if self.tenant_id is not None and context.tenant_id not in (None, self.tenant_id):
            raise RunConflictError(f"this store is open for tenant {self.tenant_id}, not for {context.tenant_id}")
        tenant = self.tenant_id or context.tenant_id
        return RunContext(agent_id=context.agent_id, org_id=context.org_id, tenant_id=tenant, task_id=context.task_id)


def _history(connection: Connection, run_id: str) -> RunHistory:
    """Return the history of a run, without the steps that operators skipped."""
    return steps.history_of(connection, run_id).skipping(operator_requests.skipped_steps_of(connection, run_id))


def _recorded(connection: Connection, tenant: str | None, beginning: str) -> Recorded:
    row = runs.row_of(connection, tenant, beginning)
    run = runs.find(connection, tenant, row["id"])
    return Recorded(
        run,
        plan=plans.of_run(connection, row),
        history=_history(connection, run.id),
        kept=runs.reason_of(connection, run.id),
        has_open_gates=run.completed_at is None and gates.are_open(connection, run.id),  # an ended run has none
    )
