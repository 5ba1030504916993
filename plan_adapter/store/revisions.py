"""`Revisions`: new versions of a run's plan."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue
from sqlalchemy import Connection, delete, insert, select, update

from plan_adapter.model.canonical import canonical_document
from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.record import PlanRun, RunFolder
from plan_adapter.model.status import PlanStatus, StepStatus
from plan_adapter.store import gates, leases, runs
from plan_adapter.store.database.columns import database_now
from plan_adapter.store.database.database import StorePart, reads, signal, writes
from plan_adapter.store.database.rows import Row, context_columns, context_of, dump_json, folder_column, folder_of, load_json
from plan_adapter.store.database.tables import plans, revisions, step_runs
from plan_adapter.store.database.tables import runs as run_table
from plan_adapter.store.plans import implied_row, plan_row, put_implied, put_plan
from plan_adapter.store.proof import audit, entries, tombstones
from plan_adapter.store.proof.digests import JsonRow, json_row, new_salt
from plan_adapter.store.redaction import records, refuse_secrets
from plan_adapter.store.steps import history_of, steps_of_document
from plan_adapter.text.commands import resolve_command

if TYPE_CHECKING:
    from plan_adapter.validation import ValidatedPlan


_LIMITS = frozenset({"timeout_ms", "max_retries", "retry_delay_ms", "retry_backoff", "retry_jitter"})


@dataclass(frozen=True, slots=True)
class Revision:
    """A replaced version of a run's plan: its content, and who replaced it, why and when. Numbers count from 1.

    The revision with the next number replaced it; the run's current plan replaced the last one. `definitions` are those of its tools.
    """

    number: int
    digest: str
    approval_digest: str
    by: str
    note: str
    at: datetime
    definitions: list[dict[str, JsonValue]]
    folder: RunFolder | None = None  # where the run worked


class Revisions(StorePart):
    """The versions of a store's runs' plans."""

    async def revise(
        self, run_id: str, validated: "ValidatedPlan", approval_digest: str, *, by: str, note: str, folder: RunFolder | None = None
    ) -> PlanRun:
        """Replace a run's plan, or only the tools of the same plan, and return the run. Its inputs stay, and it waits for a new approval.

        Its open gates are closed as superseded, and `of_run` lists the replaced version. With `folder`, the run works there from now on.

        Raises RunConflictError for a run that has completed or that a living process executes, and for a version that changes nothing. Also
        raises it, naming all of them, for changed steps that have succeeded or may have been done. Raises InvalidPlanError if the plan
        contains the value of a secret.
        """
        await refuse_secrets({"": canonical_document(validated.plan)}, validated.secrets)
        return await self._revise(run_id, validated, approval_digest, by=by, note=note, folder=folder)

    @records
    def _revise(
        self,
        connection: Connection,
        run_id: str,
        validated: "ValidatedPlan",
        approval_digest: str,
        *,
        by: str,
        note: str,
        folder: RunFolder | None,
    ) -> PlanRun:
        run = _lock_revisable(connection, self.tenant_id, run_id)
        if run["approval_digest"] == approval_digest:
            raise RunConflictError(f"run {run['id']} already has this version: nothing would change")
        _refuse_changes_of_begun_steps(connection, run, validated)
        put_plan(connection, plan_row(validated.plan, validated.digest, context_of(run)))
        content = _content_columns(connection, run, validated, approval_digest) | _reopening_columns()
        content |= {} if folder is None else {"folder": folder_column(folder)}
        audit_entries, now = _replace(connection, run, content, by=by, note=note)
        if validated.digest != run["digest"]:  # otherwise the recorded ends still apply
            connection.execute(delete(step_runs).where(step_runs.c.run_id == run["id"], step_runs.c.status != StepStatus.COMPLETED))
        leases.release_lease(connection, run["id"])
        audit_entries += [
            entries.of_run(now, "new_version", message=validated.digest),
            *gates.close_all(connection, run["id"], "superseded"),
        ]
        audit.append(connection, run["id"], audit_entries)
        signal(connection)
        return runs.find(connection, self.tenant_id, run["id"])

    @writes
    def restore(self, connection: Connection, run_id: str, version: Revision, validated: "ValidatedPlan", *, by: str) -> PlanRun:
        """Restore a replaced version of the plan in a run that failed or was cancelled, and return the run, which stays ended.

        `validated` is the plan of `version`. The run's current version becomes a replaced one. Raises RunConflictError for a run that has
        not ended.
        """
        run = _lock_revisable(connection, self.tenant_id, run_id)
        if run["approval_digest"] == version.approval_digest:
            return runs.find(connection, self.tenant_id, run["id"])
        if run["completed_at"] is None:
            raise RunConflictError(f"version {version.number} of the plan cannot be restored: run {run['id']} has not ended")
        content = _content_columns(connection, run, validated, version.approval_digest) | {
            "definitions": dump_json([*version.definitions]),
            "updated_at": database_now(),
            **({} if version.folder is None else {"folder": folder_column(version.folder)}),
        }
        audit_entries, now = _replace(
            connection, run, content, by=by, note=f"restored approved version {version.number} to roll back its steps"
        )
        audit.append(
            connection, run["id"], [*audit_entries, entries.of_run(now, "new_version", message=validated.digest), entries.of_run_end(now)]
        )
        signal(connection)
        return runs.find(connection, self.tenant_id, run["id"])

    @reads
    def of_run(self, connection: Connection, run_id: str) -> list[Revision]:
        """Return the replaced versions of a run's plan, oldest first, each with who replaced it and why."""
        return revisions_of(connection, runs.id_of(connection, self.tenant_id, run_id))


def _replace(connection: Connection, run: Row, content: dict[str, Any], *, by: str, note: str) -> tuple[list[entries.Entry], JsonRow]:
    """Record a run's current version as replaced and write `content` to the run. Return the audit entries and the new row."""
    replaced = {"run_id": run["id"], "number": len(revisions_of(connection, run["id"])) + 1, "digest": run["digest"]}
    replaced |= {"approval_digest": run["approval_digest"], "by": by, "note": note, "at": database_now()}
    replaced |= {"definitions": run["definitions"], "folder": run["folder"], "salt": new_salt()}
    inserted = insert(revisions).values({**context_columns(context_of(run)), **replaced}).returning(revisions)
    audit_entries = [entries.of_revision(json_row(revisions, connection.execute(inserted).mappings().one()))]
    renewed = update(run_table).where(run_table.c.id == run["id"]).values(content).returning(run_table)
    return audit_entries, json_row(run_table, connection.execute(renewed).mappings().one())


def revisions_of(connection: Connection, run_id: str) -> list[Revision]:
    """Return the replaced versions of a run's plan, oldest first."""
    query = select(revisions).where(revisions.c.run_id == run_id).order_by(revisions.c.number)
    return [
        Revision(
            number=row["number"],
            digest=row["digest"],
            approval_digest=row["approval_digest"],
            by=row["by"],
            note=row["note"],
            at=row["at"],
            definitions=load_json(row["definitions"]),
            folder=folder_of(row),
        )
        for row in connection.execute(query).mappings()
    ]


def _lock_revisable(connection: Connection, tenant: str | None, run_id: str) -> Row:
    """Lock and return the row of a run that may be revised. Until the transaction ends, nobody claims it and no gate of it opens."""
    run = runs.lock_run(connection, tenant, run_id)
    found = run["id"]
    tombstones.refuse_erased(connection, found)
    if run["status"] == PlanStatus.COMPLETED:
        raise RunConflictError(f"run {found} has completed: start a new run of the new version")
    if run["status"] == PlanStatus.EXECUTING and (owner := runs.owner_of(connection, tenant, found)) is not None:
        raise RunConflictError(
            f"run {found} is executed by {owner}, which takes no new version of the plan: wait for it to end, or end it with "
            f"`plan cancel {found}`; then `plan revise {found} FILE` and `plan resume {found}` keep the completed steps"
        )
    return run


def _refuse_changes_of_begun_steps(connection: Connection, run: Row, validated: "ValidatedPlan") -> None:
    """Raise RunConflictError if a step that was done, or may have been done, differs or is missing.

    A step whose attempts have all failed may change: its attempt numbers continue, a different call has a different idempotency key, and an
    approval of the old call does not cover the new one. In a step that may have been done, retries and timeouts may change.
    """
    same_plan = (plans.c.tenant_id == run["tenant_id"], plans.c.digest == run["digest"])
    old = _steps_of(json.loads(connection.execute(select(plans.c.document).where(*same_plan)).scalar_one()))
    new = _steps_of(canonical_document(validated.plan))
    history = history_of(connection, run["id"])
    done = {step_id for step_id, _ in history.succeeded if old.get(step_id) != new.get(step_id)}
    uncertain = {step_id for step_id, _ in (*history.unknown, *history.repeatable, *history.aborted)} - done
    uncertain = {step_id for step_id in uncertain if _call_of(old.get(step_id)) != _call_of(new.get(step_id))}
    why = [f"have succeeded ({', '.join(sorted(done))})"] if done else []
    why += [f"may have been done ({', '.join(sorted(uncertain))})"] if uncertain else []
    if why:
        hint = f"; `plan show {run['id']}` shows the state of each, and what to type" if uncertain else ""
        if repeatable := [unit for unit in history.repeatable if unit[0] in uncertain]:
            command = resolve_command(run["id"], repeatable[0], "done|again", label=history.labels.get(repeatable[0]))
            hint += f"; `{command}` records whether it was done"
        raise RunConflictError(f"a new version cannot change steps that {' or '.join(why)}; start a new run to change them{hint}")


def _call_of(step: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
    """Return the document of a step without its retry and timeout settings."""
    return None if step is None else {name: value for name, value in step.items() if name not in _LIMITS}


def _steps_of(document: dict[str, Any]) -> dict[str, dict[str, JsonValue]]:
    return {step["id"]: step for step in steps_of_document(document)}


def _content_columns(connection: Connection, run: Row, validated: "ValidatedPlan", approval_digest: str) -> dict[str, Any]:
    """Return the columns of `run` that depend on its plan and tools, and store the implied dependencies."""
    plan, steps = validated.plan, implied_row(validated, context_of(run))
    put_implied(connection, steps)
    return {
        "digest": validated.digest,
        "approval_digest": approval_digest,
        "name": plan.name,
        "description": plan.description,
        "implied_dependencies_digest": steps["digest"],
        "definitions": dump_json(list(validated.definitions)),
        "metadata": dump_json(dict(plan.metadata)),
    }


def _reopening_columns() -> dict[str, Any]:
    """Return the columns that reset an ended run to one that waits for approval."""
    ends = (
        "reason",
        "message",
        "rollback",
        "completed_at",
        "approved_at",
        "approved_by",
        "rejection_note",
        "cancel_reason",
        "cancel_requested_at",
    )
    return {**dict.fromkeys(ends), "status": PlanStatus.PENDING_APPROVAL.value, "updated_at": database_now()}
