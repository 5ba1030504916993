"""Tests of what is suggested for words of other programs, and of what the hints of ids say."""

from plan_adapter.documents import read_document
from plan_adapter.model.problems import did_you_mean
from plan_adapter.store import load_plan
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import find_problems
from tests.cases import for_each

STEP = "description: x\nsteps:\n  - {id: a, tool_name: bash, description: d, parameters: {command: 'true'}"


@for_each(
    field_meant=[
        ("tool: bash", "tool_name"),
        ("args: {}", "parameters"),
        ("depends: [b]", "needs"),
        ("loop: [b]", "for_each"),
        ("tool_nam: bash", "tool_name"),
    ]
)
def test_a_field_of_another_program_suggests_ours(field_meant: tuple[str, str]) -> None:
    field, meant = field_meant
    _, problems = read_document(f"{STEP}, {field}}}\n")
    (hint,) = [problem.hint for problem in problems if problem.code == "unknown-field"]
    assert f"`{meant}" in hint


@for_each(
    tool_parameter_meant=[
        ("bash", "cmd", "command"),
        ("bash", "script", "command"),
        ("run_command", "args", "argv"),
        ("run_command", "cmd", "argv"),
        ("run_command", "command", "argv"),
        ("run_command", "script", "argv"),
        ("bash", "commnd", "command"),
    ]
)
def test_a_parameter_of_another_program_suggests_ours(tool_parameter_meant: tuple[str, str, str]) -> None:
    tool, parameter, meant = tool_parameter_meant
    plan = load_plan(f"description: x\nsteps: [{{id: a, tool_name: {tool}, description: d, parameters: {{{parameter}: x}}}}]\n")
    hints = {problem.at: problem.hint for problem in find_problems(plan, ToolRegistry.with_builtins())}
    assert hints[f"steps[0].parameters.{parameter}"] == f"did you mean `{meant}`?"


@for_each(name=["__class__", "__dict__", "__init__", "p0", "model_config", "颜色"])
def test_any_unknown_parameter_is_reported_alike(name: str) -> None:
    plan = load_plan(f"description: x\nsteps: [{{id: a, tool_name: bash, description: d, parameters: {{command: x, {name}: 1}}}}]\n")
    (problem,) = find_problems(plan, ToolRegistry.with_builtins())
    assert (problem.code, problem.message) == ("bad-parameters", f"the tool has no parameter `{name}`")


def test_a_word_that_exists_is_never_replaced() -> None:
    assert did_you_mean("tool", {"tools", "tool"}) == "did you mean `tool`?"


def test_the_rule_for_ids_is_clear_about_letters() -> None:
    plan = load_plan("description: x\nsteps: [{id: 部署, tool_name: bash, description: 部署, parameters: {command: 'true'}}]\n")
    (problem,) = find_problems(plan, ToolRegistry.with_builtins())
    assert problem.code == "bad-id"
    assert (
        problem.hint
        == "use a letter from a to z or _, then at most 63 such letters, digits, _ or -; the `description` can be in any language"
    )
