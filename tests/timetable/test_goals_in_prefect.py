"""Tests of a timetable goal in a flow run: each decision, call and check is its own task run."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

from deployments.timetable import week
from plan_adapter import PlanStore, compile_plan
from plan_adapter.engine.connection import Server, use_server
from plan_adapter.gates import CallbackApprover
from plan_adapter.store import load_plan
from plan_adapter.validation import validate
from tests.agent.goal_players import playing
from tests.agent.server import ScriptedServer, scripted
from tests.timetable.pursuit import PLACE, Person, placed, places_a_task

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("timetable")]


TASK_RUNS = {
    *(f"decision schedule[{number}]" for number in (1, 2, 3, 4)),
    "schedule[round 1: list_tasks(status=pending)]",
    "schedule[round 2: find_free(day=2)]",
    "schedule[round 3: place(task=3, day=2, slot=1)]",
    "check schedule[4]",
    "schedule",
}


async def test_each_round_is_shown_as_task_runs(
    store: PlanStore, configured: Callable[[ScriptedServer], ScriptedServer], prefect_server: Server
) -> None:
    validated = validate(load_plan(PLACE), week.TOOLS)
    with scripted(playing(places_a_task())) as server, use_server(prefect_server):
        configured(server)
        flow = compile_plan(validated, tools=week.TOOLS, store=store, approver=CallbackApprover(Person(), by="ana"))
        state: Any = await flow(return_state=True)
        assert state.is_completed(), state.message
        (listed,) = await store.runs()
        run = await store.run(listed.id)
        async with get_client() as client:
            in_run = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run.flow_run_id)]))
            while not {task_run.name for task_run in await client.read_task_runs(flow_run_filter=in_run)} >= TASK_RUNS:
                await asyncio.sleep(0.05)  # they arrive as events, a moment later
    assert placed() == {"高数作业": (2, 1)}
