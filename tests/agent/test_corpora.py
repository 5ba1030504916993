"""Tests with plans that real models wrote: every defect is reported to the model, and no invalid plan is accepted."""

import json
from collections import Counter
from typing import Any

import pytest

from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.agent.planner import Planner
from plan_adapter.model.drafts import PlanRequest
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import find_problems
from tests.agent.server import Reply, Request, says, scripted
from tests.documents.test_corpora import (  # pyright: ignore[reportUnusedImport]  # `catalogues` is a fixture
    CORPORA,
    Document,
    catalogues,  # noqa: F401
    defects,
    lines,
    model_to_document,
)

pytestmark = pytest.mark.skipif(not CORPORA.is_dir(), reason=f"the corpora are not beside the repository ({CORPORA.name})")


def defective_answer(plan: Document) -> dict[str, Any]:
    document = model_to_document(plan)
    return {"action": "plan_done", "speak": "", "reason": "", "description": document["description"], "steps": document["steps"]}


def repaired(answer: dict[str, Any], tools: ToolRegistry) -> dict[str, Any]:
    """Return the corrected answer of a model: known tools, a chain of steps, no references, known fields."""
    steps: list[dict[str, Any]] = []
    for number, step in enumerate(answer["steps"]):
        name = step["tool_name"] if step["tool_name"] in tools else tools.names()[0]
        depends_on = [number - 1] if number else []
        steps.append({"id": step["id"], "tool_name": name, "description": "", "parameters": {}, "depends_on": depends_on})
    return {**answer, "steps": steps or [{"tool_name": tools.names()[0], "description": "", "parameters": {}}]}


async def draft_all_with_corrections(plans: list[Document], registries: dict[str, ToolRegistry]) -> Counter[str]:
    """Draft each plan with a model that corrects its defective answer; return the counts by result."""
    current: dict[str, Any] = {}
    counts = Counter[str]()

    def script(request: Request) -> Reply:
        return says(current["answer"] if len(request["messages"]) == 2 else current["repaired"])

    with scripted(script) as server:
        model = OpenAIModel("m", base_url=server.url)
        for plan in plans:
            tools = registries[plan["area"]]
            answer = defective_answer(plan)
            current.update(answer=answer, repaired=repaired(answer, tools))
            server.requests.clear()
            draft = await Planner(model, tools).drafted(PlanRequest(plan["user_request"]))
            wrong = {code for code, _ in defects({**answer, "outputs": {}}, tools)}
            assert draft.plan is not None, (plan["id"], draft.failure, draft.problems)
            assert find_problems(draft.plan, tools) == []
            correction = server.requests[1]["messages"][-1]["content"] if len(server.requests) > 1 else ""
            assert {code for code in wrong if f"[{code}]" not in correction} == set(), (plan["id"], correction)
            if not answer["steps"]:
                assert "[no-steps]" in correction
            assert (draft.repairs > 0) == bool(wrong or not answer["steps"]), (plan["id"], wrong, draft.calls)
            counts.update({"plans": 1, "defects named": len(wrong), "repaired" if draft.repairs else "sound": 1})
        await model.aclose()
    return counts


async def draft_all_without_corrections(plans: list[Document], registries: dict[str, ToolRegistry]) -> Counter[str]:
    """Draft each defective plan with a model that corrects nothing; return the counts by result."""
    counts = Counter[str]()
    with scripted(lambda _: says(answer)) as server:
        model = OpenAIModel("m", base_url=server.url)
        for plan in plans:
            tools, answer = registries[plan["area"]], defective_answer(plan)
            if not defects({**answer, "outputs": {}}, tools):
                continue
            draft = await Planner(model, tools).drafted(PlanRequest(plan["user_request"]))
            assert (draft.plan, len(draft.calls)) == (None, 3), plan["id"]
            assert "without progress" in (draft.failure or "")
            assert draft.problems
            counts.update({"ended in an error": 1})
        await model.aclose()
    return counts


async def test_every_defect_is_reported_to_the_model_and_its_corrected_answer_is_accepted(
    catalogues: dict[str, ToolRegistry],  # noqa: F811
) -> None:
    counts = await draft_all_with_corrections(lines("llm_plans.jsonl")[::12], catalogues)
    assert counts["repaired"] > 15
    assert counts["sound"] > 15


@pytest.mark.thorough
async def test_every_plan_of_the_corpus_is_corrected_and_accepted(catalogues: dict[str, ToolRegistry]) -> None:  # noqa: F811
    plans = lines("llm_plans.jsonl")
    counts = await draft_all_with_corrections(plans, catalogues)
    print("\n" + ", ".join(f"{name}: {count}" for name, count in counts.items()))
    assert counts["repaired"] + counts["sound"] == len(plans)


@pytest.mark.thorough
async def test_no_uncorrected_plan_of_the_corpus_is_accepted(catalogues: dict[str, ToolRegistry]) -> None:  # noqa: F811
    counts = await draft_all_without_corrections(lines("llm_plans.jsonl"), catalogues)
    print("\n" + ", ".join(f"{name}: {count}" for name, count in counts.items()))
    assert counts["ended in an error"] > 0


async def test_an_invalid_plan_that_is_never_corrected_is_not_accepted(
    catalogues: dict[str, ToolRegistry],  # noqa: F811
) -> None:
    counts = await draft_all_without_corrections(lines("llm_plans.jsonl")[::60], catalogues)
    assert counts["ended in an error"] > 3


def test_the_schema_of_a_draft_stays_small(catalogues: dict[str, ToolRegistry]) -> None:  # noqa: F811
    from plan_adapter.agent.answer_schemas import draft_schema

    schema = draft_schema(catalogues["huggingface"])
    assert len(json.dumps(schema)) < 2000 * len(catalogues["huggingface"])
