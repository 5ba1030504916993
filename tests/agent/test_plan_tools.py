"""Tests of a plan as a function that a model may call."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, approve, tool
from plan_adapter.agent import plan_tool, tool_inputs
from plan_adapter.agent.plan_tools import NAME_CHARACTERS, function_name
from plan_adapter.errors import InvalidPlanError
from plan_adapter.plans import Input
from plan_adapter.runs import arun_plan


@tool(effect="read")
def greet(name: str, times: int) -> str:
    """Greet somebody."""
    return f"你好, {name}! " * times


def greeting(**more: Input) -> ExecutionPlan:
    inputs = {
        "name": Input(description="Whom to greet", min_length=1, max_length=20),
        "times": Input(type="integer", default=2, minimum=1, maximum=3),
        **more,
    }
    plan = ExecutionPlan(name="greet-somebody", description="Greet somebody", inputs=inputs)
    plan.add_step("greet", "Greet", {"name": "${{ inputs.name }}", "times": "${{ inputs.times }}"})
    return plan


async def test_a_call_of_the_function_runs_the_plan(tmp_path: Path) -> None:
    plan, tools = greeting(), ToolRegistry([greet])
    inputs = tool_inputs(plan, '{"name": "安娜", "times": null}')  # strict decoding writes null for an omitted input
    assert inputs == {"name": "安娜"}
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        approval = approve(plan, tools=tools, by="ana", inputs=inputs)
        run = await arun_plan(plan, tools=tools, inputs=inputs, approval=approval, store=store, offline=True)
    assert run.steps[0].result == "你好, 安娜! 你好, 安娜! "


def test_the_definition_is_strict_if_strict_decoding_supports_every_input() -> None:
    function = plan_tool(greeting())["function"]
    assert function == {
        "name": "greet-somebody",
        "description": "Greet somebody",
        "parameters": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "Whom to greet"},
                "times": {"anyOf": [{"type": "integer", "minimum": 1.0, "maximum": 3.0}, {"type": "null"}]},
            },
            "required": ["name", "times"],
            "additionalProperties": False,
        },
        "strict": True,
    }


@pytest.mark.parametrize("declared", [Input(type="object"), Input(type="array"), Input(type="array", items="object")])
def test_inputs_that_strict_decoding_cannot_express_keep_their_schema(declared: Input) -> None:
    function = plan_tool(greeting(more=declared))["function"]
    assert isinstance(function, dict)
    assert function["strict"] is False
    parameters = function["parameters"]
    assert isinstance(parameters, dict)
    Draft202012Validator.check_schema(parameters)
    validator = Draft202012Validator(parameters)
    value: object = {"a": [1]} if declared.type == "object" else [{"a": 1}]
    assert validator.is_valid({"name": "x", "more": value})
    assert not validator.is_valid({"name": "", "more": value})
    assert not validator.is_valid({"name": "x", "times": 9, "more": value})


@pytest.mark.parametrize("arguments", ["no json", "[1]", "null", "[" * 100_000])
def test_arguments_that_are_not_an_object_are_refused(arguments: str) -> None:
    with pytest.raises(InvalidPlanError, match=r"the arguments are not (a )?JSON"):
        tool_inputs(greeting(), arguments)


@pytest.mark.parametrize("name", ["部署一个版本", "Restart one web node", "a" * 200, "", "../x", "部署另一个"])
def test_function_names_are_valid_and_distinct(name: str) -> None:
    made = function_name(name)
    assert made.replace("_", "a").replace("-", "a").isalnum()
    assert made.isascii()
    assert len(made) <= NAME_CHARACTERS
    assert made == function_name(name) != function_name(name + "!")
    assert function_name("cancel_run", {"cancel_run"}) != "cancel_run"


def test_the_schema_command_prints_the_definition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from plan_adapter.cli.app import main
    from plan_adapter.documents import dump_plan

    (tmp_path / "plan.yaml").write_text(dump_plan(greeting()), encoding="utf-8")
    assert main(["schema", "--tool", str(tmp_path / "plan.yaml")]) == 0
    assert json.loads(capsys.readouterr().out) == plan_tool(greeting())
