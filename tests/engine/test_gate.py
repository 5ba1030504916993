"""Tests of plan gates: the form on the page of the flow run, and what each answer does."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from prefect import Flow, get_client
from prefect.client.schemas.filters import ArtifactFilter
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import SetStateStatus
from prefect.input import acreate_flow_run_input
from prefect.settings import temporary_settings
from prefect.states import Cancelled, Cancelling, Completed, Running

from plan_adapter.engine.connection import Server
from plan_adapter.engine.flow import drop_queues
from plan_adapter.engine.flow_runs import flow_run_logs, run_flow
from plan_adapter.engine.form import without_folding
from plan_adapter.engine.gate_loop import GateCancelledError, show_gate_form
from plan_adapter.model.approvals import GatePolicy
from tests.engine.gates import GOOD, InMemoryGate, SwitchableProxy, flow_run, form_text, request_of, resume, states

pytestmark = pytest.mark.usefixtures("prefect_server")


@asynccontextmanager
async def asked(gate: InMemoryGate) -> AsyncGenerator["asyncio.Task[State]"]:
    """Run a flow that asks at `gate`. It ends as Completed, or as Cancelled if asking raised GateCancelledError."""

    async def ask() -> State:
        try:
            await show_gate_form(gate, poll_seconds=0.1, approval_of=gate.approval_of)
        except GateCancelledError as error:
            return Cancelled(message=error.reason)
        return Completed(message="done")

    running = asyncio.create_task(run_flow(Flow(ask, name="gate", persist_result=False), {}))
    try:
        yield running
    finally:
        gate.close("cancelled")
        await asyncio.wait({running}, timeout=20)


async def paused(gate: InMemoryGate, number: int = 1) -> UUID:
    flow_run_id = await gate.opening(number)
    assert (await flow_run(flow_run_id)).state_name == "Paused"
    return flow_run_id


async def test_an_answer_in_the_form_closes_the_gate() -> None:
    gate = InMemoryGate(request_of())
    async with asked(gate) as running:
        flow_run_id = await paused(gate)
        assert (await resume(flow_run_id, GOOD)).status is SetStateStatus.ACCEPT
        assert (await running).is_completed()
    assert [(answer.decision, answer.by, answer.note, answer.channel) for answer in gate.answers] == [
        ("approve", "ana", "looks right", "form")
    ]
    assert await states(flow_run_id) == ["Pending", "Running", "Paused", "Running", "Completed"]


async def test_the_full_text_with_its_diagram_is_an_artifact_of_the_run() -> None:
    diagram = "### Order\n\n```mermaid\nflowchart TD\n```\n\n### Digests\n"
    gate = InMemoryGate(request_of(text=f"## Approve deploy?\n\n### Steps\n\n- a\n\n{diagram}"))
    async with asked(gate) as running:
        flow_run_id = await paused(gate)
        assert "flowchart" not in await form_text(flow_run_id, gate.openings[0][1])
        await resume(flow_run_id, GOOD)
        await running
    async with get_client() as client:
        flow_run = ArtifactFilter.model_validate({"flow_run_id": {"any_": [flow_run_id]}})
        [artifact] = await client.read_artifacts(artifact_filter=flow_run)
    assert (artifact.key, artifact.type, artifact.data) == ("plan-to-approve", "markdown", gate.request.text)


@pytest.mark.parametrize("decision", ["reject", "request_changes"])
async def test_every_decision_reaches_the_gate(decision: str) -> None:
    gate = InMemoryGate(request_of())
    async with asked(gate) as running:
        await resume(await paused(gate), {**GOOD, "decision": decision})
        await running
    assert [answer.decision for answer in gate.answers] == [decision]


async def test_the_form_reopens_with_the_reason_after_a_refused_answer() -> None:
    gate = InMemoryGate(request_of(gate_policy=GatePolicy(self_approval=False, requested_by="ana")))
    async with asked(gate) as running:
        flow_run_id = await paused(gate)
        await resume(flow_run_id, GOOD)
        await paused(gate, 2)
        text = await form_text(flow_run_id, gate.openings[1][1])
        assert text.startswith("**The last answer was refused:** ana started this run and may not approve it")
        assert gate.request.text in without_folding(text)
        await resume(flow_run_id, {**GOOD, "approver": "bo"})
        await running
    assert [answer.by for answer in gate.answers] == ["ana", "bo"]
    assert gate.openings[0][1] != gate.openings[1][1]


@pytest.mark.thorough
async def test_the_flow_run_log_shows_how_to_answer_refused_answers_and_who_answered() -> None:
    gate = InMemoryGate(request_of(gate_policy=GatePolicy(self_approval=False, requested_by="ana")))
    async with asked(gate) as running:
        flow_run_id = await paused(gate)
        await resume(flow_run_id, GOOD)
        await paused(gate, 2)
        await resume(flow_run_id, {**GOOD, "decision": "reject", "approver": "bo", "note": "not\nnow"})
        await running
    async with asyncio.timeout(20):
        while "Rejected by bo (form): not now" not in (lines := [line.text for line in await flow_run_logs(str(flow_run_id))]):
            await asyncio.sleep(0.1)  # the server shows logs after a moment
    assert (
        "waits for an approval: answer with the button Resume (in Prefect's newer UI: in the menu ⋮), "
        f"or with `plan approve {gate.request.run_id} --digest {'d' * 12}`" in lines
    )
    assert any(line.startswith("answer refused: ana started this run and may not approve it") for line in lines)


async def test_the_flow_run_continues_at_once_when_the_gate_is_closed_elsewhere() -> None:
    gate = InMemoryGate(request_of())
    async with asked(gate) as running:
        flow_run_id = await paused(gate)
        await gate.answered_by("bo")
        async with asyncio.timeout(3):
            await running
    assert gate.answers == []
    assert await states(flow_run_id) == ["Pending", "Running", "Paused", "Running", "Completed"]
    async with get_client() as client:
        back = [state.message for state in await client.read_flow_run_states(flow_run_id) if state.name == "Running"]
    assert back[1] == "Approved by bo (os_user)"


@pytest.mark.thorough
async def test_a_forced_running_state_never_passes_the_gate() -> None:
    gate = InMemoryGate(request_of())
    async with asked(gate) as running, get_client() as client:
        flow_run_id = await paused(gate)
        await client.set_flow_run_state(flow_run_id, Running(), force=True)
        await paused(gate, 2)
        await client.set_flow_run_state(flow_run_id, Running())
        await paused(gate, 3)
        assert "ended without an answer" in await form_text(flow_run_id, gate.openings[2][1])
        assert not running.done()
        assert gate.answers == []
        await resume(flow_run_id, GOOD)
        await running
    assert len({keyset for _, keyset in gate.openings}) == 3


async def test_a_forced_final_state_does_not_pass_the_gate() -> None:
    gate = InMemoryGate(request_of())
    async with asked(gate) as running, get_client() as client:
        flow_run_id = await paused(gate)
        await client.set_flow_run_state(flow_run_id, Completed(), force=True)
        await paused(gate, 2)
        assert gate.answers == []
        await resume(flow_run_id, GOOD)
        await running


INVALID_ANSWERS: dict[str, dict[str, Any] | None] = {
    "nothing": None,
    "empty": {},
    "no decision": {"approver": "ana"},
    "no name": {"decision": "approve"},
    "a blank name": {"decision": "approve", "approver": " "},
    "a long name": {"decision": "approve", "approver": "a" * 201},
    "another decision": {"decision": "yes", "approver": "ana"},
    "an extra field": {**GOOD, "extra": 1},
    "a long note": {**GOOD, "note": "n" * 4001},
    "a code that was not asked for": {**GOOD, "code": "123456"},
    "a kind without a value": {"__prefect_kind": "json"},
    "a template instead of an answer": {"__prefect_kind": "jinja", "template": "approve"},
    "an unknown kind": {"__prefect_kind": "other"},
    "a template instead of a decision": {**GOOD, "decision": {"__prefect_kind": "jinja", "template": "{{ 1 }}"}},
    "a decision that is removed": {**GOOD, "decision": {"__prefect_kind": "json"}},
    "a template that swells": {**GOOD, "note": {"__prefect_kind": "jinja", "template": "{{ 'a' * 100000 }}"}},
    "an unknown variable": {**GOOD, "approver": {"__prefect_kind": "workspace_variable", "variable_name": "x"}},
}


async def test_the_server_rejects_invalid_answers() -> None:
    gate = InMemoryGate(request_of())
    async with asked(gate):
        flow_run_id = await paused(gate)
        statuses = {name: (await resume(flow_run_id, run_input)).status for name, run_input in INVALID_ANSWERS.items()}
        assert statuses == dict.fromkeys(INVALID_ANSWERS, SetStateStatus.REJECT)
        assert (await flow_run(flow_run_id)).state_name == "Paused"
    assert gate.answers == []


@pytest.mark.parametrize(
    "value",
    [
        {**GOOD, "__prefect_kind": "json"},
        {"approver": "ana"},
        *(pytest.param(value, marks=pytest.mark.thorough) for value in ({}, [GOOD], "approve", 1)),
    ],
)
async def test_input_that_bypasses_the_form_does_not_answer_the_gate(value: object) -> None:
    gate = InMemoryGate(request_of())
    async with asked(gate), get_client() as client:
        flow_run_id = await paused(gate)
        await acreate_flow_run_input(f"{gate.openings[0][1]}-response", value, flow_run_id=flow_run_id)
        await client.set_flow_run_state(flow_run_id, Running(), force=True)
        await paused(gate, 2)
    assert gate.answers == []


async def test_cancelling_in_the_ui_cancels_the_run_with_its_reason() -> None:
    gate = InMemoryGate(request_of())
    async with asked(gate) as running, get_client() as client:
        flow_run_id = await paused(gate)
        await client.set_flow_run_state(flow_run_id, Cancelling(message="ana had second thoughts"))
        state = await running
    assert (state.is_cancelled(), state.message) == (True, "ana had second thoughts")


async def test_a_second_answer_changes_nothing() -> None:
    gate = InMemoryGate(request_of())
    async with asked(gate) as running:
        flow_run_id = await paused(gate)
        first, second = await asyncio.gather(resume(flow_run_id, GOOD), resume(flow_run_id, {**GOOD, "decision": "reject"}))
        await running
    assert {first.status, second.status} == {SetStateStatus.ACCEPT, SetStateStatus.ABORT}
    assert len(gate.answers) == 1


async def test_an_answer_given_while_the_server_was_unreachable_is_found_afterwards(prefect_server: Server) -> None:
    gate, proxy = InMemoryGate(request_of()), SwitchableProxy(prefect_server.api_url)
    await proxy.open()
    with temporary_settings({"api.url": proxy.url, "logging.to_api.enabled": False}):  # type: ignore[dict-item]  # typed for its old names
        async with asked(gate) as running:
            flow_run_id = await paused(gate)
            await proxy.shut()
            await asyncio.wait({running}, timeout=0.5)
            assert not running.done()
            with temporary_settings({"api.url": prefect_server.api_url}):  # type: ignore[dict-item]
                await resume(flow_run_id, GOOD)
            await proxy.open()
            assert (await running).is_completed()
    await drop_queues()  # what is queued for the proxy
    await proxy.end()
    assert len(gate.openings) == 1
    assert [answer.by for answer in gate.answers] == ["ana"]
