"""Tests of values that could hide another call behind the same digest, and of colliding keys."""

import json
from dataclasses import dataclass
from datetime import date
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plan_adapter import ExecutionPlan, ToolRegistry, run_plan, tool
from plan_adapter.documents import load_plan
from plan_adapter.expressions import Variables
from plan_adapter.model.canonical import call_digest
from plan_adapter.model.errors import ExpressionError, InvalidPlanError
from plan_adapter.model.plan import Rollback
from plan_adapter.plans import Input
from plan_adapter.tools.tool import as_json
from plan_adapter.validation import BoundPlan, bind_inputs, validate
from tests.attacks.approving import RecordingApprover
from tests.attacks.values import exact


@tool(effect="read")
def take(value: Any = None, share: float = 0.5) -> Any:
    """Take a value."""
    return value


TOOLS = ToolRegistry([take])

LARGE = [1e15, -1e15, 1e20, 1e21, 1e22, 2.0**53 - 1, 2.0**53, 2.0**53 + 2, 2**53 - 1, 2**53, 2**53 + 1, -(2**53), 10**20, 10**21]
numbers = (
    st.sampled_from([0, 0.0, -0.0, 1, 1.0, -1.0, 2.0, 2.0e0, 0.5, 1e-7, True, False, "1", "1.0", "-0", *LARGE])
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False, width=16)
)
trees = st.recursive(
    st.none() | numbers | st.text("a1.中", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab1", max_size=2), inner, max_size=3),
    max_leaves=8,
)


def twin(value: Any, draw: Any) -> Any:
    """Return a value that RFC 8785 writes like `value`, with other number types and another key order."""
    if isinstance(value, dict):
        return {key: twin(member, draw) for key, member in reversed(value.items())}
    if isinstance(value, list):
        return [twin(member, draw) for member in value]
    if isinstance(value, bool) or not isinstance(value, int | float) or (isinstance(value, float) and not value.is_integer()):
        return value
    return draw(st.sampled_from([int(value), float(value), -0.0 if value == 0 else float(value)]))


@st.composite
def pairs(draw: Any) -> tuple[Any, Any]:
    """Draw two values that are equal in JSON, or nearly equal."""
    value = draw(trees)
    return value, twin(value, draw) if draw(st.booleans()) else draw(trees)


def called(bound: BoundPlan, results: dict[str, Any] | None = None) -> str:
    """Return a text of the resolved parameters, rollback parameters and outputs of a plan."""
    variables = Variables(steps={"before": {"result": results}}, inputs=bound.inputs, item=0, result=None)
    templates = [*bound.validated.parameters.values(), *(call.parameters for call in bound.validated.rollbacks.values())]
    return exact([template.resolve(variables) for template in (*templates, *bound.validated.outputs.values())])


def plan_with(value: Any, *, text: bool) -> ExecutionPlan:
    """Return a plan that holds `value` wherever a plan can hold values, built in Python or loaded from a document."""
    plan = ExecutionPlan(description="Take it", inputs={"given": Input(type="object", default={"x": value})}, metadata={"note": value})
    plan.outputs = {"fixed": value}
    step = plan.add_step("take", "Take it", {"value": [value, "${{ inputs.given }}"]}, metadata={"note": value})
    step.rollback = Rollback(tool_name="take", parameters={"value": {"x": [value]}})
    return load_plan(json.dumps(plan.to_document())) if text else plan


@settings(max_examples=75, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs(), st.booleans(), st.booleans())
def test_plans_with_the_same_digest_make_the_same_call(pair: tuple[Any, Any], first_is_text: bool, second_is_text: bool) -> None:
    try:
        one, other = (
            bind_inputs(validate(plan_with(value, text=text), TOOLS))
            for value, text in zip(pair, (first_is_text, second_is_text), strict=True)
        )
    except InvalidPlanError:
        return  # no approval, no call
    if one.approval_digest == other.approval_digest:
        assert called(one) == called(other)
        assert exact(one.inputs) == exact(other.inputs)
        assert exact(one.validated.plan.metadata) == exact(other.validated.plan.metadata)
    else:
        assert exact(pair[0]) != exact(pair[1])


@settings(max_examples=75, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs(), st.sampled_from(["number", "integer", "object", "array", "string"]))
def test_inputs_with_the_same_digest_make_the_same_call(pair: tuple[Any, Any], kind: Any) -> None:
    plan = ExecutionPlan(description="Take it", inputs={"given": Input(type=kind)})
    plan.add_step("take", "Take it", {"value": "${{ inputs.given }}"})
    validated = validate(plan, TOOLS)
    wrapped = ({"x": value} if kind == "object" else [value] if kind == "array" else value for value in pair)
    try:
        one, other = (bind_inputs(validated, {"given": value}) for value in wrapped)
    except InvalidPlanError:
        return
    if one.approval_digest == other.approval_digest:
        assert called(one) == called(other)
        assert exact(one.inputs) == exact(other.inputs)


EXPRESSIONS = ["${{ steps.before.result }}", "${{ [steps.before.result][0] }}", "${{ {'a': [steps.before.result]} }}"]


@settings(max_examples=75, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs(), st.sampled_from(EXPRESSIONS))
def test_results_with_the_same_call_digest_make_the_same_call(pair: tuple[Any, Any], expression: str) -> None:
    plan = ExecutionPlan(description="Take it")
    plan.add_step("take", "First", {}, id="before")
    plan.add_step("take", "Take it", {"value": expression}, id="after")
    bound = bind_inputs(validate(plan, TOOLS))
    template, step = bound.validated.parameters["after"], bound.validated.plan.step("after")
    try:
        one, other = (template.resolve(Variables(steps={"before": {"result": value}}, inputs={})) for value in pair)
        digests = [call_digest(step, None, parameters, take.definition()) for parameters in (one, other)]  # type: ignore[arg-type]
    except (ExpressionError, InvalidPlanError):  # a value without a digest cannot be approved
        return
    if digests[0] == digests[1]:
        assert exact(one) == exact(other)


class Level(IntEnum):
    """An enum of numbers."""

    HIGH = 3


class Mode(StrEnum):
    """An enum of texts."""

    GO = "go"


CANONICAL_VALUES: dict[str, tuple[Any, str]] = {
    "a float": (1.0, "1"),
    "a float in exponents": (2.0e0, "2"),
    "a negative zero": (-0.0, "0"),
    "a large float": (1e15, "1000000000000000"),
    "the largest": (2.0**53 - 1, "9007199254740991"),
    "beyond 2^53": (1e21, "1e+21"),
    "nested": ({"a": [3.0, {"b": -0.0}]}, '{"a": [3, {"b": 0}]}'),
    "a fraction": (1.5, "1.5"),
    "true": (True, "true"),
    "a text": ("1.0", '"1.0"'),
    "an enum of numbers": (Level.HIGH, "3"),
    "an enum of texts": (Mode.GO, '"go"'),
}


FAST_CASES = {"constant": CANONICAL_VALUES, "result": CANONICAL_VALUES, "input": ("a float", "nested"), "default": ("a float", "nested")}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        pytest.param(source, name, marks=() if name in brief else pytest.mark.thorough)
        for source, brief in FAST_CASES.items()
        for name in CANONICAL_VALUES
    ],
)
def test_the_digest_the_gate_and_the_call_use_the_same_value(source: str, name: str) -> None:
    value, written = CANONICAL_VALUES[name]
    got: list[Any] = []

    @tool(effect="read")
    def give() -> Any:
        """Give the value."""
        return value

    @tool(effect="write")
    def use(value: Any) -> None:
        """Use the value."""
        got.append(value)

    plan = ExecutionPlan(description="Use it")
    plan.options.require_approval = False
    parameter: Any = value
    if source in ("input", "default"):
        plan.inputs = {"x": Input(type="object", default=None if source == "input" else {"y": value})}
        parameter = "${{ inputs.x.y }}"
    if source == "result":
        plan.add_step("give", "Give it", {}, id="give")
        parameter = "${{ steps.give.result }}"
    plan.add_step("use", "Use it", {"value": parameter}, id="use", requires_approval=True)
    approver = RecordingApprover()
    inputs = {"x": {"y": value}} if source == "input" else None
    run = run_plan(plan, tools=ToolRegistry([give, use]), inputs=inputs, approver=approver, offline=True)
    assert run.is_completed, run.step("use").error
    assert json.dumps(got[0]) == written
    assert type(got[0]) in (int, float, str, bool, dict)
    assert not isinstance(value, int | float) or f"`{written}`" in approver.texts[0]


def test_a_float_parameter_still_gets_a_float() -> None:
    plan = ExecutionPlan(description="Take it")
    plan.add_step("take", "Take it", {"value": 2.0, "share": 1.0})
    validated = validate(plan, TOOLS)
    parameters = validated.parameters["step_1"].resolve(Variables(steps={}, inputs={}))
    arguments = take.bind(parameters, None)  # type: ignore[arg-type]
    assert (repr(arguments["share"]), repr(arguments["value"])) == ("1.0", "2")


def test_expressions_calculate_with_the_floats_of_a_result() -> None:
    @tool(effect="read")
    def measure() -> dict[str, float]:
        """Measure something."""
        return {"used": 7.0, "all": 2.0}

    plan = ExecutionPlan(description="Measure")
    plan.options.require_approval = False
    plan.add_step("measure", "Measure", {}, id="m", done_when="${{ result.used / result.all == 3.5 }}")
    plan.add_step("take", "Take", {"value": "${{ item / 2.0 }}"}, id="t", for_each="${{ [7.0, steps.m.result.all] }}")
    run = run_plan(plan, tools=ToolRegistry([measure, take]), offline=True)
    assert run.is_completed
    assert exact(run.step("t").result) == exact([3.5, 1])


def test_an_integer_without_a_canonical_form_fails_only_the_gated_step() -> None:
    @tool(effect="read")
    def give() -> int:
        """Give a large number."""
        return 2**60

    plan = ExecutionPlan(description="Use it")
    plan.options.require_approval = False
    plan.add_step("give", "Give it", {}, id="give")
    plan.add_step("take", "Use it", {"value": "${{ steps.give.result }}"}, id="use", requires_approval=True)
    run = run_plan(plan, tools=ToolRegistry([give, take]), approver=RecordingApprover(), offline=True)
    assert run.step("give").status == "completed"
    assert "the integer is beyond" in (run.step("use").error or "")


@dataclass
class Counts:
    """A result with a mapping inside."""

    counts: dict[Any, int]


COLLIDING_KEYS: dict[str, tuple[Any, str]] = {
    "a number and a text": ({1: "a", "1": "b"}, "1"),
    "nested in a list": ({"rows": [{"x": {2: 1, "2": 2}}]}, "2"),
    "none": ({None: 1, "None": 2}, "None"),
    "true": ({True: 1, "true": 2}, "true"),
    "a fraction": ({1.5: 1, "1.5": 2}, "1.5"),
    "a date": ({date(2026, 1, 2): 1, "2026-01-02": 2}, "2026-01-02"),
    "an enum": ({Level.HIGH: 1, "3": 2}, "3"),
    "bytes": ({b"k": 1, "k": 2}, "k"),
    "in a dataclass": (Counts({7: 1, "7": 2}), "7"),
    "Chinese": ({"键": 1, b"\xe9\x94\xae": 2}, "键"),
}


@pytest.mark.parametrize("name", COLLIDING_KEYS)
def test_colliding_keys_of_a_result_fail_the_step(name: str) -> None:
    value, key = COLLIDING_KEYS[name]

    @tool(effect="read")
    def give() -> Any:
        """Give the value."""
        return value

    plan = ExecutionPlan(description="Give it")
    plan.options.require_approval = False
    plan.add_step("give", "Give it", {}, id="give")
    run = run_plan(plan, tools=ToolRegistry([give]), offline=True)
    error = f'the result is not JSON: two keys of one mapping both become the JSON key "{key}"; rename one of them'
    assert (run.step("give").status, run.step("give").result, run.step("give").error) == ("failed", None, error)


@pytest.mark.parametrize("value", [{1: "a", "2": "b"}, {None: 1, "null": 2}, {True: 1, "True": 2}, [{1: 1}, {"1": 1}]], ids=str)
def test_distinct_keys_are_kept(value: Any) -> None:
    assert str(as_json(value)) == str(as_json(as_json(value)))
    assert len(as_json(value)) == len(value)  # type: ignore[arg-type]
