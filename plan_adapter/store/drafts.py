"""`Drafts`: store drafts of plans and their model calls, so that a restarted draft reuses answers that were already paid for."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from pydantic import JsonValue
from sqlalchemy import Connection, select, update

from plan_adapter.expressions.template import map_texts
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.drafts import ConstraintCheck, Draft, ModelCall, PlanRequest, Usage
from plan_adapter.model.errors import NotStoredError
from plan_adapter.model.options import ExecutionOptions
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import without_passwords
from plan_adapter.store import plans
from plan_adapter.store.database.columns import database_now, insert_into
from plan_adapter.store.database.database import StorePart, reads, writes
from plan_adapter.store.database.rows import HasContext, Row, context_columns, dump_json, load_json
from plan_adapter.store.database.tables import drafts, model_calls


class Drafts(StorePart):
    """The drafts of a store, or of its one tenant. Implements `agent.planner.DraftRecorder`."""

    async def begin(self, draft: Draft) -> list[ModelCall]:
        """Record a new draft and return no calls, or return the recorded calls of an existing draft in order."""
        await self._database.write(partial(_begin, draft=draft, context=self._with_tenant()))
        return await self._database.read(partial(_calls_of, draft_id=draft.id))

    @writes
    def keep(self, connection: Connection, draft: Draft, call: ModelCall) -> None:
        """Record one call of a draft, and the draft if needed. Recording the same call again changes nothing."""
        context = self._with_tenant()
        _begin(connection, draft, context)
        row = {
            **context_columns(context),
            "draft_id": draft.id,
            "number": call.number,
            "model": call.model,
            "rung": call.rung,
            "phase": call.phase,
            "prompt_digest": call.prompt_digest,
            "prompt_tokens": call.usage.prompt,
            "completion_tokens": call.usage.completion,
            "milliseconds": round(call.seconds * 1000),
            "problems": dump_json([*call.problems]),
            "is_whole": call.is_whole,
            "at": database_now(),
            "prompt": call.prompt,
            "answer": call.answer,
        }
        connection.execute(insert_into(model_calls, connection.dialect.name).values(row).on_conflict_do_nothing())

    async def end(self, draft: Draft) -> None:
        """Record the result of a draft. Its plan is stored as content, without a name."""
        await self._end(draft, None if draft.plan is None else plans.plan_row(draft.plan, plan_digest(draft.plan), self._with_tenant()))

    @writes
    def _end(self, connection: Connection, draft: Draft, plan_row: dict[str, Any] | None) -> None:
        _begin(connection, draft, self._with_tenant())
        if plan_row is not None:
            plans.put_plan(connection, plan_row)
        result: dict[str, JsonValue] = {
            "complexity": draft.complexity,
            "speak": draft.speak,
            "notes": [*draft.notes],
            "constraints": [asdict(kept) for kept in draft.constraints],
            "problems": [asdict(problem) for problem in draft.problems],
        }
        digest = None if plan_row is None else plan_row["digest"]
        values = {"digest": digest, "failure": draft.failure, "result": dump_json(result), "ended_at": database_now()}
        connection.execute(update(drafts).where(drafts.c.id == draft.id).values(values))

    @reads
    def get(self, connection: Connection, id_prefix: str) -> Draft:
        """Return the draft with this id prefix, its calls and its plan. Raises StoreError if none or several match."""
        query = plans.seen_by(self.tenant_id, select(drafts), drafts).where(drafts.c.id.startswith(id_prefix, autoescape=True)).limit(2)
        rows = connection.execute(query).mappings().all()
        if len(rows) != 1:
            raise NotStoredError(
                f"{'several drafts begin' if rows else 'no draft begins'} with `{id_prefix}`; `plan show --draft` lists them"
            )
        row = rows[0]
        draft = _draft_of(row)
        draft.calls = _calls_of(connection, draft_id=row["id"])
        if row["digest"] is not None:
            draft.plan = plans.get(connection, row["tenant_id"] or None, row["digest"], None)
        return draft

    @reads
    def of_plans(self, connection: Connection, digests: Sequence[str], *, tenant_id: str | None) -> tuple[str, Draft] | None:
        """Return the first of `digests` that came from a draft, and its newest draft without calls, or None.

        Looks at the drafts of `tenant_id` and at those without a tenant; a store with a tenant looks at its own only.
        """
        tenants = {"", tenant_id or ""} if self.tenant_id is None else {self.tenant_id}
        query = select(drafts).where(drafts.c.digest.in_(digests), drafts.c.tenant_id.in_(tenants)).order_by(drafts.c.created_at.desc())
        row = min(connection.execute(query).mappings(), key=lambda row: digests.index(row["digest"]), default=None)
        return None if row is None else (row["digest"], _draft_of(row))

    @reads
    def newest(self, connection: Connection, *, limit: int = 20) -> list[Draft]:
        """Return drafts without their calls and plans, newest first."""
        query = plans.seen_by(self.tenant_id, select(drafts), drafts).order_by(drafts.c.created_at.desc(), drafts.c.id.desc()).limit(limit)
        return [_draft_of(row) for row in connection.execute(query).mappings()]


def _begin(connection: Connection, draft: Draft, context: HasContext) -> None:
    """Record a new draft, unless it is already recorded."""
    row = {
        **context_columns(context),
        "id": draft.id,
        "task": without_passwords(draft.request.task),
        "request": dump_json(map_texts(_request_document(draft.request), without_passwords)),
        "model": draft.model,
        "created_at": database_now(),
    }
    connection.execute(insert_into(drafts, connection.dialect.name).values(row).on_conflict_do_nothing())


def _calls_of(connection: Connection, *, draft_id: str) -> list[ModelCall]:
    query = select(model_calls).where(model_calls.c.draft_id == draft_id).order_by(model_calls.c.number)
    return [_call_of(call) for call in connection.execute(query).mappings()]


def _draft_of(row: Row) -> Draft:
    result: dict[str, Any] = load_json(row["result"]) if row["result"] is not None else {}
    return Draft(
        request=_request_of(load_json(row["request"])),
        model=row["model"],
        id=row["id"],
        complexity=result.get("complexity"),
        speak=result.get("speak", ""),
        constraints=[ConstraintCheck(**kept) for kept in result.get("constraints", [])],
        notes=result.get("notes", []),
        problems=[Problem(**problem) for problem in result.get("problems", [])],
        failure=row["failure"],
        created_at=row["created_at"],
    )


def _call_of(row: Row) -> ModelCall:
    return ModelCall(
        number=row["number"],
        model=row["model"],
        rung=row["rung"],
        prompt_digest=row["prompt_digest"],
        prompt=row["prompt"],
        answer=row["answer"],
        usage=Usage(row["prompt_tokens"], row["completion_tokens"]),
        seconds=row["milliseconds"] / 1000,
        phase=row["phase"],
        problems=tuple(load_json(row["problems"])),
        is_whole=row["is_whole"],
    )


def _request_document(request: PlanRequest) -> dict[str, JsonValue]:
    options = None if request.options is None else request.options.model_dump(mode="json", exclude_unset=True)
    plain = replace(request, options=None)
    return {**asdict(plain), "options": options}


def _request_of(document: dict[str, Any]) -> PlanRequest:
    options, tools = document["options"], document["available_tools"]
    return PlanRequest(
        task=document["task"],
        context=document["context"],
        constraints=tuple(document["constraints"]),
        max_steps=document["max_steps"],
        available_tools=None if tools is None else tuple(tools),
        available_secrets=tuple(document["available_secrets"]),
        options=None if options is None else ExecutionOptions.model_validate(options),
        permissions=tuple(document["permissions"]),
        metadata=document["metadata"],
    )
