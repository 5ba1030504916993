"""Tests of `PromptedGoalModel` with a scripted server: every rung, what it records of an answer, and the verifier."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import ValidationError

from plan_adapter import ExecutionPlan, PlanStore, Step
from plan_adapter.agent.goal_model import TEXT_CHARACTERS, VERIFIER_ANSWERS, PromptedGoalModel
from plan_adapter.agent.openai_model import RUNGS
from plan_adapter.execution.redactor import Redactor
from plan_adapter.local.settings import Settings
from plan_adapter.model.drafts import Rung
from plan_adapter.model.errors import ModelError
from plan_adapter.model.goals import ToolCallIntent, Verdict
from plan_adapter.runner import arun_plan
from plan_adapter.store import PlanStatus
from tests.agent.goal_players import Seen, playing
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


async def test_effort_and_temperature_are_sent_with_rounds_and_verdicts_as_the_settings_say(
    store: PlanStore, configured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_once(what: Seen) -> Any:
        return what.end("E1 shows it") if what.evidence else LOOK

    monkeypatch.setenv("PLAN_ADAPTER_GOAL_EFFORT", "low")
    monkeypatch.setenv("PLAN_ADAPTER_GOAL_TEMPERATURE", "0.2")
    step = Step(id="g", goal="看看", done_when="it is up", tools=["look"])
    plan = ExecutionPlan(name="g", description="g", options={"require_approval": False}, steps=[step])
    with scripted(playing(look_once)) as server:
        configured(server)
        run = await arun_plan(plan, tools=TOOLS, store=store, offline=True)
    assert run.status is PlanStatus.COMPLETED
    names = [request["response_format"]["json_schema"]["name"] for request in server.requests]
    assert names == ["goal_decision", "goal_decision", "goal_verdict"]
    assert {(request["reasoning_effort"], request["temperature"]) for request in server.requests} == {("low", 0.2)}


async def test_without_the_settings_neither_effort_nor_temperature_is_sent() -> None:
    with scripted(says(LOOK)) as server:
        async with goal_model(server) as model:
            await model.decide(a_goal())
    assert not {"reasoning_effort", "temperature"} & server.requests[0].keys()


async def test_a_temperature_that_the_server_refuses_is_left_out_from_then_on() -> None:
    with scripted(says(LOOK), refuses=["temperature"]) as server:
        model = model_at(server.url)
        rounds = PromptedGoalModel(model, TOOLS, temperature=0.0, effort="high")
        assert [(await rounds.decide(a_goal())).faults for _ in range(2)] == [(), ()]
        await model.aclose()
    assert ["temperature" in request for request in server.requests] == [True, False, False]
    assert server.requests[-1]["reasoning_effort"] == "high"


@pytest.mark.parametrize(("name", "value"), [("EFFORT", "huge"), ("TEMPERATURE", "3"), ("TEMPERATURE", "-1"), ("TEMPERATURE", "warm")])
def test_a_wrong_effort_or_temperature_is_an_error_of_the_settings(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"PLAN_ADAPTER_GOAL_{name}", value)
    with pytest.raises(ValidationError, match=f"goal_{name.lower()}"):
        Settings()


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
