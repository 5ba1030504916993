"""Tests of our tools in agents of pydantic-ai: what the model reads, and that a call that is repeated has one effect."""

from collections.abc import Mapping
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic_ai import (
    Agent,
    ModelHTTPError,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UnexpectedModelBehavior,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from plan_adapter.errors import UnknownOutcomeError
from plan_adapter.integrations.pydantic_ai import PlanToolset
from tests.agent.server import Reply, scripted
from tests.integrations.conftest import SECRET, Desk


def model_that_calls(*calls: tuple[str, Mapping[str, Any]], turns: int = 1) -> FunctionModel:
    """Return a model that makes these calls, named `call_0`, `call_1`, … in each of its first `turns` turns, and then says `done`."""

    def answer(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if sum(isinstance(message, ModelResponse) for message in messages) >= turns:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(name, dict(given), f"call_{number}") for number, (name, given) in enumerate(calls)])

    return FunctionModel(answer)


def returns(messages: list[ModelMessage]) -> list[tuple[str, Any]]:
    """Return the results that the model got for its calls: the outcome, and the content."""
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    return [(part.outcome, part.content) for part in parts if isinstance(part, ToolReturnPart)]


async def test_the_model_reads_results_failures_and_rejections(desk: Desk) -> None:
    model = model_that_calls(("post", {"text": "hi"}), ("post", {"text": "fails"}), ("post", {"text": "reject me"}), ("purge", {}))
    run = await Agent(model, toolsets=[PlanToolset(desk.tools, **desk.options())]).run("Post")
    assert run.output == "done"
    result, failure, rejection, refusal = returns(run.all_messages())
    assert result[0] == "success" and result[1]["id"] in (1, 2)
    assert failure == ("retried", "the channel refuses the key ***")
    assert rejection == ("denied", "`post` was not called: rejected by ana: not on a Friday")
    assert refusal[0] == "denied" and "needs the permission `allow_purge`" in refusal[1]
    assert sorted(desk.posted) == ["fails", "hi"]


async def test_arguments_that_do_not_fit_are_corrected_by_the_model_before_anybody_is_asked(desk: Desk) -> None:
    asked = list[Any]()
    model = model_that_calls(("post", {"txt": "hi"}))
    run = await Agent(model, toolsets=[PlanToolset(desk.tools, **desk.options(asked.append))]).run("Post")
    assert returns(run.all_messages())[0][0] == "retried"
    assert "the arguments do not fit `post`" in returns(run.all_messages())[0][1]
    assert asked == []


async def test_retries_of_a_failing_tool_are_limited(desk: Desk) -> None:
    agent = Agent(
        model_that_calls(("post", {"text": "fails"}), turns=9), toolsets=[PlanToolset(desk.tools, max_retries=2, **desk.options())]
    )
    with pytest.raises(UnexpectedModelBehavior, match="post"):
        await agent.run("Post")
    assert len(desk.posted) == 3


async def test_a_rejected_model_is_not_told_to_try_again(desk: Desk) -> None:
    agent = Agent(model_that_calls(("post", {"text": "reject me"})), toolsets=[PlanToolset(desk.tools, max_retries=0, **desk.options())])
    run = await agent.run("Post")  # a retry would end the agent, because it has none
    assert run.output == "done"
    assert desk.posted == []


async def test_an_unknown_outcome_ends_the_agent(desk: Desk) -> None:
    agent = Agent(model_that_calls(("post", {"text": "lost"})), toolsets=[PlanToolset(desk.tools, **desk.options())])
    with pytest.raises(UnknownOutcomeError, match="the outcome of `post` is unknown: the connection broke"):
        await agent.run("Post")
    assert desk.posted == ["lost"]


async def test_an_agent_that_is_continued_from_its_messages_makes_no_second_effect(desk: Desk) -> None:
    agent = Agent(model_that_calls(("post", {"text": "hi"})), toolsets=[PlanToolset(desk.tools, **desk.options())])
    messages = (await agent.run("Post")).all_messages()
    assert isinstance(messages[1], ModelResponse)
    continued = await agent.run(message_history=messages[:2])  # as if the process had died in the call
    assert continued.run_id != messages[1].run_id
    assert returns(continued.all_messages()) == returns(messages) == [("success", {"id": 1})]
    assert desk.posted == ["hi"]
    assert len(await desk.store.runs()) == 1


async def test_a_model_that_repeats_its_ids_makes_each_call(desk: Desk) -> None:
    agent = Agent(model_that_calls(("post", {"text": "hi"}), turns=2), toolsets=[PlanToolset(desk.tools, **desk.options())])
    run = await agent.run("Post")
    assert returns(run.all_messages()) == [("success", {"id": 1}), ("success", {"id": 2})]


async def test_over_http_the_server_gets_the_schema_of_a_tool_and_no_secret(desk: Desk) -> None:
    with scripted(Reply(calls=('{"text": "fails"}',)), Reply(calls=('{"text": "hi"}',)), Reply(status=400, error="enough")) as server:
        async with AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
            agent = Agent(model, toolsets=[PlanToolset(desk.poster, **desk.options())])
            with pytest.raises(ModelHTTPError, match="enough"):
                await agent.run("Post")
    assert desk.posted == ["fails", "hi"]
    function = server.requests[0]["tools"][0]["function"]
    assert (function["name"], function["description"]) == ("post", "Post a message.")
    assert function["parameters"]["properties"]["text"]["description"] == "What to post."
    assert "***" in str(server.requests[1]["messages"])
    assert SECRET not in str(server.requests)


async def test_a_result_has_no_secret(desk: Desk) -> None:
    agent = Agent(model_that_calls(("look", {"city": "Oslo"})), toolsets=[PlanToolset(desk.tools, **desk.options())])
    assert returns((await agent.run("Look")).all_messages()) == [("success", "Oslo knows ***")]
