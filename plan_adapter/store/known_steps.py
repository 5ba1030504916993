"""What is known of the steps of a run before they run: their plan, and what they wait for because they refer to it.

The latter is kept once for all runs of the same plan. Functions of a connection.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import JsonValue
from pydantic_core import from_json
from sqlalchemy import Connection, Table, and_, select

from plan_adapter.errors import StoreError
from plan_adapter.expressions import LANGUAGE
from plan_adapter.store.columns import insert_into
from plan_adapter.store.plans import read_document
from plan_adapter.store.rows import HasContext, Row, dump_json, load_json, whose
from plan_adapter.store.tables import implied_dependencies, plans
from plan_adapter.stored_plan import Implied, Shape, StepDocument, StoredPlan, dependencies_in

if TYPE_CHECKING:
    from plan_adapter.validation import ValidatedPlan


def implied_row(validated: "ValidatedPlan", context: HasContext) -> dict[str, Any]:
    """Return the row of what the steps of a plan wait for because they refer to it."""
    implied = dict[str, JsonValue]()
    for step in validated.plan.steps:
        written = {*step.depends_on}
        if others := [after for after in validated.dependencies[step.id] if after not in written]:
            implied[step.id] = [*sorted(written), *others]  # as they stand in the canonical document
    is_in_order = validated.order == tuple(validated.steps)
    is_reduced = all(validated.reduced[step_id] == after for step_id, after in validated.dependencies.items())
    steps = dump_json({"language": LANGUAGE, "steps": implied, "is_in_order": is_in_order, "is_reduced": is_reduced})
    return {**whose(context), "digest": sha256(steps.encode()).hexdigest(), "steps": steps}


def put_implied(connection: Connection, row: dict[str, Any]) -> None:
    """Store what steps wait for unless it is there."""
    connection.execute(insert_into(implied_dependencies, connection.dialect.name).values(row).on_conflict_do_nothing())


def is_digest(steps: str) -> bool:
    """Return whether what a run holds of its steps is the digest of what they wait for; in one of an earlier version stands all of it."""
    return not steps.startswith("[")


class KnownSteps(NamedTuple):
    """The steps of a run as their plan writes them, and by id all that they wait for."""

    documents: Sequence[StepDocument]
    dependencies: Mapping[str, tuple[str, ...]]


def known_steps(connection: Connection, rows: Sequence[Row]) -> dict[str, KnownSteps]:
    """Return what is known of the steps of runs, by run id; those of the same plan share it, so change nothing in it."""
    newer = [row for row in rows if is_digest(row["steps"])]
    documents = _texts(connection, plans, plans.c.document, ((row["tenant_id"], row["digest"]) for row in newer))
    implied = _texts(connection, implied_dependencies, implied_dependencies.c.steps, ((row["tenant_id"], row["steps"]) for row in newer))
    read, found = dict[tuple[str, str, str], KnownSteps](), dict[str, KnownSteps]()
    for row in rows:
        if not is_digest(row["steps"]):
            found[row["id"]] = _known([_document(step) for step in load_json(row["steps"])], {})
            continue
        key = (row["tenant_id"], row["digest"], row["steps"])
        if key not in read:
            document, others = documents.get(key[:2]), implied.get((key[0], key[2]))
            if document is None or others is None:
                raise StoreError(f"of the steps of run {row['id']} not all is there: `plan runs verify {row['id']}` tells more")
            read[key] = _known(json.loads(document)["steps"], load_json(others)["steps"])
        found[row["id"]] = read[key]
    return found


def _known(documents: Sequence[StepDocument], implied: Implied) -> KnownSteps:
    return KnownSteps(documents, dependencies_in(documents, implied))


def stored_texts(connection: Connection, run: Row) -> tuple[str, str, str | None]:
    """Return the digest of the plan of a run, its document, and what its steps wait for, None in a run of an earlier version."""
    implied, digest = implied_dependencies, run["steps"] if is_digest(run["steps"]) else ""
    same = and_(implied.c.tenant_id == plans.c.tenant_id, implied.c.digest == digest)
    query = select(plans.c.document, implied.c.steps).outerjoin_from(plans, implied, same)
    found = connection.execute(query.where(plans.c.tenant_id == run["tenant_id"], plans.c.digest == run["digest"])).first()
    if found is None:
        raise StoreError(f"the plan {run['digest'][:12]}… of run {run['id']} is missing: `plan runs verify {run['id']}` tells more")
    document, steps = found
    if steps is not None and sha256(steps.encode()).hexdigest() != digest:
        raise StoreError(f"what the steps of run {run['id']} wait for is not what its digest says; it was altered")
    return run["digest"], document, steps


def plan_of_texts(digest: str, document: str, steps: str | None) -> StoredPlan:
    """Return the plan of what `stored_texts` returned; raises StoreError where it is not what it was, or cannot be read."""
    known = None if steps is None else from_json(steps)
    shape = None
    if known is not None and known["language"] == LANGUAGE:
        shape = Shape(known["steps"], is_in_order=known["is_in_order"], is_reduced=known["is_reduced"])
    return read_document(digest, document, lambda text: StoredPlan.read(text, shape))


def _texts(connection: Connection, table: Table, column: Any, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return texts of a table by tenant and digest."""
    wanted = set(keys)
    if not wanted:
        return {}
    tenants, digests = {tenant for tenant, _ in wanted}, {digest for _, digest in wanted}
    query = select(table.c.tenant_id, table.c.digest, column).where(table.c.tenant_id.in_(tenants), table.c.digest.in_(digests))
    return {(tenant, digest): text for tenant, digest, text in connection.execute(query)}


def _document(step: dict[str, Any]) -> StepDocument:
    """Return what a run of an earlier version knows of a step, as a plan would write it."""
    return {**step, "for_each": ""} if step["is_list"] else step
