"""The JSON Schema that editors use agrees with what is read."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator

from plan_adapter.documents import dump_plan, is_test_file, plan_schema, read_document, read_file
from plan_adapter.documents.yaml_text import read_yaml
from plan_adapter.model.options import ApprovalPolicy, ExecutionOptions, Input
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.problems import CATALOGUE
from tests.documents.generated import plans
from tests.documents.test_dumping import FULL
from tests.documents.test_key_styles import SNAKE

FOLDER = Path(__file__).parents[2] / "deployments" / "runbooks"
RUNBOOKS = sorted(path for path in FOLDER.glob("*.yaml") if not is_test_file(path))


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    return Draft202012Validator(plan_schema())


def as_json(text: str) -> Any:
    """The document as an editor sees it."""
    root, problems = read_yaml(text)
    assert root is not None
    assert problems == []
    return root.plain()


def test_the_schema_is_valid_and_plain_json() -> None:
    Draft202012Validator.check_schema(plan_schema())
    assert json.loads(json.dumps(plan_schema())) == plan_schema()


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_every_runbook_matches_the_schema(path: Path, schema: Draft202012Validator) -> None:
    _, problems = read_file(path)
    assert problems == []
    assert list(schema.iter_errors(as_json(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("text", [FULL, SNAKE], ids=["full", "seeds"])
def test_valid_documents_match_the_schema(text: str, schema: Draft202012Validator) -> None:
    assert list(schema.iter_errors(as_json(text))) == []


def sound(document: dict[str, Any]) -> dict[str, Any]:
    """`document` without the values that only validation refuses."""
    outer = [*document.get("steps", []), *document.get("finally", [])]
    for step in [*outer, *(inner for outer_step in outer for inner in outer_step.get("steps", []))]:
        step.pop("goal", None)
        step.pop("tool_name", None)
        step.pop("plan", None)
        step.update({"id": "sound", **{key: "${{ true }}" for key in ("when", "for_each") if key in step}})
        if step.get("steps"):
            step.pop("ask", None)
            step["for_each"] = "${{ [] }}"
        elif "ask" in step:
            fields = {f"field_{number}": written for number, written in enumerate(step["ask"]["fields"].values())}
            step["ask"] = {"question": f"{step['ask']['question']}?", "fields": fields or {"field": {}}}
        elif "pinned" in step:
            step["plan"] = "store:sound@1"
        else:
            step["tool_name"] = "t"
        if "pinned" in step:
            step["pinned"] = sound(step["pinned"])
    if "inputs" in document:  # their names, too, may be what only validation refuses
        document["inputs"] = {f"input_{number}": written for number, written in enumerate(document["inputs"].values())}
    return {"steps": [{"tool_name": "t"}], **document, "description": "sound"}


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(plan=plans)
def test_dumped_plans_match_the_schema_unless_validation_refuses_them(plan: ExecutionPlan, schema: Draft202012Validator) -> None:
    document = sound(as_json(dump_plan(plan)))
    assert [error.message for error in schema.iter_errors(document)] == []


BASE = {"description": "d", "steps": [{"tool_name": "t"}]}


def step(**fields: object) -> dict[str, object]:
    return {**BASE, "steps": [{"tool_name": "t", **fields}]}


REFUSED = {
    "no description": {"steps": BASE["steps"]},
    "no steps": {"description": "d"},
    "a description of another type": {**BASE, "description": 3},
    "another version": {**BASE, "version": 2},
    "an unknown field": {**BASE, "stepz": []},
    "a list of inputs": {**BASE, "inputs": []},
    "an unknown type of input": {**BASE, "inputs": {"x": {"type": "int"}}},
    "an unknown field of an input": {**BASE, "inputs": {"x": {"kind": "string"}}},
    "a negative length": {**BASE, "inputs": {"x": {"min_length": -1}}},
    "no parallel step": {**BASE, "options": {"max_parallel_steps": 0}},
    "a timeout in words": {**BASE, "options": {"step_timeout_ms": "5s"}},
    "an unknown option": {**BASE, "options": {"parallel": True}},
    "steps as a mapping": {**BASE, "steps": {"a": {"tool_name": "t"}}},
    "a step as text": {**BASE, "steps": ["t"]},
    "an unknown field of a step": step(tool="t"),
    "parameters as a list": step(parameters=[]),
    "one dependency as text": step(depends_on="a"),
    "a dependency as a number": step(depends_on=[1]),
    "one created secret as text": step(creates_secrets="token"),
    "a created secret as a number": step(creates_secrets=[1]),
    "retries in words": step(max_retries="3"),
    "negative retries": step(max_retries=-1),
    "a backoff below one": step(retry_backoff=0.5),
    "a jitter above one": step(retry_jitter=1.5),
    "an unknown effect": step(effect="delete"),
    "an unknown error policy": step(on_error="ignore"),
    "a rollback without a tool": step(rollback={"parameters": {}}),
    "a question without words": {**BASE, "steps": [{"ask": {"fields": {"a": {}}}}]},
    "another end of a question": {**BASE, "steps": [{"ask": {"question": "q", "fields": {"a": {}}}, "expires": "approve"}]},
    "a condition that is no text": step(when=True),
    "an unknown isolation": {**BASE, "isolation": "vm"},
    "a concurrency without a key": {**BASE, "concurrency": {"when_busy": "queue"}},
    "approvers as text": {**BASE, "approval": {"approvers": "sre"}},
    "operators as text": {**BASE, "approval": {"operators": "sre"}},
    "an approver as a mapping": {**BASE, "approval": {"approvers": [{"name": "ana"}]}},
    "an unknown way of being known": {**BASE, "approval": {"known_by": ["word of honour"]}},
    "an effect as a list": {**BASE, "approval": {"effects": [["write"]]}},
    "another end of a gate": {**BASE, "approval": {"expires": "approve"}},
    "a negative time until a reminder": {**BASE, "approval": {"remind_after_ms": -1}},
}


@pytest.mark.parametrize("document", REFUSED.values(), ids=REFUSED)
def test_the_schema_refuses_what_reading_refuses(document: dict[str, Any], schema: Draft202012Validator) -> None:
    _, problems = read_document(json.dumps(document))
    assert problems
    assert not schema.is_valid(document)


@pytest.mark.parametrize(
    "document",
    [
        {**BASE, "steps": []},
        {**BASE, "description": ""},
        {**BASE, "inputs": {"a-b": {}}},
        step(id="a b"),
        step(id="true"),
        step(id="x" * 65),
        step(when="result.ok"),
        step(for_each="[1, 2]"),
        step(goal="Both"),
        {**BASE, "steps": [{"description": "Neither"}]},
    ],
    ids=lambda document: json.dumps(document)[:60],
)
def test_the_schema_refuses_what_only_validation_refuses(document: dict[str, Any], schema: Draft202012Validator) -> None:
    assert not schema.is_valid(document)


def test_expressions_are_allowed_in_parameters_of_any_type(schema: Draft202012Validator) -> None:
    assert schema.is_valid(step(parameters={"count": "${{ inputs.n }}", "nested": [{"x": "${{ item }}"}]}, when="${{ inputs.n > 1 }}"))
    assert not schema.is_valid(step(max_retries="${{ inputs.n }}"))


def test_every_field_is_described() -> None:
    schema: Any = plan_schema()
    for part in (schema, *(schema["$defs"][model.__name__] for model in (ApprovalPolicy, ExecutionOptions, Input, Step))):
        for name, field in part["properties"].items():
            assert field.get("description", "").endswith(".") or "$ref" in field, name


def test_every_field_is_executed() -> None:
    schema: Any = plan_schema()
    fields = {**schema["properties"], **schema["$defs"]["Step"]["properties"]}
    for name in ("approval", "requires_approval", "concurrency", "goal", "tools", "max_rounds"):
        assert "Not executed yet." not in fields[name]["description"], name
    assert "not-yet" in CATALOGUE
