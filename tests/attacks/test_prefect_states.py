"""Tests of attacks through Prefect's API on the task runs and flow runs of a run: no gate opens, and no step runs twice.

The tool is a Prefect task, whose steps run in Prefect's own engine, or a function, whose task runs this package updates.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest
from prefect import get_client, task
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State, TaskRun
from prefect.results import ResultStore
from prefect.states import Completed, Crashed, Failed, Pending, Running, Scheduled
from prefect.utilities.engine import emit_task_run_state_change_event

from plan_adapter import ExecutionPlan, PlanRun, ToolRegistry, compile_plan, tool
from plan_adapter.engine.internals import rerun
from plan_adapter.errors import RunConflictError
from plan_adapter.gates import PrefectApprover
from plan_adapter.model.approvals import Gate
from plan_adapter.model.status import StepStatus
from plan_adapter.plans import validate
from plan_adapter.runs import aresume_run, arun_plan
from plan_adapter.store import PlanStatus
from plan_adapter.tools import as_tool
from tests.engine.calls import flow_run, task_runs
from tests.gates.world import World, raise_if_over

pytestmark = pytest.mark.usefixtures("prefect_server")

KINDS = ["task", "function"]


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """Return the URL of an empty SQLite store. These tests attack Prefect, so one kind of database is enough."""
    return f"sqlite:///{tmp_path / 'plans.db'}"


def tools_of(world: World, kind: str) -> ToolRegistry:
    def strike(target: str) -> str:
        """Strike a target."""
        world.struck.append(target)
        return f"{target}!"

    wrapped = as_tool(task(tags=["attacked"])(strike), effect="write")
    return ToolRegistry([wrapped if kind == "task" else tool(effect="write")(strike)])


def a_plan(*, gated: bool) -> ExecutionPlan:
    plan = ExecutionPlan(description="Strike 目标")
    plan.add_step("strike", "Strike it", {"target": "a"}, id="strike", requires_approval=gated)
    plan.options.require_approval = False
    return plan


async def emit(flow_run_id: UUID, step: str, state: State) -> None:
    """Forge the event that tells Prefect the state of a step's task run."""
    run = TaskRun(id=uuid5(flow_run_id, step), name=step, flow_run_id=flow_run_id, task_key=step, dynamic_key=step)
    state.state_details.flow_run_id, state.state_details.task_run_id = flow_run_id, run.id
    run.state, run.state_id, run.state_type, run.state_name = state, state.id, state.type, state.name
    emit_task_run_state_change_event(task_run=run, initial_state=None, validated_state=state)


async def delete_task_runs(client: PrefectClient, flow_run_id: UUID) -> None:
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    for found in await client.read_task_runs(flow_run_filter=wanted):
        await client.delete_task_run(found.id)


def with_alternating_kinds(attacks: Sequence[Callable[..., Any]]) -> list[Any]:
    """Return each attack with one kind of tool, in alternation. `make thorough` also tries the other kind."""
    pairs = [(KINDS[(place + turn) % 2], attack, turn) for turn in range(2) for place, attack in enumerate(attacks)]
    return [pytest.param(kind, attack, marks=pytest.mark.thorough if turn else ()) for kind, attack, turn in pairs]


# At the gate of the step

Attack = Callable[[PrefectClient, UUID, UUID], Awaitable[object]]
"""Takes the flow run of the run and the flow run of the gate's page."""


async def a_forged_event_says_completed(_client: PrefectClient, run: UUID, _page: UUID) -> None:
    await emit(run, "strike", Completed(data="a!"))


async def a_forged_event_says_running(_client: PrefectClient, run: UUID, _page: UUID) -> None:
    await emit(run, "strike", Running())


async def the_task_runs_are_deleted(client: PrefectClient, run: UUID, _page: UUID) -> None:
    await delete_task_runs(client, run)


async def the_page_of_the_gate_is_deleted(client: PrefectClient, _run: UUID, page: UUID) -> None:
    await client.delete_flow_run(page)


async def the_flow_run_is_set_to_completed(client: PrefectClient, run: UUID, _page: UUID) -> None:
    await client.set_flow_run_state(run, Completed(name="Approved", message="approved by ana"), force=True)


async def the_flow_run_is_resumed(client: PrefectClient, run: UUID, _page: UUID) -> None:
    await client.resume_flow_run(run, run_input={"decision": "approve", "approver": "ana"})


async def a_result_is_planted_where_prefect_looks_for_it(_client: PrefectClient, run: UUID, _page: UUID) -> None:
    store = ResultStore()
    for key in ("strike", str(uuid5(run, "strike")), f"strike-{run}"):
        await store.awrite(obj="a!", key=key)


AT_THE_GATE: tuple[Attack, ...] = (
    a_forged_event_says_completed,
    a_forged_event_says_running,
    the_task_runs_are_deleted,
    the_page_of_the_gate_is_deleted,
    the_flow_run_is_set_to_completed,
    the_flow_run_is_resumed,
    a_result_is_planted_where_prefect_looks_for_it,
)


@pytest.mark.parametrize(
    ("kind", "attack"),
    with_alternating_kinds(AT_THE_GATE),
    ids=lambda given: given if isinstance(given, str) else given.__name__,
)
async def test_a_gated_step_is_not_called_after_an_attack(kind: str, attack: Attack, world: World) -> None:
    work = arun_plan(a_plan(gated=True), tools=tools_of(world, kind), approver=PrefectApprover(), store=world.store)
    world.tasks.append(going := asyncio.ensure_future(work))
    gate, page = await _page(world)
    run = await world.store.run(gate.run_id)
    async with get_client() as client:
        await attack(client, UUID(run.flow_run_id or ""), page)
    ended = await world.end(going)
    assert world.struck == []
    assert (ended.status, ended.step("strike").status) == (PlanStatus.CANCELLED, StepStatus.SKIPPED)
    assert await world.store.attempts(run.id) == []


async def _page(world: World) -> tuple[Gate, UUID]:
    while True:
        gate = await world.gate(step="strike")
        if gate.flow_run_id is not None and gate.keyset is not None:
            state = (await flow_run(UUID(gate.flow_run_id))).state
            if state is not None and state.is_paused():
                return gate, UUID(gate.flow_run_id)
        raise_if_over(world.tasks)
        await asyncio.sleep(0.05)


# After the run


async def flow_run_is_pending(client: PrefectClient, run: UUID) -> None:
    await client.set_flow_run_state(run, Pending(), force=True)


async def flow_run_is_scheduled(client: PrefectClient, run: UUID) -> None:
    await client.set_flow_run_state(run, Scheduled(), force=True)


async def flow_run_is_running(client: PrefectClient, run: UUID) -> None:
    await client.set_flow_run_state(run, Running(), force=True)


async def flow_run_has_failed(client: PrefectClient, run: UUID) -> None:
    await client.set_flow_run_state(run, Failed(message="try again"), force=True)


async def flow_run_has_crashed_without_task_runs(client: PrefectClient, run: UUID) -> None:
    await delete_task_runs(client, run)
    await client.set_flow_run_state(run, Crashed(), force=True)


async def a_forged_event_says_failed(_client: PrefectClient, run: UUID) -> None:
    await emit(run, "strike", Failed(message="never done"))


AFTER_THE_RUN: tuple[Callable[[PrefectClient, UUID], Awaitable[object]], ...] = (
    flow_run_is_pending,
    flow_run_is_scheduled,
    flow_run_is_running,
    flow_run_has_failed,
    flow_run_has_crashed_without_task_runs,
    a_forged_event_says_failed,
)


@pytest.mark.parametrize(
    ("kind", "attack"),
    with_alternating_kinds(AFTER_THE_RUN),
    ids=lambda given: given if isinstance(given, str) else given.__name__,
)
async def test_a_completed_step_is_not_called_again_after_an_attack(
    kind: str, attack: Callable[[PrefectClient, UUID], Awaitable[object]], world: World
) -> None:
    registry = tools_of(world, kind)
    flow = compile_plan(validate(a_plan(gated=False), registry), tools=registry, store=world.store)
    run: PlanRun = await flow()
    flow_run_id = UUID(run.flow_run_id or "")
    await task_runs(flow_run_id, ["strike"])
    async with get_client() as client:
        await attack(client, flow_run_id)
    state: State[Any] = await rerun(flow, await flow_run(flow_run_id), {})
    assert world.struck == ["a"], state
    with pytest.raises(RunConflictError):
        await aresume_run(run.id, tools=registry, store=world.store)
    assert len(await world.store.receipts(run.id)) == 1
