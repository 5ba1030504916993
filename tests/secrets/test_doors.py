"""Tests that no text of a person or program brings the value of a secret into the store: every door is tried, every column is read."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.errors import InvalidPlanError
from plan_adapter.gates import CallbackApprover
from plan_adapter.gates.policy import Policy
from plan_adapter.model.approvals import GatePolicy, StandingApproval
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.options import Input
from plan_adapter.model.plan import new_id
from plan_adapter.model.record import PlanRun, RunContext
from plan_adapter.runs import arevise_run, arun_plan
from plan_adapter.runs.operator_requests import record_operator_request
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.store import load_plan
from plan_adapter.store.database.tables import metadata
from plan_adapter.store.outcomes import ResolutionRecord
from plan_adapter.store.policies import NewPolicy
from tests.store.builders import a_gate, a_plan, an_answer, an_approval, an_attempt, begun, created, validated

CANARY = "canary-Sx9-secret-42!"
SAID = f"it is {CANARY}, they say"
SHOWN = "it is ***, they say"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOK", CANARY)


@dataclass
class World:
    """A store, its rows, and a run of a plan that uses the secret, which waits for its approval."""

    store: PlanStore
    url: str

    async def waiting(self, **fields: Any) -> PlanRun:
        return await created(self.store, **fields)

    async def columns(self) -> dict[str, list[str]]:
        """Return all values of every column of every table, as text, by `table.column`."""
        engine = create_engine(self.url) if self.url.startswith("sqlite") else None
        found = dict[str, list[str]]()
        for table in metadata.sorted_tables:
            query = text(f'SELECT * FROM "{table.name}"')  # names of our own
            if engine is not None:
                with engine.connect() as connection:
                    rows = [dict(row) for row in connection.execute(query).mappings()]
            else:
                rows = await self.store._database.read(lambda it, query=query: [dict(row) for row in it.execute(query).mappings()])  # pyright: ignore
            for column in table.columns:
                found[f"{table.name}.{column.name}"] = [str(row[column.name]) for row in rows]
        return found


@pytest.fixture
async def world(store: PlanStore, store_url: str) -> World:
    return World(store, store_url)


async def answer_note(world: World) -> None:
    run = await world.waiting()
    gate = await world.store.gates.open(a_gate(run), timeout_ms=0)
    await world.store.gates.answer(gate.id, an_answer(gate, note=SAID))


async def rejection(world: World) -> None:
    run = await world.waiting()
    gate = await world.store.gates.open(a_gate(run), timeout_ms=0)
    await world.store.gates.answer(gate.id, an_answer(gate, decision="reject", note=SAID))
    run.rejection_note = SAID
    await world.store.ledger.update(run)


async def request_for_changes(world: World) -> None:
    run = await world.waiting()
    gate = await world.store.gates.open(a_gate(run), timeout_ms=0)
    await world.store.gates.answer(gate.id, an_answer(gate, decision="request_changes", note=SAID))


async def approval_without_a_gate(world: World) -> None:
    run = await world.waiting()
    await world.store.add_approval(an_approval(run_id=run.id, note=SAID))
    await world.store.ledger.use_approval(an_approval(run_id=run.id, approval_digest=run.approval_digest, note=SAID), run_id=run.id)


async def resolution(world: World) -> None:
    run = await begun(world.store)
    recorder = await world.store.ledger.recorder(run)
    await recorder.intent(an_attempt(run, at=recorder.now(), effect="write"))
    await world.store.ledger.release(run.id)
    record = ResolutionRecord("done", "ana", "os_user", SAID, {"said": [SAID], CANARY: 1})
    receipt = await world.store.outcomes.resolve(run.id, "check", record)
    assert (receipt.note, receipt.result) == (SHOWN, {"said": [SHOWN], "***": 1})


async def skip(world: World) -> None:
    run = await world.waiting()
    await record_operator_request(
        "skip", ["check"], SAID, run, a_plan(), world.store, RunRequest(requested_by="ana"), rollback_needs_approver=False
    )
    assert SHOWN in (await world.store.operator_requests.skipped_steps(run.id))["check"]


async def cancellation(world: World) -> None:
    await world.store.cancel((await world.waiting()).id, SAID)
    await world.store.ledger.request_cancel((await begun(world.store)).id, SAID)


async def refusal(world: World) -> None:
    await world.store.ledger.record_refusal((await world.waiting()).id, SAID, by="ana")


async def revision_note(world: World) -> None:
    run = await world.waiting()
    revised = a_plan("changed", ("check", "drain"))
    await world.store.revisions.revise(run.id, validated(revised), "e" * 64, by="ana", note=SAID)


async def standing_note(world: World) -> None:
    terms: dict[str, Any] = {"inputs": {}, "schedules": ("site/nightly",), "note": SAID}
    await world.store.standing.add(StandingApproval(new_id(), "d" * 64, "site", "ana", "os_user", await world.store.now(), **terms))


REDACTED: dict[str, tuple[Callable[[World], Awaitable[None]], set[str]]] = {
    "an answer's note": (answer_note, {"approvals.note", "audit.message"}),
    "a rejection": (rejection, {"approvals.note", "audit.message", "runs.rejection_note"}),
    "a request for changes": (request_for_changes, {"approvals.note", "audit.message"}),
    "an approval without a gate": (approval_without_a_gate, {"approvals.note", "audit.message"}),
    "a resolution": (resolution, {"receipts.note", "receipts.result", "audit.message", "runs.message", "step_runs.reason"}),
    "a skipped step": (skip, {"audit.message"}),
    "a cancellation": (cancellation, {"runs.cancel_reason", "runs.message", "audit.message"}),
    "a refusal": (refusal, {"audit.message"}),
    "a revision's note": (revision_note, {"revisions.note", "audit.message"}),
    "a standing approval's note": (standing_note, {"standing_approvals.note"}),
}


@pytest.mark.parametrize("door", REDACTED)
async def test_words_are_recorded_without_the_secret(door: str, world: World) -> None:
    say, where = REDACTED[door]
    await say(world)
    columns = await world.columns()
    assert {name for name, values in columns.items() if any(CANARY in value for value in values)} == set()
    shown = {name for name, values in columns.items() if any("***" in value for value in values)}
    assert shown and shown <= where, shown


async def input_of_a_run(world: World) -> None:
    await world.waiting(inputs={"host": ["web-1", SAID]})


async def key_of_an_input(world: World) -> None:
    await world.waiting(inputs={"hosts": {CANARY: 1}})


async def context_of_a_run(world: World) -> None:
    await world.waiting(task_id=CANARY)


async def plan_of_a_run(world: World) -> None:
    await created(world.store, a_plan(SAID))


async def revised_plan(world: World) -> None:
    run = await world.waiting()
    await world.store.revisions.revise(run.id, validated(a_plan(SAID)), "e" * 64, by="ana", note="")


async def saved_plan(world: World) -> None:
    await world.store.save(a_plan(SAID), author="ana", context=RunContext())


async def policy(world: World) -> None:
    await world.store.policy.set(NewPolicy(Policy(operators=[CANARY]), 1, "ana", "os_user"))


async def standing_terms(world: World) -> None:
    terms: dict[str, Any] = {"inputs": {"host": SAID}, "schedules": ("site/nightly",)}
    await world.store.standing.add(StandingApproval(new_id(), "d" * 64, "site", "ana", "os_user", await world.store.now(), **terms))


async def answer_to_a_question(world: World) -> None:
    run = await world.waiting()
    gate = await world.store.gates.open(a_gate(run, "check", kind="question", gate_policy=GatePolicy()), timeout_ms=0)
    await world.store.gates.answer(gate.id, an_answer(gate, result={"why": SAID}))


async def signed_resolution(world: World) -> None:
    run = await begun(world.store)
    recorder = await world.store.ledger.recorder(run)
    await recorder.intent(an_attempt(run, at=recorder.now(), effect="write"))
    await world.store.ledger.release(run.id)
    record = ResolutionRecord("done", "ana", "ssh_signature", "", SAID, signature="-----BEGIN SSH SIGNATURE-----")
    await world.store.outcomes.resolve(run.id, "check", record)


REFUSED: dict[str, tuple[Callable[[World], Awaitable[None]], str]] = {
    "an input": (input_of_a_run, "inputs.host[1]"),
    "a key of an input": (key_of_an_input, "inputs.hosts"),
    "the context of a run": (context_of_a_run, "task_id"),
    "a plan": (plan_of_a_run, "description"),
    "a revised plan": (revised_plan, "description"),
    "a saved plan": (saved_plan, "description"),
    "a policy": (policy, "operators[0]"),
    "the terms of a standing approval": (standing_terms, "inputs.host"),
    "an answer to a question": (answer_to_a_question, "the answer contains the value of a secret"),
    "a signed resolution": (signed_resolution, "remove the value, then sign again"),
}


@pytest.mark.parametrize("door", REFUSED)
async def test_what_a_digest_covers_is_refused_with_its_place(door: str, world: World) -> None:
    say, where = REFUSED[door]
    with pytest.raises((InvalidPlanError, NotApprovedError)) as refused:
        await say(world)
    found = [problem.at for problem in refused.value.problems] if isinstance(refused.value, InvalidPlanError) else [str(refused.value)]
    assert any(where in place for place in found)
    assert CANARY not in str(refused.value)
    columns = await world.columns()
    assert {name for name, values in columns.items() if any(CANARY in value for value in values)} == set()


@tool(effect="write")
def put(tok: str, text: str = "") -> dict[str, Any]:
    """Put."""
    return {"text": text, text: tok}


ASKING = """
name: ask
description: Ask
options: {require_approval: false}
steps:
  - {id: first, tool_name: put, description: Put it, parameters: {tok: "${{ secrets.tok }}"}}
  - {id: ask, depends_on: [first], ask: {question: Why?, fields: {why: {type: string}}}}
  - {id: last, tool_name: put, description: Put, parameters: {tok: t, text: "${{ steps.ask.result.why }}"}}
"""


async def test_an_approver_in_the_process_brings_no_secret_into_the_store(world: World) -> None:
    refusing = CallbackApprover(lambda _: {"why": SAID}, by="ana")
    run = await arun_plan(load_plan(ASKING), tools=ToolRegistry([put]), store=world.store, offline=True, approver=refusing)
    assert "the answer contains the value of a secret" in f"{run.message} {run.step('ask').reason}"
    assert run.step("last").attempts == 0
    columns = await world.columns()
    assert {name for name, values in columns.items() if any(CANARY in value for value in values)} == set()


async def test_a_new_version_with_the_secret_in_it_is_refused_before_it_is_stored(world: World) -> None:
    plan = load_plan(ASKING)
    plan.steps[2].parameters["text"] = CANARY
    run = await world.waiting(inputs={})
    with pytest.raises(InvalidPlanError) as refused:
        await arevise_run(run.id, plan, tools=ToolRegistry([put]), by="ana", store=world.store)
    assert [(problem.code, problem.at) for problem in refused.value.problems] == [("secret-in-text", "steps[2].parameters.text")]


async def test_a_plain_word_may_stand_in_an_input_and_is_redacted_in_the_record_of_the_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOK", "production")
    plan = ExecutionPlan(name="put", description="Put to production", inputs={"x": Input(type="string")})
    plan.options.require_approval = False
    plan.add_step("put", "Put it", {"tok": "${{ secrets.tok }}", "text": "${{ inputs.x }}"}, id="put")
    run = await arun_plan(plan, inputs={"x": "to production"}, tools=ToolRegistry([put]), store=world.store, offline=True)
    assert run.is_completed
    columns = await world.columns()
    assert not any("production" in value for name in ("attempts.parameters", "receipts.result") for value in columns[name])
