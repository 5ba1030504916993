"""Tests of references to results: what is known of them from tools, questions, goals, groups and sub-plans is checked before a run."""

import json
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from plan_adapter.model.options import Input, Question
from plan_adapter.model.plan import ExecutionPlan, Rollback, Step
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import lint
from tests.cases import for_each


class Address(TypedDict):
    city: str
    zip: str | None


@dataclass
class Node:
    name: str
    load: float
    up: bool
    address: Address
    labels: dict[str, str]


class Report(BaseModel):
    ready: bool
    nodes: list[Node]
    parent: "Report | None" = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    known: int = 0


class Renamed(BaseModel):
    size: int = Field(serialization_alias="bytes")


@tool(effect="read")
def report() -> Report:
    """Report."""
    raise NotImplementedError


@tool(effect="read")
def nodes() -> list[Node]:
    """List nodes."""
    raise NotImplementedError


@tool(effect="read")
def node(name: str = "", count: int = 0, tags: list[str] | None = None) -> Node:
    """Return a node."""
    raise NotImplementedError


@tool(effect="read")
def either() -> Address | Node:
    """Return one of two."""
    raise NotImplementedError


@tool(effect="read")
def open_result() -> Open:
    """Return a model with any further field."""
    raise NotImplementedError


@tool(effect="read")
def renamed() -> Renamed:
    """Return a model with another name for its field."""
    raise NotImplementedError


@tool(effect="read")
def counts() -> dict[str, int]:
    """Count."""
    raise NotImplementedError


@tool(effect="read")
def anything() -> Any:
    """Return anything."""


@tool(effect="read")
def nothing() -> None:
    """Return nothing."""


@tool(effect="read")
def number() -> int:
    """Return a number."""
    raise NotImplementedError


@tool(effect="read")
def share() -> float:
    """Return a share."""
    raise NotImplementedError


@tool(effect="read")
def text() -> str:
    """Return a text."""
    raise NotImplementedError


@tool(effect="read")
def flag() -> bool:
    """Return true or false."""
    raise NotImplementedError


@tool(effect="read")
def perhaps() -> int | None:
    """Return a number or nothing."""
    raise NotImplementedError


@tool(effect="read")
def names() -> list[str]:
    """Return names."""
    raise NotImplementedError


@tool(effect="read")
def shares() -> list[float]:
    """Return shares."""
    raise NotImplementedError


@tool(effect="read")
def unknown_type() -> "NotImported":  # type: ignore[name-defined]  # noqa: F821  # never needed to call it
    """Return what nobody knows."""


SIMPLE_TOOLS = [number, share, text, flag, perhaps, names, shares]
TOOLS = ToolRegistry.with_builtins(
    [report, nodes, node, either, open_result, renamed, counts, anything, nothing, unknown_type, *SIMPLE_TOOLS]
)


def step(step_id: str, tool_name: str = "anything", **fields: Any) -> Step:
    return Step(id=step_id, tool_name=tool_name, description="Do it", **fields)


def plan(*steps: Step, **fields: Any) -> ExecutionPlan:
    return ExecutionPlan(description="Use results", steps=list(steps), **{"options": {"step_timeout_ms": 60_000}, **fields})


def problems(checked: ExecutionPlan) -> list[tuple[str, str, str]]:
    return [(problem.code, problem.at, problem.message) for problem in lint(checked, TOOLS)]


def messages_of(tool_name: str, expression: str) -> list[str]:
    """The messages about `expression`, which uses the result of `tool_name` as `steps.a.result`, in the parameters of a later step."""
    parameters = {"argv": ["make"]} if tool_name == "run_command" else {}
    uses = step("b", "write_file", parameters={"path": "x", "content": f"${{{{ {expression} }}}}"})
    return [message for _, _, message in problems(plan(step("a", tool_name, parameters=parameters), uses))]


@for_each(
    tool_name_expression_message=[
        ("run_command", "steps.a.result.stdot", "`steps.a.result` has no field `stdot`"),
        ("run_command", "steps.a.result.stdout.first", "`steps.a.result.stdout.first`: a text has no `first`"),
        ("run_command", "steps.a.result.exit_code + 'x'", "`+` cannot add a whole number and a text"),
        ("run_command", "'中文' + steps.a.result.输出", ""),
        ("report", "steps.a.result.nodes[0].nmae", "`steps.a.result.nodes[0]` has no field `nmae`"),
        ("report", "steps.a.result.nodes.map(n, n.address.ctiy)", "`steps.a.result.nodes[*].address` has no field `ctiy`"),
        ("report", "steps.a.result.nodes.filter(n, n.up).map(m, m.naem)", "`steps.a.result.nodes[*]` has no field `naem`"),
        ("report", "steps.a.result.nodes.filter(n, n.up)[0].naem", "`steps.a.result.nodes[0]` has no field `naem`"),
        ("report", "steps.a.result.nodes.exists(n, n.labels.exists(k, k.x == '1'))", "a text has no `x`"),
        ("report", "steps.a.result.nodes.name", "a list has no `name`"),
        ("nodes", "steps.a.result.name", "a list has no `name`"),
        ("either", "steps.a.result.street", "`steps.a.result` has no field `street`"),
        ("nothing", "steps.a.result.x", "`steps.a.result` is always null"),
        ("node", "steps.a.result.up + 1", "`+` cannot add a boolean and a whole number"),
    ]
)
def test_a_field_that_a_result_does_not_have_is_refused(tool_name_expression_message: tuple[str, str, str]) -> None:
    tool_name, expression, message = tool_name_expression_message
    (found,) = messages_of(tool_name, expression)
    assert message in found


@for_each(
    tool_name_expression=[
        ("run_command", "steps.a.result.stdout + string(steps.a.result.exit_code)"),
        ("run_command", "steps.a.result == null ? '' : steps.a.result.stdout"),
        ("run_command", "has(steps.a.result.stderr)"),
        ("run_command", "steps.a.result.path"),  # of the file that keeps a large result
        ("report", "steps.a.result.parent.parent.anything"),  # a type that contains itself is not known further down
        ("report", "steps.a.result.nodes[0].labels.team"),
        ("report", "steps.a.result.nodes.map(n, n.load * 2)"),  # 1 or 1.0: JSON does not say
        ("report", "steps.a.result.nodes.map(n, n.address.zip == null)"),
        ("report", "steps.a.result.nodes.map(item, item.name)"),
        ("nodes", "steps.a.result.map(n, {'n': n.name}).filter(m, m.whatever == 1)"),
        ("either", "steps.a.result.city + steps.a.result.name"),
        ("open_result", "steps.a.result.further"),
        ("renamed", "steps.a.result.bytes"),
        ("renamed", "steps.a.result.size"),
        ("counts", "steps.a.result['中文'] + 1"),
        ("anything", "steps.a.result.x[0].y"),
        ("unknown_type", "steps.a.result.x"),
    ]
)
def test_what_a_result_may_have_is_accepted(tool_name_expression: tuple[str, str]) -> None:
    assert messages_of(*tool_name_expression) == []


def simple_plan(expression: str) -> ExecutionPlan:
    """Return a plan whose last step uses results that have no fields, by `expression`. Each step has the id and the name of a tool."""
    each = step("each", "number", for_each="${{ [1, 2] }}")
    before = [each, *(step(simple.name, simple.name) for simple in SIMPLE_TOOLS)]
    uses = step("b", "write_file", parameters={"path": "x", "content": f"x ${{{{ {expression} }}}}"})
    return plan(*before, uses, inputs={"wanted": Input(type="boolean", default=True), "limit": Input(type="number", default=1)})


@for_each(
    expression_message=[
        ("steps.number.result + 1.5", "`+` cannot add a whole number and a decimal number"),
        ("steps.number.result > '3'", "`>` cannot compare a whole number and a text"),
        ("steps.number.result == steps.text.result", "`==` cannot compare a whole number and a text"),
        ("size(steps.number.result)", "`size` cannot take a whole number"),
        ("steps.number.result == null ? 0.5 : steps.number.result + 1.5", "`+` cannot add a whole number and a decimal number"),
        ("null != steps.number.result && steps.number.result > 'x'", "`>` cannot compare a whole number and a text"),
        ("steps.number.result < 1.5 && steps.number.result + 1.5 > 2.5", "`+` cannot add a whole number and a decimal number"),
        ("steps.text.result + 1", "`+` cannot add a text and a whole number"),
        ("steps.text.result > 1", "`>` cannot compare a text and a whole number"),
        ("steps.text.result == 3", "`==` cannot compare a text and a whole number"),
        ("-steps.text.result", "`-` cannot take a text"),
        ("steps.text.result.map(t, t)", "a text has no members to go through"),
        ("steps.flag.result + 1", "`+` cannot add a boolean and a whole number"),
        ("steps.flag.result && steps.number.result", "`&&` cannot take a boolean and a whole number"),
        ("steps.number.result ? 1 : 2", "`? :` needs true or false before the `?`, not a whole number"),
        ("steps.share.result + 1", "`+` cannot add a decimal number and a whole number"),
        ("steps.share.result + 'x'", "`+` cannot add a decimal number and a text"),
        ("steps.names.result + 1", "`+` cannot add a list and a whole number"),
        ("steps.names.result.exists(n, n == 1)", "`==` cannot compare a text and a whole number"),
        ("steps.each.result + 1", "`+` cannot add a list and a whole number"),
    ]
)
def test_a_result_without_fields_has_its_type_in_operators(expression_message: tuple[str, str]) -> None:
    expression, message = expression_message
    (found,) = [found for code, _, found in problems(simple_plan(expression)) if code != "unused-input"]
    assert message in found


@for_each(
    expression=[
        "steps.number.result + 1",
        "steps.number.result > 1.5",  # CEL compares all numbers
        "steps.share.result > 1",
        "steps.number.result >= inputs.limit",
        "steps.number.result == null ? 0 : steps.number.result + 1",  # null, if the step was skipped or failed
        "null == steps.text.result ? 'none' : steps.text.result + '.'",
        "[steps.number.result].filter(n, n != null).size() > 0",
        "steps.each.result.filter(n, n != null)",  # null, for an item that failed
        "steps.number.result > 1 ? steps.number.result : null",
        "inputs.wanted ? steps.number.result : steps.text.result",  # CEL chooses between any two values
        "double(steps.share.result) * 2.0",
        "steps.shares.result.map(s, s * 2)",  # 1 or 1.0: JSON does not say
        "type(steps.number.result) == null_type",
        "steps.text.result.size() + size(steps.names.result)",
        "steps.flag.result ? 1 : 2",
        "steps.perhaps.result + 1",
        "has(steps.text.result.path) ? steps.text.result.path : steps.text.result",  # of the file that keeps a large result
    ]
)
def test_a_result_without_fields_is_used_as_its_type_allows(expression: str) -> None:
    assert {code for code, _, _ in problems(simple_plan(expression))} <= {"unused-input"}


def test_the_own_result_and_the_item_have_their_types_in_operators() -> None:
    checked = plan(
        step("a", "number", done_when="${{ result > 'x' }}"),
        step("b", "number", done_when="${{ result == null || result > 1 }}"),
        step("c", "node", for_each="${{ [1, 2] }}", parameters={"name": "x ${{ item + 1.5 }}"}),
        step("d", "node", for_each="${{ [1, 2] }}", parameters={"name": "x ${{ item + 1 }}"}),
    )
    assert [(code, at) for code, at, _ in problems(checked)] == [
        ("expression-type", "steps[0].done_when"),
        ("expression-type", "steps[2].parameters.name"),
    ]


def test_results_are_checked_wherever_an_expression_can_be() -> None:
    wrong = "${{ steps.a.result.wrong }}"
    checked = plan(
        step("a", "node", done_when="${{ result.wrong }}", rollback=Rollback(tool_name="anything")),
        step("undone", "node", rollback=Rollback(tool_name="node", parameters={"name": "${{ result.wrong }}"})),
        step("list", "nodes"),
        step("each", "node", for_each="${{ steps.list.result }}", label="${{ item.wrong }}", parameters={"name": "${{ item.wrong }}"}),
        step("after", "node", parameters={"name": "${{ steps.each.result.name }}", "count": "${{ steps.each.result[0].wrong }}"}),
        step("when", when="${{ steps.a.result.wrong == 'x' }}"),
        step("condition", when="${{ steps.a.result.name }}"),
        step("loop", for_each="${{ steps.a.result.name }}"),
        Step(
            id="group",
            description="For each",
            for_each="${{ steps.list.result }}",
            steps=[
                step("in1", "node", parameters={"name": "${{ item.wrong }}"}),
                step("in2", "node", when="${{ steps.in1.result.wrong }}"),
            ],
        ),
        step("seen", "node", parameters={"name": "${{ steps.group.result.map(i, i.wrong) }}"}),
        step("inside", "node", parameters={"name": "${{ steps.group.result.map(i, i.results.in1.wrong) }}"}),
        finally_=[step("last", "node", parameters={"name": wrong})],
        outputs={"deep": {"list": [wrong]}},
    )
    assert [at for _, at, _ in problems(checked)] == [
        "steps[0].done_when",
        "steps[1].rollback.parameters.name",
        "steps[3].label",
        "steps[3].parameters.name",
        "steps[4].parameters.name",
        "steps[4].parameters.count",
        "steps[5].when",
        "steps[6].when",
        "steps[7].for_each",
        "steps[8].steps[0].parameters.name",
        "steps[8].steps[1].when",
        "steps[9].parameters.name",
        "steps[10].parameters.name",
        "outputs.deep.list[0]",
        "finally[0].parameters.name",
    ]


def test_the_outputs_of_a_sub_plan_and_the_answers_of_a_question_have_types() -> None:
    inner = plan(
        step("n", "node"),
        step("r", "report"),
        outputs={"node": "${{ steps.n.result }}", "all": "${{ steps.r.result.nodes }}", "text": "is ${{ steps.n.result.load }}", "two": 2},
    )
    asks = Question(question="Which?", fields={"choice": Input(type="string"), "sure": Input(type="boolean")})

    def uses(*expressions: str) -> list[str]:
        checked = plan(
            Step(id="sub", description="Run it", plan="inner", pinned=inner),
            Step(id="ask", description="Ask", ask=asks),
            *(step(f"s{index}", "node", when=f"${{{{ {expression} }}}}") for index, expression in enumerate(expressions)),
        )
        return [message for _, _, message in problems(checked)]

    assert uses("steps.sub.result.node.up", "steps.sub.result.all[0].up", "steps.ask.result.sure") == []
    found = uses(
        "steps.sub.result.node.down",
        "steps.sub.result.all[0].down",
        "steps.sub.result.text",
        "steps.sub.result.two",
        "steps.ask.result.choice",
    )
    assert found == [
        "`steps.sub.result.node` has no field `down`",
        "`steps.sub.result.all[0]` has no field `down`",
        "`steps.sub.result.text` is a text",
        "`steps.sub.result.two` is a whole number",
        "`steps.ask.result.choice` is a text",
    ]


def test_items_written_as_expressions_may_have_any_field() -> None:
    for items in ("[{'os': 'a', 'node': 18}]", "[[{'os': 'b'}], []]", "[1, 'x', {'os': 'c'}]", "[]"):
        of_item = "item[0].os" if items.startswith("[[") else "item.os"
        checked = plan(
            step("a", "node", for_each=f"${{{{ {items} }}}}", label="${{ string(1) }}", parameters={"name": f"${{{{ {of_item} }}}}"})
        )
        assert problems(checked) == []
    (found,) = problems(plan(step("a", "node", for_each="${{ [1, 2] }}", parameters={"name": "${{ item.os }}"})))
    assert found[2] == "`item.os`: a whole number has no `os`"


def test_the_results_of_the_tools_of_a_goal_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_MODEL", "any")
    goal = Step(id="goal", description="Reach it", goal="Find a node", tools=["node"], done_when="${{ result.results.node.upp }}")
    uses = step("b", parameters={}, when="${{ steps.goal.result.results.nodes.up || steps.goal.result.evidence.exists(e, e.sucess) }}")
    assert [message for _, _, message in problems(plan(goal, uses))] == [
        "`result.results.node` has no field `upp`",
        "`steps.goal.result.results` has no field `nodes`",
    ]


@for_each(
    parameter_expression=[
        ("name", "inputs.ports"),
        ("name", "steps.a.result.up"),
        ("name", "inputs.count"),
        ("count", "steps.a.result.labels"),
        ("tags", "steps.a.result.name"),
    ]
)
def test_a_value_whose_type_its_parameter_refuses_is_refused(parameter_expression: tuple[str, str]) -> None:
    name, expression = parameter_expression
    inputs = {"ports": Input(type="array", items="integer"), "count": Input(type="integer")}
    checked = plan(step("a", "node"), step("b", "node", parameters={name: f"${{{{ {expression} }}}}"}), inputs=inputs)
    found = [problem for problem in lint(checked, TOOLS) if problem.severity == "error"]
    assert [(problem.code, problem.at) for problem in found] == [("bad-parameters", f"steps[1].parameters.{name}")]


def test_a_value_whose_content_may_fit_is_accepted() -> None:
    inputs = {"port": Input(type="string"), "hosts": Input(type="array", items="string")}
    argv = ["${{ inputs.port }}", "${{ steps.a.result.load }}", "${{ steps.a.result.up }}", "${{ steps.a.result.address.zip }}"]
    checked = plan(
        step("a", "node", parameters={"count": "${{ inputs.port }}", "tags": "${{ inputs.hosts }}"}),
        step("b", "run_command", parameters={"argv": argv}),
        inputs=inputs,
    )
    assert problems(checked) == []


def test_a_tool_that_stands_in_for_another_keeps_what_is_known_of_its_result() -> None:
    async def answer(**_: Any) -> Any:
        return None

    assert node.with_function(answer).result_schema == node.result_schema != {}


def test_a_result_schema_is_not_part_of_what_is_approved(tmp_path: Path) -> None:
    @tool(effect="read", name="node")
    def node_without_annotation(name: str = "", count: int = 0, tags: list[str] | None = None):  # type: ignore[no-untyped-def]
        """Return a node."""

    assert node_without_annotation.definition() == node.definition()
    assert node_without_annotation.result_schema == {}


@for_each(
    text_meant=[
        ("{{ inputs.host }}", "inputs.host"),
        ("{{inputs.host | upper}}", "inputs.host"),
        ("ssh ${inputs.host} ${{ inputs.host }}", "inputs.host"),
        ("主机：$inputs.host", "inputs.host"),
        ("{inputs.host}", "inputs.host"),
        ('{{ steps["my-step"].result.stdout }}', 'steps["my-step"].result.stdout'),
        ("${steps.build.result.stdout}", "steps.build.result.stdout"),
        ("{{ secrets.token }}", "secrets.token"),
        ("{{ item.name }}", "item.name"),
    ]
)
def test_a_text_that_another_language_would_read_as_a_value_is_a_warning(text_meant: tuple[str, str]) -> None:
    text, meant = text_meant
    inputs = {"host": Input(type="string"), "hosts": Input(type="array")}
    checked = plan(
        step("a", for_each="${{ inputs.hosts }}", label="${{ inputs.host }}"),
        step("b", "run_command", for_each="${{ inputs.hosts }}", parameters={"argv": ["echo"], "env": {"A": text}}),
        inputs=inputs,
    )
    (found,) = lint(checked, TOOLS)
    assert (found.code, found.severity, found.at) == ("near-expression", "warning", "steps[1].parameters.env.A")
    assert found.hint == f"write `${{{{ {meant} }}}}`"


@for_each(
    text=[
        "{{ item }}",
        "{{ .Name }}",
        "${HOST}",
        "$item",
        "${inputs[0]}",
        "{{ result }}",
        "{inputs}",
        "my{inputs.host",
        "$${x}",
        "{{ run.status }}",
    ]
)
def test_other_texts_with_braces_and_dollars_are_no_warning(text: str) -> None:
    assert problems(plan(step("a", "run_command", parameters={"argv": ["echo", text], "stdin": text}))) == []


def test_in_a_script_the_warning_names_the_way_for_scripts() -> None:
    (found,) = lint(plan(step("a", "bash", parameters={"command": "echo $inputs.host"})), TOOLS)
    assert (found.code, found.hint) == ("near-expression", 'pass the value through `env`, and write "$NAME" in the script')


def test_texts_outside_parameters_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_MODEL", "any")
    checked = plan(
        Step(id="goal", description="Reach it", goal="Restart {{ inputs.host }}", tools=["node"]),
        Step(id="ask", description="Ask", ask=Question(question="Is $inputs.host up?", fields={"up": Input(type="boolean")})),
        outputs={"host": "{{ inputs.host }}"},
        run_name="restart {inputs.host}",
    )
    places = {"run_name", "steps[0].goal", "steps[1].ask.question", "outputs.host"}
    assert {(code, at) for code, at, _ in problems(checked)} == {("near-expression", at) for at in places}


def test_the_warning_quotes_the_text_as_it_is_written() -> None:
    checked = plan(step("a", "node", parameters={"name": "{{inputs.host}}"}), inputs={"host": Input()})
    (problem,) = [problem for problem in lint(checked, TOOLS) if problem.code == "near-expression"]
    assert problem.message == "`{{inputs.host}}` is plain text here, not a value"


class Place(typing.TypedDict):
    address: str
    parent: "Place | None"
    ports: typing.NotRequired[list[int]]


@pytest.mark.parametrize("returned", [Place, list[Place], dict[str, Place] | None])
def test_the_fields_of_a_typed_dict_of_typing_are_known_on_every_python(returned: Any) -> None:
    def look_up(place: Place) -> Any:
        """Look up a place."""

    look_up.__annotations__["return"] = returned
    known = tool(effect="read")(look_up)
    assert '"address": {"type": "string"}' in json.dumps(known.result_schema)
    assert known.check({"place": {"address": "x"}}, lambda _: False) == [("place.parent", "`place.parent` is missing", "")]


def test_a_field_that_a_typed_dict_of_typing_lacks_is_found() -> None:
    @tool(effect="read")
    def look_up(host: str) -> Place:
        """Look up a place."""
        raise NotImplementedError

    plan = ExecutionPlan(description="Look up")
    first = plan.add_step(look_up, host="web-1")
    plan.add_step(look_up, host=first.result["adress"])
    assert "`steps.step_1.result` has no field `adress`" in str(lint(plan, ToolRegistry([look_up]))[0])
