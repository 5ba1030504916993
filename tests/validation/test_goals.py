"""Tests of the validation of goals."""

from typing import Any

import pytest

from plan_adapter.model.plan import Input, Question, Rollback, Step
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import find_problems, lint, validate
from tests.validation.builders import TOOLS, found, plan, step


@pytest.fixture(autouse=True)
def _with_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_MODEL", "m")


def goal(**fields: Any) -> Step:
    return Step(**({"id": "tell", "goal": "Tell everybody", "tools": ["push", "fetch_page"]} | fields))


def test_a_goal_may_have_a_condition_in_words_or_an_expression() -> None:
    assert found(plan(goal(done_when="Everybody knows it", max_rounds=3))) == []
    assert found(plan(goal(done_when="${{ result.rounds < 3 }}"))) == []


def test_the_effect_of_a_goal_is_the_strongest_of_its_tools() -> None:
    assert validate(plan(goal()), TOOLS).effect_of("tell") == "write"
    assert validate(plan(goal(tools=["fetch_page"])), TOOLS).effect_of("tell") == "read"


def test_an_approval_covers_the_tools_of_a_goal_and_not_the_goal_as_a_tool() -> None:
    assert [definition["name"] for definition in validate(plan(goal()), TOOLS).definitions] == ["fetch_page", "push"]


def test_a_reference_in_the_goal_makes_a_dependency() -> None:
    checked = plan(step("first"), goal(goal="Tell of ${{ steps.first.result }}"))
    assert validate(checked, TOOLS).dependencies["tell"] == ("first",)


def test_the_fields_of_the_result_of_a_goal_are_known() -> None:
    told = step("after", parameters={"value": "${{ steps.tell.result.results.push }} ${{ steps.tell.result.evidence.size() > 1 }}"})
    assert found(plan(goal(done_when="${{ result.evidence.size() > 1 }}"), told)) == []


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("steps.tell.result.sumary", "`steps.tell.result` has no field `sumary`", "did you mean `summary`?"),
        ('"x" + string(steps.tell.result["round"] + 1)', "`steps.tell.result` has no field `round`", "did you mean `rounds`?"),
        ("steps.tell.result[0]", "`steps.tell.result` has no field `0`", "known: `evidence`, `results`, `rounds`, `summary`"),
        ("steps.day.result.dya", "`steps.day.result` has no field `dya`", "did you mean `day`?"),
    ],
)
def test_a_field_that_a_result_does_not_have_is_reported(written: str, message: str, hint: str) -> None:
    code = f"${{{{ {written} }}}}"
    day = Step(id="day", ask=Question(question="哪一天？", fields={"day": Input(type="integer")}))
    for checked in (
        plan(goal(), day, step("after", parameters={"value": code})),
        plan(goal(), day, outputs={"it": code}),
        plan(goal(), day, finally_=[step("after", parameters={"value": code})]),
    ):
        (problem,) = find_problems(checked, TOOLS)
        assert (problem.code, problem.message, problem.hint) == ("unknown-reference", message, hint)


def test_a_field_that_a_goal_does_not_have_is_reported_in_its_condition() -> None:
    (problem,) = find_problems(plan(goal(done_when="${{ result.evidnce.size() > 1 }}")), TOOLS)
    assert (problem.at, problem.hint) == ("steps[0].done_when", "did you mean `evidence`?")


def test_an_unconfirmed_read_of_any_address_is_a_warning() -> None:
    open_read = plan(goal(tools=["http_get"]))
    assert [(problem.code, problem.at) for problem in lint(open_read, ToolRegistry.with_builtins())] == [("open-read", "steps[0].tools[0]")]
    assert lint(plan(goal(tools=["http_get"], requires_approval=True)), ToolRegistry.with_builtins()) == []


@pytest.mark.parametrize(
    ("fields", "code", "at"),
    [
        ({"tools": []}, "bad-goal", "tools"),
        ({"tools": ["push", "puhs"]}, "unknown-tool", "tools[1]"),
        ({"tools": ["push", "push"]}, "duplicate-entry", "tools[1]"),
        ({"goal": " "}, "bad-goal", "goal"),
        ({"goal": "Use ${{ secrets.token }}"}, "misplaced-secret", "goal"),
        ({"tool_name": "push"}, "bad-goal", "tool_name"),
        ({"parameters": {"value": 1}}, "bad-goal", "parameters"),
        ({"input": "x"}, "bad-goal", "input"),
        ({"for_each": "${{ [1] }}"}, "bad-goal", "for_each"),
        ({"effect": "read"}, "bad-goal", "effect"),
        ({"rollback": Rollback(tool_name="push")}, "bad-goal", "rollback"),
        ({"done_when": "${{ result.rounds + 'x' == 1 }}"}, "expression-type", "done_when"),
    ],
)
def test_a_mistake_in_a_goal_is_reported_at_its_place(fields: dict[str, Any], code: str, at: str) -> None:
    assert found(plan(goal(**fields))) == [(code, f"steps[0].{at}")]


@pytest.mark.parametrize(("field", "value"), [("tools", ["push"]), ("max_rounds", 3)])
def test_a_step_without_a_goal_has_no_tools_and_no_rounds(field: str, value: Any) -> None:
    assert found(plan(step("a", **{field: value}))) == [("bad-goal", f"steps[0].{field}")]


def test_a_goal_cannot_be_a_step_of_a_group() -> None:
    checked = plan(Step(id="all", for_each="${{ [1] }}", steps=[goal()]))
    assert found(checked) == [("not-yet", "steps[0].steps[0].goal")]


def test_a_goal_without_a_model_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAN_ADAPTER_MODEL")
    (problem,) = lint(plan(goal()), TOOLS)
    assert (problem.code, problem.severity, problem.at) == ("no-model", "warning", "steps[0].goal")
