"""Plans that real models wrote, served as first answers: every defect is named to the model, and nothing invalid is ever returned."""

import json
from collections import Counter
from typing import Any

import pytest

from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.agent.planner import Planner
from plan_adapter.drafts import PlanRequest
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


def dirty_answer(plan: Document) -> dict[str, Any]:
    document = model_to_document(plan)
    return {"action": "plan_done", "speak": "", "reason": "", "description": document["description"], "steps": document["steps"]}


def repaired(answer: dict[str, Any], tools: ToolRegistry) -> dict[str, Any]:
    """What a model would answer that mends all it was told: known tools, a chain, no references, known fields."""
    steps: list[dict[str, Any]] = []
    for number, step in enumerate(answer["steps"]):
        name = step["tool_name"] if step["tool_name"] in tools else tools.names()[0]
        depends_on = [number - 1] if number else []
        steps.append({"id": step["id"], "tool_name": name, "description": "", "parameters": {}, "depends_on": depends_on})
    return {**answer, "steps": steps or [{"tool_name": tools.names()[0], "description": "", "parameters": {}}]}


async def serve_all(plans: list[Document], registries: dict[str, ToolRegistry]) -> Counter[str]:
    """Draft each plan from its dirty answer, with a model that mends what it is told; return how many there were of what."""
    current: dict[str, Any] = {}
    counts = Counter[str]()

    def script(request: Request) -> Reply:
        return says(current["answer"] if len(request["messages"]) == 2 else current["repaired"])

    with scripted(script) as server:
        model = OpenAIModel("m", base_url=server.url)
        for plan in plans:
            tools = registries[plan["area"]]
            answer = dirty_answer(plan)
            current.update(answer=answer, repaired=repaired(answer, tools))
            server.requests.clear()
            draft = await Planner(model, tools).drafted(PlanRequest(plan["user_request"]))
            wrong = {code for code, _ in defects({**answer, "outputs": {}}, tools)}
            assert draft.plan is not None, (plan["id"], draft.failure, draft.problems)
            assert find_problems(draft.plan, tools) == []
            told = server.requests[1]["messages"][-1]["content"] if len(server.requests) > 1 else ""
            assert {code for code in wrong if f"[{code}]" not in told} == set(), (plan["id"], told)
            if not answer["steps"]:
                assert "[no-steps]" in told
            assert (draft.repairs > 0) == bool(wrong or not answer["steps"]), (plan["id"], wrong, draft.calls)
            counts.update({"plans": 1, "defects named": len(wrong), "repaired" if draft.repairs else "sound": 1})
        await model.aclose()
    return counts


async def refuse_all(plans: list[Document], registries: dict[str, ToolRegistry]) -> Counter[str]:
    """Draft each plan that has defects with a model that mends nothing; return how many there were of what."""
    counts = Counter[str]()
    with scripted(lambda _: says(answer)) as server:
        model = OpenAIModel("m", base_url=server.url)
        for plan in plans:
            tools, answer = registries[plan["area"]], dirty_answer(plan)
            if not defects({**answer, "outputs": {}}, tools):
                continue
            draft = await Planner(model, tools).drafted(PlanRequest(plan["user_request"]))
            assert (draft.plan, len(draft.calls)) == (None, 3), plan["id"]
            assert "without progress" in (draft.failure or "")
            assert draft.problems
            counts.update({"ended in an error": 1})
        await model.aclose()
    return counts


async def test_every_defect_is_named_to_the_model_and_its_repaired_answer_is_taken(
    catalogues: dict[str, ToolRegistry],  # noqa: F811
) -> None:
    counts = await serve_all(lines("llm_plans.jsonl")[::12], catalogues)
    assert counts["repaired"] > 15
    assert counts["sound"] > 15


@pytest.mark.thorough
async def test_every_plan_of_the_corpus(catalogues: dict[str, ToolRegistry]) -> None:  # noqa: F811
    plans = lines("llm_plans.jsonl")
    counts = await serve_all(plans, catalogues)
    print("\n" + ", ".join(f"{name}: {count}" for name, count in counts.items()))
    assert counts["repaired"] + counts["sound"] == len(plans)


@pytest.mark.thorough
async def test_no_uncorrected_plan_of_the_corpus_is_accepted(catalogues: dict[str, ToolRegistry]) -> None:  # noqa: F811
    counts = await refuse_all(lines("llm_plans.jsonl"), catalogues)
    print("\n" + ", ".join(f"{name}: {count}" for name, count in counts.items()))
    assert counts["ended in an error"] > 0


async def test_a_model_that_corrects_nothing_gets_no_invalid_plan_accepted(
    catalogues: dict[str, ToolRegistry],  # noqa: F811
) -> None:
    counts = await refuse_all(lines("llm_plans.jsonl")[::60], catalogues)
    assert counts["ended in an error"] > 3


def test_prompts_hold_no_more_than_they_must(catalogues: dict[str, ToolRegistry]) -> None:  # noqa: F811
    from plan_adapter.agent.schema import draft_schema

    schema = draft_schema(catalogues["huggingface"])
    assert len(json.dumps(schema)) < 2000 * len(catalogues["huggingface"])
