"""Tests of plans built in Python: wrong types, wrong trees and late edits give problems, never crashes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan_adapter.documents import read_document
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.problems import CATALOGUE
from plan_adapter.validation import find_problems, lint, validate
from tests.validation.builders import TOOLS, found, plan, step


def nested(levels: int) -> Any:
    """Lists in lists."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def endless() -> Any:
    """A list that holds itself, twice."""
    value: list[Any] = []
    value += [value, value]
    return value


def unfolding() -> Any:
    """A small value that becomes enormous when written."""
    value: Any = [1]
    for _ in range(60):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("make", "code"),
    [(lambda: nested(100_000), "too-deep"), (lambda: nested(200), "too-deep"), (endless, "too-deep"), (unfolding, "too-large")],
    ids=["100,000 levels", "200 levels", "holds itself", "unfolds"],
)
@pytest.mark.parametrize("field", ["parameters", "metadata"])
def test_an_unbounded_tree_is_refused(make: Any, code: str, field: str) -> None:
    checked = plan()
    setattr(checked.steps[0], field, {"value": make()})
    assert found(checked) == [(code, f"steps[0].{field}")]


def test_ninety_levels_and_a_megabyte_are_accepted() -> None:
    assert found(plan(step("a", parameters={"value": nested(90)}), step("b", parameters={"value": ["x" * 100] * 10_000}))) == []


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("id", None, "wrong-type"),
        ("tool_name", 5, "wrong-type"),
        ("depends_on", "other", "wrong-type"),
        ("depends_on", [1], "wrong-type"),
        ("when", True, "wrong-type"),
        ("max_retries", "3", "wrong-type"),
        ("max_retries", -1, "bad-value"),
        ("retry_backoff", 0.5, "bad-value"),
        ("timeout_ms", 1.5, "wrong-type"),
        ("effect", "reads", "bad-effect"),
        ("on_error", "ignore", "bad-value"),
        ("parameters", [1], "wrong-type"),
        ("parameters", {"value": object()}, "wrong-type"),
        ("parameters", {"value": {1, 2}}, "wrong-type"),
        ("parameters", {"value": b"x"}, "wrong-type"),
        ("parameters", {1: "x"}, "wrong-type"),
    ],
)
def test_a_field_of_the_wrong_type_is_one_problem(field: str, value: Any, code: str) -> None:
    checked = plan(step("a"), step("other"))
    setattr(checked.steps[0], field, value)
    ((found_code, at),) = found(checked)
    assert (found_code, at.startswith(f"steps[0].{field}")) == (code, True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", None), ("steps", "x"), ("steps", [None]), ("options", None), ("inputs", {"x": 5}), ("description", None), ("version", 2)],
)
def test_a_plan_of_the_wrong_shape_is_a_problem(field: str, value: Any) -> None:
    checked = plan()
    setattr(checked, field, value)
    assert len(find_problems(checked, TOOLS)) == 1


def test_a_step_that_holds_itself_is_a_problem() -> None:
    checked = plan()
    vars(checked.steps[0])["rollback"] = checked.steps[0]
    assert [code for code, _ in found(checked)] == ["wrong-type"]


def test_one_wrong_field_neither_hides_other_problems_nor_causes_more() -> None:
    checked = plan(step("a"), step("b", depends_on=["a"], parameters={"value": "${{ steps.a.result }}"}), step("c", tool_name="psh"))
    checked.steps[0].id = 5  # type: ignore[assignment]
    assert found(checked) == [("wrong-type", "steps[0].id"), ("unknown-tool", "steps[2].tool_name")]


def test_problems_of_the_document_are_found_with_those_of_validation() -> None:
    text = "description: d\nsteps:\n  - {id: a, tool_name: psh, max_retries: many}\n  - {id: b, tool_nam: push}\n"
    read, problems = read_document(text, file="plan.yaml")
    assert read is not None
    found_now = lint(read, TOOLS)
    assert [(problem.code, problem.line) for problem in found_now] == [
        ("unknown-tool", 3),
        ("wrong-type", 3),
        ("missing-field", 4),
        ("unknown-field", 4),
    ]
    assert set(problems) <= set(found_now)
    with pytest.raises(InvalidPlanError):
        validate(read, TOOLS)


def test_steps_appended_to_a_finished_plan_get_ids_and_places() -> None:
    checked = ExecutionPlan(description="d")
    checked.steps.append(Step(tool_name="push"))
    checked.steps.append(Step(tool_name="push"))
    assert validate(checked, TOOLS).order == ("step_1", "step_2")
    assert [(item.id, item.index) for item in checked.steps] == [("step_1", 0), ("step_2", 1)]


def test_options_set_on_a_finished_plan_apply() -> None:
    checked = plan()
    checked.options.stop_on_error = False
    options = validate(checked, TOOLS).plan.options
    assert (options.stop_on_error, options.continue_on_error) == (False, True)
    checked.options.continue_on_error = False
    assert found(checked) == [("contradicting-policies", "options.continue_on_error")]


def test_validation_returns_a_copy_with_the_same_digest_and_id() -> None:
    parameters: dict[str, Any] = {"value": [{"a": 1}]}
    checked = plan(step("a", parameters=parameters), options={"allow_parallel": True, "stop_on_error": False}, metadata={"owner": "x"})
    validated = validate(checked, TOOLS)
    assert validated.plan == checked
    assert (validated.digest, validated.plan.id) == (plan_digest(checked), checked.id)
    parameters["value"][0]["a"] = 2
    checked.steps[0].tool_name = "gone"
    assert validated.plan.steps[0].parameters == {"value": [{"a": 1}]}
    assert validated.plan.steps[0].tool_name == "push"


def test_a_validated_plan_is_read_only() -> None:
    validated = validate(plan(), TOOLS)
    with pytest.raises(AttributeError):
        validated.digest = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        validated.tools["only"] = None  # type: ignore[index]


def test_a_validated_plan_names_each_tool_once_for_the_approval() -> None:
    validated = validate(plan(step("a"), step("b"), step("c", tool_name="fetch_page", parameters={"url": "x"})), TOOLS)
    assert [definition["name"] for definition in validated.definitions] == ["fetch_page", "push"]
    assert [tool.name for tool in validated.tools.values()] == ["push", "push", "fetch_page"]


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["${{ steps.a.result }}", "${{ x", "a", "push", b"x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(list(Step.model_fields)), anything), max_size=4), st.data())
def test_no_plan_crashes_validation(edits: list[tuple[int, str, Any]], data: st.DataObject) -> None:
    checked = plan(step("a"), step("b", depends_on=["a"]), step("c"))
    for index, field, value in edits:
        setattr(checked.steps[index], field, value)
    for field in data.draw(st.lists(st.sampled_from(list(ExecutionPlan.model_fields)), max_size=1)):
        setattr(checked, field, data.draw(anything))
    problems = lint(checked, TOOLS)
    assert all(problem.code in CATALOGUE and problem.message for problem in problems)
    assert problems == lint(checked, TOOLS)
    assert all(str(problem) for problem in problems)
    if not any(problem.severity == "error" for problem in problems):
        assert validate(checked, TOOLS).order
