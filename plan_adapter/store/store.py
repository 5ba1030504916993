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
from plan_adapter.gates.policy import PolicyInForce, policy_in_force
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
from plan_adapter.store.operator_requests import OperatorRequest
from plan_adapter.store.outcomes import CallPlace, Word
from plan_adapter.store.owner import Owner
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
    """A run, the plan that it has now, and what its earlier starts have left."""

    run: PlanRun
    plan: ExecutionPlan
    history: RunHistory
    kept: RunReason | None  # why the run ends, as the process that executed it last has kept it, also where that one was interrupted
    has_open_gates: bool


class PlanStore:
    """The store at `url`; None is that of the settings. Usable from any event loop and thread; every method raises StoreError.

    Nothing is opened before the first call. A SQLite file is then made, or migrated, where that is needed; a PostgreSQL database
    is migrated by `upgrade` only. With a `tenant_id` it sees and writes the rows of this tenant only; without one it sees the runs
    and contents of all, and the names that were saved without a tenant.
    """

    def __init__(self, url: str | None = None, *, tenant_id: str | None = None) -> None:
        """Refuse what is no usable URL; connect to nothing yet."""
        settings = Settings()
        url = url or settings.store_url
        refuse_local_under_worker(url, settings, os.environ)
        self.tenant_id = tenant_id or None
        self.lease_seconds = settings.lease_seconds
        self._database: Database | PatientDatabase = open_database(url, home=settings.home)
        self._epochs = dict[str, int]()  # of the runs that were claimed through this store
        self._clocks = dict[str, Clock]()  # as they were claimed

    def __repr__(self) -> str:
        """Return the store in words, without a password."""
        return f"<PlanStore: {self.label}>"

    @property
    def label(self) -> str:
        """The database in words, without a password."""
        return self._database.label

    async def __aenter__(self) -> Self:
        """Return the store, to be closed at the end."""
        return self

    async def __aexit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """Close the store."""
        await self.close()

    async def close(self) -> None:
        """Close every connection; later calls raise StoreError."""
        await self._database.close()

    def patient(self, seconds: float) -> "PlanStore":
        """Return this store for a run under way, on the same connections: what may pass is waited for, `seconds` at most.

        A database that cannot be reached, starts, is locked, or has no space left is such; nothing is written twice by that.
        """
        if isinstance(self._database, PatientDatabase):
            return self
        patient = copy(self)
        patient._database = PatientDatabase(self._database, seconds)
        return patient

    async def upgrade(self) -> str:
        """Migrate to the newest schema and return its revision; processes that do so at once wait for each other."""
        return await self._database.upgrade()

    async def now(self) -> datetime:
        """Return the database's time."""
        return await self._database.read(now_of)

    async def changed(self, seconds: float) -> None:
        """Return when gates, approvals, standing approvals, requests to cancel, revisions or the states of runs may have changed.

        That is: once any process has committed such a change since the last read of this store by the calling task, and in any case
        after `seconds`. Nothing is missed by a task that reads and then waits, in a loop; the first wait returns soon, because what
        was there before the store was watched is not known, so read again whenever it returns. The read counts for the task that
        makes it and for tasks that this one starts afterwards: do not read in one task and wait in another one beside it. Many who
        wait share one watch: a look at the file 30 times a second on SQLite, one more connection on PostgreSQL.
        """
        await self._database.changed(seconds)

    # Plans

    async def save(self, plan: ExecutionPlan, *, author: str, name: str | None = None, context: RunContext | None = None) -> PlanVersion:
        """Save `plan` as the next version of `name` (default: the plan's own) and return that version.

        Where the newest version has the same digest, and is by the same author, that one is returned; whoever else saves the same content
        makes a version, which says that they did, and when.
        """
        whose = self._whose(context or RunContext())
        row = plans.plan_row(plan, plan_digest(plan), whose)
        return await self._database.write(partial(plans.save, row=row, name=name or plan.name, author=author, context=whose))

    async def get(self, name_or_digest: str, version: int | None = None) -> ExecutionPlan:
        """Return a plan by its name (the newest version unless one is given) or by its digest or an unambiguous beginning of it."""
        return await self._database.read(lambda connection: plans.get(connection, self.tenant_id, name_or_digest, version))

    async def versions(self, name: str) -> list[PlanVersion]:
        """Return the versions of a named plan, newest first."""
        return await self._database.read(lambda connection: plans.versions_of(connection, self.tenant_id, name))

    async def names(self) -> list[str]:
        """Return the names of the plans that have versions, sorted."""
        return await self._database.read(lambda connection: plans.names(connection, self.tenant_id))

    # Runs, as they are read

    async def runs(
        self,
        limit: int = 50,
        *,
        status: PlanStatus | None = None,
        name: str | None = None,
        digest: str | None = None,
        context: RunContext | None = None,
    ) -> list[PlanRun]:
        """Return the runs that fit every filter, newest first; their steps come without results, which `run` reads."""
        whose = context or RunContext()
        return await self._database.read(
            lambda connection: runs.listed(connection, self.tenant_id, limit=limit, status=status, name=name, digest=digest, context=whose)
        )

    async def run(self, run_id: str, *, with_steps: bool = True, with_results: bool = True) -> PlanRun:
        """Return a run by its id or an unambiguous beginning of it, as it is now; raises RunConflictError where there is none.

        Its steps may be left out, or come without their results: to read those of a long run takes a while.
        """
        found = partial(runs.find, tenant=self.tenant_id, beginning=run_id, with_steps=with_steps, with_results=with_results)
        return await self._database.read(found)

    async def recorded(self, run_id: str) -> Recorded:
        """Return a consistent snapshot for resuming a run, by its id or an unambiguous beginning of it."""
        return await self._database.read(partial(_recorded, tenant=self.tenant_id, beginning=run_id))

    async def run_of_flow(self, flow_run_id: str) -> PlanRun | None:
        """Return the run that is this flow run, None if there is none."""
        return await self._database.read(lambda connection: runs.of_flow(connection, self.tenant_id, flow_run_id))

    async def attempts(self, run_id: str) -> list[Attempt]:
        """Return the intents of a run in their order."""
        return await self._read_of_run(run_id, steps.attempts_of)

    async def receipts(self, run_id: str) -> list[Receipt]:
        """Return the receipts of a run in their order."""
        return await self._read_of_run(run_id, steps.receipts_of)

    async def labels(self, run_id: str) -> dict[tuple[str, int | None], str]:
        """Return what the items of a run are called that were begun or asked about, by step and item; those without one have a number."""
        return await self._read_of_run(run_id, steps.labels_of)

    async def history(self, run_id: str) -> RunHistory:
        """Return what the earlier starts of a run have left, without the steps that people have left out."""
        return await self._read_of_run(run_id, _history)

    async def definitions(self, run_id: str) -> list[dict[str, JsonValue]]:
        """Return the tool definitions that the run's approval digest covers."""
        return await self._read_of_run(run_id, runs.definitions)

    async def audit(self, run_id: str) -> list[AuditEntry]:
        """Return what happened to a run, in the order in which it was recorded."""
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
        """Keep in the audit of a run that somebody may not do what they tried with it."""
        note = partial(audit.note_refusal, message=message, by=by, known_by=known_by, step_id=step_id, call_kind=call_kind)
        await self._database.write(lambda connection: note(connection, self._id_of(connection, run_id)))

    async def export(self, run_id: str) -> dict[str, JsonValue]:
        """Return everything that the store holds about a run, each row as it is stored; `verification.verify` takes it."""
        return await self._database.read(lambda connection: document_of(connection, self._id_of(connection, run_id)))

    async def read_export(self, run_id: str, look: Callable[[dict[str, Any]], T]) -> T:
        """Return what `look` makes of what `export` would return, whose lists it reads a row at a time, as often as it likes.

        It is called in a thread of the store, and all that it reads is of one moment.
        """
        return await self._database.read(lambda connection: look(parts_of(connection, self._id_of(connection, run_id))))

    async def verify(self, run_id: str) -> Verification:
        """Return whether the record of a run is as it was written, else the first row that is not.

        It reads a row at a time. A run without audit entries is `not_verifiable`, and not `ok`.
        """
        return await self.read_export(run_id, verify)

    # Runs, as they are written

    async def create_run(self, run: PlanRun, validated: "ValidatedPlan") -> None:
        """Keep a new run, with its plan and tool definitions; a store of one tenant makes it that tenant's."""
        run.tenant_id = self._whose(run).tenant_id
        plan, steps = plans.plan_row(validated.plan, run.digest, run), plans.implied_row(validated, run)
        await self._database.write(partial(runs.create, plan=plan, steps=steps, run=runs.run_row(run, validated, steps)))

    async def update_run(self, run: PlanRun) -> None:
        """Keep the status, reason, message, outputs, times and approval of `run`; unless it is executing, nobody holds it then.

        Raises LeaseLostError, and keeps nothing, where this store claimed the run and another process has taken it over since.
        """
        row = await self._write(runs.change, run=run, epoch=self._epochs.get(run.id))
        run.updated_at = row["updated_at"]

    async def claim(self, run: PlanRun, *, keeps_ends: bool = False) -> None:
        """Keep `run` as one that this process executes from now on, for as long as it renews its lease.

        What an earlier start left undone is pending again, unless it `keeps_ends`, as for what is only rolled back.
        Raises RunConflictError if another process executes it (until that one has ended, or has not renewed its lease for so long that it
        must be dead or stalled), or if it was changed since it was read.
        """
        row, self._epochs[run.id], self._clocks[run.id] = await self._write(
            runs.claim, run=run, owner=Owner.this(), lease_seconds=self.lease_seconds, keeps_ends=keeps_ends
        )
        run.updated_at = row["updated_at"]

    async def renew(self, run_id: str) -> None:
        """Renew the lease of a run that this store claimed; raises LeaseLostError where another process has taken the run."""
        epoch = self._epochs[run_id]
        await self._database.write(partial(leases.renew, run_id=run_id, epoch=epoch, seconds=self.lease_seconds))

    async def release(self, run_id: str) -> None:
        """Let go of a run that this store claimed; where it is still executing by its status it is shown as interrupted."""
        if (epoch := self._epochs.get(run_id)) is not None:
            await self._database.write(partial(runs.release, run_id=run_id, epoch=epoch))
            del self._epochs[run_id], self._clocks[run_id]

    async def owner(self, run_id: str) -> str | None:
        """Return in words the process that may be executing the run, None if there can be none."""
        return await self._database.read(partial(runs.owner_of, tenant=self.tenant_id, run_id=run_id))

    async def unknown(self, run_id: str) -> list[Attempt]:
        """Return the writes of a run that were begun and of which nobody knows whether they were done, in their order."""
        return await self._read_of_run(run_id, outcomes.unknown_of)

    async def unknown_of_all(self) -> list[Attempt]:
        """Return the same of all runs that have not completed; a process may be executing some of them."""
        return await self._database.read(partial(outcomes.unknown_of_all, tenant=self.tenant_id))

    async def start_of(self, attempt: Attempt) -> str | None:
        """Return in words the start of the run, and its process, that made `attempt`; None where the record does not tell."""
        return await self._database.read(partial(outcomes.start_of, attempt=attempt))

    async def resolve(self, run_id: str, step_id: str, word: Word, *, item: int | None = None, kind: CallKind = "step") -> Receipt:
        """Keep what a person says about the unknown outcome of a step, or of one of its items, and return the receipt that it is.

        With `kind` "rollback" it is said of the rollback of the step.
        The run goes on from there: at once where a process waits for this word at a gate, which is closed by it, else when it is resumed.
        `abort` ends it as cancelled. Raises RunConflictError where a process executes the run that does not ask about it, and where no
        such outcome is unknown.
        """
        return await self._write(outcomes.resolve, run_id=run_id, call=CallPlace(step_id, item, kind), word=word)

    async def resolution_digest(
        self, run_id: str, step_id: str, resolution: Resolution, *, item: int | None = None, kind: CallKind = "step"
    ) -> str:
        """Return what this word about a step binds to, which `Word.digest` holds and a signature is of; raises as `resolve` does."""
        return await self._write(outcomes.resolution_digest, run_id=run_id, call=CallPlace(step_id, item, kind), resolution=resolution)

    async def record_operator_request(self, run_id: str, request: OperatorRequest) -> datetime:
        """Keep what a person asks for of a run, and return the time that the run now holds as that of its last change.

        Raises RunConflictError where another wish came in between, and for steps of a run that a process executes.
        """
        return await self._write(operator_requests.keep, run_id=run_id, request=request)

    async def operator_request_digest_of(self, run_id: str, kind: OperatorRequestKind, steps: Sequence[str]) -> str:
        """Return what this wish about steps, or without any about the run, binds to: `OperatorRequest.digest`, which a signature is of."""
        return await self._database.read(
            partial(operator_requests.operator_request_digest_of, tenant=self.tenant_id, run_id=run_id, kind=kind, steps=steps)
        )

    async def left_out(self, run_id: str) -> dict[str, str]:
        """Return the steps of the run that people have left out, with who did so and why."""
        return await self._read_of_run(run_id, operator_requests.left_out_of)

    async def revise_run(
        self, run_id: str, validated: "ValidatedPlan", approval_digest: str, *, by: str, note: str, folder: RunFolder | None = None
    ) -> PlanRun:
        """Put a new version of its plan into a run, which then waits for its approval, and return the run; its inputs stay.

        With `folder` the run works there from now on.

        Its open gates are closed as superseded, and `revisions` tells what was replaced. Raises RunConflictError for a run that has
        completed or that a living process executes, for a version that changes nothing, and, naming them all, for steps that have
        succeeded, or may have been done, and are not the same in the new version.
        """
        return await self._database.write(
            lambda connection: revisions.revise(
                connection, self.tenant_id, run_id, validated, approval_digest, by=by, note=note, folder=folder
            )
        )

    async def put_back(self, run_id: str, version: Revision, validated: "ValidatedPlan", *, by: str) -> PlanRun:
        """Put a version of its plan that was replaced, `validated`, back into a run that has ended, and return the run, ended as it was.

        What the run has now becomes a replaced version. Raises RunConflictError for a run that has not ended.
        """
        return await self._database.write(
            lambda connection: revisions.put_back(connection, self.tenant_id, run_id, version, validated, by=by)
        )

    async def revisions(self, run_id: str) -> list[Revision]:
        """Return the versions of a run's plan that were replaced, oldest first, each with who replaced it and why."""
        return await self._read_of_run(run_id, revisions.revisions_of)

    async def recorder(self, run: PlanRun) -> StoreRecorder:
        """Return what keeps the intents and receipts of `run`; it belongs to the event loop that calls it.

        Of a run that this store has claimed it writes nothing any more once another process has taken it over.
        """
        clock = self._clocks.get(run.id) or await self._database.read(clock_of)
        return StoreRecorder(self._database, run, clock, epoch=self._epochs.get(run.id))

    async def request_cancel(self, run_id: str, reason: str, *, rollback: bool = False) -> None:
        """Ask the process that executes the run to cancel it, with `rollback` also to undo what was done; the first reason stays.

        Without `rollback` one that was asked for before is called off.
        """
        await self._write(runs.request_cancel, run_id=run_id, reason=reason, rollback=rollback)

    async def cancel(self, run_id: str, reason: str, *, rollback: bool = False) -> None:
        """Ask for a run to be cancelled; one that nobody can be executing is cancelled at once. Raises RunConflictError if it has ended.

        `rollback` also asks the process that executes it to undo what was done.
        """
        await self._write(runs.cancel, run_id=run_id, reason=reason, rollback=rollback)

    async def cancel_request(self, run_id: str) -> str | None:
        """Return why the run is to be cancelled, None if nobody asked for that."""
        return await self._database.read(partial(runs.cancel_request, tenant=self.tenant_id, run_id=run_id))

    async def asks_rollback(self, run_id: str) -> bool | None:
        """Return whether who asked for the run to be cancelled also asked to undo what was done; false once that was called off."""
        return await self._database.read(partial(runs.asks_rollback, tenant=self.tenant_id, run_id=run_id))

    async def reason_of(self, run_id: str) -> RunReason | None:
        """Return why the run ends, as the process that executed it last has kept it, also where that one was interrupted since."""
        return await self._read_of_run(run_id, runs.reason_of)

    # Approvals

    async def add_approval(self, approval: Approval, *, context: RunContext | None = None) -> None:
        """Keep an answer, whichever way it decides; one for a run takes the run's context."""
        await self._database.write(partial(approvals.add, approval=approval, context=self._whose(context or RunContext())))

    async def approvals(self, run_or_digest: str) -> list[Approval]:
        """Return the answers that a run was given or has used, or those to an approval digest, oldest first."""
        rows = await self._database.read(lambda connection: approvals.rows_of(connection, self.tenant_id, run_or_digest))
        return [approvals.approval_of(row) for row in rows]

    async def find_approval(self, approval_digest: str, *, context: RunContext | None = None) -> Approval | None:
        """Return an approval of this digest, of the tenant of `context`, that no run has used and that has not expired, or None."""
        whose = self._whose(context or RunContext())
        return await self._database.read(lambda connection: approvals.find(connection, approval_digest, context=whose))

    async def use_approval(self, approval: Approval, *, run_id: str) -> Approval:
        """Use `approval` up for a run, whose context it takes, and return it as used; one that is not kept yet is kept first.

        Of several runs that want it at once one gets it; the others, and one for which it has expired by the database's clock or was
        followed by a rejection, get NotApprovedError.
        """
        whose = self._whose(RunContext())
        return await self._database.write(lambda connection: approvals.use(connection, approval, run_id=run_id, context=whose))

    # Gates

    async def open_gate(self, gate: Gate, *, timeout_ms: int) -> Gate:
        """Open `gate` for this process, by the database's clock, and return it as it is kept; `timeout_ms` 0 is no limit.

        A gate that is open for the same run, step, item and content goes on: with its id and times, the new text and rules, and one
        opening more. One that is open for other content is closed as superseded. Raises RunConflictError if another living process of
        this host waits there, and for a run that has ended; LeaseLostError for the gate of a step of a run that this store claimed and
        another process has taken over since.
        """
        epoch = self._epochs.get(gate.run_id)
        return await self._write(gates.open_gate, gate=gate, timeout_ms=timeout_ms, owner=Owner.this(), epoch=epoch)

    async def answer_gate(self, gate_id: str, approval: Approval) -> Gate:
        """Close an open gate with its first answer and return it; the answer is kept as of the gate's run, step and item, at this moment.

        Raises RunConflictError for a gate that is closed, which says how it was, and for one whose time is over by the database's
        clock, which is closed by that; NotApprovedError for an answer to other content, which leaves the gate open.
        """
        taken = await self._write(gates.answer, gate_id=gate_id, approval=approval)
        if isinstance(taken, PlanAdapterError):
            raise taken
        return taken

    async def answer_to_gate(self, gate_id: str) -> Approval | None:
        """Return the answer that closed the gate, None if no answer did."""
        return await self._database.read(partial(gates.answer_to, tenant=self.tenant_id, gate_id=gate_id))

    async def changes_asked(self) -> dict[str, Approval]:
        """Return by id, of each open gate at which somebody asked for changes of the same content before, that answer."""
        return await self._database.read(partial(gates.changes_asked, tenant=self.tenant_id))

    async def expire_gate(self, gate_id: str) -> Gate:
        """Close the gate as expired if it is open and its time is over by the database's clock; return it as it is then."""
        return await self._write(gates.expire, gate_id=gate_id)

    async def close_gate(self, gate_id: str, end: GateEnd) -> Gate:
        """Close the gate without an answer and return it; one that is closed, or where another process waits, is returned as it is."""
        return await self._write(gates.close, gate_id=gate_id, end=end, owner=Owner.this())

    async def leave_gate(self, gate_id: str) -> None:
        """Note that this process does not wait at the gate any more, so that another one may; the gate stays open."""
        await self._write(gates.leave, gate_id=gate_id, owner=Owner.this())

    async def show_gate(self, gate_id: str, *, flow_run_id: str, keyset: str) -> None:
        """Keep where the form of the gate is."""
        await self._write(gates.show, gate_id=gate_id, flow_run_id=flow_run_id, keyset=keyset)

    async def gate(self, gate_id: str) -> Gate:
        """Return the gate with this id; raises RunConflictError if there is none."""
        return await self._database.read(partial(gates.find, tenant=self.tenant_id, gate_id=gate_id))

    async def gates(self, *, run_id: str | None = None, open_only: bool = True, limit: int = 1000) -> list[Gate]:
        """Return gates, oldest first; those of all runs come without their texts, which `gate` gives."""
        listed = partial(gates.listed, tenant=self.tenant_id, run_id=run_id, open_only=open_only, limit=limit)
        return await self._database.read(listed)

    # Drafts

    @property
    def drafts(self) -> Drafts:
        """The drafts of plans that models made."""
        return Drafts(self._database, self.tenant_id, self._whose(RunContext()))

    # The policy

    async def policy(self) -> PolicyVersion | None:
        """Return the store's policy, None where nobody has set one; raises StoreError for one that was altered."""
        return await self._database.read(policies.newest)

    async def policy_history(self) -> tuple[list[PolicyVersion], str | None]:
        """Return every version of the store's policy, oldest first, and what is wrong with the first one that was altered."""
        return await self._database.read(policies.history)

    async def set_policy(self, new: NewPolicy) -> PolicyVersion:
        """Keep a policy, which holds from now on for every run of this store.

        Where the one before names operators, only they may; else anybody who can write to the store. Raises NotApprovedError, and
        RunConflictError where somebody else set one meanwhile. A store that is open for one tenant sets none: it would hold for all.
        """
        if self.tenant_id is not None:
            raise StoreError("a policy holds for all tenants: set it with a store that is not open for one of them")
        return await self._database.write(partial(policies.add, new=new))

    async def policy_in_force(self, settings: Settings) -> PolicyInForce:
        """Return what `settings` and the store's policy demand together, as it is now: read it when something is decided."""
        version = await self.policy()
        return policy_in_force(settings) if version is None else policy_in_force(settings, version.policy, number=version.number)

    # Standing approvals and one-time codes

    async def add_standing(self, approval: StandingApproval, *, context: RunContext | None = None) -> None:
        """Keep a standing approval, with no run counted."""
        whose = self._whose(context or RunContext())
        await self._database.write(partial(standing.add, standing=approval, context=whose))

    async def standing(self, *, include_ended: bool = False) -> list[StandingApproval]:
        """Return the standing approvals that may be used, oldest first; with `include_ended` the revoked, past and used-up ones, too."""
        return await self._database.read(partial(standing.listed, tenant=self.tenant_id, include_ended=include_ended))

    async def revoke_standing(self, id_beginning: str, *, by: str) -> StandingApproval:
        """End the standing approval whose id begins so, and return it: no step of any run starts by it any more."""
        return await self._write(standing.revoke, beginning=id_beginning, by=by)

    async def use_standing(self, standing_id: str, *, run_id: str, approval_digest: str) -> Approval:
        """Count a run, and return its approval of this content, kept as used; once for each run and content.

        Raises NotApprovedError for a standing approval of another tenant than the run's, and for one that is revoked, over or used up.
        """
        return await self._write(standing.use, standing_id=standing_id, run_id=run_id, approval_digest=approval_digest)

    async def totp_seed(self, person: str) -> str | None:
        """Return the encrypted seed of a person's one-time codes, None where they have none."""
        return await self._database.read(partial(policies.totp_seed, person=person))

    async def refuse_enrolling(self, person: str, *, by: str) -> None:
        """Return if `by` may make one-time codes for `person`; raises NotApprovedError, which says who may."""
        await self._database.read(partial(policies.refuse_enrolling, person=person, by=by))

    async def add_totp_seed(self, person: str, seed: str, *, by: str, known_by: str, replaces: bool) -> None:
        """Keep an encrypted seed; the ones before stay in the store and count no more.

        Raises NotApprovedError for who may not enroll `person`, RunConflictError for somebody who has a seed, unless it `replaces` that.
        """
        add = partial(policies.add_totp_seed, person=person, seed=seed, by=by, known_by=known_by, replaces=replaces)
        await self._database.write(add)

    async def try_code(self, name: str) -> float:
        """Count a try of a one-time code of `name`, as a wrong one until `use_code` follows, and return 0.0.

        Where 5 within 5 minutes were wrong, in whatever process, nothing is counted, and the seconds are returned until the next try.
        """
        return await self._database.write(partial(codes.begin_try, name=name, context=self._whose(RunContext())))

    async def use_code(self, name: str, counter: int) -> bool:
        """Return true the first time for a name and a counter, whose try was right then, and false ever after."""
        context = self._whose(RunContext())
        return await self._database.write(partial(codes.use, name=name, counter=counter, context=context))

    async def _write(self, work: Callable[..., T], **what: Any) -> T:
        return await self._database.write(partial(work, tenant=self.tenant_id, **what))

    async def _read_of_run(self, run_id: str, read: Callable[[Connection, str], T]) -> T:
        found = (self.tenant_id, run_id, run_table.c.id)
        return await self._database.read(lambda connection: read(connection, runs.row_of(connection, *found)["id"]))

    def _id_of(self, connection: Connection, beginning: str) -> str:
        # Only the id: a row that was altered so that it cannot be read, or is missing, is to be found and told.
        try:
            return runs.row_of(connection, self.tenant_id, beginning, run_table.c.id)["id"]
        except RunConflictError:
            if self.tenant_id is None and entries_of(connection, beginning):
                return beginning
            raise

    def _whose(self, context: HasContext) -> RunContext:
        """Return `context` with this store's tenant; raises RunConflictError for that of another one."""
        if self.tenant_id is not None and context.tenant_id not in (None, self.tenant_id):
            raise RunConflictError(f"this store is open for tenant {self.tenant_id}, not for {context.tenant_id}")
        tenant = self.tenant_id or context.tenant_id
        return RunContext(agent_id=context.agent_id, org_id=context.org_id, tenant_id=tenant, task_id=context.task_id)


def _history(connection: Connection, run_id: str) -> RunHistory:
    """Return what the earlier starts of a run have left, without the steps that people have left out."""
    return steps.history_of(connection, run_id).leaving_out(operator_requests.left_out_of(connection, run_id))


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
