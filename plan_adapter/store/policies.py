"""`StorePolicy`: versions of the policy are append-only, and the digest of each covers it and the version before it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from plan_adapter.gates.identity import Identity, identity_of_account
from plan_adapter.gates.policy import EffectivePolicy, Policy, effective_policy, policy_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.canonical import canonical_json
from plan_adapter.model.errors import InvalidPlanError, NotApprovedError, RunConflictError, StoreError
from plan_adapter.model.readable import one_line
from plan_adapter.model.record import RunContext
from plan_adapter.store.database.columns import insert_into, now_of
from plan_adapter.store.database.database import StorePart, reads, signal, writes
from plan_adapter.store.database.rows import Row, context_columns
from plan_adapter.store.database.tables import policy_history
from plan_adapter.store.proof.digests import digest_of, json_row
from plan_adapter.store.redaction import refuse_secrets

GENESIS_DIGEST = sha256(b"prefect-plan-adapter policy").hexdigest()
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


class StorePolicy(StorePart):
    """The policy that holds for every run of a store."""

    @reads
    def current(self, connection: Connection) -> PolicyVersion | None:
        """Return the policy in force, or None if none was ever set. Raises StoreError if it was altered."""
        return newest(connection)

    async def effective(self, settings: Settings) -> EffectivePolicy:
        """Return the combined demands of `settings` and the policy in force. Read it again for each decision."""
        version = await self.current()
        return effective_policy(settings) if version is None else effective_policy(settings, version.policy, number=version.number)

    @reads
    def history(self, connection: Connection) -> tuple[list[PolicyVersion], str | None]:
        """Return every version of the policy, oldest first, and a message about the first altered version, or None."""
        versions, before, problem = list[PolicyVersion](), None, None
        for row in connection.execute(select(policy_history).order_by(policy_history.c.number)).mappings():
            problem = problem or _problem(row, before)
            try:
                versions.append(_version_of(row))
            except StoreError as error:
                problem = problem or str(error)
            before = row
        return versions, problem

    async def set(self, new: NewPolicy, *, identity: Identity | None = None) -> PolicyVersion:
        """Set the policy for every run of this store, from now on.

        What counts is `identity`, of the person who sets it. Without one, it is the account of this process if `new` names that, and
        otherwise only a name: `known_by` in `new` proves nothing.

        If the previous policy names operators, only they are allowed to; otherwise anybody who can write to the store is. Raises
        NotApprovedError, and RunConflictError if somebody else set one in the meantime. Raises StoreError if the store has a tenant,
        because the policy applies to all tenants.

        Raises InvalidPlanError if the policy contains the value of a secret.
        """
        await refuse_secrets({"": new.policy.to_document()})
        return await self._set(new, identity or identity_of_account(new.by))

    @writes
    def _set(self, connection: Connection, new: NewPolicy, identity: Identity) -> PolicyVersion:
        if self.tenant_id is not None:
            raise StoreError("a policy holds for all tenants: set it with a store that has no tenant")
        before = newest(connection)
        number = 1 if before is None else before.number + 1
        if before is not None:
            _refuse_setter(before, identity)
        if number != new.number:
            raise RunConflictError(
                f"somebody else has set policy {number - 1} in the meantime: look at it with `plan policy show`, then set yours"
            )
        row = {
            **context_columns(RunContext()),
            "number": number,
            "document": canonical_json(new.policy.to_document()).decode(),
            "by": identity.by,
            "known_by": identity.known_by,
            "at": now_of(connection),
            "signature": new.signature,
        }
        row["digest"] = _digest(row, GENESIS_DIGEST if before is None else before.digest)
        added = connection.execute(insert_into(policy_history, connection.dialect.name).values(row).on_conflict_do_nothing())
        if added.rowcount != 1:
            raise RunConflictError("somebody else set a policy at the same time: look at it with `plan policy show`, then set yours again")
        signal(connection)
        return _version_of(row)


def newest(connection: Connection) -> PolicyVersion | None:
    """Return the version in force, or None if no policy was ever set. Raises StoreError if it was altered."""
    rows = list(connection.execute(select(policy_history).order_by(policy_history.c.number.desc()).limit(2)).mappings())
    if not rows:
        return None
    before = rows[1] if len(rows) > 1 else None
    if (problem := _problem(rows[0], before)) is not None:
        raise StoreError(problem)
    return _version_of(rows[0])


def _refuse_setter(before: PolicyVersion, identity: Identity) -> None:
    """Raise NotApprovedError if `identity` is not allowed to set the policy that follows `before`. The error says who is."""
    by, known_by = identity.by, identity.known_by
    effective = effective_policy(Settings.model_construct(), before.policy)
    if effective.operators is not None and by not in effective.operators:
        who = ", ".join(one_line(name) for name in effective.operators) or "nobody"
        raise NotApprovedError(f"{one_line(by)} may not set the policy; its operators may: {who}")
    if effective.known_by is not None and known_by not in effective.known_by:
        raise NotApprovedError(
            f"{one_line(by)} is identified by {known_by} only, but setting the policy needs {' or '.join(effective.known_by)}: "
            "use `plan policy set FILE` with --sign or --code"
        )


def signed_policy(policy: Policy, number: int) -> str:
    """Return the text that the SSH key of the person who sets a policy signs. It covers this document and this version number."""
    digest = sha256(canonical_json(policy.to_document())).hexdigest()
    return f"prefect-plan-adapter policy\ndigest: {digest}\nnumber: {number}\n"


def _problem(row: Row, before: Row | None) -> str | None:
    """Return why `row` does not follow `before`, the previous version, or None if it does."""
    number = row["number"]
    if number != (1 if before is None else before["number"] + 1):
        return f"version {number} of the store's policy does not follow the one before: rows were deleted directly from the database"
    if row["digest"] != _digest(row, GENESIS_DIGEST if before is None else before["digest"]):
        return f"version {number} of the store's policy was altered: its digest does not match its content and the version before it"
    return None


def _digest(row: Mapping[str, Any] | RowMapping, before: str) -> str:
    content = json_row(policy_history, row)
    del content["digest"]
    return digest_of({**content, "before": before})


def _version_of(row: Mapping[str, Any] | RowMapping) -> PolicyVersion:
    try:
        policy = policy_of(json.loads(row["document"]))
    except (InvalidPlanError, ValueError) as error:
        raise StoreError(f"version {row['number']} of the store's policy cannot be read by this version of the package: {error}") from error
    fields = {name: row[name] for name in ("number", "by", "known_by", "at", "digest", "signature")}
    return PolicyVersion(policy=policy, **fields)
