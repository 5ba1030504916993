"""Tests with converted plans of people and models: every defect is named, none crashes, no valid plan is refused."""

import json
import re
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from plan_adapter.documents import dump_plan, load_plan, read_document
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import Problem
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool
from plan_adapter.validation import find_problems, validate

CORPORA = Path(__file__).parents[3] / "shared" / "corpora"
pytestmark = pytest.mark.skipif(not CORPORA.is_dir(), reason=f"the corpora are not beside the repository ({CORPORA.name})")

Document = dict[str, Any]
REFERENCE = re.compile(r"<node[-_](\d+)>(?:\.\w+)*")


def lines(name: str) -> list[Document]:
    return [json.loads(line) for line in (CORPORA / name).read_text(encoding="utf-8").splitlines()]


def slug(name: object) -> str:
    return re.sub(r"\W+", "_", str(name)).strip("_").lower() or "none"


def no_op(arguments: dict[str, Any] | None = None) -> None:
    """Do nothing."""


@pytest.fixture(scope="module")
def catalogues() -> dict[str, ToolRegistry]:
    def registry(area: str) -> ToolRegistry:
        nodes = json.loads((CORPORA / f"tools_{area}.json").read_text(encoding="utf-8"))["nodes"]
        return ToolRegistry([Tool(no_op, name=slug(node["id"])) for node in nodes])

    return {area: registry(area) for area in ("huggingface", "multimedia")}


# Plans in words: each step a no-op.


def words_to_document(plan: Document) -> Document:
    steps = [
        {
            "id": f"step_{step['n']}",
            "tool_name": "no_op",
            "description": step["text"],
            "depends_on": [f"step_{n}" for n in step["depends_on"]],
        }
        for step in plan["steps"]
    ]
    return {"name": plan["id"], "description": plan["task"], "steps": steps}


def test_every_plan_in_words_is_valid_and_keeps_its_order() -> None:
    tools = ToolRegistry([Tool(no_op)])
    for plan in lines("worfbench.jsonl"):
        document = words_to_document(plan)
        graph = nx.DiGraph([(name, step["id"]) for step in document["steps"] for name in step["depends_on"]])
        graph.add_nodes_from(step["id"] for step in document["steps"])
        assert nx.is_directed_acyclic_graph(graph), plan["id"]
        validated = validate(load_plan(json.dumps(document)), tools)
        assert set(validated.order) == set(graph.nodes)
        assert all(validated.order.index(before) < validated.order.index(after) for before, after in graph.edges), plan["id"]
        assert {(a, b) for b, names in validated.reduced.items() for a in names} == set(nx.transitive_reduction(graph).edges), plan["id"]


def test_plans_in_words_are_written_and_read_back() -> None:
    for plan in lines("worfbench.jsonl")[::10]:
        read = load_plan(json.dumps(words_to_document(plan)))
        again = load_plan(dump_plan(read))
        assert (again, plan_digest(again)) == (read, plan_digest(read))


# Plans of models: dirty. Links name tools; references name positions.


def model_to_document(plan: Document) -> Document:
    steps = [step_of(node, position) for position, node in enumerate(plan["task_nodes"])]
    outputs: Document = {}
    places: dict[str, list[int]] = {}
    for position, step in enumerate(steps):
        places.setdefault(step["tool_name"], []).append(position)
    for number, link in enumerate(plan["task_links"]):
        source, target = slug(link.get("source")), slug(link.get("target"))
        if target not in places:
            outputs[f"link_{number}"] = f"${{{{ steps.to_{target}.result }}}}"
        for position in places.get(target, []):
            earlier = [at for at in places.get(source, []) if at < position] or places.get(source, [])
            name = f"node_{earlier[-1]}" if earlier else f"from_{source}"
            if name not in steps[position]["depends_on"]:
                steps[position]["depends_on"].append(name)
    return {"description": plan["user_request"], "steps": steps, "outputs": outputs}


def step_of(node: Document, position: int) -> Document:
    given = node.get("arguments") or []
    pairs = given.items() if isinstance(given, dict) else (pair_of(argument, number) for number, argument in enumerate(given))
    parameters = {"arguments": {name: with_references(value) for name, value in pairs}}
    rest = {key: value for key, value in node.items() if key not in ("task", "arguments", "id")}
    return {"id": f"node_{position}", "tool_name": slug(node["task"]), "parameters": parameters, "depends_on": [], **rest}


def pair_of(argument: Any, number: int) -> tuple[str, Any]:
    if not isinstance(argument, dict):
        return f"argument_{number}", argument
    return argument.get("name") or f"argument_{number}", argument.get("value", argument)


def with_references(value: Any) -> Any:
    if isinstance(value, str):
        return REFERENCE.sub(lambda found: f"${{{{ steps.node_{found[1]}.result }}}}", value)
    if isinstance(value, list):
        return [with_references(member) for member in value]
    if isinstance(value, dict):
        return {key: with_references(member) for key, member in value.items()}
    return value


def referenced(step: Document) -> set[int]:
    return {int(number) for number in re.findall(r"steps\.node_(\d+)", json.dumps(step["parameters"]))}


def defects(document: Document, tools: ToolRegistry) -> set[tuple[str, str]]:
    """The defects of a document, found without the package: (code, subject)."""
    steps, known = document["steps"], {step["id"] for step in document["steps"]}
    found = {("unknown-tool", step["tool_name"]) for step in steps if step["tool_name"] not in tools}
    found |= {("unknown-reference", "outputs") for _ in document["outputs"]}
    graph = nx.DiGraph()
    for step in steps:
        found |= {("unknown-field", step["id"]) for key in step if key not in ("id", "tool_name", "parameters", "depends_on", "metadata")}
        found |= {("wrong-type", step["id"]) for key in ("metadata",) if not isinstance(step.get(key, {}), dict)}
        found |= {("unknown-step", step["id"]) for name in step["depends_on"] if name not in known}
        found |= {("self-dependency", step["id"]) for name in step["depends_on"] if name == step["id"]}
        references = {f"node_{number}" for number in referenced(step)}
        found |= {("unknown-reference", step["id"]) for name in references if name not in known}
        found |= {("not-an-ancestor", step["id"]) for name in references if name == step["id"]}
        graph.add_edges_from((name, step["id"]) for name in {*step["depends_on"], *references} & known - {step["id"]})
    circles = [members for members in nx.strongly_connected_components(graph) if len(members) > 1]
    return found | {("cycle", "") for _ in circles}


def named(problems: list[Problem], document: Document) -> set[tuple[str, str]]:
    """The problems the package found, in the form of `defects`."""

    def about(problem: Problem) -> str:
        step = re.match(r"steps\[(\d+)\]", problem.at)
        if problem.code == "cycle":
            return ""
        if problem.code == "unknown-tool" and step:
            return document["steps"][int(step[1])]["tool_name"]
        return f"node_{step[1]}" if step else problem.at.partition(".")[0]

    return {(problem.code, about(problem)) for problem in problems}


def problems_of(document: Document, tools: ToolRegistry) -> tuple[ExecutionPlan, list[Problem]]:
    plan, found = read_document(json.dumps(document))
    assert plan is not None
    problems = find_problems(plan, tools)
    assert {(problem.code, problem.at) for problem in found} <= {(problem.code, problem.at) for problem in problems}
    return plan, problems


@pytest.mark.thorough
def test_exactly_the_defects_of_a_models_plan_are_reported(catalogues: dict[str, ToolRegistry]) -> None:
    codes, sound = set[str](), 0
    for plan in lines("llm_plans.jsonl"):
        document, tools = model_to_document(plan), catalogues[plan["area"]]
        expected = defects(document, tools)
        _, problems = problems_of(document, tools)
        assert named(problems, document) == expected, plan["id"]
        assert all(problem.line and problem.message for problem in problems)
        codes |= {code for code, _ in expected}
        sound += not expected
    assert codes >= {"unknown-tool", "cycle", "unknown-step", "unknown-reference", "not-an-ancestor"}
    assert sound > 300


def test_a_step_that_references_a_later_step_runs_after_it(catalogues: dict[str, ToolRegistry]) -> None:
    seen = 0
    for plan in lines("llm_plans.jsonl"):
        document, tools = model_to_document(plan), catalogues[plan["area"]]
        ahead = [(at, number) for at, step in enumerate(document["steps"]) for number in referenced(step) if number > at]
        if not ahead or defects(document, tools):
            continue
        order = validate(load_plan(json.dumps(document)), tools).order
        assert all(order.index(f"node_{number}") < order.index(f"node_{at}") for at, number in ahead), plan["id"]
        seen += 1
    assert seen > 0


def test_models_plans_are_written_and_read_back(catalogues: dict[str, ToolRegistry]) -> None:
    for plan in lines("llm_plans.jsonl")[::7]:
        read, found = read_document(json.dumps(model_to_document(plan)))
        assert read is not None
        if not found:
            again = load_plan(dump_plan(read))
            assert (again, plan_digest(again)) == (read, plan_digest(read))
