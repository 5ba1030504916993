"""Tests of refused plans: each problem by its code and place."""

from typing import Any

import pytest

from plan_adapter.documents import load_plan, read_document
from plan_adapter.model.options import Concurrency, ExecutionOptions, Input, Question
from plan_adapter.model.plan import ExecutionPlan, Rollback, Step
from plan_adapter.model.problems import CATALOGUE
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import bind_inputs, find_problems, lint, validate
from tests.validation.builders import TOOLS, found, plan, push, step


def test_a_valid_plan_has_no_problems() -> None:
    assert found(plan()) == []


def test_a_field_that_is_not_executed_yet_is_refused_never_ignored() -> None:
    assert found(plan(step("a", done_when="everybody knows it"))) == [("expression-needed", "steps[0].done_when")]


def test_every_mistake_in_rollbacks_is_reported_at_its_place() -> None:
    steps = [
        step("a", rollback=Rollback(tool_name="puhs")),
        step("b", rollback=Rollback(tool_name="fetch_page", parameters={"attempts": "often"})),
        step("c", rollback=Rollback(tool_name="shell", parameters={"command": "rm ${{ inputs.path }}"})),
        step("d", rollback=Rollback(tool_name="push", parameters={"value": "${{ steps.d.result }}"})),
        step("e", rollback=Rollback(tool_name="push", parameters={"value": "${{ item }}"})),
        step("f", rollback=Rollback(tool_name="push", parameters={"value": "${{ steps.gone.result }}"})),
        step("g", rollback=Rollback(tool_name="")),
    ]
    assert found(plan(*steps, inputs={"path": Input()})) == [
        ("unknown-tool", "steps[0].rollback.tool_name"),
        ("bad-parameters", "steps[1].rollback.parameters.url"),
        ("bad-parameters", "steps[1].rollback.parameters.attempts"),
        ("expression-in-command", "steps[2].rollback.parameters.command"),
        ("not-an-ancestor", "steps[3].rollback.parameters"),
        ("unknown-reference", "steps[4].rollback.parameters.value"),
        ("unknown-reference", "steps[5].rollback.parameters.value"),
        ("missing-field", "steps[6].rollback.tool_name"),
    ]


SECRET = "${{ secrets.token }}"
NAMED = "${{ inputs.password }}"


@pytest.mark.parametrize(
    ("tool_name", "parameters", "places"),
    [
        ("ssh", {"host": "web-1", "argv": ["login", SECRET]}, ["argv[1]"]),
        ("ssh", {"host": "web-1", "argv": ["login", f"--password={NAMED}"]}, ["argv[1]"]),
        ("ssh", {"host": SECRET, "argv": ["x"], "user": NAMED, "jump": f"{SECRET}@jump"}, ["host", "user", "jump"]),
        ("copy_to", {"host": "web-1", "path": "site.conf", "to": f"/etc/{SECRET}"}, ["to"]),
        ("copy_from", {"host": "web-1", "path": f"/etc/{SECRET}", "to": "site.conf"}, ["path"]),
        ("ssh", {"host": "web-1", "argv": ["login"], "env": {"TOKEN": SECRET}, "stdin": NAMED}, []),
    ],
)
def test_a_secret_in_a_parameter_that_others_can_see_is_refused_at_its_place(
    tool_name: str, parameters: dict[str, Any], places: list[str]
) -> None:
    written = plan(
        step("a", tool_name=tool_name, parameters=parameters, rollback=Rollback(tool_name=tool_name, parameters=parameters)),
        inputs={"password": Input(type="secret")},
    )
    problems = [problem for problem in lint(written, ToolRegistry.with_builtins()) if problem.severity == "error"]
    at = [f"steps[0].{field}.{place}" for field in ("parameters", "rollback.parameters") for place in places]
    assert sorted((problem.code, problem.at) for problem in problems) == sorted(("misplaced-secret", place) for place in at)
    if tool_name == "ssh" and problems:
        assert {problem.hint for problem in problems} == {"pass it through `env` or `stdin`"}


def test_a_rollback_can_use_its_result_its_item_and_earlier_steps() -> None:
    undo = {"value": ["${{ result.id }}", "${{ item }}", "${{ steps.first.result }}", "${{ inputs.path }}"]}
    looped = step("each", for_each="${{ [1, 2] }}", rollback=Rollback(tool_name="push", parameters=undo))
    checked = validate(plan(step("first"), looped, inputs={"path": Input()}), TOOLS)
    assert checked.dependencies["each"] == ("first",)
    assert checked.rollbacks["each"].tool.name == "push"


def test_an_approval_covers_the_tool_of_a_rollback() -> None:
    def digest(*tools: Any) -> str:
        undone = plan(step("a", rollback=Rollback(tool_name="undo")))
        return bind_inputs(validate(undone, ToolRegistry([push, *tools]))).approval_digest

    def undo() -> None:
        """Undo it."""

    assert digest(tool(undo)) != digest(tool(effect="read")(undo))


def test_a_concurrency_key_must_be_known_before_the_first_step() -> None:
    assert found(plan(concurrency=Concurrency(key="x"))) == []
    assert found(plan(concurrency=Concurrency(key=" "))) == [("bad-concurrency", "concurrency.key")]
    one = step("one")
    keyed = plan(steps=[one], concurrency=Concurrency(key="${{ string(steps.one.result) }}"))
    assert found(keyed) == [("bad-concurrency", "concurrency.key")]


def test_every_mistake_in_finally_steps_is_reported_at_its_place() -> None:
    finals = [
        step("tidy", rollback=Rollback(tool_name="push"), on_error="stop"),
        step("a"),
        step("tell", depends_on=["a", "tidy"], when="${{ run.state == 'x' }}"),
        step("last", depends_on=["b", "nobody"], when="${{ run == 'x' }}"),
    ]
    assert found(plan(step("b", depends_on=["tell"], when="${{ run.status == 'x' }}"), step("a"), finally_=finals)) == [
        ("unknown-reference", "steps[0].when"),
        ("bad-finally", "steps[0].depends_on[0]"),
        ("bad-finally", "finally[0].on_error"),
        ("bad-rollback", "finally[0].rollback"),
        ("duplicate-id", "finally[1].id"),
        ("unknown-reference", "finally[2].when"),
        ("unknown-reference", "finally[3].when"),
        ("bad-finally", "finally[3].depends_on[0]"),
        ("unknown-step", "finally[3].depends_on[1]"),
    ]


@pytest.mark.parametrize(
    ("changes", "code", "at"),
    [
        ({"description": " "}, "no-description", "description"),
        ({"steps": []}, "no-steps", "steps"),
        ({"steps": [Step(id="a")]}, "missing-field", "steps[0].tool_name"),
        ({"options": {"stop_on_error": True, "continue_on_error": True}}, "contradicting-policies", "options.continue_on_error"),
        ({"options": {"stop_on_error": False, "continue_on_error": False}}, "contradicting-policies", "options.continue_on_error"),
        ({"options": {"require_approval": True, "auto_approve": True}}, "contradicting-policies", "options.auto_approve"),
        ({"outputs": {"x": "${{ steps.gone.result }}"}}, "unknown-reference", "outputs.x"),
        ({"outputs": {"x": float("nan")}}, "not-a-number", "outputs.x"),
        ({"outputs": {"x": {"__prefect_kind": 1}}}, "reserved-key", "outputs.x.__prefect_kind"),
    ],
)
def test_a_plan_that_cannot_run_is_reported_with_its_place(changes: dict[str, Any], code: str, at: str) -> None:
    assert found(plan(**changes)) == [(code, at)]


@pytest.mark.parametrize(
    "step_id", ["a\n", "a b", "1a", "-a", "ä", "a" * 65, "a.b", "../a", "中文"], ids=lambda step_id: ascii(step_id)[:20]
)
def test_an_id_is_ascii_letters_digits_underscores_and_hyphens(step_id: str) -> None:
    assert found(plan(step(step_id))) == [("bad-id", "steps[0].id")]


@pytest.mark.parametrize("step_id", ["a", "_", "A-1", "a" * 64, "for", "Null"])
def test_other_ids_are_valid(step_id: str) -> None:
    assert found(plan(step(step_id))) == []


@pytest.mark.parametrize("step_id", ["in", "true", "false", "null"])
def test_reserved_words_of_the_expression_language_are_not_ids(step_id: str) -> None:
    assert found(plan(step(step_id))) == [("reserved-id", "steps[0].id")]


def test_step_ids_must_be_unique() -> None:
    checked = plan(step("a"), step("b"), step("a"))
    assert found(checked) == [("duplicate-id", "steps[2].id")]
    assert "steps[0]" in find_problems(checked, TOOLS)[0].message


def test_an_unknown_tool_is_one_problem_however_often_it_is_called() -> None:
    checked = plan(step("a", tool_name="psh"), step("b", tool_name="psh"), step("c", tool_name="nothing_like_it"))
    first, second = find_problems(checked, TOOLS)
    assert (first.code, first.at, first.hint) == ("unknown-tool", "steps[0].tool_name", "did you mean `push`?")
    assert "2 steps" in first.message
    assert (second.code, second.at, second.hint) == ("unknown-tool", "steps[2].tool_name", "known: `fetch_page`, `push`, `shell`")


def test_each_wrong_parameter_is_reported_at_its_place() -> None:
    checked = plan(step("a", tool_name="fetch_page", parameters={"attempts": "many", "ulr": "x"}))
    assert sorted(found(checked)) == [
        ("bad-parameters", "steps[0].parameters.attempts"),
        ("bad-parameters", "steps[0].parameters.ulr"),
        ("bad-parameters", "steps[0].parameters.url"),
    ]


def test_the_value_of_an_expression_is_not_checked_before_the_run() -> None:
    parameters = {"url": "${{ inputs.url }}", "attempts": "${{ 1 + 1 }}"}
    assert found(plan(step("a", tool_name="fetch_page", parameters=parameters), inputs={"url": Input()})) == []


def test_an_expression_in_a_script_is_refused_and_one_in_its_environment_is_not() -> None:
    parameters = {"command": "echo ${{ inputs.name }}", "env": {"NAME": "${{ inputs.name }}"}}
    checked = plan(step("a", tool_name="shell", parameters=parameters), inputs={"name": Input()})
    assert found(checked) == [("expression-in-command", "steps[0].parameters.command")]
    assert '"$NAME"' in find_problems(checked, TOOLS)[0].hint


@pytest.mark.parametrize(
    ("field", "text", "code"),
    [
        ("when", "steps.a.status == 'completed'", "expression-needed"),
        ("when", "${{ 'yes' }}", "expression-type"),
        ("when", "${{ item == 1 }}", "unknown-reference"),
        ("when", "${{ result == 1 }}", "unknown-reference"),
        ("for_each", "a, b", "expression-needed"),
        ("for_each", "${{ 3 }}", "expression-type"),
        ("for_each", "${{ [item] }}", "unknown-reference"),
        ("done_when", "it is ${{ result.ok }}", "expression-needed"),
        ("done_when", "${{ result.size() }}", "expression-type"),
        ("done_when", "${{ item == 1 }}", "unknown-reference"),
        ("when", "${{ steps.b.result.ok }}", "not-an-ancestor"),
        ("for_each", "${{ steps.b.result }}", "not-an-ancestor"),
        ("done_when", "${{ steps.b.result.ok }}", "not-an-ancestor"),
    ],
)
def test_a_condition_that_cannot_be_evaluated_there_is_refused(field: str, text: str, code: str) -> None:
    assert found(plan(step("a"), step("b", **{field: text}))) == [(code, f"steps[1].{field}")]


@pytest.mark.parametrize("value", ["${{ item }}", "${{ result }}", "${{ steps.a.result }}", "${{ steps.a-b.result }}", "${{ 1"])
def test_a_parameter_can_use_only_values_available_when_the_step_starts(value: str) -> None:
    (problem,) = find_problems(plan(step("a", parameters={"value": {"deep": [value]}})), TOOLS)
    assert problem.at in ("steps[0].parameters.value.deep[0]", "steps[0].parameters")


def test_item_is_available_in_parameters_and_done_when_of_a_for_each_step() -> None:
    each = step("a", for_each="${{ [1, 2] }}", parameters={"value": "${{ item }}"}, done_when="${{ result == item }}")
    assert found(plan(each)) == []


@pytest.mark.parametrize(
    ("value", "code", "at"),
    [
        (float("nan"), "not-a-number", ""),
        (float("-inf"), "not-a-number", ""),
        (2**53, "too-large", ""),
        (-(2**53), "too-large", ""),
        ("\ud800", "bad-text", ""),
        ("a\0b", "bad-text", ""),
        ({"__prefect_kind": "json"}, "reserved-key", ".__prefect_kind"),
        ([{"a": [{"__prefectX": 1}]}], "reserved-key", "[0].a[0].__prefectX"),
    ],
    ids=["NaN", "infinity", "2^53", "-2^53", "surrogate", "NUL", "reserved", "reserved inside"],
)
def test_a_value_without_a_canonical_form_is_refused_with_its_place(value: Any, code: str, at: str) -> None:
    assert (code, f"steps[0].parameters.value{at}") in found(plan(step("a", parameters={"value": value})))


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ('{"value": 1}', []),
        ('{"value": "${{ steps.b.result }}"}', []),
        ('{"value": "${{ steps.gone.result }}"}', [("unknown-reference", "steps[0].input")]),
        ('{"value": 1, "value": 2}', [("duplicate-key", "steps[0].input")]),
        ('{"value": NaN}', [("not-a-number", "steps[0].input")]),
        ('{"value": 9007199254740992}', [("too-large", "steps[0].input")]),
        ("plain words", [("bad-parameters", "steps[0].input")]),  # the tool takes no `input`
        ('["value"]', [("bad-parameters", "steps[0].input")]),
        ("[" * 100_000, [("bad-parameters", "steps[0].input")]),
    ],
    ids=range(9),
)
def test_the_raw_input_of_a_step_is_its_parameters_if_it_is_a_json_object(text: str, problems: list[tuple[str, str]]) -> None:
    assert found(plan(step("a", input=text), step("b"))) == problems


@pytest.mark.parametrize(
    "tag",
    ["", " ", " web", "web ", "two\nlines", "\x1b[31m", "a\u202eb", "x" * 65, "${{ inputs.host }}", "${{ secrets.token }}"],
    ids=ascii,
)
def test_a_tag_is_short_fixed_text_of_one_line(tag: str) -> None:
    assert found(plan(step("a", tags=["sound", tag]), tags=["web", "两个 词", tag])) == [
        ("bad-tag", "steps[0].tags[1]"),
        ("bad-tag", "tags[2]"),
    ]


def test_valid_tags_pass_and_a_duplicate_is_a_warning() -> None:
    sound = plan(step("a", tags=["x" * 64, "db:limit", "生产 环境"]), tags=["web"])
    assert found(sound) == []
    doubled = lint(plan(step("a", tags=["db", "db"])), TOOLS)
    assert [(problem.code, problem.at, problem.severity) for problem in doubled] == [("duplicate-entry", "steps[0].tags[1]", "warning")]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", "bad-run-name"),
        (" \n", "bad-run-name"),
        ("push ${{ steps.only.result }}", "bad-run-name"),
        ("push ${{ steps.lost.result }}", "unknown-reference"),
        ("push ${{ inputs.host }}", "unknown-reference"),
        ("push ${{ item }}", "unknown-reference"),
        ("push ${{ secrets.token }}", "misplaced-secret"),
        ("push ${{ inputs.", "expression-syntax"),
    ],
    ids=ascii,
)
def test_a_run_name_is_text_and_can_use_only_inputs(name: str, code: str) -> None:
    assert found(plan(run_name=name)) == [(code, "run_name")]


def test_an_input_in_a_run_name_counts_as_used() -> None:
    assert found(plan(inputs={"host": Input()}, run_name="push to ${{ inputs.host }}")) == []


def test_plans_that_run_but_are_probably_wrong_get_warnings() -> None:
    steps = [
        step("a", effect="read", max_retries=3),
        step("b", max_retries=1, depends_on=["a", "a"]),
        step("c", input="{}", parameters={"value": 1}),
    ]
    checked = plan(*steps, inputs={"unused": Input(default="x")})
    assert found(checked) == [
        ("unused-input", "inputs.unused"),
        ("lowered-effect", "steps[0].effect"),
        ("retried-write", "steps[1].max_retries"),
        ("duplicate-dependency", "steps[1].depends_on[1]"),
        ("unused-input", "steps[2].input"),
    ]
    assert {problem.severity for problem in lint(checked, TOOLS)} == {"warning"}
    assert find_problems(checked, TOOLS) == []


@pytest.mark.parametrize("options", [{"auto_approve": True}, {"require_approval": False, "auto_approve": True}, {"require_approval": True}])
def test_one_statement_about_the_approval_is_no_contradiction(options: dict[str, bool]) -> None:
    assert found(plan(options=options)) == []


def test_a_sub_plan_that_contradicts_itself_is_reported_in_its_document() -> None:
    inner = plan(options={"require_approval": True, "auto_approve": True})
    outer = plan(Step(id="part", plan="inner.yaml", pinned=inner))
    assert found(outer) == [("contradicting-policies", "steps[0].pinned.options.auto_approve")]


def test_problems_are_in_document_order() -> None:
    broken = plan(
        step("a", depends_on=["gone"], tool_name="psh"),
        step("b", parameters={"value": "${{ steps.gone.result }}"}, max_rounds=3),
        description="",
        inputs={"a-b": Input()},
        options=ExecutionOptions(stop_on_error=True, continue_on_error=True),
        outputs={"x": "${{ nothing }}"},
    )
    assert [at for _, at in found(broken)] == [
        "description",
        "inputs.a-b",
        "options.continue_on_error",
        "steps[0].tool_name",
        "steps[0].depends_on[0]",
        "steps[1].parameters.value",
        "steps[1].max_rounds",
        "outputs.x",
    ]
    assert found(broken) == found(broken)


DOCUMENT = """\
description: Restart a node
steps:
  - id: check
    tool_name: fetch_page
    parameters:
      url: "https://${{ inputs.host }}/"
      attempts: few
  - id: restart
    tool_name: push
    depends_on: [chekc]
    when: "yes"
"""


def test_problems_of_a_document_carry_their_line_and_column() -> None:
    assert [(problem.code, problem.line, problem.column) for problem in find_problems(load_plan(DOCUMENT), TOOLS)] == [
        ("unknown-reference", 6, 7),
        ("bad-parameters", 7, 7),
        ("unknown-step", 10, 18),
        ("expression-needed", 11, 5),
    ]


def read(text: str) -> ExecutionPlan:
    """The plan of a document with problems."""
    plan, _ = read_document(text)
    assert plan is not None
    return plan


def test_a_wrong_field_of_an_input_does_not_hide_a_missing_name() -> None:
    wrong = read(DOCUMENT + "inputs: {host: {type: strng}}\noutputs: {x: '${{ steps.gone.result }}', y: '${{ inputs.gone }}'}\n")
    assert [(problem.code, problem.at) for problem in find_problems(wrong, TOOLS)] == [
        ("bad-parameters", "steps[0].parameters.attempts"),
        ("unknown-step", "steps[1].depends_on[0]"),
        ("expression-needed", "steps[1].when"),
        ("bad-value", "inputs.host.type"),
        ("unknown-reference", "outputs.x"),
        ("unknown-reference", "outputs.y"),
    ]


def test_references_to_an_invalid_input_are_not_checked() -> None:
    wrong = read(DOCUMENT + "inputs: {host: 5}\n")
    codes = [problem.code for problem in find_problems(wrong, TOOLS)]
    assert codes == ["bad-parameters", "unknown-step", "expression-needed", "wrong-type"]


def test_problems_found_by_the_reader_are_not_repeated() -> None:
    wrong = read('{"description": "d", "steps": [{"tool_name": "push", "parameters": {"value": {"__prefect_kind": 1}}}]}')
    assert [problem.code for problem in find_problems(wrong, TOOLS)] == ["reserved-key"]


def test_an_input_in_a_refused_expression_counts_as_used() -> None:
    checked = plan(step("a", for_each="${{ inputs.name }}"), inputs={"name": Input(default="x")})
    assert found(checked) == [("expression-type", "steps[0].for_each")]


def test_every_code_is_in_the_catalogue() -> None:
    checked = plan(step("in", done_when="x", depends_on=["in", "gone"]), step("in"), inputs={"a-b": Input(pattern="(")})
    assert {code for code, _ in found(checked)} <= CATALOGUE.keys()


def test_a_step_on_dask_needs_an_importable_tool_and_no_isolation() -> None:
    def undo() -> None:
        """Undo it."""

    tools = ToolRegistry([*TOOLS, undo])
    steps = [
        step("a", runner="dask", isolation="process"),
        step("b", runner="dask", rollback=Rollback(tool_name="undo")),
        Step(id="c", for_each="${{ [1] }}", runner="dask", steps=[Step(id="d", tool_name="undo", description="x")]),
        Step(id="e", runner="dask", ask=Question(question="Is it fine?", fields={"yes": Input(type="boolean")})),
    ]
    assert [(problem.code, problem.at) for problem in find_problems(plan(*steps), tools) if problem.code != "missing-field"] == [
        ("bad-runner", "steps[0].isolation"),
        ("bad-runner", "steps[1].runner"),
        ("bad-runner", "steps[2].steps[0].runner"),
        ("bad-question", "steps[3].runner"),
    ]
