"""What people ask for of a run beside its gates: to leave steps out, to take that back, to undo what was done. Functions of a connection.

A wish is an entry of the run's audit for each step that it is about, under one digest, and one with its signature where it was signed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from pydantic import JsonValue
from sqlalchemy import Connection, func, select, update

from plan_adapter.errors import RunConflictError
from plan_adapter.execution.history import left_out_by
from plan_adapter.record import OperatorRequestKind
from plan_adapter.store import chain, entries, runs
from plan_adapter.store.changes import signal
from plan_adapter.store.columns import database_now, now_of
from plan_adapter.store.digests import digest_of, instant_text
from plan_adapter.store.entries import OPERATOR_REQUEST_KINDS
from plan_adapter.store.rows import Row
from plan_adapter.store.tables import IS_OPERATOR_REQUEST, audit, plans
from plan_adapter.store.tables import runs as run_table


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """What a person asks for and why, about which steps (none where it is to undo what the run did), and how they were known."""

    kind: OperatorRequestKind
    steps: tuple[str, ...]
    because: str
    by: str
    known_by: str
    digest: str  # `operator_request_digest_of`, which its giver was shown
    signature: str | None = None  # an armored SSH signature of `signed_operator_request`, which was verified


class Subject(NamedTuple):
    """What a wish is about: a step, or (None) the run; and the digest of what that was then: of the step as it stands in the plan."""

    step_id: str | None
    digest: str


def request_digest(run_id: str, number: int, kind: str, subjects: Sequence[Subject]) -> str:
    """Return what a wish binds to: it is the one with this number in its run, from 1, so that it counts once."""
    about: list[JsonValue] = [[step_id, digest] for step_id, digest in subjects]
    return digest_of(["plan_adapter.wish", run_id, number, kind, about])


def operator_request_digest_of(
    connection: Connection, tenant: str | None, run_id: str, kind: OperatorRequestKind, steps: Sequence[str]
) -> str:
    """Return what this wish binds to, as `keep` would keep it now; raises RunConflictError for a step that the run does not have."""
    run = runs.row_of(connection, tenant, run_id)
    return request_digest(run["id"], _next_number(connection, run["id"]), kind, _subjects(connection, run, steps))


def keep(connection: Connection, tenant: str | None, run_id: str, request: OperatorRequest) -> datetime:
    """Keep what a person asks for and return when the run was changed by that; whoever has read it before cannot claim it any more.

    Raises RunConflictError where another wish came in between, and where steps are left out, or wanted again, of a run that a process
    executes: it would not look.
    """
    found: str = runs.row_of(connection, tenant, run_id)["id"]
    run = connection.execute(select(run_table).where(run_table.c.id == found).with_for_update(key_share=True)).mappings().one()
    if request.steps and (owner := runs.owner_of(connection, tenant, found)) is not None:
        raise RunConflictError(f"run {found} is executed by {owner}: which steps are left out is said when it has ended")
    subjects = _subjects(connection, run, request.steps)
    if request_digest(found, _next_number(connection, found), request.kind, subjects) != request.digest:
        raise RunConflictError(f"somebody else has asked for something of run {found} meanwhile: look again, and say it once more")
    changed = update(run_table).where(run_table.c.id == found).values(updated_at=database_now()).returning(run_table.c.updated_at)
    told, at = list[entries.Entry](), instant_text(now_of(connection))
    for step_id, digest in subjects:
        given = {"by": request.by, "known_by": request.known_by, "because": request.because}
        told.append(entries.of_operator_request(at, request.kind, **given, step_id=step_id, request_digest=request.digest, digest=digest))
    if request.signature is not None:
        told.append(entries.of_operator_request_signature(told[-1], request.signature))
    updated_at = connection.execute(changed).scalar_one()
    chain.append(connection, found, told)
    signal(connection)
    return updated_at


def left_out_of(connection: Connection, run_id: str) -> dict[str, str]:
    """Return the steps that people have left out of the run, and who did so and why; a step that was changed since is another one."""
    # The index holds nothing more; asked for more at once, SQLite would rather read all of the audit.
    numbers = connection.scalars(select(audit.c.number).where(audit.c.run_id == run_id, IS_OPERATOR_REQUEST)).all()
    if not numbers:
        return {}
    wanted = (audit.c.kind, audit.c.step_id, audit.c.by, audit.c.message, audit.c.row_digest)
    query = select(*wanted).where(audit.c.run_id == run_id, audit.c.number.in_(numbers)).order_by(audit.c.number)
    newest = {row["step_id"]: row for row in connection.execute(query).mappings()}
    left_out = {step_id: row for step_id, row in newest.items() if row["kind"] == OPERATOR_REQUEST_KINDS["leave_out"]}
    if not left_out:
        return {}
    now = _step_digests(connection, connection.execute(select(run_table).where(run_table.c.id == run_id)).mappings().one())
    same = {step_id: row for step_id, row in left_out.items() if now.get(step_id) == row["row_digest"]}
    return {step_id: left_out_by(row["by"], row["message"]) for step_id, row in same.items()}


def _next_number(connection: Connection, run_id: str) -> int:
    same = (audit.c.run_id == run_id, audit.c.kind.in_(OPERATOR_REQUEST_KINDS.values()))
    return connection.execute(select(func.count(audit.c.row_id.distinct())).where(*same)).scalar_one() + 1


def _subjects(connection: Connection, run: Row, steps: Sequence[str]) -> list[Subject]:
    if not steps:
        return [Subject(None, run["digest"])]
    digests = _step_digests(connection, run)
    if unknown := [step_id for step_id in steps if step_id not in digests]:
        raise RunConflictError("; ".join(f"no step of run {run['id']} is called `{step_id}`" for step_id in unknown))
    return [Subject(step_id, digests[step_id]) for step_id in steps]


def _step_digests(connection: Connection, run: Row) -> Mapping[str, str]:
    """Return by step the digest of it as it stands in the plan that the run has now."""
    same = (plans.c.tenant_id == run["tenant_id"], plans.c.digest == run["digest"])
    document = json.loads(connection.execute(select(plans.c.document).where(*same)).scalar_one())
    return {step["id"]: digest_of(step) for name in ("steps", "finally") for step in document.get(name, ())}
