"""Tests of agents' calls as flow runs on a Prefect server: gates that are answered while the agent waits, and flows that are retried."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prefect import flow
from pydantic_ai import Agent
from pydantic_ai.durable_exec.prefect import PrefectAgent, PrefectDurability
from pydantic_ai.models.function import FunctionModel

from plan_adapter.engine.connection import Server, use_server
from plan_adapter.integrations.pydantic_ai import PlanToolset
from plan_adapter.runs import aanswer_gate
from tests.agent.test_automatic_replanning import wait_for_gate_form
from tests.integrations.conftest import Desk
from tests.integrations.test_pydantic_ai import model_that_calls, returns


async def test_a_gate_is_answered_while_the_agent_waits(prefect_server: Server, desk: Desk) -> None:
    toolset = PlanToolset(desk.poster, agent="concierge", store=desk.store)
    with use_server(prefect_server):
        agent = asyncio.ensure_future(Agent(model_that_calls(("post", {"text": "hi"})), toolsets=[toolset]).run("Post"))
        gate = await wait_for_gate_form(desk.store, agent)
        assert desk.posted == []
        await aanswer_gate(await desk.store.gates.get(gate.id), "approve", by="ana", store=desk.store)
        assert returns((await agent).all_messages()) == [("success", {"id": 1})]
    [run] = await desk.store.runs()
    assert (run.name, run.approved_by, run.flow_run_id is not None) == ("concierge: post", "ana", True)


def with_durability(model: FunctionModel, toolset: PlanToolset) -> Any:
    return Agent(model, name="concierge", toolsets=[toolset], capabilities=[PrefectDurability()])


def with_prefect_agent(model: FunctionModel, toolset: PlanToolset) -> Any:
    with pytest.warns(match="`PrefectAgent` is deprecated"):
        return PrefectAgent(Agent(model, name="concierge", toolsets=[toolset]))


@pytest.mark.parametrize(("make_agent", "offline"), [(with_durability, False), (with_durability, True), (with_prefect_agent, False)])
async def test_a_flow_that_is_retried_makes_no_second_effect(
    prefect_server: Server, desk: Desk, make_agent: Callable[..., Any], offline: bool
) -> None:
    """Durable execution replays the agent: the model's answer comes from its cache, and the call has its run already."""
    model = model_that_calls(("post", {"text": "hi"}))
    toolset = PlanToolset(desk.poster, id="desk", **{**desk.options(), "offline": offline})
    agent = make_agent(model, toolset)
    seen = list[Any]()

    @flow(retries=1, retry_delay_seconds=0, persist_result=True)
    async def serve_guest() -> str:
        run = await agent.run("Post")
        seen.append(returns(run.all_messages()))
        if len(seen) == 1:
            raise RuntimeError("the flow fails after the call")
        return run.output

    with use_server(prefect_server):
        assert await serve_guest() == "done"
    assert seen == [[("success", {"id": 1})]] * 2
    assert desk.posted == ["hi"]
    assert len(await desk.store.runs()) == 1
