"""Tests of our tools in agents of the OpenAI Agents SDK, with a model server over HTTP."""

import json
from typing import Any

import pytest
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, RunState
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


def agent_of(server: ScriptedServer, tools: list[Any]) -> Agent[Any]:
    client = AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0)
    return Agent("concierge", tools=tools, model=OpenAIChatCompletionsModel("m", openai_client=client))


def returns(request: Request) -> list[str]:
    """Return what the model got for its calls."""
    return [message["content"] for message in request["messages"] if message["role"] == "tool"]


async def test_the_model_reads_results_failures_and_rejections(desk: Desk) -> None:
    posts = calls({"text": "hi", "channel": None}, {"text": "fails", "channel": None}, {"text": "reject me", "channel": None}, "[]")
    with scripted(
        posts, calls({}, name="purge", first_id=4), calls({"city": "Oslo"}, name="look", first_id=5), says("done"), streams="never"
    ) as server:
        run = await Runner.run(agent_of(server, [*plan_tools(desk.tools, **desk.options())]), "Post", run_config=CONFIG)
    assert run.final_output == "done"
    result, failure, rejection, misfit, refusal, text = returns(server.requests[-1])
    assert result in ('{"id": 1}', '{"id": 2}')
    assert failure == "the channel refuses the key ***"
    assert rejection == "`post` was not called: rejected by ana: not on a Friday"
    assert misfit == "the arguments are not a JSON object"
    assert "needs the permission `allow_purge`" in refusal
    assert text == "Oslo knows ***"
    assert sorted(desk.posted) == ["fails", "hi"]
    assert SECRET not in str(server.requests)


async def test_a_tool_has_a_strict_schema(desk: Desk) -> None:
    with scripted(says("done"), streams="never") as server:
        await Runner.run(agent_of(server, [*plan_tools(desk.poster, **desk.options())]), "Post", run_config=CONFIG)
    [declared] = server.requests[0]["tools"]
    assert declared["function"]["strict"] is True
    assert declared["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What to post."},
            "channel": {
                "anyOf": [
                    {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "Where; by default everywhere."},
                    {"type": "null"},
                ]
            },
        },
        "required": ["text", "channel"],
        "additionalProperties": False,
    }


async def test_an_unknown_outcome_ends_the_agent(desk: Desk) -> None:
    with scripted(calls({"text": "lost", "channel": None}), says("done"), streams="never") as server:
        agent = agent_of(server, [*plan_tools(desk.poster, **desk.options())])
        with pytest.raises(Exception, match="the outcome of `post` is unknown: the connection broke") as raised:
            await Runner.run(agent, "Post", run_config=CONFIG)
    assert isinstance(raised.value, UnknownOutcomeError) or isinstance(raised.value.__cause__, UnknownOutcomeError)
    assert (desk.posted, len(server.requests)) == (["lost"], 1)


async def test_a_run_that_is_resumed_from_its_state_makes_no_second_effect(desk: Desk) -> None:
    """The state is saved before the call. The process that saved it and the one that loads it both make the call."""
    tools = plan_tools(desk.poster, **desk.options())
    for made in tools:
        made.needs_approval = True  # the SDK's own confirmation, at which it saves its state
    given = {"text": "hi", "channel": None}
    with scripted(calls(given), says("done"), streams="never") as server:
        agent = agent_of(server, [*tools])
        waiting = (await Runner.run(agent, "Post", run_config=CONFIG)).to_state()
        loaded = await RunState.from_string(agent, waiting.to_string())
        for state in (waiting, loaded):
            state.approve(state.get_interruptions()[0])
            assert (await Runner.run(agent, state, run_config=CONFIG)).final_output == "done"
            assert returns(server.requests[-1]) == ['{"id": 1}']
    assert desk.posted == ["hi"]
    assert len(await desk.store.runs()) == 1


async def test_conversations_with_the_same_ids_of_calls_make_their_own_calls(desk: Desk) -> None:
    given = {"text": "hi", "channel": None}
    with scripted(calls(given, response="a"), says("done"), calls(given, response="b"), says("done"), streams="never") as server:
        agent = agent_of(server, [*plan_tools(desk.poster, **desk.options())])
        for _ in range(2):
            await Runner.run(agent, "Post", run_config=CONFIG)
    assert desk.posted == ["hi", "hi"]
