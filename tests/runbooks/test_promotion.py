"""Tests of promotion: which values become inputs of a runbook, which never do, and whether the runbook makes the same calls."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from plan_adapter.documents import is_test_file, load_plan
from plan_adapter.expressions import Variables
from plan_adapter.model.options import Input
from plan_adapter.model.plan import ExecutionPlan, Rollback, Step
from plan_adapter.runbooks.promote import MAX_INPUTS, Promotion, promote
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool, tool
from plan_adapter.validation import bind_inputs, find_problems, validate
from tests.documents.generated import keys, scalars, texts
from tests.documents.test_corpora import CORPORA, lines, model_to_document, no_op, slug


@tool
def push(value: Any = None, host: str = "", count: int = 0, share: float = 0.5, mode: str = "") -> None:
    """Push a value.

    Args:
        host: The node to push to.
    """


@tool(literal_parameters=["command"])
def script(command: str, env: dict[str, str] | None = None) -> None:
    """Run a script."""


TOOLS = ToolRegistry([push, script, *ToolRegistry.with_builtins().subset("run_command", "http_get")])


def a_plan(*parameters: dict[str, JsonValue], **fields: Any) -> ExecutionPlan:
    """Return a plan that pushes each of `parameters`."""
    steps = [Step(id=f"s{number}", tool_name="push", parameters=given) for number, given in enumerate(parameters, 1)]
    return ExecutionPlan(**({"description": "d", "steps": steps} | fields))


def command(*argv: str, **fields: Any) -> ExecutionPlan:
    """Return a plan of one command."""
    step = Step(id="run", tool_name="run_command", parameters={"argv": [*argv]}, **fields)
    return ExecutionPlan(description="d", steps=[step])


def proposed(promotion: Promotion) -> dict[str, JsonValue]:
    """Return the proposed inputs and their defaults."""
    return {proposal.name: proposal.definition.default for proposal in promotion.inputs}


class Result(dict[str, JsonValue]):
    """A result that has every key."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> JsonValue:
        return f"what {key} was"


def calls(plan: ExecutionPlan, tools: ToolRegistry, inputs: dict[str, Any]) -> dict[str, JsonValue]:
    """Return the parameters of every step and rollback, with made-up results."""
    bound = bind_inputs(validate(plan, tools), inputs)
    results = {step.id: {"result": Result(), "status": "completed", "error": None} for step in plan.steps}
    variables = Variables(results, bound.inputs, item="item", result="result")
    found = {name: template.resolve(variables) for name, template in bound.validated.parameters.items()}
    undone = {f"{name} undone": call.parameters.resolve(variables) for name, call in bound.validated.rollbacks.items()}
    return found | undone


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("https://web-1/health", {"host": "web-1"}),
        ("postgresql://db.acme.com:5432/app", {"host": "db.acme.com"}),
        ("ssh deploy@10.0.0.7 uptime", {"host": "10.0.0.7"}),
        ("see api.example.com.", {"host": "api.example.com"}),
        ("copy /srv/app/data to ~/backup", {"path": "/srv/app/data", "path_2": "~/backup"}),
        ("/var/日志/应用", {"path": "/var/日志/应用"}),
        ("C:\\app\\in", {"path": "C:\\app\\in"}),
        ("in/图片.jpg", {"path": "in/图片.jpg"}),
        ("release v2.10.1-rc.1 now", {"version": "v2.10.1-rc.1"}),
        ("registry.acme.com/shop/web:1.4", {"image_tag": "1.4"}),
        ("from 2026-11-22 on", {"date": "2026-11-22"}),
        ("2026-11-22T10:00:00Z", {"date": "2026-11-22T10:00:00Z"}),
        ("给 ana@example.com 写信", {"email": "ana@example.com"}),
        ("重启web-1.example.com节点", {"host": "web-1.example.com"}),
    ],
)
def test_values_that_look_variable_are_proposed_as_inputs(text: str, parts: dict[str, str]) -> None:
    promotion = promote(a_plan({"value": text}), TOOLS)
    assert proposed(promotion) == parts
    for name, part in parts.items():
        text = text.replace(part, f"${{{{ inputs.{name} }}}}", 1)
    assert promotion.plan.steps[0].parameters == {"value": text}


@pytest.mark.parametrize(
    "text",
    [
        "plain words",
        "http://localhost:8080/x",
        "utf-8",
        "/dev/null",
        "1.5",
        "a/b",
        "e.g. this",
        "--force",
        "",
        "12:30",
        "${{ inputs.own }}.example.com",
    ],
)
def test_values_that_do_not_vary_are_not_proposed(text: str) -> None:
    plan = a_plan({"value": text}, inputs={"own": Input(default="x")})
    assert promote(plan, TOOLS).inputs == ()


def test_a_value_is_replaced_wherever_it_means_the_same() -> None:
    plan = ExecutionPlan(
        description="Restart web-1",
        steps=[
            Step(id="check", tool_name="http_get", parameters={"url": "https://web-1:8443/health"}),
            Step(
                id="drain",
                tool_name="run_command",
                parameters={"argv": ["lbctl", "drain", "web-1", "web-10", "web-1.acme.com", "root@web-1:/x"]},
                rollback=Rollback(tool_name="run_command", parameters={"argv": ["lbctl", "undrain", "web-1"]}),
                when="${{ steps.check.result.body != 'web-1' && steps.check.result.headers['web-1'] != \"web-10\" }}",
            ),
        ],
        outputs={"link": "https://web-1/", "summary": "${{ 'web-1' + string(steps.check.result.status) }}"},
    )
    promotion = promote(plan, TOOLS, without=["host_2", "host_3"])
    check, drain = promotion.plan.steps
    assert proposed(promotion) == {"host": "web-1"}
    assert check.parameters == {"url": "https://${{ inputs.host }}:8443/health"}
    assert drain.parameters["argv"] == ["lbctl", "drain", "${{ inputs.host }}", "web-10", "web-1.acme.com", "root@${{ inputs.host }}:/x"]
    assert drain.rollback is not None
    assert drain.rollback.parameters == {"argv": ["lbctl", "undrain", "${{ inputs.host }}"]}
    assert drain.when == "${{ steps.check.result.body != inputs.host && steps.check.result.headers['web-1'] != \"web-10\" }}"
    assert promotion.plan.outputs == {
        "link": "https://${{ inputs.host }}/",
        "summary": "${{ inputs.host + string(steps.check.result.status) }}",
    }
    assert promotion.inputs[0].places == (
        "check.parameters.url",
        "drain.parameters.argv[2]",
        "drain.parameters.argv[5]",
        "drain.rollback.parameters.argv[2]",
    )
    assert promotion.inputs[0].remains == ("description",)


def test_values_that_differ_in_another_version_are_proposed() -> None:
    plan = a_plan({"value": "send 红 to all", "count": 3, "mode": "fast"}, {"value": {"switch": True}})
    other = a_plan({"value": "send 蓝 to all", "count": 4, "mode": "fast"}, {"value": {"switch": False}})
    promotion = promote(plan, TOOLS, others=[("version 1", other), ("run 7", plan)])
    assert proposed(promotion) == {"value": "红", "count": 3, "switch": True}
    assert {proposal.name: proposal.definition.type for proposal in promotion.inputs} == {
        "value": "string",
        "count": "integer",
        "switch": "boolean",
    }
    assert promotion.plan.steps[0].parameters == {
        "value": "send ${{ inputs.value }} to all",
        "count": "${{ inputs.count }}",
        "mode": "fast",
    }
    reasons = {proposal.name: proposal.reasons for proposal in promotion.inputs}
    assert reasons["count"] == ("it was 4 in version 1",)


def test_a_step_that_calls_another_tool_in_the_other_version_is_ignored() -> None:
    other = ExecutionPlan(description="d", steps=[Step(id="s1", tool_name="script", parameters={"command": "x", "env": {"value": "b"}})])
    plan = a_plan({"value": "a"})
    assert promote(plan, TOOLS, others=[("version 1", other)]).inputs == ()


def test_a_repeated_text_is_proposed_but_a_number_only_under_the_same_name() -> None:
    plan = a_plan({"value": "深圳", "count": 30}, {"value": ["深圳", "x"], "share": 30.0}, {"mode": "x y", "count": 30})
    assert proposed(promote(plan, TOOLS)) == {"value": "深圳", "count": 30}


def test_a_short_word_is_replaced_only_if_it_is_the_whole_value() -> None:
    plan = a_plan({"mode": "go"}, {"mode": "go"}, {"value": "go on, let go"})
    assert promote(plan, TOOLS).plan.steps[2].parameters == {"value": "go on, let go"}


def test_a_constant_in_a_condition_stays_if_it_may_mean_something_else() -> None:
    plan = a_plan({"value": "completed", "mode": "blue"}, {"value": "x", "mode": "blue"})
    plan.steps[1].when = "${{ steps.s1.status == 'completed' && steps.s1.result != 'blue' }}"
    other = a_plan({"value": "failed", "mode": "blue"}, {"value": "x", "mode": "blue"})
    promotion = promote(plan, TOOLS, others=[("version 1", other)])
    assert proposed(promotion) == {"value": "completed", "mode": "blue"}
    assert promotion.plan.steps[1].when == plan.steps[1].when


def test_a_path_and_a_path_below_it_share_one_input() -> None:
    plan = a_plan({"value": "/srv/app"}, {"value": "/srv/app/current"}, {"value": "/srv/apples/x"})
    promotion = promote(plan, TOOLS)
    assert [step.parameters["value"] for step in promotion.plan.steps] == [
        "${{ inputs.path }}",
        "${{ inputs.path }}/current",
        "${{ inputs.path_2 }}",
    ]


@pytest.mark.parametrize(
    "parameters",
    [
        {"password": "web-1"},
        {"API_TOKEN": "/srv/app/x"},
        {"header": "Authorization: Bearer web-1.example.com"},
        {"options": "--password=web-1"},
        {"line": ["--api-key", "web-1.example.com"]},
        {"url": "https://ana:web-9@web-1.example.com/"},
        {"text": "ghp_0123456789abcdefABCDEF and web-1.example.com"},
        {"密码": "web-1"},
    ],
    ids=str,
)
def test_a_secret_is_never_proposed_or_shown(parameters: dict[str, JsonValue]) -> None:
    plan = a_plan({"value": parameters}, {"value": parameters})
    other = a_plan({"value": json.loads(json.dumps(parameters).replace("web-1", "web-2"))})
    promotion = promote(plan, TOOLS, others=[("version 1", other)])
    assert promotion.inputs == ()
    assert "web-1" not in str(promotion.notes)


def test_a_secret_written_in_a_plan_is_reported_with_its_path() -> None:
    promotion = promote(a_plan({"value": {"password": "canary", "token": "${{ secrets.token }}"}}), TOOLS)
    assert promotion.notes == ("s1.parameters.value.password looks like a secret: keep it elsewhere, and write `${{ secrets.name }}`",)


def test_the_text_of_a_secret_is_not_proposed_elsewhere() -> None:
    plan = a_plan({"value": {"password": "web-7.example.com"}}, {"value": "web-7.example.com"}, {"value": "web-7.example.com"})
    assert promote(plan, TOOLS).inputs == ()


def test_programs_flags_and_scripts_are_not_proposed() -> None:
    plan = ExecutionPlan(
        description="d",
        steps=[Step(id=name, tool_name="run_command", parameters={"argv": ["/opt/app/bin/ship", "-f", "--all"]}) for name in ("one", "two")]
        + [Step(id=name, tool_name="script", parameters={"command": "cd /srv/app"}) for name in ("three", "four")],
    )
    assert promote(plan, TOOLS).inputs == ()


@pytest.mark.parametrize(
    "argv", [("sh", "-c", "/srv/app/go"), ("ssh", "x", "cd /srv/app && ls"), ("python", "-m", "acme.example.com")], ids=str
)
def test_a_script_in_a_commands_arguments_gets_no_inputs(argv: tuple[str, ...]) -> None:
    assert promote(command(*argv), TOOLS).inputs == ()
    both = a_plan({"value": "/srv/app/go"}, {"value": "acme.example.com"}, {"value": "/srv/app"})
    both.steps.append(command(*argv).steps[0])
    promotion = promote(both, TOOLS)
    assert promotion.plan.steps[-1].parameters == {"argv": [*argv]}
    assert "run.parameters.argv[2]" in {at for proposal in promotion.inputs for at in proposal.remains}


def test_a_script_recognized_by_its_key_gets_no_inputs() -> None:
    text = "cd /srv/app && ./go web-1.example.com"
    assert promote(a_plan({"value": {"preScript": text}}, {"value": {"preScript": text}}), TOOLS).inputs == ()
    assert proposed(promote(a_plan({"value": {"command": "/srv/app/go"}}), TOOLS)) == {"path": "/srv/app/go"}


def test_places_that_allow_no_expression_are_reported() -> None:
    step = Step(
        id="s", tool_name="script", description="Look at /srv/app", parameters={"command": "ls /srv/app", "env": {"DIR": "/srv/app"}}
    )
    promotion = promote(ExecutionPlan(description="d", steps=[step]), TOOLS)
    (one,) = promotion.inputs
    assert (one.name, one.places, one.remains) == ("dir", ("s.parameters.env.DIR",), ("s.description", "s.parameters.command"))
    assert (
        one.comment == "proposed: it looks like a path; in s.parameters.env.DIR; still written out in s.description, s.parameters.command"
    )


def test_input_names_come_from_keys_and_options_and_are_identifiers() -> None:
    plan = command("kubectl", "--name-space", "prod", "web-1", "--class", "db-1")
    plan.steps[0].parameters["env"] = {"目标主机": "web-2", "标题": "x-3", "sourceHost": "web-4"}
    taken = {"host": Input(default="mine")}
    plan.inputs = taken
    plan.steps[0].parameters["env"]["MINE"] = "${{ inputs.host }}"
    other = plan.model_copy(deep=True)
    other.steps[0].parameters["argv"][2] = "test"
    promotion = promote(plan, TOOLS, others=[("version 1", other)])
    assert proposed(promotion) == {
        "name_space": "prod",
        "host_2": "web-1",
        "class_": "db-1",
        "host_3": "web-2",
        "host_4": "x-3",
        "source_host": "web-4",
    }
    assert promotion.plan.inputs["host"] == taken["host"]


def test_an_input_gets_its_type_and_description_from_the_tool() -> None:
    plan = a_plan({"host": "web-1", "share": 3}, {"host": "web-1", "share": 3})
    promotion = promote(plan, TOOLS)
    assert promotion.plan.inputs == {
        "host": Input(description="The node to push to (in s1.parameters.host and 1 more place)", default="web-1"),
        "share": Input(type="number", description="Share (in s1.parameters.share and 1 more place)", default=3),
    }


def test_an_input_excluded_by_name_stays_a_literal_and_its_name_stays_reserved() -> None:
    plan = a_plan({"value": "web-1"}, {"value": "web-2"})
    assert proposed(promote(plan, TOOLS, without=["host"])) == {"host_2": "web-2"}


def test_the_number_of_proposed_inputs_is_limited() -> None:
    promotion = promote(a_plan(*({"value": f"web-{number}"} for number in range(MAX_INPUTS + 5))), TOOLS)
    assert len(promotion.inputs) == MAX_INPUTS
    assert promotion.notes[0].startswith("5 more literals")


strings = st.sampled_from(
    [
        "web-1",
        "https://web-1/x",
        "/srv/app",
        "/srv/app/1.2.3",
        "v1.2.3",
        "go",
        "a ${{ inputs.own }} web-1",
        "${{ inputs.own }}",
        "深圳",
        "in 深圳 web-1",
    ]
)
values = st.recursive(
    strings | texts.filter(lambda text: "${{" not in text) | scalars.filter(lambda value: not isinstance(value, str)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys.filter(lambda key: "${{" not in key) | st.sampled_from(["host", "token", "目录"]), inner, max_size=3)
    ),
    max_leaves=6,
)
given_plans = st.lists(st.dictionaries(st.just("value"), values, min_size=1), min_size=1, max_size=4)


@settings(max_examples=60)
@given(given_plans, given_plans)
def test_a_runbook_with_its_defaults_makes_the_same_calls_as_the_run(
    now: list[dict[str, JsonValue]], before: list[dict[str, JsonValue]]
) -> None:
    inputs = {"own": Input(default="mine")}
    plan, other = a_plan(*now, inputs=inputs), a_plan(*before, inputs=inputs)
    promotion = promote(plan, TOOLS, others=[("version 1", other)])
    assert find_problems(promotion.plan, TOOLS) == []
    assert calls(promotion.plan, TOOLS, {"own": "yours"}) == calls(plan, TOOLS, {"own": "yours"})
    assert promote(plan, TOOLS, others=[("version 1", other)]) == promotion


@pytest.mark.skipif(not CORPORA.is_dir(), reason="the corpora are not beside the repository")
def test_plans_written_by_models_become_runbooks_that_make_the_same_calls() -> None:
    nodes = [node for area in ("huggingface", "multimedia") for node in json.loads((CORPORA / f"tools_{area}.json").read_text())["nodes"]]
    tools = ToolRegistry([Tool(no_op, name=name) for name in sorted({slug(node["id"]) for node in nodes})])
    count = inputs = 0
    for document in lines("llm_plans.jsonl")[::12]:
        plan = load_plan(json.dumps({**model_to_document(document), "outputs": {}})) if _is_readable(document) else None
        if plan is None or find_problems(plan, tools):
            continue
        promotion = promote(plan, tools)
        assert calls(promotion.plan, tools, {}) == calls(plan, tools, {}), document["id"]
        count, inputs = count + 1, inputs + len(promotion.inputs)
    assert count > 20
    assert inputs > 20


def _is_readable(document: dict[str, Any]) -> bool:
    from plan_adapter.documents import read_document

    return not read_document(json.dumps(model_to_document(document)))[1]


WITHOUT_RESULTS = ("ci-pipeline", "data-pipeline", "own-pipeline", "site-check")
"""Runbooks whose parameters `calls` can compute: they use no secrets and no members of results."""

RUNBOOKS = Path(__file__).parents[2] / "deployments" / "runbooks"


@pytest.mark.parametrize("path", sorted(path for path in RUNBOOKS.glob("*.yaml") if not is_test_file(path)), ids=lambda path: path.stem)
def test_runbooks_written_by_hand_stay_valid(path: Path) -> None:
    tools = ToolRegistry.with_builtins()
    plan = load_plan(path)
    promotion = promote(plan, tools)
    assert find_problems(promotion.plan, tools) == []
    if path.stem in WITHOUT_RESULTS:
        own = {name: "https://given" for name, definition in plan.inputs.items() if definition.is_required}
        assert calls(promotion.plan, tools, own) == calls(plan, tools, own)
