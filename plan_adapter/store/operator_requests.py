"""`OperatorRequests`, made outside gates: skip steps, run skipped steps after all, roll back the run, override a change freeze.

A request is recorded in the run's audit log: one entry per step under a shared digest, and one for the signature if it is signed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from pydantic import JsonValue
from sqlalchemy import Connection, func, select, update

from plan_adapter.execution.history import skipped_by
from plan_adapter.model.approvals import OperatorRequestKind
from plan_adapter.model.errors import RunConflictError, RunNotFoundError
from plan_adapter.store import runs
from plan_adapter.store.database.columns import database_now, now_of
from plan_adapter.store.database.database import StorePart, reads, signal
from plan_adapter.store.database.rows import Row
from plan_adapter.store.database.tables import IS_OPERATOR_REQUEST, plans
from plan_adapter.store.database.tables import audit as audit_log
from plan_adapter.store.database.tables import runs as run_table
from plan_adapter.store.proof import audit, entries
from plan_adapter.store.proof.digests import digest_of, instant_text
from plan_adapter.store.proof.entries import OPERATOR_REQUEST_KINDS
from plan_adapter.store.redaction import records
from plan_adapter.store.steps import steps_of_document


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """A request by a person: what, why, for which steps (none for a rollback), and how the person was identified."""

    kind: OperatorRequestKind
    steps: tuple[str, ...]
    because: str
    by: str
    known_by: str
    digest: str  # from `OperatorRequests.digest_of`, as shown to the person
    signature: str | None = None  # a verified armored SSH signature of `operator_request_text_to_sign`


class Subject(NamedTuple):
    """The subject of a request, and its digest at that time: a step of the plan, or the run's plan if `step_id` is None."""

    step_id: str | None
    digest: str


class OperatorRequests(StorePart):
    """The requests of operators about a store's runs, made outside gates."""

    @records
    def record(self, connection: Connection, run_id: str, request: OperatorRequest) -> datetime:
        """Record an operator request and return the run's new change time. A process that read the run earlier can no longer claim it.

        Raises RunConflictError if another request came in between. Requests about steps also raise it while a process executes the run,
        because that process would not notice.
        """
        run = runs.lock_run(connection, self.tenant_id, run_id)
        found: str = run["id"]
        if request.steps and (owner := runs.owner_of(connection, self.tenant_id, found)) is not None:
            raise RunConflictError(f"run {found} is executed by {owner}: skip steps after it has ended")
        subjects = _subjects(connection, run, request.steps)
        if request_digest(found, _next_number(connection, found), request.kind, subjects) != request.digest:
            raise RunConflictError(f"another request about run {found} was recorded in the meantime: look again, then repeat yours")
        changed = update(run_table).where(run_table.c.id == found).values(updated_at=database_now()).returning(run_table.c.updated_at)
        audit_entries, at = list[entries.Entry](), instant_text(now_of(connection))
        given = {"by": request.by, "known_by": request.known_by, "because": request.because, "request_digest": request.digest}
        for step_id, digest in subjects:
            audit_entries.append(entries.of_operator_request(at, request.kind, **given, step_id=step_id, digest=digest))
        if request.signature is not None:
            audit_entries.append(entries.of_operator_request_signature(audit_entries[-1], request.signature))
        updated_at = connection.execute(changed).scalar_one()
        audit.append(connection, found, audit_entries)
        signal(connection)
        return updated_at

    @reads
    def digest_of(self, connection: Connection, run_id: str, kind: OperatorRequestKind, steps: Sequence[str]) -> str:
        """Return the digest of this request for `OperatorRequest.digest` and its signature. Without `steps`, it is about the run.

        Raises RunNotFoundError for an unknown step.
        """
        run = runs.row_of(connection, self.tenant_id, run_id)
        return request_digest(run["id"], _next_number(connection, run["id"]), kind, _subjects(connection, run, steps))

    @reads
    def override(self, connection: Connection, run_id: str) -> str | None:
        """Return who asked last to override a change freeze for the run, and why, or None if nobody did."""
        found_id = runs.id_of(connection, self.tenant_id, run_id)
        same = (audit_log.c.run_id == found_id, audit_log.c.kind == OPERATOR_REQUEST_KINDS["override_freeze"])
        query = select(audit_log.c.by, audit_log.c.message).where(*same).order_by(audit_log.c.number.desc())
        found = connection.execute(query).first()
        return None if found is None else f"{found.by}: {found.message}"

    @reads
    def skipped_steps(self, connection: Connection, run_id: str) -> dict[str, str]:
        """Return the steps of the run that operators skipped, with who skipped each and why."""
        return skipped_steps_of(connection, runs.id_of(connection, self.tenant_id, run_id))


def request_digest(run_id: str, number: int, kind: str, subjects: Sequence[Subject]) -> str:
    """Return the digest that identifies a request. `number` is its position in the run, from 1, so each request counts once."""
    about: list[JsonValue] = [[step_id, digest] for step_id, digest in subjects]
    return digest_of(["plan_adapter.operator_request", run_id, number, kind, about])


def skipped_steps_of(connection: Connection, run_id: str) -> dict[str, str]:
    """Return the skipped steps of the run, each with who skipped it and why. A step that changed since is not skipped."""
    # Two queries: the index covers only the numbers. In one query, SQLite would scan the whole audit log.
    numbers = connection.scalars(select(audit_log.c.number).where(audit_log.c.run_id == run_id, IS_OPERATOR_REQUEST)).all()
    if not numbers:
        return {}
    wanted = (audit_log.c.kind, audit_log.c.step_id, audit_log.c.by, audit_log.c.message, audit_log.c.row_digest)
    query = select(*wanted).where(audit_log.c.run_id == run_id, audit_log.c.number.in_(numbers)).order_by(audit_log.c.number)
    newest = {row["step_id"]: row for row in connection.execute(query).mappings()}
    skipped_steps = {step_id: row for step_id, row in newest.items() if row["kind"] == OPERATOR_REQUEST_KINDS["skip"]}
    if not skipped_steps:
        return {}
    now = _step_digests(connection, connection.execute(select(run_table).where(run_table.c.id == run_id)).mappings().one())
    same = {step_id: row for step_id, row in skipped_steps.items() if now.get(step_id) == row["row_digest"]}
    return {step_id: skipped_by(row["by"], row["message"]) for step_id, row in same.items()}


def _next_number(connection: Connection, run_id: str) -> int:
    same = (audit_log.c.run_id == run_id, audit_log.c.kind.in_(OPERATOR_REQUEST_KINDS.values()))
    return connection.execute(select(func.count(audit_log.c.row_id.distinct())).where(*same)).scalar_one() + 1


def _subjects(connection: Connection, run: Row, steps: Sequence[str]) -> list[Subject]:
    if not steps:
        return [Subject(None, run["digest"])]
    digests = _step_digests(connection, run)
    if unknown := [step_id for step_id in steps if step_id not in digests]:
        raise RunNotFoundError("; ".join(f"no step of run {run['id']} is called `{step_id}`" for step_id in unknown))
    return [Subject(step_id, digests[step_id]) for step_id in steps]


def _step_digests(connection: Connection, run: Row) -> Mapping[str, str]:
    """Return the digests of the steps in the run's current plan, by step id."""
    same = (plans.c.tenant_id == run["tenant_id"], plans.c.digest == run["digest"])
    document = json.loads(connection.execute(select(plans.c.document).where(*same)).scalar_one())
    return {step["id"]: digest_of(step) for step in steps_of_document(document)}
