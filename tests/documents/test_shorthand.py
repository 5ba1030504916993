"""Tests of short forms: a plan in short form is the plan in long form, with problems at what was written."""

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from plan_adapter import ToolRegistry
from plan_adapter.documents import dump_plan, load_plan, plan_schema, read_document
from plan_adapter.documents.shorthand import COMMANDS, FIRST_PARAMETERS
from plan_adapter.documents.typed import spellings
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.options import ExecutionOptions
from plan_adapter.model.plan import Step
from plan_adapter.model.values import milliseconds
from plan_adapter.validation import find_problems
from tests.documents.generated import plans
from tests.documents.test_schema import as_json

SHORT = """\
name: rolling-restart
description: Restart the nodes one after another
inputs: {nodes: {type: array, default: [web-1, web-2, web-3]}}
approval: {timeout: 30m, approvers: [sre]}
defaults: {timeout: 1m}
steps:
  - id: nodes
    for_each: "${{ inputs.nodes }}"
    max_parallel: 1
    requires_approval: each
    order: sequence
    steps:
      - run_command: [lbctl, drain, "${{ item }}"]
        rollback: {run_command: [lbctl, undrain, "${{ item }}"]}
      - run_command: [ssh, "${{ item }}", systemctl, restart, web]
      - http_get: "http://${{ item }}/health"
        retry: {times: 10, delay: 3s}
      - run_command: [lbctl, undrain, "${{ item }}"]
  - {id: tell, if: "steps.nodes.status == 'completed'", bash: 'notify "$WHO"', env: {WHO: on-call}, needs: nodes}
"""

LONG = """\
name: rolling-restart
description: Restart the nodes one after another
inputs: {nodes: {type: array, default: [web-1, web-2, web-3]}}
approval: {approvers: [sre]}
options: {approval_timeout_ms: 1800000}
steps:
  - id: nodes
    for_each: "${{ inputs.nodes }}"
    batch: 1
    requires_approval: each
    steps:
      - {id: step_1, tool_name: run_command, parameters: {argv: [lbctl, drain, "${{ item }}"]}, timeout_ms: 60000,
         rollback: {tool_name: run_command, parameters: {argv: [lbctl, undrain, "${{ item }}"]}}}
      - {id: step_2, tool_name: run_command, parameters: {argv: [ssh, "${{ item }}", systemctl, restart, web]}, timeout_ms: 60000,
         depends_on: [step_1]}
      - {id: step_3, tool_name: http_get, parameters: {url: "http://${{ item }}/health"}, timeout_ms: 60000, depends_on: [step_2],
         max_retries: 10, retry_delay_ms: 3000}
      - {id: step_4, tool_name: run_command, parameters: {argv: [lbctl, undrain, "${{ item }}"]}, timeout_ms: 60000, depends_on: [step_3]}
  - {id: tell, tool_name: bash, parameters: {command: 'notify "$WHO"', env: {WHO: on-call}}, timeout_ms: 60000, depends_on: [nodes],
     when: "${{ steps.nodes.status == 'completed' }}"}
"""


def same(short: str, long: str) -> None:
    """Assert that two documents are the same plan, and that the schema accepts the short one."""
    written, meant = load_plan(short), load_plan(long)
    assert written.to_document() == meant.to_document()
    assert list(Draft202012Validator(plan_schema()).iter_errors(as_json(short))) == []


@pytest.mark.parametrize("value", ["[make]", "make", "{argv: [make]}"])
def test_a_misspelt_built_in_tool_is_one_problem_whatever_its_value(value: str) -> None:
    plan, problems = read_document(f"description: x\nsteps:\n  - {{id: a, run_comand: {value}, timeout: 1m}}\n")
    assert problems == [] and plan is not None
    (problem,) = find_problems(plan, ToolRegistry.from_settings([]))
    assert (problem.code, problem.at, problem.hint) == ("unknown-tool", "steps[0].tool_name", "did you mean `run_command`?")


def test_a_rolling_restart_with_an_approval_per_node_takes_twenty_lines() -> None:
    same(SHORT, LONG)
    assert len(SHORT.splitlines()) <= 20
    assert len("".join(SHORT.split())) <= 650


PLAN = "description: d\nsteps:\n  - {id: a, bash: make}\n"
LONG_PLAN = "description: d\nsteps:\n  - {id: a, tool_name: bash, parameters: {command: make}}\n"

SAME = {
    "a script in a block": (
        "description: d\nsteps:\n  - id: a\n    bash: |\n      make\n      make test\n",
        'description: d\nsteps:\n  - {id: a, tool_name: bash, parameters: {command: "make\\nmake test\\n"}}\n',
    ),
    "parameters as a mapping": (
        "description: d\nsteps:\n  - {id: a, greet: {name: Ana}}\n",
        "description: d\nsteps:\n  - {id: a, tool_name: greet, parameters: {name: Ana}}\n",
    ),
    "a tool without parameters": (
        "description: d\nsteps:\n  - {id: a, greet: }\n",
        "description: d\nsteps:\n  - {id: a, tool_name: greet}\n",
    ),
    "the first parameter and others": (
        "description: d\nsteps:\n  - {id: a, run_command: [make], parameters: {cwd: /src}}\n",
        "description: d\nsteps:\n  - {id: a, tool_name: run_command, parameters: {argv: [make], cwd: /src}}\n",
    ),
    "variables of a plan, a group and a step": (
        "description: d\nenv: {A: 1, B: plan, C: plan}\nsteps:\n  - id: g\n    for_each: '${{ [1] }}'\n    env: {B: group}\n    steps:\n"
        "      - {id: a, bash: make, env: {C: true}}\n  - {id: b, bash: make, parameters: {env: {A: own}}}\n  - {id: c, read_file: x}\n",
        "description: d\nsteps:\n  - id: g\n    for_each: '${{ [1] }}'\n    steps:\n      - {id: a, tool_name: bash, parameters: "
        "{command: make, env: {A: '1', B: group, C: 'true'}}}\n  - {id: b, tool_name: bash, parameters: {command: make, env: {A: own, "
        "B: plan, C: plan}}}\n  - {id: c, tool_name: read_file, parameters: {path: x}}\n",
    ),
    "an order in which a step says what it needs": (
        "description: d\norder: sequence\nsteps:\n  - {id: a, bash: x}\n  - {id: b, bash: x}\n  - {id: c, bash: x, needs: a}\n",
        "description: d\nsteps:\n  - {id: a, tool_name: bash, parameters: {command: x}}\n  - {id: b, tool_name: bash, parameters: "
        "{command: x}, depends_on: [a]}\n  - {id: c, tool_name: bash, parameters: {command: x}, depends_on: [a]}\n",
    ),
    "what a plan says about its options": (
        PLAN + "max_parallel: 4\non_error: continue\ntimeout: 1h30m\napproval: {required: false}\noptions: {step_timeout: 500ms}\n",
        LONG_PLAN + "options: {allow_parallel: true, max_parallel_steps: 4, continue_on_error: true, total_timeout_ms: 5400000, "
        "require_approval: false, step_timeout_ms: 500}\n",
    ),
    "defaults only where a step may have them": (
        "description: d\ndefaults: {timeout: 5s, retry: 2, tags: [x]}\nsteps:\n  - {id: a, bash: x, retry: 0}\n  - {id: q, ask: {question: "
        "q, fields: {f: {}}}}\n",
        "description: d\nsteps:\n  - {id: a, tool_name: bash, parameters: {command: x}, timeout_ms: 5000, max_retries: 0, tags: [x]}\n"
        "  - {id: q, ask: {question: q, fields: {f: {}}}, tags: [x]}\n",
    ),
    "an empty approval policy": (
        PLAN + "approval: {}\nmax_parallel: 4\n",
        LONG_PLAN + "approval: {}\noptions: {allow_parallel: true, max_parallel_steps: 4}\n",
    ),
    "steps that always run": (
        PLAN + "finally:\n  - {id: z, bash: clean, timeout: 2m}\n",
        LONG_PLAN + "finally:\n  - {id: z, tool_name: bash, parameters: {command: clean}, timeout_ms: 120000}\n",
    ),
}


@pytest.mark.parametrize(("short", "long"), SAME.values(), ids=SAME)
def test_a_short_form_means_its_long_form(short: str, long: str) -> None:
    same(short, long)


PROBLEMS = {
    "two tools": (
        "  - {id: a, bash: x, run_command: [y]}",
        "3:22 duplicate-key steps[0].run_command: a step calls one tool, and this one names `bash` and `run_command`; make two steps of "
        "it, or remove one",
    ),
    "a duration without a unit": (
        "  - {id: a, bash: x, timeout: 30}",
        "3:22 wrong-type steps[0].timeout: `timeout` must be a duration with a unit, not 30; write `30s`, `5m` or `1h30m`",
    ),
    "a duration that is none": (
        "  - {id: a, bash: x, retry: {times: 3, delay: soon}}",
        "3:40 wrong-type steps[0].retry.delay: `delay` must be a duration with a unit, not 'soon'; write `30s`, `5m` or `1h30m`",
    ),
    "a field in milliseconds with a unit": (
        "  - {id: a, bash: x, timeout_ms: 30s}",
        "3:22 wrong-type steps[0].timeout_ms: `timeout_ms` must be an integer, not the text '30s'; write 30000, or `timeout: 30s`",
    ),
    "both forms": (
        "  - {id: a, bash: x, timeout: 30s, timeout_ms: 30000}",
        "3:22 duplicate-key steps[0].timeout: `timeout` and `timeout_ms` are the same field; remove one of them",
    ),
    "a value without a name for a tool of another package": (
        "  - {id: a, greet: Ana}",
        "3:13 wrong-type steps[0].greet: the parameters of `greet` must be a mapping; write `greet: {name: value}`; only built-in tools "
        "take a value without a name",
    ),
    "a field that is misspelt": (
        "  - {id: a, tool_nmae: bash}",
        "3:13 unknown-field steps[0].tool_nmae: a step has no field `tool_nmae`; did you mean `tool_name`?",
    ),
    "a misspelt field next to a tool": (
        "  - {id: a, bash: x, retries: 3}",
        "3:22 unknown-field steps[0].retries: a step has no field `retries`; write `retry: {times: 3, delay: 2s}`",
    ),
    "another order": (
        "  - {id: a, bash: x}\norder: random",
        "4:1 bad-value order: `order` must be `sequence`; or leave it out",
    ),
    "a default that no step can share": (
        "  - {id: a, bash: x}\ndefaults: {id: a}",
        "4:12 unknown-field defaults.id: `defaults` cannot have `id`",
    ),
    "a parameter given twice": (
        "  - {id: a, bash: x, parameters: {command: y}}",
        "3:13 duplicate-key steps[0].bash: `bash` and `parameters` both give `command`; remove one of them",
    ),
    "variables as a list": (
        "  - {id: a, bash: x, env: [A=1]}",
        "3:22 wrong-type steps[0].env: `env` must be a mapping of names to texts",
    ),
}


@pytest.mark.parametrize(("written", "expected"), PROBLEMS.values(), ids=PROBLEMS)
def test_each_problem_of_a_short_form_is_at_what_was_written(written: str, expected: str) -> None:
    _, problems = read_document(f"description: d\nsteps:\n{written}\n")
    found = [f"{it.line}:{it.column} {it.code} {it.at}: {it.message}" + (f"; {it.hint}" if it.hint else "") for it in problems]
    assert found == [expected]


def test_a_problem_of_validation_is_at_what_was_written() -> None:
    plan = load_plan("description: d\nsteps:\n  - {id: a, bash: x}\n  - {id: b, read_file: '${{ steps.none.result }}', needs: missing}\n")
    registry = ToolRegistry.with_builtins()
    found = {(it.line, it.column, it.code) for it in registry_problems(plan, registry)}
    assert found >= {(4, 13, "unknown-reference"), (4, 52, "unknown-step")}


def registry_problems(plan: Any, registry: ToolRegistry) -> list[Any]:
    """Return the problems of a plan that cannot run."""
    from plan_adapter.errors import InvalidPlanError
    from plan_adapter.plans import validate

    with pytest.raises(InvalidPlanError) as refused:
        validate(plan, registry)
    return list(refused.value.problems)


def parameters_of(tool: Any) -> dict[str, Any]:
    """Return the parameters of a tool, by name."""
    return tool.definition()["parameters"]["properties"]


def test_every_built_in_tool_has_a_first_parameter() -> None:
    tools = {tool.name: next(iter(parameters_of(tool))) for tool in ToolRegistry.with_builtins()}
    assert tools == FIRST_PARAMETERS
    assert {*COMMANDS} == {tool.name for tool in ToolRegistry.with_builtins() if "env" in parameters_of(tool)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30s", 30_000), ("1h30m", 5_400_000), ("250ms", 250), ("1.5s", 1500), ("2d", 172_800_000), ("30", None), ("s", None), ("-1s", None)],
)
def test_durations(text: str, expected: int | None) -> None:
    assert milliseconds(text) == expected


def shortened(document: Any) -> Any:
    """Return a document in long form with every short form that there is for what it says."""
    document = json.loads(json.dumps(document))
    for name in ("steps", "finally"):
        document[name] = [shortened_step(step) for step in document.get(name, [])]
    options = with_durations(document.pop("options", {}))
    approval = document.get("approval", {})
    if "require_approval" in options:
        approval = {**approval, "required": options.pop("require_approval")}
    if "approval_timeout" in options:
        approval = {**approval, "timeout": options.pop("approval_timeout")}
    if options.get("allow_parallel") is True and "max_parallel_steps" in options:
        document["max_parallel"] = options.pop("max_parallel_steps")
        del options["allow_parallel"]
    return document | ({"options": options} if options else {}) | ({"approval": approval} if approval else {})


def shortened_step(step: dict[str, Any]) -> dict[str, Any]:
    """Return a step in short form."""
    step = with_durations(with_tool(step))
    if isinstance(step.get("rollback"), dict):
        step["rollback"] = with_tool(step["rollback"])
    if "depends_on" in step:
        needs = step.pop("depends_on")
        step["needs"] = needs[0] if len(needs) == 1 else needs
    if "when" in step and "${{" in step["when"]:
        step["if"] = step.pop("when")
    if "max_retries" in step:
        step["retry"] = {"times": step.pop("max_retries")} | ({"delay": step.pop("retry_delay")} if "retry_delay" in step else {})
    return step | ({"steps": [shortened_step(inner) for inner in step["steps"]]} if "steps" in step else {})


def with_durations(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields in milliseconds as durations."""
    return {
        name.removesuffix("_ms") if name.endswith("_ms") else name: f"{value}ms" if name.endswith("_ms") else value
        for name, value in fields.items()
    }


def with_tool(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with its tool as a key, if its name is none of a field."""
    name = call.get("tool_name")
    others = {"ask", "goal", "steps", "plan", "pinned"} & call.keys()
    if others or not isinstance(name, str) or not re.fullmatch(r"tool_[0-9]", name):
        return call
    short = {key: value for key, value in call.items() if key not in ("tool_name", "parameters")}
    return {name: call.get("parameters") or None, **short}


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(plan=plans, number=st.integers(0, 9))
def test_generated_plans_have_the_same_digest_in_short_form(plan: Any, number: int) -> None:
    for step in plan.all_steps:
        if step.tool_name is not None:
            step.tool_name = f"tool_{number}"
        if step.rollback is not None:
            step.rollback.tool_name = f"tool_{number}"
    long = as_json(dump_plan(plan))
    long = {**long, "description": "d", "steps": long.get("steps") or [{"id": "first", "tool_name": "t"}]}
    written, problems = read_document(json.dumps(shortened(long)))
    assert problems == []
    assert written is not None
    meant, _ = read_document(json.dumps(long))
    assert meant is not None
    assert plan_digest(written) == plan_digest(meant)


def test_no_short_field_is_the_name_of_a_field() -> None:
    short = {"needs", "if", "retry", "order", "env", "max_parallel", "timeout", "retry_delay"}
    assert not short & {*spellings(Step)}
    assert not {"total_timeout", "step_timeout"} & {*spellings(ExecutionOptions)}


@pytest.mark.parametrize(
    ("text", "hints"),
    [
        ("on: push\njobs: {build: {steps: [{run: make}]}}", {"on": "plan deploy NAME --cron", "jobs": "`plan import` converts it"}),
        ("schemaVersion: '0.3'\nmainSteps: []", {"mainSteps": "`plan import` converts it"}),
        (
            "steps: [{name: b, run: make}, {uses: x, with: {}}, {tool: t, loop: [1], retries: 3, timeout-minutes: 5}]",
            {
                "steps[0].name": "write `id`",
                "steps[0].run": "write `bash: |`",
                "steps[1].uses": "`plan import` converts",
                "steps[1].with": "under `parameters`",
                "steps[2].tool": "as in `http_get: URL`",
                "steps[2].loop": "write `for_each",
                "steps[2].retries": "write `retry: {times: 3",
                "steps[2].timeout-minutes": "write `timeout: 5m`",
            },
        ),
    ],
    ids=["GitHub", "SSM", "steps"],
)
def test_words_of_other_programs_get_what_to_write(text: str, hints: dict[str, str]) -> None:
    _, problems = read_document(f"description: d\n{text}\n")
    found = {problem.at: problem.hint for problem in problems}
    assert {at: hint for at, hint in hints.items() if hint not in found[at]} == {}
