"""`PlanStore`: plans, versions, runs, approvals and receipts, in a SQLite file or on PostgreSQL."""

import asyncio
import os
import socket
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import JsonValue
from sqlalchemy import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError

from plan_adapter.gates.approval import os_user
from plan_adapter.gates.identity import Identity, identity_of_given
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Approval
from plan_adapter.model.canonical import canonical_document, plan_digest
from plan_adapter.model.errors import RunConflictError, StoreSettingsError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.record import Attempt, PlanRun, PlanVersion, Receipt, RunContext
from plan_adapter.model.status import PlanStatus
from plan_adapter.store import approvals, plans, runs, steps
from plan_adapter.store.codes import OneTimeCodes
from plan_adapter.store.database.columns import now_of
from plan_adapter.store.database.database import Database, StorePart
from plan_adapter.store.database.patience import PatientDatabase
from plan_adapter.store.drafts import Drafts
from plan_adapter.store.gates import Gates
from plan_adapter.store.leases import Claim
from plan_adapter.store.ledger import RunLedger
from plan_adapter.store.operator_requests import OperatorRequests
from plan_adapter.store.outcomes import UnknownOutcomes
from plan_adapter.store.policies import StorePolicy
from plan_adapter.store.proof.audit import AuditEntry, entries_of
from plan_adapter.store.redaction import redactor_of, refuse_secrets, without_secrets
from plan_adapter.store.revisions import Revisions
from plan_adapter.store.standing import StandingApprovals
from plan_adapter.store.trigger_events import TriggerEvents

if TYPE_CHECKING:
    from plan_adapter.store.change_records import ChangeRecords
    from plan_adapter.store.gate_messages import GateMessages
    from plan_adapter.store.proof.attestation import SignedAttestation
    from plan_adapter.store.proof.verification import Verification
    from plan_adapter.store.retention import Retention

T = TypeVar("T")


class PlanStore(StorePart):
    """The store at `url`; None: the settings' URL. Usable from any event loop and thread. Every method raises StoreError.

    Nothing is opened before the first call. That call creates or migrates a SQLite file if needed; only `upgrade` migrates a PostgreSQL
    database.

    With a `tenant_id`, the store reads and writes only this tenant's rows. Without one, it sees the runs and contents of all tenants, and
    the names that were saved without a tenant.

    Its parts, each with methods of its own:

    - `gates`: where runs wait for answers.
    - `outcomes`: the writes whose outcome is unknown, and their resolutions.
    - `operator_requests`: requests outside gates: skip a step, run a skipped step after all, or roll the run back.
    - `revisions`: the versions of runs' plans.
    - `standing`: standing approvals.
    - `policy`: the policy that holds for every run.
    - `trigger_events`: the events that started runs.
    - `codes`: people's one-time codes.
    - `drafts`: drafts of plans and their model calls.
    - `retention`: old runs that can be deleted, and tombstones of what was pruned or erased.
    - `change_records`: the runs of a period, as an auditor asks about them.
    - `gate_messages`: what `plan desk` sent to chats and by e-mail.
    - `ledger`: internal. Processes record the runs that they execute with it.
    """

    def __init__(self, url: str | None = None, *, tenant_id: str | None = None) -> None:
        """Check the URL without connecting."""
        settings = Settings()
        url = url or settings.store_url
        refuse_local_under_worker(url, settings, os.environ)
        super().__init__(_open_database(url, home=settings.home), tenant_id or None)
        self._claims = dict[str, Claim]()  # of the runs that were claimed through this store
        self._make_parts(settings.lease_seconds)

    def _make_parts(self, lease_seconds: float) -> None:
        place = (self._database, self.tenant_id)
        self.ledger = RunLedger(*place, self._claims, lease_seconds=lease_seconds)
        self.gates = Gates(*place, self._claims)
        self.outcomes = UnknownOutcomes(*place)
        self.operator_requests = OperatorRequests(*place)
        self.revisions = Revisions(*place)
        self.standing = StandingApprovals(*place)
        self.policy = StorePolicy(*place)
        self.trigger_events = TriggerEvents(*place)
        self.codes = OneTimeCodes(*place)
        self.drafts = Drafts(*place)

    @property
    def retention(self) -> "Retention":
        """Old runs that can be deleted, and tombstones of what was pruned or erased."""
        from plan_adapter.store.retention import Retention  # a run starts without it

        return Retention(self._database, self.tenant_id)

    @property
    def change_records(self) -> "ChangeRecords":
        """The runs of a period, as an auditor asks about them."""
        from plan_adapter.store.change_records import ChangeRecords  # a run starts without it

        return ChangeRecords(self._database, self.tenant_id)

    @property
    def gate_messages(self) -> "GateMessages":
        """The messages about gates that `plan desk` sent to chats and by e-mail."""
        from plan_adapter.store.gate_messages import GateMessages  # only the desk sends messages

        return GateMessages(self._database, self.tenant_id)

    def __repr__(self) -> str:
        """Return a description of the store, without a password."""
        return f"<PlanStore: {self.label}>"

    @property
    def label(self) -> str:
        """A description of the database, without a password."""
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
        patient._make_parts(self.ledger.lease_seconds)
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

    async def save(
        self, plan: ExecutionPlan, *, author: str | None = None, name: str | None = None, context: RunContext | None = None
    ) -> PlanVersion:
        """Save `plan` as the next version of `name` (default: the plan's own) and return that version.

        `author` defaults to the account of this process.

        If the newest version has the same digest and author, returns that one instead. Another author who saves the same content creates a
        new version, which records who saved it and when.
        """
        await refuse_secrets({"": canonical_document(plan)})
        scoped = self._with_tenant(context)
        row = plans.plan_row(plan, plan_digest(plan), scoped)
        return await self._database.write(partial(plans.save, row=row, name=name or plan.name, author=author or os_user(), context=scoped))

    async def get(self, name_or_digest: str, version: int | None = None) -> ExecutionPlan:
        """Return a plan by its name (newest version unless one is given), its digest, or an unambiguous prefix of the digest."""
        return await self._database.read(lambda connection: plans.get(connection, self.tenant_id, name_or_digest, version))

    async def versions(self, name: str) -> list[PlanVersion]:
        """Return the versions of a named plan, newest first."""
        return await self._database.read(lambda connection: plans.versions_of(connection, self.tenant_id, name))

    async def authors(self, digest: str) -> list[str]:
        """Return the people who saved a plan with this digest under any name, the first one first."""
        return await self._database.read(lambda connection: plans.authors_of(connection, self.tenant_id, digest))

    async def versions_problem(self) -> str | None:
        """Return a message about the first version or document of a plan that was altered or is missing, or None."""
        return await self._database.read(plans.problem_of_saved)

    async def names(self) -> list[str]:
        """Return the names of the plans that have versions, sorted."""
        return await self._database.read(lambda connection: plans.names(connection, self.tenant_id))

    # Runs

    async def runs(
        self,
        limit: int = 50,
        *,
        status: PlanStatus | None = None,
        names: Collection[str] | None = None,
        tags: Collection[str] = (),
        digest: str | None = None,
        context: RunContext | None = None,
    ) -> list[PlanRun]:
        """Return the runs that match every filter, newest first. Their steps have no results; `run` reads those.

        `names` are names of plans: a run matches if its plan has one of them. With `tags`, its plan has all of them.
        """
        scoped = context or RunContext()
        found = partial(runs.list_runs, tenant=self.tenant_id, status=status, names=names, tags=tags, digest=digest, context=scoped)
        return await self._database.read(partial(found, limit=limit))

    async def run(self, run_id: str, *, with_steps: bool = True, with_results: bool = True) -> PlanRun:
        """Return the current state of a run by its id, its beginning or end, or `last`. Raises RunConflictError if there is none.

        Reading the steps of a long run, and their results, is slow; leave them out if they are not needed.
        """
        found = partial(runs.find, tenant=self.tenant_id, name=run_id, with_steps=with_steps, with_results=with_results)
        return await self._database.read(found)

    async def cancel(self, run_id: str, reason: str, *, rollback: bool = False) -> None:
        """Request a run's cancellation. If no process can be executing it, it is cancelled at once.

        `rollback` also asks the process that executes it to roll back. Raises RunConflictError if the run has ended.
        """
        reason = (await redactor_of(self, run_id=run_id)).text(reason)
        await self._database.write(partial(runs.cancel, tenant=self.tenant_id, run_id=run_id, reason=reason, rollback=rollback))

    async def attempts(self, run_id: str) -> list[Attempt]:
        """Return the intents of a run in order."""
        return await self._read_of_run(run_id, steps.attempts_of)

    async def receipts(self, run_id: str) -> list[Receipt]:
        """Return the receipts of a run in order."""
        return await self._read_of_run(run_id, steps.receipts_of)

    async def approvals(self, run_or_digest: str) -> list[Approval]:
        """Return the answers given for or used by a run, or those of an approval digest, oldest first."""
        return await self._database.read(lambda connection: approvals.list_approvals(connection, self.tenant_id, run_or_digest))

    async def add_approval(self, approval: Approval, *, context: RunContext | None = None, identity: Identity | None = None) -> None:
        """Record an unused answer, whatever its decision. An answer for a run takes the run's context.

        It is recorded as given by `identity`. Without one, all that counts is whether it names the account of this process.
        """
        identity = identity or identity_of_given(approval, None)
        approval = replace(approval, by=identity.by, known_by=identity.known_by, used_at=None)
        approval = without_secrets(approval, (await redactor_of(self, run_id=approval.run_id)).value)
        await self._database.write(partial(approvals.add, approval=approval, context=self._with_tenant(context)))

    # The record of a run

    async def audit(self, run_id: str) -> list[AuditEntry]:
        """Return the audit log of a run, in the order in which it was recorded."""
        return await self._read_of_run(run_id, entries_of)

    async def export(self, run_id: str) -> dict[str, JsonValue]:
        """Return everything that the store holds about a run, each row as stored. Pass it to `verification.verify`."""
        from plan_adapter.store.proof.export import document_of  # a run starts without it

        return await self._database.read(lambda connection: document_of(connection, self._recorded_id(connection, run_id)))

    async def read_export(self, run_id: str, look: Callable[[dict[str, Any]], T]) -> T:
        """Return the result of `look` for the document that `export` would return. Its lists read one row at a time, repeatedly if needed.

        `look` is called in a thread of the store. All its reads see one snapshot.
        """
        from plan_adapter.store.proof.export import parts_of  # a run starts without it

        return await self._database.read(lambda connection: look(parts_of(connection, self._recorded_id(connection, run_id))))

    async def verify(self, run_id: str) -> "Verification":
        """Return whether the record of a run is unaltered, and otherwise the first row that is altered.

        Rows are read one at a time. A run without audit entries is `not_verifiable`, and not `ok`.
        """
        from plan_adapter.store.proof.verification import verify  # a run starts without it

        return await self.read_export(run_id, verify)

    async def attest(self, run_id: str, *, key: Path | None = None) -> "SignedAttestation":
        """Return a signed in-toto statement about the record of a run, in a DSSE envelope: `plan guide attestations`.

        `key` is a file with an OpenSSH ed25519 private key. By default the key of this installation signs, which is created at first use.

        Raises NotVerifiedError, and signs nothing, for a record that does not verify.
        """
        # A run starts without them.
        from plan_adapter.local.attestation_key import installation_key, read_signing_key
        from plan_adapter.store.proof.attestation import SignedAttestation, checked_statement
        from plan_adapter.store.proof.envelope import sealed
        from plan_adapter.store.proof.signed import refuse_invalid

        settings = Settings()
        record, statement = await self.read_export(run_id, partial(checked_statement, at=await self.now()))
        await asyncio.to_thread(refuse_invalid, record, await self.policy.effective(settings))
        signer = installation_key(settings) if key is None else read_signing_key(key)
        return SignedAttestation(sealed(statement, signer), signer.public)

    async def _read_of_run(self, run_id: str, read: Callable[[Connection, str], T]) -> T:
        return await self._database.read(lambda connection: read(connection, runs.id_of(connection, self.tenant_id, run_id)))

    def _recorded_id(self, connection: Connection, id_prefix: str) -> str:
        # Also finds a run whose row is missing but that has an audit log, so that this can be reported.
        try:
            return runs.id_of(connection, self.tenant_id, id_prefix)
        except RunConflictError:
            if self.tenant_id is None and entries_of(connection, id_prefix):
                return id_prefix
            raise


_URL_FORMS = "write sqlite:///plans.db, sqlite:////var/lib/plans.db or postgresql://user:password@host/database"


def _open_database(url: str, *, home: Path) -> Database:
    """Return the database that `url` names, not connected yet. A file inside `home` is protected from other users.

    Raises StoreSettingsError for a URL that names no supported store, and for a missing driver.
    """
    parsed = _parse_url(url)
    backend, _, driver = parsed.drivername.partition("+")
    if backend == "sqlite" and driver in ("", "pysqlite", "aiosqlite"):
        from plan_adapter.store.database.sqlite import SqliteDatabase

        return SqliteDatabase(parsed, home=home)
    if backend in ("postgresql", "postgres") and driver in ("", "asyncpg", "psycopg", "psycopg2"):
        if find_spec("asyncpg") is None:
            raise StoreSettingsError("a store on PostgreSQL needs the driver asyncpg: pip install asyncpg")
        from plan_adapter.store.database.postgresql import PostgresDatabase

        return PostgresDatabase(parsed)
    raise StoreSettingsError(f"`{parsed.drivername}` is not supported as a store: {_URL_FORMS}")


def refuse_local_under_worker(url: str, settings: Settings, environ: Mapping[str, str]) -> None:
    """Raise StoreSettingsError if a Prefect worker started this process and `url` is a local path. Its receipts may be lost with the host.

    `settings.allow_local_store` permits it, on the machine `settings.store_host` if that is set. A flow that its own process runs or serves
    may use a local path.
    """
    if not is_local(url) or not _is_under_worker(environ):
        return
    if settings.allow_local_store and settings.store_host not in ("", host := socket.gethostname()):
        raise StoreSettingsError(
            f"the store is a file of the machine {settings.store_host}, and this worker runs on {host}: start the worker there, or deploy "
            "again with PLAN_ADAPTER_DATABASE_URL set to a PostgreSQL database that both can reach"
        )
    if not settings.allow_local_store:
        raise StoreSettingsError(
            "this run is under a Prefect worker, where a store on a local path may vanish with the worker's host, and its receipts with "
            "it: set PLAN_ADAPTER_DATABASE_URL to a PostgreSQL database, or PLAN_ADAPTER_ALLOW_LOCAL_STORE=true if the path outlives the "
            "worker"
        )


def is_local(url: str) -> bool:
    """Return whether the store at `url` is a file, which only processes of its machine can use. Raises StoreSettingsError."""
    return _parse_url(url).get_backend_name() == "sqlite"


def _is_under_worker(environ: Mapping[str, str]) -> bool:
    # Observed in prefect 3.8.8: workers (workers/base.py) and `serve` (runner/_starter_engine.py) both set the flow run id. `serve` also
    # sets its storage path, workers set their own name or id. A push work pool does neither.
    if "PREFECT__FLOW_RUN_ID" not in environ:
        return False
    return "PREFECT__WORKER_NAME" in environ or "PREFECT__WORKER_ID" in environ or "PREFECT__STORAGE_BASE_PATH" not in environ


def _parse_url(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise StoreSettingsError(f"the store's URL cannot be understood: {_URL_FORMS}") from None  # not shown: it may contain a password
