"""Tests of digests: which plans have the same digest, which differ, and which have none."""

import copy
import hashlib
import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plan_adapter.documents import load_plan, read_document
from plan_adapter.model.canonical import approval_digest, canonical_document, canonical_json, plan_digest
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.options import ApprovalPolicy, ExecutionOptions, Input
from plan_adapter.model.plan import ExecutionPlan, Step
from tests.documents.generated import plans

DOCUMENT: dict[str, Any] = {
    "name": "restart",
    "description": "Restart one node",
    "inputs": {"host": {"type": "string", "pattern": "^web"}, "force": {"type": "boolean", "default": False}},
    "options": {"allow_parallel": True, "max_parallel_steps": 4},
    "steps": [
        {"id": "check", "tool_name": "http_get", "parameters": {"url": "http://a/", "headers": {"x": "1", "y": "2"}}, "max_retries": 3},
        {"id": "drain", "tool_name": "run_command", "parameters": {"argv": ["a", "b"]}},
        {"id": "restart", "tool_name": "run_command", "depends_on": ["check", "drain"], "when": "${{ inputs.force }}"},
    ],
    "outputs": {"ok": "${{ steps.check.status }}"},
}


def digest(document: dict[str, Any]) -> str:
    return plan_digest(load_plan(json.dumps(document)))


def shuffled(value: Any, chance: random.Random) -> Any:
    if isinstance(value, list):
        return [shuffled(member, chance) for member in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    chance.shuffle(keys)
    return {key: shuffled(value[key], chance) for key in keys}


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    *keys, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    target: Any = document
    for key in keys:
        target = target[key]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return document


@given(seed=st.integers(0, 10**6))
def test_the_order_of_keys_does_not_change_the_digest(seed: int) -> None:
    assert digest(shuffled(DOCUMENT, random.Random(seed))) == digest(DOCUMENT)


SAME = {
    "version": changed("version", 1),
    "the default name": {**changed("name", ...), "name": "Restart one node"},
    "a default option": changed("options.require_approval", True),
    "all defaults": changed("options", {**ExecutionOptions().model_dump(), "allow_parallel": True, "max_parallel_steps": 4}),
    "a default of a step": changed("steps.0.retry_backoff", 1),
    "an empty list": changed("steps.1.depends_on", []),
    "a null": changed("steps.1.timeout_ms", None),
    "the order of dependencies": changed("steps.2.depends_on", ["drain", "check"]),
    "a dependency written twice": changed("steps.2.depends_on", ["drain", "check", "drain"]),
    "the type of an input": changed("inputs.host.type", "string"),
    "an empty approval": changed("approval", {}),
    "a float that is whole": changed("steps.0.retry_backoff", 1.0),
    "the status of an earlier execution": changed("status", "approved"),
    "an empty id": changed("id", ""),
    "no tags": changed("tags", []),
    "no run name": changed("run_name", None),
    "no tags of a step": changed("steps.0.tags", None),
    "no created secrets": changed("steps.0.creates_secrets", []),
}


@pytest.mark.parametrize("document", SAME.values(), ids=SAME)
def test_writing_a_default_does_not_change_the_digest(document: dict[str, Any]) -> None:
    expected = changed("name", ...) if "name" in document and document["name"] == "Restart one node" else DOCUMENT
    assert digest(document) == digest(expected)


OTHER = {
    "an id": changed("id", "p1"),
    "a name": changed("name", "other"),
    "a description": changed("description", "Restart two nodes"),
    "an input": changed("inputs.extra", {}),
    "an input's pattern": changed("inputs.host.pattern", "^db"),
    "an input's default": changed("inputs.force.default", True),
    "a required input": changed("inputs.force.default", ...),
    "an option": changed("options.require_approval", False),
    "an error policy": changed("options.stop_on_error", False),
    "a parameter": changed("steps.0.parameters.url", "http://b/"),
    "an empty parameter": changed("steps.0.parameters.extra", None),
    "the order of a list": changed("steps.1.parameters.argv", ["b", "a"]),
    "text for a number": changed("steps.0.parameters.headers.x", 1),
    "true for one": changed("steps.0.parameters.headers.x", True),
    "a tool": changed("steps.1.tool_name", "bash"),
    "retries": changed("steps.0.max_retries", 2),
    "a condition": changed("steps.2.when", ...),
    "a dependency": changed("steps.2.depends_on", ["check"]),
    "an effect": changed("steps.1.effect", "read"),
    "the order of steps": changed("steps", [DOCUMENT["steps"][1], DOCUMENT["steps"][0], DOCUMENT["steps"][2]]),
    "a step": changed("steps.1", ...),
    "an output": changed("outputs.ok", "x"),
    "metadata": changed("metadata", {"owner": "platform"}),
    "tags": changed("tags", ["web"]),
    "run name": changed("run_name", "restart"),
    "tags of a step": changed("steps.0.tags", ["web"]),
    "the secrets that a step creates": changed("steps.0.creates_secrets", ["token"]),
}


@pytest.mark.parametrize("document", OTHER.values(), ids=OTHER)
def test_a_change_of_meaning_changes_the_digest(document: dict[str, Any]) -> None:
    assert digest(document) != digest(DOCUMENT)


def test_different_changes_have_different_digests() -> None:
    assert len({digest(document) for document in OTHER.values()}) == len(OTHER)


def test_both_options_of_an_error_policy_give_the_same_digest() -> None:
    one, other = changed("options", {"stop_on_error": False}), changed("options", {"continue_on_error": True})
    assert digest(one) == digest(other) == digest(changed("options", {"stop_on_error": False, "continue_on_error": True}))


@pytest.mark.parametrize("steps", ["steps", "finally"])
@pytest.mark.parametrize("is_pinned", [False, True], ids=["in a plan", "in a sub-plan"])
def test_the_order_of_dependencies_does_not_change_the_digest(steps: str, is_pinned: bool) -> None:
    def depending_on(*names: str) -> str:
        last = {"id": "c", "tool_name": "t", "depends_on": names}
        document: dict[str, Any] = {
            "description": "d",
            "steps": [{"id": "z", "tool_name": "t"}],
            steps: [{"id": "a", "tool_name": "t"}, {"id": "b", "tool_name": "t"}, last],
        }
        plan = load_plan(json.dumps(document))
        return plan_digest(ExecutionPlan(description="d", steps=[Step(id="s", pinned=plan)]) if is_pinned else plan)

    assert depending_on("a", "b") == depending_on("b", "a") == depending_on("b", "a", "b") != depending_on("b")


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(plans)
def test_a_copy_has_the_same_digest_and_the_digest_is_that_of_the_canonical_form(plan: ExecutionPlan) -> None:
    assert plan_digest(plan.model_copy(deep=True)) == plan_digest(plan)
    canonical = canonical_json(canonical_document(plan))
    assert canonical_json(json.loads(canonical)) == canonical
    assert plan_digest(plan) == hashlib.sha256(canonical).hexdigest()


def test_a_plan_built_in_python_has_the_digest_of_its_document() -> None:
    plan = ExecutionPlan(
        name="restart",
        description="Restart one node",
        inputs={"host": Input(pattern="^web"), "force": Input(type="boolean", default=False)},
        approval=ApprovalPolicy(),
        outputs={"ok": "${{ steps.check.status }}"},
    )
    plan.options.allow_parallel, plan.options.max_parallel_steps = True, 4
    check = plan.add_step("http_get", "", {"url": "http://a/", "headers": {"x": "1", "y": "2"}}, id="check", max_retries=3)
    plan.steps.append(Step(id="drain", tool_name="run_command", parameters={"argv": ["a", "b"]}))
    plan.add_step("run_command", "", id="restart", depends_on=["drain", check.id], when="${{ inputs.force }}")
    assert plan_digest(plan) == digest(DOCUMENT)


def test_the_digest_is_pinned() -> None:
    # Approvals and stored plans are found by digest, so a new version must not change it.
    assert digest({"description": "d", "steps": [{"tool_name": "t", "parameters": {"number": 1e21, "text": "你好"}}]}) == PINNED


PINNED = "029142d5c2f624b59d664511eb5557e37610791ca4a18d5c81a608b3c0b0aec7"


@pytest.mark.parametrize(
    ("value", "code"),
    [(float("nan"), "not-a-number"), (2**53, "too-large"), ("\ud800", "bad-text"), ({"\ud800": 1}, "bad-text")],
    ids=["NaN", "a large integer", "a surrogate", "a surrogate in a key"],
)
def test_a_value_without_a_canonical_form_is_reported_with_its_path(value: Any, code: str) -> None:
    plan = ExecutionPlan(description="d")
    plan.add_step("t", "d").parameters["value"] = [value]
    with pytest.raises(InvalidPlanError) as caught:
        plan_digest(plan)
    (problem,) = caught.value.problems
    assert (problem.code, problem.at.startswith("steps[0].parameters.value[0]")) == (code, True)


def test_a_value_nested_deeper_than_the_stack_is_reported() -> None:
    plan = ExecutionPlan(description="d")
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    plan.add_step("t", "d").parameters["value"] = deep
    with pytest.raises(InvalidPlanError, match="nested deeper than 100 levels"):
        plan_digest(plan)


def test_a_plan_whose_document_has_problems_has_no_digest() -> None:
    plan, problems = read_document("description: d\nsteps: [{tool_name: t, retries: 3}]")
    assert plan is not None
    with pytest.raises(InvalidPlanError) as error:
        plan_digest(plan)
    assert [problem.at for problem in error.value.problems] == [problem.at for problem in problems] == ["steps[0].retries"]


def test_an_approval_binds_to_plan_inputs_and_tools() -> None:
    tools: list[dict[str, Any]] = [{"name": "a", "effect": "read"}, {"name": "b", "effect": "write"}]
    bound = approval_digest("d" * 64, {"x": 1}, tools)
    assert bound == approval_digest("d" * 64, {"x": 1}, reversed(tools))
    others = {
        approval_digest("e" * 64, {"x": 1}, tools),
        approval_digest("d" * 64, {"x": 2}, tools),
        approval_digest("d" * 64, {}, tools),
        approval_digest("d" * 64, {"x": 1}, tools[:1]),
        approval_digest("d" * 64, {"x": 1}, [tools[0], {"name": "b", "effect": "read"}]),
    }
    assert len(others | {bound}) == 6
