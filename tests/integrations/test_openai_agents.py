"""Tests of our tools in agents of the OpenAI Agents SDK, with a model server over HTTP."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, RunState, UserError
from openai import AsyncOpenAI

from plan_adapter.errors import UnknownOutcomeError
from plan_adapter.integrations.openai_agents import plan_tools
from tests.agent.server import Reply, Request, ScriptedServer, scripted
from tests.integrations.conftest import SECRET, Desk

CONFIG = RunConfig(tracing_disabled=True)


def calls(*arguments: str | dict[str, Any], name: str = "post", first_id: int = 0, response: str = "chatcmpl-1") -> Reply:
    """Return the reply that calls a tool with each of these arguments."""
    made = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": _text(given)}}
        for number, given in enumerate(arguments, first_id)
    ]
    return _reply({"role": "assistant", "content": None, "tool_calls": made}, response)


def says(text: str) -> Reply:
    """Return the reply that ends the agent."""
    return _reply({"role": "assistant", "content": text})


def _text(given: str | dict[str, Any]) -> str:
    return given if isinstance(given, str) else json.dumps(given)


def _reply(message: dict[str, Any], response: str = "chatcmpl-1") -> Reply:
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": response, "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return Reply(raw=json.dumps(body).encode())


@asynccontextmanager
async def model_of(server: ScriptedServer) -> AsyncGenerator[OpenAIChatCompletionsModel]:
    """Yield the model that the server has."""
    async with AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield OpenAIChatCompletionsModel("m", openai_client=client)


@asynccontextmanager
async def agent_with(tools: list[Any], *script: Reply) -> AsyncGenerator[tuple[Agent[Any], list[Request]]]:
    """Yield an agent whose model answers from a script, and the requests that its server gets."""
    with scripted(*script, streams="never") as server:
        async with model_of(server) as model:
            yield Agent("concierge", tools=tools, model=model), server.requests


def returns(request: Request) -> list[str]:
    """Return the results that the model got for its calls."""
    return [message["content"] for message in request["messages"] if message["role"] == "tool"]


async def test_the_model_reads_results_failures_and_rejections(desk: Desk) -> None:
    posts = calls({"text": "hi", "channel": None}, {"text": "fails", "channel": None}, {"text": "reject me", "channel": None}, "[]")
    others = calls({}, name="purge", first_id=4), calls({"city": "Oslo"}, name="look", first_id=5)  # the SDK refuses a repeated id
    async with agent_with([*plan_tools(desk.tools, **desk.options())], posts, *others, says("done")) as (agent, requests):
        run = await Runner.run(agent, "Post", run_config=CONFIG)
    assert run.final_output == "done"
    result, failure, rejection, misfit, refusal, text = returns(requests[-1])
    assert result in ('{"id": 1}', '{"id": 2}')
    assert failure == "the channel refuses the key ***"
    assert rejection == "`post` was not called: rejected by ana: not on a Friday"
    assert misfit == "the arguments are not a JSON object"
    assert "needs the permission `allow_purge`" in refusal
    assert text == "Oslo knows ***"
    assert sorted(desk.posted) == ["fails", "hi"]
    assert SECRET not in str(requests)


async def test_a_tool_has_a_strict_schema(desk: Desk) -> None:
    async with agent_with([*plan_tools(desk.poster, **desk.options())], says("done")) as (agent, requests):
        await Runner.run(agent, "Post", run_config=CONFIG)
    [declared] = requests[0]["tools"]
    parameters = declared["function"]["parameters"]
    assert declared["function"]["strict"] is True
    assert parameters["properties"]["text"] == {"type": "string", "description": "What to post."}
    assert {"type": "null"} in parameters["properties"]["channel"]["anyOf"]
    assert (parameters["required"], parameters["additionalProperties"]) == (["text", "channel"], False)


async def test_an_unknown_outcome_ends_the_agent(desk: Desk) -> None:
    lost = calls({"text": "lost", "channel": None})
    async with agent_with([*plan_tools(desk.poster, **desk.options())], lost, says("done")) as (agent, requests):
        with pytest.raises(UserError, match="the outcome of `post` is unknown: the connection broke") as raised:
            await Runner.run(agent, "Post", run_config=CONFIG)
    assert isinstance(raised.value.__cause__, UnknownOutcomeError)
    assert (desk.posted, len(requests)) == (["lost"], 1)


async def test_a_run_that_is_resumed_from_its_state_makes_no_second_effect(desk: Desk) -> None:
    """The state is saved before the call. The process that saved it and the one that loads it both make the call."""
    tools = plan_tools(desk.poster, **desk.options())
    for made in tools:
        made.needs_approval = True  # the SDK's own confirmation, at which it saves its state
    async with agent_with([*tools], calls({"text": "hi", "channel": None}), says("done")) as (agent, requests):
        waiting = (await Runner.run(agent, "Post", run_config=CONFIG)).to_state()
        loaded = await RunState.from_string(agent, waiting.to_string())
        for state in (waiting, loaded):
            state.approve(state.get_interruptions()[0])
            assert (await Runner.run(agent, state, run_config=CONFIG)).final_output == "done"
            assert returns(requests[-1]) == ['{"id": 1}']
    assert desk.posted == ["hi"]
    assert len(await desk.store.runs()) == 1


async def test_conversations_with_the_same_ids_of_calls_make_their_own_calls(desk: Desk) -> None:
    first, second = (calls({"text": "hi", "channel": None}, response=response) for response in ("a", "b"))
    script = first, says("done"), second, says("done")
    async with agent_with([*plan_tools(desk.poster, **desk.options())], *script) as (agent, _):
        for _ in range(2):
            await Runner.run(agent, "Post", run_config=CONFIG)
    assert desk.posted == ["hi", "hi"]
