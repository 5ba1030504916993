"""Tests of stored drafts: every question and answer is saved at once, without passwords, and survives a crash."""

import pytest

from plan_adapter.agent.model import Model, ModelAnswer, Question
from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.agent.planner import Planner
from plan_adapter.model.drafts import PlanRequest
from plan_adapter.model.errors import StoreError
from plan_adapter.model.options import ExecutionOptions
from plan_adapter.store.store import PlanStore
from tests.agent.server import says, scripted
from tests.agent.test_planner import DEPLOY, GOOD, TASK, TOOLS, done, step

REQUEST = PlanRequest(
    "部署 2.1, see https://ana:hunter2@wiki/x",
    context={"db": ["postgresql://app:hunter2@db/app"], "n": 1},
    constraints=("back up the database first",),
    max_steps=5,
    available_tools=("back_up", "deploy", "look"),
    options=ExecutionOptions(allow_parallel=True),
    metadata={"team": "平台"},
)


async def test_a_draft_is_saved_completely_and_read_back(store_url: str) -> None:
    with scripted(says(done(step("deploi", {}))), says(GOOD)) as server:
        model = OpenAIModel("m", base_url=server.url, api_key="sk-canary")
        async with PlanStore(store_url) as store:
            made = await Planner(model, TOOLS, keep=store.drafts).drafted(REQUEST)
            read = await store.drafts.get(made.id[:12])
            listed = await store.drafts.newest(limit=5)
        await model.aclose()
    assert (read.plan, read.constraints, read.notes, read.complexity, read.failure) == (
        made.plan,
        made.constraints,
        made.notes,
        "moderate",
        None,
    )
    assert [(c.number, c.rung, c.phase, c.prompt_digest, c.answer, c.problems, c.usage) for c in read.calls] == [
        (c.number, c.rung, c.phase, c.prompt_digest, c.answer, c.problems, c.usage) for c in made.calls
    ]
    assert read.calls[0].problems[0].startswith("steps[0].tool_name: [unknown-tool]")
    assert read.request.task == "部署 2.1, see https://ana:***@wiki/x"
    assert (read.request.context, read.request.options, read.request.metadata) == (
        {"db": ["postgresql://app:***@db/app"], "n": 1},
        REQUEST.options,
        {"team": "平台"},
    )
    assert [draft.id for draft in listed] == [made.id]
    assert read.created_at is not None
    assert "hunter2" not in repr(read)


async def test_a_failed_draft_is_saved_with_its_problems(store_url: str) -> None:
    with scripted(says(done(step("deploi", {})))) as server:
        model = OpenAIModel("m", base_url=server.url)
        async with PlanStore(store_url) as store:
            made = await Planner(model, TOOLS, keep=store.drafts).drafted(TASK)
            read = await store.drafts.get(made.id)
        await model.aclose()
    assert (read.plan, read.failure, read.problems, len(read.calls)) == (None, made.failure, made.problems, 3)


async def test_answers_recorded_before_a_crash_are_not_requested_again(store_url: str) -> None:
    class Ended(BaseException):
        pass

    asked = 0

    async def ask(model: Model, question: Question) -> ModelAnswer:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise Ended
        return await model.ask(question)

    with scripted(says(done(step("deploi", {}))), says(GOOD)) as server:
        model = OpenAIModel("m", base_url=server.url)
        async with PlanStore(store_url) as store:
            with pytest.raises(Ended):
                await Planner(model, TOOLS, keep=store.drafts, ask_model=ask).drafted(TASK, draft_id="d-1")
            draft = await Planner(model, TOOLS, keep=store.drafts).drafted(TASK, draft_id="d-1")
            kept = await store.drafts.get("d-1")
        await model.aclose()
        assert len(server.requests) == 2
    assert draft.plan is not None
    assert [call.number for call in kept.calls] == [1, 2]


async def test_a_redacted_answer_is_requested_again(store_url: str) -> None:
    answer = done({**DEPLOY, "depends_on": [], "description": "via https://u:hunter2@host/x"})
    with scripted(says(answer)) as server:
        model = OpenAIModel("m", base_url=server.url)
        async with PlanStore(store_url) as store:
            for _ in range(2):
                draft = await Planner(model, TOOLS, keep=store.drafts).drafted(PlanRequest("Deploy"), draft_id="d-1")
                assert draft.plan is not None
                assert "hunter2" in draft.plan.steps[0].description
            kept = await store.drafts.get("d-1")
        await model.aclose()
        assert len(server.requests) == 2
    assert "hunter2" not in kept.calls[0].answer


async def test_drafts_belong_to_their_tenant(store_url: str) -> None:
    with scripted(says(GOOD)) as server:
        model = OpenAIModel("m", base_url=server.url)
        async with PlanStore(store_url, tenant_id="a") as mine, PlanStore(store_url, tenant_id="b") as theirs:
            made = await Planner(model, TOOLS, keep=mine.drafts).drafted(TASK)
            assert (await mine.drafts.get(made.id)).plan == made.plan
            assert await theirs.drafts.newest() == []
            with pytest.raises(StoreError, match="no draft begins with"):
                await theirs.drafts.get(made.id)
        await model.aclose()


async def test_a_repeated_question_is_asked_again_and_each_answer_is_used_once(store_url: str) -> None:
    wrong = says(done(step("deploi", {})))
    with scripted(wrong, wrong, says(GOOD)) as server:  # the third question equals the second
        model = OpenAIModel("m", base_url=server.url)
        async with PlanStore(store_url) as store:
            for _ in range(2):
                draft = await Planner(model, TOOLS, keep=store.drafts).drafted(TASK, draft_id="d-1")
                assert draft.plan is not None
                assert [call.number for call in draft.calls] == [1, 2, 3]
            kept = await store.drafts.get("d-1")
        await model.aclose()
        assert (len(server.requests), len(kept.calls)) == (3, 3)
        assert server.requests[1] == server.requests[2]


async def test_a_persons_answer_is_not_requested_again(store_url: str) -> None:
    class Ended(BaseException):
        pass

    asked = list[str]()

    async def person(question: str) -> str:
        asked.append(question)
        return "生产库, see https://ana:hunter2@wiki/x"

    async def ask(model: Model, question: Question) -> ModelAnswer:
        if len(question.messages) > 4:
            raise Ended
        return await model.ask(question)

    question = says({"action": "ask_user", "speak": "Which?", "reason": "two"})
    with scripted(question, says(done(step("deploi", {}))), says(GOOD)) as server:
        model = OpenAIModel("m", base_url=server.url)
        async with PlanStore(store_url) as store:
            with pytest.raises(Ended):
                await Planner(model, TOOLS, keep=store.drafts, asker=person, ask_model=ask).drafted(TASK, draft_id="d-1")
            draft = await Planner(model, TOOLS, keep=store.drafts).drafted(TASK, draft_id="d-1")
        await model.aclose()
        assert "hunter2" not in str(server.requests)
        assert (len(server.requests), asked) == (3, ["Which?"])
    assert (draft.plan is not None, draft.failure) == (True, None)


async def test_a_second_answer_to_a_question_is_saved_beside_the_first(store_url: str) -> None:
    with scripted(says(done(step("deploi", {}))), says(GOOD)) as server:
        model = OpenAIModel("m", base_url=server.url)
        async with PlanStore(store_url) as store:
            await Planner(model, TOOLS, keep=store.drafts).drafted(TASK, draft_id="d-1")
            others = TOOLS.subset("look", "deploy", "back_up")
            narrowed = PlanRequest(TASK.task, constraints=TASK.constraints, max_steps=3)
            again = await Planner(model, others, keep=store.drafts).drafted(narrowed, draft_id="d-1")
            kept = await store.drafts.get("d-1")
        await model.aclose()
    assert [call.number for call in again.calls] == [3]
    assert [call.number for call in kept.calls] == [1, 2, 3]
