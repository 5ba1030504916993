"""Tests of plans that Python code builds: tools in place of names, references in place of `${{ }}`, and errors that name what is near."""

import inspect

import pytest
from pydantic import ValidationError

from plan_adapter import ExecutionPlan, PlanStore, Step, ToolRegistry, tool
from plan_adapter.documents import dump_plan, load_plan
from plan_adapter.model.reference import Reference
from plan_adapter.plans import Input
from plan_adapter.runs import arun_plan
from plan_adapter.validation import validate


@tool(effect="read")
def greet(who: str, times: int = 1) -> dict[str, str]:
    """Greet somebody."""
    return {"text": " ".join([f"Hello, {who}!"] * times)}


@tool(effect="read")
def label(label: str, items: list[str] | None = None) -> str:
    """Return a text, with items."""
    return ", ".join([label, *(items or [])])


def built() -> ExecutionPlan:
    plan = ExecutionPlan(description="Greet twice", inputs={"guest": Input()})
    plan.options.require_approval = False
    first = plan.add_step(greet, "Greet the guest", who=plan.input("guest"))
    plan.add_step(greet, who=f"{first.result['text']} again", times=2, max_retries=1)
    plan.outputs = {"said": plan.steps[1].result["text"]}
    return plan


def test_a_plan_is_built_from_tools_and_references() -> None:
    first, second = built().steps
    assert (first.tool_name, first.parameters) == ("greet", {"who": "${{ inputs.guest }}"})
    assert (second.parameters, second.max_retries) == ({"who": "${{ steps.step_1.result.text }} again", "times": 2}, 1)
    assert validate(built(), ToolRegistry([greet])).dependencies["step_2"] == ("step_1",)
    assert {type(value) for step in built().steps for value in step.parameters.values()} == {str, int}


def test_the_document_of_a_built_plan_is_that_of_a_written_one() -> None:
    assert load_plan(dump_plan(built())).steps == built().steps


async def test_a_built_plan_runs(tmp_path: object) -> None:
    async with PlanStore(f"sqlite:///{tmp_path}/plans.db") as store:
        run = await arun_plan(built(), tools=ToolRegistry([greet]), inputs={"guest": "小明"}, store=store, offline=True)
    assert run.has_ended and run.succeeded and run.is_completed
    assert run.outputs == {"said": "Hello, Hello, 小明! again! Hello, Hello, 小明! again!"}


def test_a_parameter_with_the_name_of_a_field_goes_into_parameters() -> None:
    plan = ExecutionPlan(description="Label")
    step = plan.add_step(label, "Label it", {"label": "a"}, items=["b"])
    assert (step.parameters, step.label) == ({"label": "a", "items": ["b"]}, None)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (("result",), "${{ steps.a.result }}"),
        (("result", "rows", 0, "名"), '${{ steps.a.result.rows[0]["名"] }}'),
        (('with "quotes"',), '${{ steps.a["with \\"quotes\\""] }}'),
    ],
)
def test_references_are_written_as_expressions(parts: tuple[str | int, ...], text: str) -> None:
    reference = Reference.to("steps", "a")
    for part in parts:
        reference = reference[part]
    assert reference == text
    assert Step(id="my-step").result["x"] == '${{ steps["my-step"].result.x }}'


def test_only_names_and_indexes_are_parts_of_a_reference() -> None:
    with pytest.raises(AttributeError, match=r'a reference has no attribute `address`: the member of its value is `\["address"\]`'):
        assert Reference.to("inputs", "a").address
    for wrong in (slice(0, 2), 1.5, True, None):
        with pytest.raises(TypeError, match="a part of a reference is a name or an index"):
            Reference.to("inputs", "a")[wrong]


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    plan = ExecutionPlan(description="d", inputs={"host": Input()})
    with pytest.raises(ValidationError, match="there is no field `timeout`; did you mean `timeout_ms`"):
        plan.add_step("bash", "x", {"command": "true"}, timeout=5)
    with pytest.raises(ValidationError, match="there is no field `stps`; did you mean `steps`"):
        ExecutionPlan(description="d", stps=[])  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="`greet` has no such parameter, and a step no such field: `whom`: did you mean `who`"):
        plan.add_step(greet, whom="Ana")
    with pytest.raises(TypeError, match="a step calls a tool: give its name, the tool or its function, not 5"):
        plan.add_step(5)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="the plan has no input `hst`; did you mean `host`"):
        plan.input("hst")
    with pytest.raises(ValueError, match="a step has an id once it is in a plan"):
        assert Step(tool_name="bash").result


def test_the_other_errors_of_a_part_stay_as_they_are() -> None:
    with pytest.raises(ValidationError) as caught:
        Step(tool_name=5, nme=1)  # type: ignore[arg-type, call-arg]
    assert [(error["type"], error["loc"]) for error in caught.value.errors()] == [
        ("string_type", ("tool_name",)),
        ("unknown_field", ("nme",)),
    ]


def test_the_signature_of_a_step_shows_its_fields() -> None:
    assert {"id", "tool_name", "parameters", "depends_on"} <= inspect.signature(Step).parameters.keys()
