"""The Python of `plan guide agents` runs as written: each agent calls a tool, and its gate is answered while it waits."""

import ast
import asyncio
import re
from collections.abc import Awaitable, Callable
from importlib.resources import files
from types import CodeType
from typing import Any

import pytest
from agents import RunConfig, Runner
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from plan_adapter import PlanStore
from plan_adapter.engine.connection import Server, use_server
from plan_adapter.runs import aanswer_gate
from tests.agent.test_automatic_replanning import wait_for_gate_form
from tests.integrations.conftest import Desk
from tests.integrations.test_openai_agents import calls, model_of, returns, says, scripted
from tests.integrations.test_pydantic_ai import model_that_calls

PAGE = files("plan_adapter").joinpath("guide", "agents.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
GIVEN = {"text": "Breakfast is served"}
RESULT = {"posted": "Breakfast is served"}


@pytest.fixture
def page(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the blocks of the page define."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    names = dict[str, Any]()
    for block in BLOCKS:
        code: CodeType = compile(ast.parse(block), "agents.md", "exec")
        exec(code, names)
    return names


async def with_pydantic_ai(page: dict[str, Any]) -> Any:
    run = await page["agent"].run("Announce it", model=model_that_calls(("post", GIVEN)))
    return run.all_messages()[2].parts[0].content


async def with_langgraph(page: dict[str, Any]) -> Any:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("tools", page["node"])
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    asked = AIMessage("", tool_calls=[{"name": "post", "args": GIVEN, "id": "call_0"}])
    return ast.literal_eval((await graph.compile().ainvoke({"messages": [asked]}))["messages"][-1].content)


async def with_openai_agents(page: dict[str, Any]) -> Any:
    with scripted(calls(GIVEN), says("done"), streams="never") as server:
        async with model_of(server) as model:
            await Runner.run(page["concierge"], "Announce it", run_config=RunConfig(model=model, tracing_disabled=True))
        return ast.literal_eval(returns(server.requests[-1])[0])


async def with_functions(page: dict[str, Any]) -> Any:
    [post] = [function for function in page["functions"] if function.__name__ == "post"]
    return await post(**GIVEN)


async def with_a_plan(page: dict[str, Any]) -> Any:
    assert page["definition"]["function"]["name"] == "announce"
    return await page["announce"]('{"text": "Breakfast is served"}')


@pytest.mark.parametrize(
    "play", [with_pydantic_ai, with_langgraph, with_openai_agents, with_functions, with_a_plan], ids=lambda play: play.__name__
)
async def test_an_agent_of_the_page_waits_for_ana(
    prefect_server: Server, page: dict[str, Any], play: Callable[[dict[str, Any]], Awaitable[Any]]
) -> None:
    async with PlanStore() as store:
        with use_server(prefect_server):
            played = asyncio.ensure_future(play(page))
            gate = await wait_for_gate_form(store, played)
            await aanswer_gate(await store.gates.get(gate.id), "approve", by="ana", store=store)
            assert await played == RESULT
        [run] = await store.runs()
    assert (run.approved_by, run.flow_run_id is not None) == ("ana", True)


def test_the_page_runs_all_its_blocks() -> None:
    assert len(BLOCKS) == 6
