"""Tests of token limits with servers that do not count tokens, or count them wrong: the limits hold all the same."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from plan_adapter import ExecutionPlan, PlanStore, Step
from plan_adapter.agent.answer_text import read_answer
from plan_adapter.agent.goal_model import PromptedGoalModel
from plan_adapter.agent.model import Model, ModelAnswer, Question
from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.agent.planner import ESTIMATED, Budget, Planner
from plan_adapter.gates import CallbackApprover
from plan_adapter.model.drafts import Draft, Usage
from plan_adapter.model.goals import RoundAnswer, Verdict
from plan_adapter.runner import arun_plan
from plan_adapter.store import PlanStatus
from tests.agent.goals import TOOLS, a_goal, call, looked, model_answer
from tests.agent.questions import model_at
from tests.agent.server import Reply, Request, ScriptedServer, says, scripted
from tests.agent.test_planner import GOOD, TASK
from tests.agent.test_planner import TOOLS as DEPLOYING

USAGES: dict[str, Any] = {
    "none": None,
    "empty": {},
    "null": {"prompt_tokens": None, "completion_tokens": None},
    "zero": {"prompt_tokens": 0, "completion_tokens": 0},
    "negative": {"prompt_tokens": -100_000, "completion_tokens": 20},
    "both negative": {"prompt_tokens": -1, "completion_tokens": -1},
    "texts": {"prompt_tokens": "many", "completion_tokens": "few"},
    "not a number": {"prompt_tokens": float("nan"), "completion_tokens": float("nan")},
    "a list": [1, 2],
    "more than there are": {"prompt_tokens": 10**30, "completion_tokens": 10**30},
    "no count of the prompt": {"completion_tokens": 5},
}


def body(value: object, usage: Any) -> Reply:
    """Return the reply that says `value` and reports `usage`."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": json.dumps(value, ensure_ascii=False)}}
    return Reply(raw=json.dumps({"choices": [choice], "usage": usage, "model": "m"}).encode())


def looking(usage: Any) -> ScriptedServer:
    """Return a server whose model looks at another host in each round, forever."""
    hosts = iter(range(1000))

    def answer(_: Request) -> Reply:
        return body(model_answer("continue", tool_call=call("look", host=f"web-{next(hosts)}")), usage)

    return scripted(answer)


@pytest.mark.parametrize("kind", USAGES)
async def test_the_token_limit_ends_a_goal(kind: str, store: PlanStore, configured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_GOAL_TOKENS", "4000")
    step = Step(id="g", goal="看看", tools=["look"], max_rounds=60)
    plan = ExecutionPlan(name="g", description="g", options={"require_approval": False}, steps=[step])
    with looking(USAGES[kind]) as server:
        configured(server)
        run = await arun_plan(plan, tools=TOOLS, store=store, offline=True, approver=CallbackApprover(lambda _: True, by="ana"))
    assert (run.status, run.step("g").reason) == (PlanStatus.FAILED, "exhausted")
    assert "tokens; the limit is 4000" in (run.step("g").error or "")
    assert 1 < len(server.requests) < 10


@pytest.mark.parametrize("kind", USAGES)
async def test_the_token_limit_ends_a_draft_and_a_note_says_that_tokens_are_estimated(kind: str) -> None:
    with scripted(body({"action": "continue", "speak": "hm", "reason": "thinking"}, USAGES[kind])) as server:
        model = model_at(server.url)
        draft = await Planner(model, DEPLOYING, budget=Budget(tokens=10_000, rounds=100)).drafted(TASK)
        await model.aclose()
    assert "the budget of 10000 tokens is spent" in (draft.failure or "")
    assert 1 < len(server.requests) < 20
    assert draft.notes == [ESTIMATED]


async def test_reported_tokens_count_as_they_are(store: PlanStore) -> None:
    with scripted(says(GOOD)) as server:
        model = model_at(server.url)
        draft = await Planner(model, DEPLOYING, keep=store.drafts).drafted(TASK)
        await model.aclose()
    assert (draft.usage, draft.notes) == (Usage(10, 5), [])
    assert (await store.drafts.get(draft.id)).usage == Usage(10, 5)


async def test_each_request_counts_where_the_server_counts_none() -> None:
    usages = list[int]()
    for knows in (["json_schema_strict"], []):  # without response formats, the text is asked for in a fifth request
        with scripted(Reply(json.dumps(GOOD), tokens=None), knows=knows) as server:
            model = model_at(server.url)
            usages.append((await Planner(model, DEPLOYING).drafted(TASK)).usage.prompt)
            await model.aclose()
    assert usages[1] == 5 * usages[0]


class OwnModel:
    """A model of the user that counts wrong."""

    name = "own"

    def __init__(self, answer: object, usage: Usage) -> None:
        self.answer, self.usage = json.dumps(answer, ensure_ascii=False), usage

    async def ask(self, question: Question) -> ModelAnswer:
        return ModelAnswer(self.answer, read_answer(self.answer), self.name, "text", self.usage)


async def draft_of(model: Model, budget: Budget) -> Draft:
    return await Planner(model, DEPLOYING, budget=budget).drafted(TASK)


@pytest.mark.parametrize("usage", [Usage(), Usage(-50_000, -50_000), Usage(-50_000, 10)], ids=["none", "negative", "one negative"])
async def test_the_limits_hold_with_a_model_of_the_user(usage: Usage) -> None:
    draft = await draft_of(OwnModel({"action": "continue", "speak": "", "reason": ""}, usage), Budget(tokens=10_000, rounds=100))
    assert "the budget of 10000 tokens is spent" in (draft.failure or "")
    goal_model = PromptedGoalModel(OwnModel(model_answer("continue"), usage), TOOLS)
    assert (await goal_model.decide(a_goal())).tokens > 500
    verifier = PromptedGoalModel(OwnModel({"verdict": "not_met", "receipts": [], "reason": ""}, usage), TOOLS)
    assert (await verifier.verify(a_goal(looked(1)))).tokens > 300


async def test_an_estimate_counts_bytes_so_that_chinese_counts_too() -> None:
    english, chinese = [await draft_of(OwnModel(GOOD | {"speak": text * 4000}, Usage()), Budget()) for text in ("a", "部")]
    assert (chinese.usage.completion - english.usage.completion) == 2000


@pytest.mark.parametrize("kind", [RoundAnswer, lambda tokens: Verdict(verdict="met", tokens=tokens)], ids=["an answer", "a verdict"])
def test_a_goal_model_of_the_user_cannot_give_tokens_back(kind: Any) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        kind(tokens=-1)


async def test_a_draft_that_continues_counts_what_it_counted(store: PlanStore) -> None:
    with scripted(body(GOOD, None)) as server:
        model = OpenAIModel("m", base_url=server.url)
        first = await Planner(model, DEPLOYING, keep=store.drafts).drafted(TASK)
        await model.aclose()
    assert first.usage.total == (await store.drafts.get(first.id)).usage.total > 500
