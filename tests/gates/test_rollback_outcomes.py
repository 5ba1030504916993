"""Tests of rollback calls with unknown outcomes: the probe decides, else a person, and nothing is rolled back twice."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.errors import RunConflictError, UnknownOutcomeError
from plan_adapter.execution.history import RunHistory
from plan_adapter.gates.gate import GateForms
from plan_adapter.model.approvals import Answer, Gate
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import Rollback
from plan_adapter.model.status import Outcome, RunReason
from plan_adapter.runner import acancel_run, aresolve_step
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_rollback import roll_back, rollback_run
from plan_adapter.runs.run_session import Backend, RunRequest, RunSession
from plan_adapter.runs.start import create_run, execute_plan, execute_run
from plan_adapter.store import PlanStatus
from plan_adapter.tools.probing import Done, NotDone
from plan_adapter.validation import bind_inputs, validate
from tests.gates.unknown_outcome import Person
from tests.gates.world import FormAnswers, raise_if_over
from tests.store.conftest import on_both_databases


@dataclass
class RollbackWorld:
    """A store, and a tool `put_back` whose first `unknown_calls` calls have an unknown outcome; its probe returns `probe_result`."""

    store: PlanStore
    unknown_calls: int = 1
    calls: list[str] = field(default_factory=list[str])
    probe_result: Any = "no probe"
    tasks: list["asyncio.Task[PlanRun]"] = field(default_factory=list)

    def tools(self) -> ToolRegistry:
        """Return the tools."""

        def look(node: str) -> Any:
            """Look whether the node serves."""
            return self.probe_result

        @tool(effect="write")
        def drain(node: str) -> str:
            """Take a node out."""
            return node

        @tool(effect="write", probe=None if self.probe_result == "no probe" else look)
        def put_back(node: str) -> str:
            """Put a node back."""
            self.calls.append(node)
            if len(self.calls) <= self.unknown_calls:
                raise UnknownOutcomeError("the line went dead")
            return f"{node} 好"

        @tool(effect="read")
        def fail() -> None:
            """Fail."""
            raise ValueError("nothing answers")

        return ToolRegistry([drain, put_back, fail])

    def plan(self, **fields: Any) -> ExecutionPlan:
        """Return a plan that drains two nodes one after the other and then fails; rollback starts with the second."""
        plan = ExecutionPlan(description="Drain 两个", **fields)
        before: list[str] = []
        for name in ("one", "two"):
            undo = Rollback(tool_name="put_back", parameters={"node": "${{ result }}"})
            plan.add_step("drain", f"Drain {name}", {"node": name}, id=name, rollback=undo, depends_on=before)
            before = [name]
        plan.add_step("fail", "Look", id="last", depends_on=before)
        plan.options.require_approval = False
        return plan

    def run_request(self, approver: Any = None) -> RunRequest:
        return RunRequest(approver=approver, requested_by="runner", tools=self.tools())

    async def run(self, approver: Any = None, **fields: Any) -> PlanRun:
        """Return an offline run of the plan that asks `approver`."""
        bound = bind_inputs(validate(self.plan(**fields), self.tools()), {})
        return await execute_plan(bound, run_request=self.run_request(approver), store=self.store, offline=True)

    async def roll_back(self, run: PlanRun, approver: Any = None) -> PlanRun:
        """Roll back the remaining steps of a run."""
        run_request = self.run_request(approver)
        return await rollback_run(
            await self.store.run(run.id), reason="go", tools=run_request.tools, run_request=run_request, store=self.store
        )

    def backend(self, answers: FormAnswers) -> Backend:
        """Return a backend with a form that submits `answers`."""
        forms = GateForms(answers.ask, answers.collected, lambda *_: None, answers.publish, answers.resume_released, answers.is_private)
        return Backend(forms=forms)

    def start_with_form(self, answers: FormAnswers, **fields: Any) -> "asyncio.Task[PlanRun]":
        """Start a run that asks in a form, where `answers` are submitted."""

        async def work() -> PlanRun:
            bound, run_request = bind_inputs(validate(self.plan(**fields), self.tools()), {}), self.run_request()
            run = await create_run(bound, self.store, run_request)
            return await execute_run(RunSession(bound, run, self.store, run_request, RunHistory(), self.backend(answers)))

        self.tasks.append(asyncio.ensure_future(work()))
        return self.tasks[-1]

    async def gate(self) -> Gate:
        """Wait for an open gate and return it with its text."""
        while not (found := await self.store.gates.find()):
            raise_if_over(self.tasks)
            await self.store.changed(0.5)
        return await self.store.gates.get(found[-1].id)


@pytest.fixture
async def world(store_url: str) -> AsyncIterator[RollbackWorld]:
    async with PlanStore(store_url) as store:
        world = RollbackWorld(store)
        yield world
        for task in world.tasks:
            task.cancel()
        await asyncio.gather(*world.tasks, return_exceptions=True)


ROLLED_BACK = "`last` failed: ValueError: nothing answers; rolled back: two, one"


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        (Answer("done", "ana", note="看过了", channel="form", result="it serves"), ["two", "one"]),
        (Answer("again", "ana", channel="form"), ["two", "two", "one"]),
    ],
    ids=["done", "again"],
)
async def test_a_form_asks_for_the_outcome_of_a_rollback_call_and_the_rollback_continues(
    answer: Answer, calls: list[str], world: RollbackWorld
) -> None:
    form = FormAnswers((answer,))
    run = await world.start_with_form(form)
    assert (run.status, run.reason, run.message) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED, ROLLED_BACK)
    assert (world.calls, form.replies) == (calls, [None])
    [gate] = await world.store.gates.find(run_id=run.id, open_only=False)
    assert (gate.kind, gate.end, gate.step_id, gate.call_kind) == ("outcome", answer.decision, "two", "rollback")
    receipt = next(row for row in await world.store.receipts(run.id) if row.by is not None)
    assert (receipt.kind, receipt.step_id, receipt.by, receipt.known_by, receipt.note) == (
        "rollback",
        "two",
        "ana",
        "form",
        answer.note or None,
    )
    assert (await world.store.verify(run.id)).ok


async def test_an_open_outcome_gate_keeps_the_runs_reason_and_shows_the_call(world: RollbackWorld) -> None:
    task = world.start_with_form(FormAnswers(()), approval=ApprovalPolicy(approvers=["ana"]))
    gate = await world.gate()
    run = await world.store.run(gate.run_id)
    assert (run.status, run.reason) == (PlanStatus.EXECUTING, RunReason.STEP_FAILED)
    for part in (
        "Did rollback two take effect?",
        "Undo: Drain two",
        "It called `put_back` with",
        "nothing else is undone",
        "- `node`: `two`",
    ):
        assert part in gate.text
    await aresolve_step(run.id, "two", "done", by="ana", rollback=True, store=world.store)
    assert (await task).message == ROLLED_BACK


async def test_cancelling_at_the_outcome_gate_ends_the_rollback_and_closes_the_gate(world: RollbackWorld) -> None:
    task = world.start_with_form(FormAnswers(()))
    gate = await world.gate()
    await acancel_run(gate.run_id, reason="leave it (by bo)", store=world.store)
    run = await task
    assert (await world.store.gates.get(gate.id)).end == "cancelled"
    assert "not rolled back: two (the outcome of its rollback is unknown: `plan resolve " in (run.message or "")
    assert (run.reason, world.calls) == (RunReason.STEP_FAILED, ["two"])


async def test_the_terminal_also_asks_about_unknown_outcomes_of_an_earlier_start(world: RollbackWorld) -> None:
    run = await world.run()
    assert f"`plan resolve {run.id} two done|again|abort --rollback`" in (run.message or "")
    person = Person([Answer("again", "runner", channel="os_user")])
    later = await world.roll_back(run, person)
    assert ([(request.step_id, request.call_kind) for request in person.asked], world.calls) == (
        [("two", "rollback")],
        ["two", "two", "one"],
    )
    assert (later.message, later.step("two").rolled_back) == (ROLLED_BACK, True)


@pytest.mark.parametrize(
    ("probe_result", "calls"), [(Done("it serves"), ["two", "one"]), (NotDone(), ["two", "two", "one"])], ids=["done", "not"]
)
async def test_the_probe_of_the_tool_resolves_the_outcome_if_it_can(probe_result: Any, calls: list[str], world: RollbackWorld) -> None:
    world.probe_result = None
    run = await world.run()
    assert "is unknown" in (run.message or "")
    world.probe_result = probe_result
    person = Person([])
    assert (await world.roll_back(run, person)).message == ROLLED_BACK
    assert (world.calls, person.asked) == (calls, [])
    assert [row.known_by for row in await world.store.receipts(run.id) if row.by is not None] == ["probe"]


async def test_abort_stops_the_rollback_until_the_outcome_is_resolved(world: RollbackWorld) -> None:
    run = await world.start_with_form(FormAnswers((Answer("abort", "ana", channel="form"),)))
    message = "two (ana recorded `abort` for `rollback two`; the outcome of its rollback is unknown)"
    assert f"not rolled back: {message}, one (`two` must be rolled back first)" in (run.message or "")
    later = await world.roll_back(run, Person([]))
    command = f"`plan resolve {run.id} two done|again --rollback` and `plan rollback {run.id} --offline`"
    assert (world.calls, command in (later.message or "")) == (["two"], True)
    await aresolve_step(run.id, "two", "again", by="bo", rollback=True, store=world.store)
    with pytest.raises(RunConflictError, match="is not unknown"):
        await aresolve_step(run.id, "two", "again", by="bo", rollback=True, store=world.store)
    assert (await world.roll_back(run)).message == ROLLED_BACK
    assert world.calls == ["two", "two", "one"]
    assert (await world.store.verify(run.id)).ok


@on_both_databases
async def test_a_rollback_call_done_by_hand_is_not_repeated(world: RollbackWorld) -> None:
    world.unknown_calls = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "calls", Stuck())
        run = await world.run()
    assert "its rollback failed: RuntimeError: 卡住了" in (run.message or "")
    with pytest.raises(RunConflictError, match="`last` declares no rollback"):
        await aresolve_step(run.id, "last", "done", by="ana", rollback=True, store=world.store)
    await aresolve_step(run.id, "two", "done", by="ana", rollback=True, store=world.store)
    assert (await world.roll_back(run)).message == ROLLED_BACK
    assert world.calls == ["one"]


class Stuck(list[str]):
    def append(self, _node: str) -> None:
        raise RuntimeError("卡住了")


async def test_an_interrupted_rollback_asks_about_its_outcome_on_resume(world: RollbackWorld) -> None:
    run = await world.run()
    run.status, run.completed_at = PlanStatus.EXECUTING, None
    await world.store.ledger.claim(run, keeps_ends=True)
    await world.store.ledger.release(run.id)  # as a process that died left it
    person = Person([Answer("done", "runner", channel="os_user")])
    later = await execute_resume(run.id, tools=world.tools(), run_request=world.run_request(person), store=world.store, offline=True)
    assert (later.message, world.calls, len(person.asked)) == (ROLLED_BACK, ["two", "one"], 1)
    assert all(row.outcome is Outcome.SUCCEEDED for row in await world.store.receipts(run.id) if row.kind == "rollback")


async def test_a_requested_rollback_asks_in_the_form_of_its_flow_run(world: RollbackWorld) -> None:
    run = await world.run()
    bound = bind_inputs(validate(await world.store.get(run.digest), world.tools()), {})
    history = await world.store.ledger.history(run.id)
    form = FormAnswers((Answer("approve", "ana", channel="form"), Answer("done", "ana", channel="form")))
    backend = world.backend(form)
    later = await roll_back(RunSession(bound, await world.store.run(run.id), world.store, world.run_request(), history, backend))
    assert (later.message, world.calls) == (ROLLED_BACK, ["two", "one"])
    assert "instead of `approve`" in (form.replies[0] or "")
