"""Tests of the verbs that only read plans: init, validate, show, preview, schema, explain, tools."""

import json
import re
from pathlib import Path

import pytest

from plan_adapter.model.problems import CATALOGUE
from tests.cases import for_each
from tests.cli.conftest import Plan

VALID = """\
name: 问候
description: Greet twice
inputs:
  who: {type: string}
  times: {type: integer, default: 2}
options: {require_approval: true, allow_parallel: true, step_timeout_ms: 1000}
steps:
  - id: first
    tool_name: run_command
    description: 说你好
    effect: read
    parameters: {argv: [echo, "hello ${{ inputs.who }}", "${{ inputs.times + 1 }}"]}
    max_retries: 2
    retry_delay_ms: 500
  - id: second
    tool_name: run_command
    parameters: {argv: [echo, "${{ steps.first.result.stdout }}"]}
outputs: {said: "${{ steps.second.result.stdout }}"}
"""

INVALID = """\
name: broken
description: Several problems
options: {require_approval: false, step_timeout_ms: 60000}
steps:
  - {id: a, tool_name: run_comand, parameters: {argv: [x]}}
  - {id: b, tool_name: run_command, parameters: {argv: [x]}, depends_on: [drian]}
"""


@pytest.fixture
def valid_plan() -> Path:
    """Write a valid plan with a required input and return its path."""
    path = Path("sound.yaml")
    path.write_text(VALID, encoding="utf-8")
    return path


@pytest.fixture
def invalid_plan() -> Path:
    """Write a plan with two problems and return its path."""
    path = Path("broken.yaml")
    path.write_text(INVALID, encoding="utf-8")
    return path


def test_the_starter_plan_is_valid_without_a_warning_and_its_worst_case_is_finite(plan: Plan) -> None:
    assert plan("init").out == "wrote plan.yaml; try `plan run plan.yaml --offline`\n"
    result = plan("validate", "plan.yaml")
    assert (result.code, result.out, result.err) == (0, "", "plan.yaml: valid\n")
    preview = json.loads(plan("preview", "plan.yaml", "--json").out)
    assert 0 < preview["worst_case_ms"] <= 120_000
    assert all(0 < step["worst_case_ms"] <= 30_000 for step in preview["steps"])


LOWERED = """
name: lowered
description: Effects that the author lowers
options: {step_timeout_ms: 60000}
steps:
  - {id: a, tool_name: run_command, description: a, effect: read, parameters: {argv: ["true"]}}
  - {id: b, tool_name: run_command, description: b, effect: read, parameters: {argv: ["true"]}}
  - {id: c, tool_name: run_command, description: c, effect: idempotent_write, parameters: {argv: ["true"]}}
  - {id: d, tool_name: bash, description: d, parameters: {command: "true"}}
"""


def test_warnings_of_one_kind_are_one_line_with_their_count_and_all_of_them_in_json(plan: Plan) -> None:
    Path("lowered.yaml").write_text(LOWERED, encoding="utf-8")
    result = plan("validate", "lowered.yaml")
    assert result.err == "lowered.yaml: valid (3 warnings)\n"
    assert result.out == (
        "lowered.yaml:6:53: warning[lowered-effect] at steps[0].effect: 3 times: "
        "`run_command` counts as write and is declared as read (steps[0].effect, steps[1].effect); "
        "`run_command` counts as write and is declared as idempotent_write (steps[2].effect); "
        "the gate says so: make sure that it does no more\n"
    )
    problems = [json.loads(line) for line in plan("validate", "lowered.yaml", "--json").out.splitlines()][:-1]
    assert [problem["at"] for problem in problems] == [f"steps[{number}].effect" for number in range(3)]


def test_each_file_has_its_own_line_of_a_kind_and_one_warning_stays_as_it_is(plan: Plan) -> None:
    two = LOWERED.replace("description: b, effect: read", "description: b")
    for name, text in {"one": two.replace("effect: idempotent_write, ", ""), "two": two, "three": LOWERED}.items():
        Path(f"{name}.yaml").write_text(text, encoding="utf-8")
    lines = plan("validate", "one.yaml", "two.yaml", "three.yaml").out.splitlines()
    assert [line.partition(": warning")[0] for line in lines] == ["one.yaml:6:53", "two.yaml:6:53", "three.yaml:6:53"]
    assert "at steps[0].effect: `run_command` counts as write and is declared as read; the gate says so" in lines[0]
    assert [": 2 times: " in lines[1], ": 3 times: " in lines[2]] == [True, True]


MIXED = """
name: mixed
description: Five inputs that nothing uses, a write that is repeated, a lowered effect and a mistake
options: {step_timeout_ms: 60000}
inputs: {a: {type: string}, b: {type: string}, c: {type: string}, d: {type: string}, e: {type: string}}
steps:
  - {id: send, tool_name: run_command, description: Send, max_retries: 2, parameters: {argv: ["true"]}}
  - {id: look, tool_name: run_command, description: Look, effect: read, parameters: {argv: ["true"]}}
  - {id: lost, tool_name: run_comand, description: Lost, parameters: {argv: ["true"]}}
"""


def test_errors_come_first_and_then_the_dangerous_warnings(plan: Plan) -> None:
    Path("mixed.yaml").write_text(MIXED, encoding="utf-8")
    result = plan("validate", "mixed.yaml")
    codes = [re.search(r"\[([a-z-]+)\]", line)[1] for line in result.out.splitlines()]  # type: ignore[index]
    assert codes == ["unknown-tool", "lowered-effect", "retried-write", "unused-input"]
    assert "5 times: " in result.out.splitlines()[-1]
    assert "; and 2 more: `--json` lists them all" in result.out
    assert result.err == "mixed.yaml: invalid (1 error, 7 warnings)\n"


def test_the_starter_plan_runs(plan: Plan) -> None:
    plan("init", "我的 plan.yaml")
    result = plan("run", "我的 plan.yaml", "--offline", "--input", "who=小明", "--json")
    assert result.code == 0
    assert result.run["status"] == "completed"
    assert result.run["outputs"]["report"].startswith("Hello, 小明! It is ")


def test_init_leaves_an_existing_file_alone(plan: Plan) -> None:
    Path("plan.yaml").write_text("mine")
    result = plan("init")
    assert result.code == 2
    assert "plan.yaml already exists" in result.err
    assert Path("plan.yaml").read_text() == "mine"


def test_init_says_why_it_cannot_write(plan: Plan) -> None:
    result = plan("init", "nowhere/plan.yaml")
    assert result.code == 2
    assert "nowhere/plan.yaml cannot be written" in result.err


def test_every_problem_is_one_line_with_its_location(plan: Plan, invalid_plan: Path) -> None:
    result = plan("validate", invalid_plan)
    assert result.code == 2
    places = [line.split(" ")[0] for line in result.out.splitlines()]
    assert places == ["broken.yaml:5:13:", "broken.yaml:6:75:"]
    assert "did you mean `run_command`?" in result.out
    assert result.err == "broken.yaml: invalid (2 errors)\n"


def test_validating_several_plans_fails_if_one_is_invalid(plan: Plan, valid_plan: Path, invalid_plan: Path) -> None:
    result = plan("validate", valid_plan, invalid_plan, "missing.yaml")
    assert result.code == 2
    assert "missing.yaml: error[unreadable]" in result.out
    assert "sound.yaml: valid" in result.err


def test_a_folder_is_validated_with_its_test_files(plan: Plan, valid_plan: Path, invalid_plan: Path) -> None:
    Path("sound.test.yaml").write_text("cases: {it completes: {expect: {order: [nothing]}}}\n")
    Path("notes.md").write_text("no plan")
    result = plan("validate", ".")
    assert result.code == 2
    verdicts = [line for line in result.err.splitlines() if line.startswith(("broken", "sound", "notes"))]
    assert [verdict.partition(" (")[0] for verdict in verdicts] == ["broken.yaml: invalid", "sound.test.yaml: invalid", "sound.yaml: valid"]
    Path("empty").mkdir()
    assert "the folder empty has no plan documents" in plan("validate", "empty").err


def test_problems_are_json_objects_with_the_json_option(plan: Plan, invalid_plan: Path) -> None:
    result = plan("validate", invalid_plan, "--json")
    assert result.code == 2
    assert [(line["code"], line["line"]) for line in result.lines[:-1]] == [("unknown-tool", 5), ("unknown-step", 6)]
    assert result.run == {"type": "validation", "plan": "broken.yaml", "valid": False, "errors": 2, "warnings": 0}


@pytest.mark.parametrize("verb", ["preview", "run", "show"])
def test_verbs_that_need_a_valid_plan_print_its_problems(plan: Plan, verb: str) -> None:
    Path("text.yaml").write_text("description: [1]\nsteps: 5\n")
    result = plan(verb, "text.yaml", *(["--offline"] if verb == "run" else []))
    assert result.code == 2
    assert result.out == ""
    assert [line.split(" ")[0] for line in result.err.splitlines()] == ["text.yaml:1:1:", "text.yaml:2:1:"]
    result = plan(verb, "text.yaml", "--json")
    assert result.code == 2
    assert {line["file"] for line in result.lines} == {"text.yaml"}


def test_a_plan_is_read_from_stdin(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(VALID))
    assert plan("validate", "-").code == 0


def test_show_prints_dependencies_implied_by_references(plan: Plan, valid_plan: Path) -> None:
    result = plan("show", valid_plan, "--all")
    assert result.code == 0
    assert "   - after `first` (by reference)" in result.out
    assert "- input `who` (string, required)" in result.out
    steps = plan("show", valid_plan, "--json").run["steps"]
    assert [(step["id"], step["depends_on"], step["implied_by_reference"]) for step in steps] == [
        ("first", [], []),
        ("second", ["first"], ["first"]),
    ]


def test_preview_shows_what_each_step_waits_for(plan: Plan, valid_plan: Path) -> None:
    text = plan("preview", valid_plan, "--input", "who=小明").out
    assert re.findall(r"^(?:## .*|\d+\. \*\*\w+|   - (?:after|waits) .*)", text, re.MULTILINE) == [
        "## Steps",
        "1. **first",
        "   - waits for no other step",
        "2. **second",
        "   - after `first` (by reference)",
    ]
    assert "wave" not in text.casefold()


def test_preview_resolves_inputs_and_keeps_other_expressions(plan: Plan, valid_plan: Path) -> None:
    result = plan("preview", valid_plan, "--input", "who=小明", "--json")
    assert result.code == 0
    shown = result.run
    first, second = shown["steps"]
    assert first["parameters"] == {"argv": ["echo", "hello 小明", 3]} or first["parameters"] == {"argv": ["echo", "hello 小明", "3"]}
    assert second["parameters"] == {"argv": ["echo", "${{ steps.first.result.stdout }}"]}
    assert shown["waves"] == [["first"], ["second"]]
    assert shown["effects"] == {"read": 1, "write": 1}
    assert first["worst_case_ms"] == 3 * 1000 + 2 * 500
    assert shown["worst_case_ms"] == 5000
    assert shown["requires_approval"] is True
    assert len(shown["approval_digest"]) == 64
    text = plan("preview", valid_plan, "--input", "who=小明").out
    assert "1. **first** `run_command` (read): 说你好" in text
    assert "timeout 1 s per attempt, up to 2 retries after 500 ms; worst case 4 s" in text


def test_preview_shows_the_run_name(plan: Plan) -> None:
    step = {"id": "say", "tool_name": "run_command", "description": "Say it", "parameters": {"argv": ["echo", "${{ inputs.who }}"]}}
    document = {"description": "Say it", "inputs": {"who": {}}, "run_name": "greet ${{ inputs.who }}", "steps": [step]}
    Path("named.json").write_text(json.dumps(document), encoding="utf-8")
    assert "- name of the run: `greet 小明`\n" in plan("preview", "named.json", "--input", "who=小明").out
    assert plan("preview", "named.json", "--json").run["run_name"] == "greet ${{ inputs.who }}"


def test_show_and_preview_list_the_permissions_of_a_plan(plan: Plan) -> None:
    step = {"id": "a", "tool_name": "run_command", "parameters": {"argv": ["true"]}}
    Path("given.json").write_text(json.dumps({"description": "Greet", "permissions": ["允许", "net"], "steps": [step]}))
    for verb in ("show", "preview"):
        assert "- permissions that its tools get: `允许`, `net`\n" in plan(verb, "given.json").out
    assert plan("preview", "given.json", "--json").run["permissions"] == ["允许", "net"]


def test_show_and_preview_tell_which_inputs_decide_the_permissions(plan: Plan) -> None:
    step = {"id": "a", "tool_name": "run_command", "parameters": {"argv": ["true"]}}
    given = {"permissions": "${{ inputs.ok ? ['允许'] : [] }}", "inputs": {"ok": {"type": "boolean"}}}
    Path("given.json").write_text(json.dumps({"description": "Greet", **given, "steps": [step]}))
    for verb in ("show", "preview"):
        assert "- permissions that its tools get: decided by `inputs.ok`\n" in plan(verb, "given.json").out
    assert plan("preview", "given.json", "--json").run["permissions"] == given["permissions"]
    for value, shown, names in (("true", "`允许`", ["允许"]), ("false", "none", [])):
        assert (
            f"- permissions that its tools get: {shown} (from `inputs.ok`)\n" in plan("preview", "given.json", "--input", f"ok={value}").out
        )
        assert plan("preview", "given.json", "--input", f"ok={value}", "--json").run["permissions"] == names


def test_preview_shows_the_parameters_of_a_raw_input(plan: Plan) -> None:
    raw = """{"argv": ["echo", "${{ inputs.who }}"]}"""
    step = {"id": "a", "tool_name": "run_command", "input": raw}
    Path("raw.json").write_text(json.dumps({"description": "Greet", "inputs": {"who": {"default": "you"}}, "steps": [step]}))
    assert plan("preview", "raw.json", "--json").run["steps"][0]["parameters"] == {"argv": ["echo", "you"]}


def test_preview_keeps_expressions_with_missing_inputs(plan: Plan, valid_plan: Path) -> None:
    result = plan("preview", valid_plan, "--json")
    assert result.code == 0
    assert result.run["missing_inputs"] == ["who"]
    assert result.run["approval_digest"] is None
    assert result.run["steps"][0]["parameters"]["argv"][1] == "hello ${{ inputs.who }}"


def test_preview_refuses_invalid_inputs(plan: Plan, valid_plan: Path) -> None:
    result = plan("preview", valid_plan, "--input", "times=many", "--input", "whom=me")
    assert result.code == 2
    assert "bad-input" in result.err
    assert "unknown-input" in result.err


def test_plan_text_cannot_move_the_terminal_cursor(plan: Plan) -> None:
    Path("evil.json").write_text(
        json.dumps({"description": "fine\u202e", "steps": [{"id": "a", "tool_name": "bash", "parameters": {"command": "echo \x1b[2J"}}]})
    )
    result = plan("preview", "evil.json")
    assert "\x1b" not in result.out + result.err
    assert "\u202e" not in result.out + result.err


def test_the_schema_is_printed_and_written(plan: Plan) -> None:
    printed = json.loads(plan("schema").out)
    assert printed["properties"]["steps"]
    assert plan("schema", "plan.schema.json").code == 0
    assert json.loads(Path("plan.schema.json").read_text(encoding="utf-8")) == printed
    assert plan("schema", "--json").run == printed
    assert plan("schema", "nowhere/schema.json").code == 2


@for_each(code=CATALOGUE)
def test_every_problem_code_is_explained(plan: Plan, code: str) -> None:
    shown = plan("explain", code).out
    assert shown.startswith(f"{code}: {CATALOGUE[code]}\n\n")
    assert re.search(r"\n\nGuide: plan guide [a-z]+\n$", shown)
    assert plan("guide", shown.split()[-1]).code == 0
    assert [line for line in shown.splitlines()[1:] if len(line) > 80] == []


def test_an_explanation_has_a_wrong_and_a_right_piece_of_a_plan(plan: Plan) -> None:
    shown = plan("explain", "[unknown-tool]").out
    assert shown.partition("\n\n")[2] == (
        "Wrong:\n  steps:\n    - {tool_name: run_comand, parameters: {argv: [make]}}\n\n"
        "Right:\n  steps:\n    - {tool_name: run_command, parameters: {argv: [make]}}\n\nGuide: plan guide tools\n"
    )
    assert "Wrong:" not in plan("explain", "missing-input").out


def test_the_codes_are_listed_by_group_in_80_columns(plan: Plan) -> None:
    lines = plan("explain").out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert [line for line in lines if line.endswith(":")][:3] == ["Reading the file:", "Fields and values:", "Steps and their order:"]
    assert sorted(line.split()[0] for line in lines if line.startswith("  ")) == sorted(CATALOGUE)
    assert [line["code"] for line in plan("explain", "--json").lines] == list(CATALOGUE)


def test_an_unknown_code_is_answered_with_the_nearest(plan: Plan) -> None:
    assert plan("explain", "unknown-ref").err == "plan: no problem has the code `unknown-ref`; did you mean `unknown-reference`?\n"
    assert plan("explain", "xyz").err == "plan: no problem has the code `xyz`; `plan explain` lists the codes\n"


def test_tools_are_listed_with_effect_and_parameters(plan: Plan) -> None:
    result = plan("tools", "--tools", "tests.cli.some_tools:registry")
    rows = {line.split()[0]: line.split(None, 2)[1:] for line in result.out.splitlines()}
    assert rows["greet"][0] == "read"
    assert rows["greet"][1].split() == ["who", "Greet", "somebody."]
    assert "argv, cwd?, env?, stdin?" in rows["run_command"][1]
    by_name = {line["name"]: line for line in plan("tools", "--json").lines}
    assert by_name["run_command"]["parameters"]["required"] == ["argv"]


def test_a_tool_that_cannot_be_imported_is_reported(plan: Plan) -> None:
    result = plan("tools", "--tools", "tests.cli.some_tools:gret")
    assert result.code == 2
    assert "did you mean `greet`?" in result.err
