"""Tests of drafts through a chat, with prompts and answers copied by hand: they are checked like those of a model."""

import json

import pytest

from plan_adapter.agent.chat import draft_from_chat, prompt_for_chat
from plan_adapter.model.drafts import PlanRequest
from plan_adapter.model.errors import DraftError, ToolDefinitionError
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import find_problems
from tests.agent.server import says, scripted
from tests.agent.test_planner import BACK_UP, DEPLOY, GOOD, TASK, TOOLS, WRONG, done, drafted


def test_the_prompt_for_a_chat_has_the_task_and_the_schema() -> None:
    system, user = prompt_for_chat(TASK, TOOLS)
    assert (system.role, user.role) == ("system", "user")
    assert '"Deploy 2.1 to production"' in user.content
    assert json.loads(user.content.split("Its JSON Schema:\n")[1])["required"] == ["action", "speak", "reason"]


async def test_a_valid_answer_from_a_chat_gives_the_same_plan_as_from_a_model() -> None:
    result = draft_from_chat(TASK, TOOLS, json.dumps(GOOD))
    with scripted(says(GOOD)) as server:
        draft = await drafted(server)
    assert draft.plan is not None
    assert result.draft.plan is not None
    assert result.draft.plan.to_document() == draft.plan.to_document()
    assert (result.draft.constraints, result.draft.complexity, result.reply) == (draft.constraints, draft.complexity, None)
    assert find_problems(result.draft.plan, TOOLS) == []


@pytest.mark.parametrize("kind", WRONG)
def test_a_chat_gets_the_same_corrections_as_a_model(kind: str) -> None:
    answer, expected = WRONG[kind]
    result = draft_from_chat(TASK, TOOLS, json.dumps(answer))
    assert result.draft.plan is None
    assert result.reply is not None
    assert expected in result.reply
    assert result.draft.calls[0].problems


def test_an_answer_that_breaks_a_constraint_gives_no_plan() -> None:
    late = {**DEPLOY, "depends_on": []}
    result = draft_from_chat(TASK, TOOLS, json.dumps(done(BACK_UP, late, constraints=GOOD["constraints"])))
    assert "[broken-constraint]" in (result.reply or "")


def test_an_invalid_request_gives_no_prompt() -> None:
    with pytest.raises(DraftError, match="no tools"):
        prompt_for_chat(TASK, ToolRegistry())
    with pytest.raises(ToolDefinitionError, match="no such tool"):
        draft_from_chat(PlanRequest("x", available_tools=("bash",)), TOOLS, "{}")
