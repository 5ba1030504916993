"""The store's policy. Versions are only added, and each has a digest of itself and of the previous one. Functions of a connection."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select

from plan_adapter.canonical import canonical_json
from plan_adapter.errors import InvalidPlanError, NotApprovedError, RunConflictError, StoreError
from plan_adapter.gates.policy import Policy, effective_policy, policy_of
from plan_adapter.readable import one_line
from plan_adapter.record import RunContext
from plan_adapter.settings import Settings
from plan_adapter.store.changes import signal
from plan_adapter.store.columns import insert_into, now_of
from plan_adapter.store.digests import digest_of, plain
from plan_adapter.store.rows import Row, whose
from plan_adapter.store.tables import policy_history, totp_history

BEGINNING = sha256(b"prefect-plan-adapter policy").hexdigest()
"""The digest that precedes the first version."""


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """One version of the store's policy. The newest one is in force."""

    number: int
    policy: Policy
    by: str
    known_by: str
    at: datetime
    digest: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class NewPolicy:
    """A policy to set. `number` is the version it will get, so that two people cannot set one at once without noticing."""

    policy: Policy
    number: int
    by: str
    known_by: str
    signature: str | None = None


def newest(connection: Connection) -> PolicyVersion | None:
    """Return the version in force, or None if no policy was ever set. Raises StoreError if it was altered."""
    rows = list(connection.execute(select(policy_history).order_by(policy_history.c.number.desc()).limit(2)).mappings())
    if not rows:
        return None
    before = rows[1] if len(rows) > 1 else None
    if (problem := _problem(rows[0], before)) is not None:
        raise StoreError(problem)
    return _version_of(rows[0])


def history(connection: Connection) -> tuple[list[PolicyVersion], str | None]:
    """Return every version, oldest first, and the first problem: a version that was altered, or None."""
    versions, before, problem = list[PolicyVersion](), None, None
    for row in connection.execute(select(policy_history).order_by(policy_history.c.number)).mappings():
        problem = problem or _problem(row, before)
        try:
            versions.append(_version_of(row))
        except StoreError as error:
            problem = problem or str(error)
        before = row
    return versions, problem


def add(connection: Connection, new: NewPolicy) -> PolicyVersion:
    """Add a version. Raises NotApprovedError if `new.by` is not allowed to set it, and RunConflictError if another one came first."""
    before = newest(connection)
    number = 1 if before is None else before.number + 1
    if before is not None:
        refuse_setter(before, by=new.by, known_by=new.known_by)
    if number != new.number:
        raise RunConflictError(f"somebody else has set policy {number - 1} meanwhile: look at it with `plan policy show`, then set yours")
    row = {
        **whose(RunContext()),
        "number": number,
        "document": canonical_json(new.policy.to_document()).decode(),
        "by": new.by,
        "known_by": new.known_by,
        "at": now_of(connection),
        "signature": new.signature,
    }
    row["digest"] = _digest(row, BEGINNING if before is None else before.digest)
    added = connection.execute(insert_into(policy_history, connection.dialect.name).values(row).on_conflict_do_nothing())
    if added.rowcount != 1:
        raise RunConflictError("somebody else has set a policy in this moment: look at it with `plan policy show`, and set yours again")
    signal(connection)
    return _version_of(row)


def refuse_setter(before: PolicyVersion, *, by: str, known_by: str) -> None:
    """Raise NotApprovedError if `by` is not allowed to set the policy that follows `before`. The error says who is."""
    holds = effective_policy(Settings.model_construct(), before.policy)
    if holds.operators is not None and by not in holds.operators:
        who = ", ".join(one_line(name) for name in holds.operators) or "nobody"
        raise NotApprovedError(f"{one_line(by)} may not set the policy; its operators may: {who}")
    if holds.known_by is not None and known_by not in holds.known_by:
        raise NotApprovedError(
            f"{one_line(by)} is known by {known_by} only, and setting the policy needs {' or '.join(holds.known_by)}: "
            "`plan policy set FILE` with --sign or --code proves it"
        )


def signed_policy(policy: Policy, number: int) -> str:
    """Return the text that the SSH key of the person who sets a policy signs. It covers this document and this version number."""
    digest = sha256(canonical_json(policy.to_document())).hexdigest()
    return f"prefect-plan-adapter policy\ndigest: {digest}\nnumber: {number}\n"


def totp_seed(connection: Connection, person: str) -> str | None:
    """Return the newest encrypted seed of a person's one-time codes, or None."""
    seeds = select(totp_history.c.seed).where(totp_history.c.name == person).order_by(totp_history.c.number.desc())
    return connection.scalar(seeds.limit(1))


def refuse_enrolling(connection: Connection, person: str, *, by: str) -> None:
    """Raise NotApprovedError if `by` is not allowed to enroll `person`. The error says who is.

    Everybody can enroll themselves. Only operators of the store's policy can enroll others. If the policy names no operators, anybody can
    enroll a person who has no seed yet.
    """
    if by == person:
        return
    version = newest(connection)
    operators = None if version is None else effective_policy(Settings.model_construct(), version.policy).operators
    if by in operators if operators is not None else totp_seed(connection, person) is None:
        return
    also = "" if operators is None else f", or an operator of the policy: {', '.join(map(one_line, operators)) or 'nobody'}"
    raise NotApprovedError(f"{one_line(by)} may not enroll {one_line(person)}; who may: {one_line(person)}{also}")


def add_totp_seed(connection: Connection, person: str, seed: str, *, by: str, known_by: str, replaces: bool) -> None:
    """Add an encrypted seed.

    Raises NotApprovedError like `refuse_enrolling`. Raises RunConflictError if the person already has a seed, unless it `replaces` that.
    """
    refuse_enrolling(connection, person, by=by)
    last = connection.scalar(select(func.max(totp_history.c.number)).where(totp_history.c.name == person)) or 0
    if last and not replaces:
        raise RunConflictError(f"{one_line(person)} has one-time codes already: `plan enroll {one_line(person)}` asks first")
    row = {**whose(RunContext()), "name": person, "number": last + 1, "seed": seed}
    row |= {"by": by, "known_by": known_by, "at": now_of(connection)}
    added = connection.execute(insert_into(totp_history, connection.dialect.name).values(row).on_conflict_do_nothing())
    if added.rowcount != 1:
        raise RunConflictError(f"{one_line(person)} was enrolled by somebody else in this moment")


def _problem(row: Row, before: Row | None) -> str | None:
    """Return why `row` does not follow `before`, the previous version, or None if it does."""
    number = row["number"]
    if number != (1 if before is None else before["number"] + 1):
        return f"version {number} of the store's policy does not follow the one before: rows were deleted behind the back of `plan policy`"
    if row["digest"] != _digest(row, BEGINNING if before is None else before["digest"]):
        return f"version {number} of the store's policy is not as it was written: it was altered behind the back of `plan policy`"
    return None


def _digest(row: Mapping[str, Any] | RowMapping, before: str) -> str:
    kept = plain(policy_history, row)
    del kept["digest"]
    return digest_of({**kept, "before": before})


def _version_of(row: Mapping[str, Any] | RowMapping) -> PolicyVersion:
    try:
        policy = policy_of(json.loads(row["document"]))
    except (InvalidPlanError, ValueError) as error:
        raise StoreError(f"version {row['number']} of the store's policy cannot be read by this version of the package: {error}") from error
    fields = {name: row[name] for name in ("number", "by", "known_by", "at", "digest", "signature")}
    return PolicyVersion(policy=policy, **fields)
