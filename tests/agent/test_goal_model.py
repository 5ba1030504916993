"""Tests of `PromptedGoalModel` with a scripted server: every rung, what it records of an answer, and the verifier."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from plan_adapter.agent.goals import TEXT_CHARACTERS, VERIFIER_ANSWERS, PromptedGoalModel
from plan_adapter.agent.openai_model import RUNGS
from plan_adapter.drafts import Rung
from plan_adapter.errors import ModelError
from plan_adapter.execution.secrets import Redactor
from plan_adapter.goals import ToolCallIntent, Verdict
from tests.agent.goals import TOOLS, a_goal, call, looked, model_answer
from tests.agent.questions import model_at
from tests.agent.server import Reply, ScriptedServer, says, scripted

LOOK = model_answer("continue", tool_call=call("look", host="web-1", labels={"应用": "网站"}))


@asynccontextmanager
async def goal_model(server: ScriptedServer, redactor: Redactor | None = None, **options: Any) -> AsyncIterator[PromptedGoalModel]:
    model = model_at(server.url, **options)
    yield PromptedGoalModel(model, TOOLS, redactor=redactor)
    await model.aclose()


@pytest.mark.parametrize("rung", RUNGS)
async def test_every_rung_returns_a_decision(rung: Rung) -> None:
    strict = model_answer(
        "continue", tool_call={"name": "look", "arguments": {"host": "web-1", "labels": '{"应用": "网站"}', "lines": None}}
    )
    with scripted(says(strict | {"goal_check": None, "abort": None} if rung == "strict_schema" else LOOK)) as server:
        async with goal_model(server, first_rung=rung) as model:
            answer = await model.decide(a_goal())
    assert answer.faults == ()
    assert answer.decision is not None
    assert answer.decision.tool_call == ToolCallIntent(name="look", arguments={"host": "web-1", "labels": {"应用": "网站"}})
    assert (answer.model, answer.tokens) == ("m", 15)
    (request,) = server.requests
    assert request["max_completion_tokens"] == 8192
    request_text = json.dumps(request, ensure_ascii=False)
    assert "Restart a host." in request_text
    assert "next_plan" in request_text


async def test_the_decision_schema_is_strict_and_lists_the_arguments_of_each_tool() -> None:
    with scripted(says(LOOK)) as server:
        async with goal_model(server) as model:
            await model.decide(a_goal())
            await model.decide(a_goal(looked(1)))
    first, second = (request["response_format"]["json_schema"] for request in server.requests)
    assert first == second
    assert first["strict"] is True
    schema = first["schema"]
    assert schema["required"] == ["action", "speak", "reason", "goal_check", "tool_call", "abort"]
    calls = schema["properties"]["tool_call"]["anyOf"][0]["anyOf"]
    assert [call["properties"]["name"]["enum"] for call in calls] == [["label"], ["look"], ["restart"]]
    assert [sorted(call["properties"]["arguments"]["properties"]) for call in calls] == [
        ["host", "name"],
        ["host", "labels", "lines"],
        ["host"],
    ]


async def test_a_faulty_answer_is_recorded_with_its_faults_and_its_text() -> None:
    with scripted(Reply("I restart it now! " + "好" * 20_000)) as server:
        async with goal_model(server, first_rung="text") as model:
            answer = await model.decide(a_goal())
    assert answer.decision is None
    assert len(answer.faults) == 1
    assert answer.text.startswith("I restart it now! 好")
    assert len(answer.text) == TEXT_CHARACTERS
    assert answer.tokens == 15


async def test_fault_12_an_answer_is_recorded_without_secrets() -> None:
    redactor = Redactor()
    redactor.add("canary-密-7")
    with scripted(Reply("canary-密-7 https://u:hunter2@h/")) as server:
        async with goal_model(server, redactor, first_rung="text") as model:
            answer = await model.decide(a_goal(goal="use canary-密-7"))
    assert answer.text == "*** https://u:***@h/"
    assert "canary" not in json.dumps([answer.model_dump(mode="json"), server.requests], ensure_ascii=False)


async def test_a_failing_model_server_raises_a_model_error() -> None:
    with scripted(Reply(status=500, error="out of order")) as server:
        async with goal_model(server) as model:
            with pytest.raises(ModelError, match="500"):
                await model.decide(a_goal())
            with pytest.raises(ModelError, match="500"):
                await model.verify(a_goal(looked(1)))


@pytest.mark.parametrize("verdict", ["met", "not_met", "cannot_tell"])
async def test_the_verifier_returns_one_of_three_verdicts(verdict: Any) -> None:
    with scripted(says({"verdict": verdict, "receipts": ["E1"], "reason": "看到了"})) as server:
        async with goal_model(server) as model:
            assert await model.verify(a_goal(looked(1))) == Verdict(verdict=verdict, reason="看到了", tokens=15)
    assert server.requests[0]["response_format"]["json_schema"]["name"] == "goal_verdict"


async def test_a_goal_without_evidence_is_not_met_and_no_model_is_asked() -> None:
    with scripted(says({"verdict": "met", "receipts": ["E1"], "reason": ""})) as server:
        async with goal_model(server) as model:
            assert await model.verify(a_goal()) == Verdict(verdict="not_met", reason="there is no evidence")
    assert server.requests == []


async def test_an_unusable_verdict_is_corrected_and_finally_becomes_cannot_tell() -> None:
    wrong, right = says({"verdict": "met", "receipts": [], "reason": ""}), says({"verdict": "met", "receipts": ["E1"], "reason": "ok"})
    with scripted(wrong, right) as server:
        async with goal_model(server) as model:
            assert await model.verify(a_goal(looked(1))) == Verdict(verdict="met", reason="ok", tokens=30)
    assert "`met` needs the ids" in server.requests[1]["messages"][-1]["content"]
    with scripted(wrong) as server:
        async with goal_model(server) as model:
            verdict = await model.verify(a_goal(looked(1)))
    assert len(server.requests) == VERIFIER_ANSWERS
    assert (verdict.verdict, verdict.tokens) == ("cannot_tell", 15 * VERIFIER_ANSWERS)
    assert verdict.reason.startswith("the verifier's answer could not be used: `met` needs")
