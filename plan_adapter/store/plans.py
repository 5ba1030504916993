"""Plans by digest and versions by name. The functions take a connection and the tenant whose rows are visible."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import JsonValue
from sqlalchemy import JSON, Connection, Select, Table, and_, cast, func, insert, select, text, true

from plan_adapter.model.canonical import canonical_document, canonical_json
from plan_adapter.model.errors import NotStoredError, StoreError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import listed
from plan_adapter.model.record import PlanVersion, RunContext
from plan_adapter.store.database.columns import database_now, escape_unstorable, insert_into, now_of
from plan_adapter.store.database.rows import HasContext, Row, batched, context_columns, dump_json
from plan_adapter.store.database.tables import implied_dependencies, plans, versions
from plan_adapter.store.proof.digests import JsonRow, digest_of, json_row
from plan_adapter.store.proof.export import Rows

if TYPE_CHECKING:
    from plan_adapter.validation import ValidatedPlan

S = TypeVar("S", bound=Select[Any])


def seen_by(tenant: str | None, query: S, table: Table) -> S:
    """Return `query` limited to the rows of `tenant`. None sees every tenant's rows."""
    return query if tenant is None else query.where(table.c.tenant_id == tenant)


def plan_row(plan: ExecutionPlan, digest: str, context: HasContext) -> dict[str, Any]:
    """Return the row of a plan's content. Call it before a transaction begins, because it is slow for a large plan."""
    return {
        **context_columns(context),
        "digest": digest,
        "name": plan.name,
        "description": plan.description,
        "document": canonical_json(canonical_document(plan)).decode(),
        "created_at": database_now(),
    }


def put_plan(connection: Connection, row: dict[str, Any]) -> None:
    """Store the content of a plan unless it is already stored."""
    connection.execute(insert_into(plans, connection.dialect.name).values(row).on_conflict_do_nothing())


def implied_row(validated: "ValidatedPlan", context: HasContext) -> dict[str, Any]:
    """Return the row of the dependencies that follow from references between steps. Runs of the same plan share it."""
    implied = dict[str, JsonValue]()
    for step in validated.plan.all_steps:
        written = {*step.depends_on}
        if others := [after for after in validated.dependencies[step.id] if after not in written]:
            implied[step.id] = [*sorted(written), *others]  # in the canonical document's order
    steps = dump_json({"steps": implied})
    return {**context_columns(context), "digest": sha256(steps.encode()).hexdigest(), "steps": steps}


def put_implied(connection: Connection, row: dict[str, Any]) -> None:
    """Store implied dependencies unless they are already stored."""
    connection.execute(insert_into(implied_dependencies, connection.dialect.name).values(row).on_conflict_do_nothing())


def save(connection: Connection, row: dict[str, Any], *, name: str, author: str, context: RunContext) -> PlanVersion:
    """Store the content of `row` as the next version of `name` and return that version.

    If the newest version has the same content and author, returns that one instead.
    """
    _lock_name(connection, name)
    put_plan(connection, row)
    newest = next(iter(versions_of(connection, context.tenant_id, name)), None)
    if newest is not None and (newest.digest, newest.author) == (row["digest"], author):
        return newest
    version = {
        **context_columns(context),
        "name": name,
        "version": 1 if newest is None else newest.version + 1,
        "digest": row["digest"],
        "author": author,
        "created_at": now_of(connection),
    }
    before = select(versions.c.row_digest).where(versions.c.name == name, versions.c.tenant_id == version["tenant_id"])
    previous = connection.scalar(before.order_by(versions.c.version.desc()).limit(1))
    connection.execute(insert(versions).values({**version, "row_digest": _version_digest(version, previous)}))
    return versions_of(connection, context.tenant_id, name)[0]


def problem_of_saved(connection: Connection) -> str | None:
    """Return a message about the first version or document of a plan that was altered or is missing, or None if all are as saved."""
    return _problem_of_versions(connection) or _problem_of_documents(connection)


def _problem_of_documents(connection: Connection) -> str | None:
    if (problem := next(filter(None, map(problem_of_plan, Rows(connection, plans, true()))), None)) is not None:
        return problem
    same = and_(plans.c.tenant_id == versions.c.tenant_id, plans.c.digest == versions.c.digest)
    lost = select(versions.c.version, versions.c.name, versions.c.digest).outerjoin(plans, same).where(plans.c.digest.is_(None))
    if (row := connection.execute(lost.order_by(versions.c.name, versions.c.version).limit(1)).first()) is None:
        return None
    return f"the plan {row.digest}, version {row.version} of `{row.name}`, is missing: it was deleted directly from the database"


def problem_of_plan(row: JsonRow) -> str | None:
    """Return a message about the row of a plan that was altered, or None."""
    if sha256(str(row["document"]).encode(errors="surrogatepass")).hexdigest() != row["digest"]:
        return f"the document of the plan {row['digest']} was altered: it does not match this digest"
    written = json.loads(str(row["document"]))
    if any(row[name] != escape_unstorable(str(written.get(name, row[name]))) for name in ("name", "description")):
        return f"the name or the description of the plan {row['digest']} was altered: its document has another"
    return None


def _problem_of_versions(connection: Connection) -> str | None:
    before, name, expected = None, None, 0
    query = select(versions).order_by(versions.c.tenant_id, versions.c.name, versions.c.version).execution_options(yield_per=200)
    for row in connection.execute(query).mappings():
        if (row["tenant_id"], row["name"]) != name:
            before, name, expected = None, (row["tenant_id"], row["name"]), 0
        expected += 1
        if row["version"] != expected:
            return f"version {expected} of the plan `{row['name']}` is missing: it was deleted directly from the database"
        if row["row_digest"] != _version_digest(row, before):
            return f"version {expected} of the plan `{row['name']}` was altered: its digest does not match its content and the one before"
        before = row["row_digest"]
    return None


def _version_digest(row: Mapping[str, Any] | Row, before: str | None) -> str:
    content = json_row(versions, row)
    del content["row_digest"]
    return digest_of({**content, "before": before})


def versions_of(connection: Connection, tenant: str | None, name: str) -> list[PlanVersion]:
    """Return the versions of `name`, newest first. A name belongs to one tenant, or to none."""
    query = select(versions).where(versions.c.name == name, versions.c.tenant_id == (tenant or "")).order_by(versions.c.version.desc())
    return [_version_of(row) for row in connection.execute(query).mappings()]


def authors_of(connection: Connection, tenant: str | None, digest: str) -> list[str]:
    """Return the people who saved a plan with this digest, the first one first."""
    query = select(versions.c.author).where(versions.c.digest == digest).order_by(versions.c.created_at, versions.c.version)
    return [*dict.fromkeys(connection.scalars(seen_by(tenant, query, versions)))]


def versions_by_content(connection: Connection, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], list[PlanVersion]]:
    """Return the versions that have these contents, oldest first, by (tenant, digest)."""
    tenants, found = {tenant for tenant, _ in keys}, defaultdict[tuple[str, str], list[PlanVersion]](list)
    for digests in batched({digest for _, digest in keys}):
        query = select(versions).where(versions.c.tenant_id.in_(tenants), versions.c.digest.in_(digests))
        for row in connection.execute(query.order_by(versions.c.created_at, versions.c.version)).mappings():
            found[row["tenant_id"], row["digest"]].append(_version_of(row))
    return found


def _version_of(row: Row) -> PlanVersion:
    return PlanVersion(row["name"], row["version"], row["digest"], row["author"], row["created_at"])


def names(connection: Connection, tenant: str | None) -> list[str]:
    """Return the names that have versions, sorted."""
    query = select(versions.c.name).where(versions.c.tenant_id == (tenant or "")).distinct().order_by(versions.c.name)
    return list(connection.scalars(query))


def digests_with_tag(tag: str, dialect: str) -> Select[Any]:
    """Return the query for the digests of the plans that have this tag."""
    if dialect == "postgresql":
        found = func.json_array_elements_text(cast(plans.c.document, JSON)["tags"]).table_valued("value")
    else:
        found = func.json_each(plans.c.document, "$.tags").table_valued("value")
    return select(plans.c.digest).where(select(found.c.value).where(found.c.value == tag).exists())


SHOWN_VERSIONS = 10
"""How many versions the error for one that is not stored names, the newest first."""

_HEX = re.compile(r"[0-9a-f]+")


def get(connection: Connection, tenant: str | None, name_or_digest: str, version: int | None) -> ExecutionPlan:
    """Return a plan by its digest, by a name (newest version unless one is given), or by an unambiguous prefix of its digest."""
    digests = _digests(connection, tenant, name_or_digest) if version is None else []
    if name_or_digest in digests:  # even if another plan has that name
        return _load(connection, tenant, name_or_digest)
    found = versions_of(connection, tenant, name_or_digest)
    if version is not None:
        found = [saved for saved in found if saved.version == version]
    if found:
        return _load(connection, tenant, found[0].digest)
    if version is not None:
        raise _no_version(connection, tenant, name_or_digest, version)
    if len(digests) > 1:
        raise NotStoredError(f"`{name_or_digest}` begins the digests of several plans: {', '.join(digests)}")
    if not digests:
        hint = did_you_mean(name_or_digest, names(connection, tenant))
        digest = ", and no digest begins with it" if _HEX.fullmatch(name_or_digest) else ""
        raise NotStoredError(f"no stored plan is called `{name_or_digest}`{digest}", hint=hint or "`plan save FILE` stores one")
    return _load(connection, tenant, digests[0])


def _no_version(connection: Connection, tenant: str | None, name: str, version: int) -> NotStoredError:
    """Return the error for a version that is not stored, with the newest versions, or with a name that is near."""
    saved = [str(found.version) for found in versions_of(connection, tenant, name)]
    hint = f"its versions: {listed(saved, SHOWN_VERSIONS)}" if saved else did_you_mean(name, names(connection, tenant))
    return NotStoredError(f"there is no version {version} of a plan `{name}`", hint=hint)


def of_run(connection: Connection, run: Row) -> ExecutionPlan:
    """Return the plan of a run's row. Raises StoreError if it is missing, altered or unreadable."""
    query = select(plans.c.document).where(plans.c.tenant_id == run["tenant_id"], plans.c.digest == run["digest"])
    document = connection.execute(query).scalar()
    if document is None:
        raise StoreError(f"the plan {run['digest'][:12]}… of run {run['id']} is missing: `plan verify {run['id']}` shows more")
    return _parse_document(run["digest"], document)


def _digests(connection: Connection, tenant: str | None, prefix: str) -> list[str]:
    if not prefix:
        return []
    query = select(plans.c.digest).where(plans.c.digest.startswith(prefix, autoescape=True)).distinct().limit(5)
    return list(connection.scalars(seen_by(tenant, query, plans)))


def _load(connection: Connection, tenant: str | None, digest: str) -> ExecutionPlan:
    query = select(plans.c.document).where(plans.c.digest == digest).limit(1)
    return _parse_document(digest, connection.execute(seen_by(tenant, query, plans)).scalar_one())


def _parse_document(digest: str, document: str) -> ExecutionPlan:
    # The text is the canonical form itself, so its digest can be checked without serializing the plan again.
    if sha256(document.encode()).hexdigest() != digest:
        raise StoreError(f"the stored plan {digest[:12]}… does not match its digest; it was altered")
    try:
        return ExecutionPlan.model_validate_json(document)
    except ValueError as error:  # pydantic's errors are ValueErrors, too
        raise StoreError(f"the stored plan {digest[:12]}… cannot be read by this version; a newer one wrote it") from error


def _lock_name(connection: Connection, name: str) -> None:
    # Two writers that save the same name must not both take the same number. SQLite's write transactions exclude each other anyway.
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(text(":name")))), {"name": name})
