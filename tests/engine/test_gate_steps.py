"""Tests of step gates: each is a subflow with its own page and form."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from prefect import Flow, get_client, tags
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.states import Cancelled, Cancelling, Completed, Running

from plan_adapter.engine.flow_runs import run_flow
from plan_adapter.engine.gate_loop import GateCancelledError, show_gate_form
from plan_adapter.model.approvals import Answer
from plan_adapter.model.errors import StoreError
from tests.engine.gates import GOOD, WAIT_SECONDS, InMemoryGate, flow_run, request_of, resume

pytestmark = pytest.mark.usefixtures("prefect_server")


async def ask(gate: InMemoryGate) -> None:
    await show_gate_form(gate, poll_seconds=0.1, approval_of=gate.approval_of)


@asynccontextmanager
async def flow_of(body: Callable[[], Awaitable[State]], *gates: InMemoryGate) -> AsyncGenerator["asyncio.Task[State]"]:
    """Run `body` in a flow, and close `gates` at the end."""

    async def steps() -> State:
        return await body()

    running = asyncio.create_task(run_flow(Flow(steps, name="steps", persist_result=False), {}))
    try:
        yield running
    finally:
        for gate in gates:
            gate.close("cancelled")
        await asyncio.wait({running}, timeout=20)


def asking_at(*gates: InMemoryGate) -> Callable[[], Awaitable[State]]:
    async def body() -> State:
        ends = await asyncio.gather(*map(ask, gates), return_exceptions=True)
        cancelled = next((end for end in ends if isinstance(end, GateCancelledError)), None)
        return Completed(message="done") if cancelled is None else Cancelled(message=cancelled.reason)

    return body


async def subflows(parent_id: UUID) -> list[FlowRun]:
    async with get_client() as client:
        return await client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": [parent_id]}}))


async def state_of(flow_run_id: UUID) -> tuple[str | None, str | None]:
    state = (await flow_run(flow_run_id)).state
    assert state is not None
    return state.name, state.message


@pytest.mark.thorough
async def test_two_open_gates_are_answered_on_their_own_pages_in_any_order() -> None:
    first, second = InMemoryGate(request_of(step_id="drain")), InMemoryGate(request_of(step_id="部署"))
    async with flow_of(asking_at(first, second), first, second) as running:
        drain, deploy = await first.opening(), await second.opening()
        assert drain != deploy
        await resume(deploy, GOOD)
        await second.closed
        assert not first.closed.done()
        await resume(drain, {**GOOD, "decision": "reject", "note": "not now"})
        assert (await running).is_completed()
    assert (first.answers[0].decision, second.answers[0].decision) == ("reject", "approve")
    assert await state_of(drain) == ("Rejected", "Rejected by ana (form): not now")
    assert await state_of(deploy) == ("Approved", "Approved by ana (form): looks right")


async def test_the_page_of_a_step_gate_has_the_name_and_the_tags_of_its_run_and_the_tag_waiting() -> None:
    gate = InMemoryGate(request_of(step_id="部署"))
    parents = list[FlowRun]()

    async def body() -> State:
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        parents.append(context.flow_run)
        return await asking_at(gate)()

    with tags("web", "生产"):
        async with flow_of(body, gate):
            page = await flow_run(await gate.opening())
    assert page.name == f"approve 部署 of deploy ({parents[0].name})"
    assert sorted(page.tags) == ["waiting", "web", "生产"]


async def test_the_run_says_at_which_gates_it_waits_and_links_to_their_pages() -> None:
    first, second, parents = InMemoryGate(request_of(step_id="a")), InMemoryGate(request_of(step_id="部署")), list[UUID]()

    async def body() -> list[str]:
        context = FlowRunContext.get()
        assert context is not None and context.flow_run is not None
        parents.append(context.flow_run.id)
        return await asking_at(first, second)()

    async def message(wanted: str) -> str:
        async with asyncio.timeout(WAIT_SECONDS):
            while wanted not in (found := (await flow_run(parents[0])).state.message or ""):  # type: ignore[union-attr]
                await asyncio.sleep(0.05)
        return found

    async with flow_of(body, first, second) as running:
        pages = [await gate.opening() for gate in (first, second)]
        assert (await message("approve 部署")).startswith("Waits at ")
        shown = await message("approve a")
        for page in pages:
            assert f"/runs/flow-run/{page})" in shown
        await first.answered_by("bo")
        async with asyncio.timeout(WAIT_SECONDS):
            while "approve a" in ((await flow_run(parents[0])).state.message or ""):  # type: ignore[union-attr]
                await asyncio.sleep(0.05)
        assert "approve 部署" in await message("approve 部署")
        await second.answered_by("bo")
        await running


async def test_closing_the_row_of_a_step_gate_ends_its_page() -> None:
    answered, expired = InMemoryGate(request_of(step_id="a")), InMemoryGate(request_of(step_id="b"))
    async with flow_of(asking_at(answered, expired), answered, expired) as running:
        pages = await answered.opening(), await expired.opening()
        await answered.answered_by("bo")
        expired.close("expired")
        await running
    assert [await state_of(page) for page in pages] == [("Approved", "Approved by bo (os_user)"), ("Expired", "expired: nobody answered")]


async def test_a_forced_state_does_not_pass_a_step_gate() -> None:
    gate = InMemoryGate(request_of(step_id="a"))
    async with flow_of(asking_at(gate), gate) as running, get_client() as client:
        page = await gate.opening()
        await client.set_flow_run_state(page, Running(), force=True)
        assert await gate.opening(2) == page
        assert gate.answers == []
        await resume(page, GOOD)
        await running
    assert (await state_of(page))[0] == "Approved"


async def test_cancelling_the_page_of_a_step_gate_cancels_the_run_and_the_page() -> None:
    gate = InMemoryGate(request_of(step_id="a"))
    async with flow_of(asking_at(gate), gate) as running, get_client() as client:
        page = await gate.opening()
        await client.set_flow_run_state(page, Cancelling(message="stop it"))
        assert (await running).message == "stop it"
    assert await state_of(page) == ("Cancelled", "stop it")


@pytest.mark.thorough
async def test_an_error_while_asking_is_raised_and_fails_the_page() -> None:
    gate = InMemoryGate(request_of(step_id="a"))

    def broken(_: Answer) -> str | None:
        raise StoreError("the database is away")

    gate.check = broken

    async def body() -> State:
        with pytest.raises(StoreError, match="the database is away"):
            await ask(gate)
        return Completed()

    async with flow_of(body, gate) as running:
        page = await gate.opening()
        await resume(page, GOOD)
        assert (await running).is_completed()
    assert await state_of(page) == ("Failed", "the database is away")


async def test_stopping_the_run_ends_the_page_as_cancelled_not_crashed() -> None:
    gate = InMemoryGate(request_of(step_id="a"))

    async def body() -> State:
        asker = asyncio.create_task(ask(gate))
        await gate.opening()
        asker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asker
        return Completed()

    async with flow_of(body, gate) as running:
        page = await gate.opening()
        assert (await running).is_completed()
    assert await state_of(page) == ("Cancelled", "the run was stopped while it waited here")


async def test_a_run_restarted_after_a_kill_asks_again_and_leaves_one_page_waiting() -> None:
    gate, ids = InMemoryGate(request_of(step_id="a")), list[UUID]()

    async def killed() -> State:
        flow = FlowRunContext.get()
        assert flow is not None and flow.flow_run is not None
        ids.append(flow.flow_run.id)
        await ask(gate)
        return Completed()

    async def steps() -> State:
        return await killed()

    flow = Flow(steps, name="steps", persist_result=False)
    first = asyncio.create_task(run_flow(flow, {}))
    await gate.opening()
    again = asyncio.create_task(run_flow(flow, {}, flow_run_id=str(ids[0])))
    new = await gate.opening(2)
    try:
        async with asyncio.timeout(WAIT_SECONDS):  # Running at moments: the first run is not really dead, and asks again as well
            while [run.id for run in await subflows(ids[0]) if run.state_name == "Paused"] != [new]:
                await asyncio.sleep(0.05)
        assert len(gate.answers) == 0
    finally:
        gate.close("cancelled")
        await asyncio.wait({first, again}, timeout=20)
