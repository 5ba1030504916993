"""What of the steps of a run is known before they run: kept once for all runs of the same plan. Functions of a connection."""

from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from plan_adapter.errors import StoreError
from plan_adapter.store.columns import insert_into
from plan_adapter.store.rows import HasContext, Row, dump_json, load_json, whose
from plan_adapter.store.tables import step_lists

if TYPE_CHECKING:
    from plan_adapter.validation import ValidatedPlan


def list_row(validated: "ValidatedPlan", context: HasContext) -> dict[str, Any]:
    """Return the row of the step list of a plan; made before a transaction begins where that is possible, because it may be long."""
    steps = dump_json(
        [
            {
                "id": step.id,
                "index": index,
                "tool_name": step.tool_name or "",
                "description": step.description,
                "max_retries": step.max_retries,
                "retry_delay_ms": step.retry_delay_ms,
                "metadata": dict(step.metadata),
                "depends_on": list(validated.dependencies[step.id]),
                "is_list": step.for_each is not None,  # whether its result is a list
            }
            for index, step in enumerate(validated.plan.steps)  # a step looks its own index up slowly
        ]
    )
    return {**whose(context), "digest": sha256(steps.encode()).hexdigest(), "steps": steps}


def put_list(connection: Connection, row: dict[str, Any]) -> None:
    """Store a step list unless it is there."""
    connection.execute(insert_into(step_lists, connection.dialect.name).values(row).on_conflict_do_nothing())


def lists_of(connection: Connection, rows: Iterable[Row]) -> dict[str, list[dict[str, Any]]]:
    """Return the step lists of runs by run id; those of the same plan share one, so change nothing in it."""
    wanted = {(row["tenant_id"], row["steps"]) for row in rows if has_step_list(row["steps"])}
    tenants, digests = {tenant for tenant, _ in wanted}, {digest for _, digest in wanted}
    columns = (step_lists.c.tenant_id, step_lists.c.digest, step_lists.c.steps)
    same = (step_lists.c.tenant_id.in_(tenants), step_lists.c.digest.in_(digests))
    found = {(tenant, digest): text for tenant, digest, text in connection.execute(select(*columns).where(*same))} if wanted else {}
    read = dict[tuple[str, str], list[dict[str, Any]]]()
    for row in rows:
        key = (row["tenant_id"], row["steps"])
        if key not in read:
            if (text := found.get(key) if key in wanted else row["steps"]) is None:
                raise StoreError(f"the step list of run {row['id']} is missing: `plan runs verify {row['id']}` tells more")
            read[key] = load_json(text)
    return {row["id"]: read[row["tenant_id"], row["steps"]] for row in rows}


def has_step_list(steps: str) -> bool:
    """Return whether what a run holds of its steps is the digest of a step list, and not, of an earlier version, the list itself."""
    return not steps.startswith("[")
