"""Tests of gate forms from outside the run: answered through Prefect's API alone, collected later, and with released workers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from prefect import Flow, get_client
from prefect.client.schemas.objects import State
from prefect.input import acreate_flow_run_input
from prefect.states import Completed, Running

from plan_adapter.engine.flow_runs import run_flow
from plan_adapter.engine.gate_forms import OpenForm, answer_form, collect_answer, open_forms, resume_released
from plan_adapter.engine.gate_loop import show_gate_form
from plan_adapter.model.approvals import Answer, GatePolicy
from plan_adapter.model.errors import NotApprovedError, RunConflictError
from tests.engine.gates import GOOD, InMemoryGate, flow_run, request_of, resume

pytestmark = pytest.mark.usefixtures("prefect_server")


@asynccontextmanager
async def asked(*gates: InMemoryGate) -> AsyncGenerator[None]:
    """Run a flow for each gate that asks at it."""

    def run(gate: InMemoryGate) -> "asyncio.Task[State]":
        async def ask() -> State:
            await show_gate_form(gate, poll_seconds=0.1)
            return Completed()

        return asyncio.create_task(run_flow(Flow(ask, name="gate", persist_result=False), {}))

    running = [run(gate) for gate in gates]
    try:
        yield
    finally:
        for gate in gates:
            gate.close("cancelled")
        await asyncio.wait(running, timeout=20)


async def form_at(gate: InMemoryGate) -> OpenForm:
    return next(form for form in await open_forms() if form.gate_id == gate.request.gate_id)


async def test_open_gates_are_found_and_answered_by_the_api_alone() -> None:
    signed = GatePolicy(approvers=("ana", "bo"), known_by=("ssh_signature",))
    plan, step = InMemoryGate(request_of()), InMemoryGate(request_of(step_id="部署", gate_policy=signed))
    step.check = lambda answer: None if answer.signature == "-----BEGIN SSH SIGNATURE-----" else "no signature"
    async with asked(plan, step):
        await asyncio.gather(plan.opening(), step.opening())
        plan_form, step_form = await form_at(plan), await form_at(step)
        assert (plan_form.name, plan_form.step_id, plan_form.known_by, plan_form.opened_at) == (
            "deploy",
            None,
            None,
            plan.request.opened_at,
        )
        assert (step_form.run_id, step_form.step_id, step_form.known_by) == (step.request.run_id, "部署", ("ssh_signature",))
        await answer_form(step_form, Answer("approve", "bo", signature="-----BEGIN SSH SIGNATURE-----"))
        await answer_form(plan_form, Answer("reject", "ana", note="no"))
        await asyncio.gather(plan.closed, step.closed)
        with pytest.raises(RunConflictError, match="no longer waits for an answer"):
            await answer_form(plan_form, Answer("approve", "bo"))
    assert [answer.signature for answer in step.answers] == ["-----BEGIN SSH SIGNATURE-----"]
    assert not {plan.request.gate_id, step.request.gate_id} & {form.gate_id for form in await open_forms()}


async def test_answers_that_the_form_refuses_raise_an_error_with_the_reason() -> None:
    gate = InMemoryGate(request_of(gate_policy=GatePolicy(approvers=("ana",))))
    async with asked(gate):
        await gate.opening()
        form = await form_at(gate)
        with pytest.raises(RunConflictError, match="'cleo' is not one of"):
            await answer_form(form, Answer("approve", "cleo"))
        with pytest.raises(RunConflictError, match="accepts no ssh_signature"):
            await answer_form(form, Answer("approve", "ana", signature="x"))
        assert gate.answers == []


async def test_a_refused_api_answer_is_reported_on_the_form() -> None:
    gate = InMemoryGate(request_of(gate_policy=GatePolicy(self_approval=False, requested_by="ana")))
    async with asked(gate):
        await gate.opening()
        await answer_form(await form_at(gate), Answer("approve", "ana"))
        await gate.opening(2)
        assert "may not approve it" in ((await form_at(gate)).refused or "")


async def test_an_answer_is_collected_after_the_asking_process_ended() -> None:
    gate = InMemoryGate(request_of())

    async def ask() -> State:
        asker = asyncio.create_task(show_gate_form(gate, poll_seconds=60))
        await gate.opening()
        asker.cancel()  # to Prefect this looks like a kill: the flow run stays Paused
        await asyncio.wait({asker})
        assert await collect_answer(gate.gate) is None
        await resume(UUID(gate.openings[0][0]), GOOD)
        assert await collect_answer(gate.gate) == Answer("approve", "ana", "looks right", channel="form")
        gate.openings.append((gate.openings[0][0], "paused-another"))
        assert await collect_answer(gate.gate) is None  # the answer of an earlier opening
        return Completed()

    assert (await run_flow(Flow(ask, name="gate", persist_result=False), {})).is_completed()


async def test_an_incomplete_answer_raises_an_error_when_it_is_collected() -> None:
    gate = InMemoryGate(request_of())
    async with asked(gate):
        flow_run_id = await gate.opening()
        for number, value in enumerate(({}, {"decision": "approve"}, {**GOOD, "__prefect_kind": "json"}, "approve")):
            gate.openings.append((str(flow_run_id), f"paused-{number}"))
            await acreate_flow_run_input(f"paused-{number}-response", value, flow_run_id=flow_run_id)
            with pytest.raises(NotApprovedError):
                await collect_answer(gate.gate)


async def test_a_run_that_released_its_worker_finds_the_answer_when_it_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = InMemoryGate(request_of(gate_policy=GatePolicy(release=True)))

    async def ask() -> State:
        if gate.openings and (answer := await collect_answer(gate.gate)) is not None:
            await gate.submit(answer)
            return Completed()
        await show_gate_form(gate, poll_seconds=0.1)
        return Completed()

    flow = Flow(ask, name="released", persist_result=False)
    flow_run_id = await deployed(flow)
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(flow_run_id))
    assert (await run_flow(flow, {}, flow_run_id=str(flow_run_id))).is_paused()
    state = (await flow_run(flow_run_id)).state
    assert state is not None
    hint = (
        "waits for an approval: answer with the button Resume (in Prefect's newer UI: in the menu ⋮), "
        f"or with `plan approve {gate.request.run_id} --digest {'d' * 12}`"
    )
    assert (state.name, state.message) == ("Suspended", f"`{gate.request.name}` {hint}; its worker is free until then")
    await answer_form(await form_at(gate), Answer("approve", "ana"))
    assert (await flow_run(flow_run_id)).state_name == "Resuming"
    assert (await run_flow(flow, {}, flow_run_id=str(flow_run_id))).is_completed()
    assert [answer.by for answer in gate.answers] == ["ana"]


@pytest.mark.thorough
async def test_a_released_run_restarts_when_its_gate_is_answered_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = InMemoryGate(request_of(gate_policy=GatePolicy(release=True)))

    async def ask() -> State:
        await show_gate_form(gate, poll_seconds=0.1)
        return Completed()

    flow = Flow(ask, name="released", persist_result=False)
    flow_run_id = await deployed(flow)
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(flow_run_id))
    assert (await run_flow(flow, {}, flow_run_id=str(flow_run_id))).is_paused()
    await gate.answered_by("bo")
    assert gate.approval is not None
    await resume_released(gate.gate, gate.approval)
    state = (await flow_run(flow_run_id)).state
    assert state is not None
    assert (state.name, state.message) == ("Resuming", "approve by bo (os_user)")
    await resume_released(gate.gate, gate.approval)  # again: nothing to do
    async with get_client() as client:
        await client.set_flow_run_state(flow_run_id, Running(), force=True)


async def deployed(flow: Flow[..., Any]) -> UUID:
    """Return a flow run of a deployment of `flow`, as a worker would get it."""
    async with get_client() as client:
        deployment_id = await client.create_deployment(flow_id=await client.create_flow(flow), name=f"d-{UUID(int=0)}")
        return (await client.create_flow_run_from_deployment(deployment_id)).id
