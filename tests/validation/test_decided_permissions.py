"""Permissions may be one expression over the inputs. It is checked with the plan, and decided with the inputs, before anything runs."""

from typing import Any

import pytest

from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.plan import ExecutionPlan, Rollback, Step
from plan_adapter.text.preview import preview_plan, preview_text
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import BoundPlan, bind_inputs, lint, validate
from tests.validation.builders import plan, step


@tool(effect="write", permissions=["重排"])
def reorder(value: int = 0) -> None:
    """Reorder the tasks."""


@tool(effect="read")
def push(value: Any = 0) -> Any:
    """Push a value."""
    return value


TOOLS = ToolRegistry([reorder, push])
MAY = "${{ inputs.may ? ['重排'] : [] }}"
BOOLEAN = {"may": {"type": "boolean", "default": False}}


def asks(*steps: Step, permissions: Any = MAY, inputs: Any = BOOLEAN, **fields: Any) -> ExecutionPlan:
    """Return a plan whose input `may` decides its permissions."""
    return plan(*steps or [step("all", tool_name="reorder")], permissions=permissions, inputs=inputs, **fields)


def runs(inner: ExecutionPlan, step_id: str = "part", **fields: Any) -> Step:
    return Step(id=step_id, plan="inner.yaml", pinned=inner, **fields)


def bind(checked: ExecutionPlan, **inputs: Any) -> BoundPlan:
    return bind_inputs(validate(checked, TOOLS), inputs)


def refusals(checked: ExecutionPlan, **inputs: Any) -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidPlanError) as refused:
        bind(checked, **inputs)
    return [(problem.code, problem.at, problem.message) for problem in refused.value.problems]


def errors(checked: ExecutionPlan) -> list[tuple[str, str]]:
    return [(problem.code, problem.at) for problem in lint(checked, TOOLS) if problem.severity == "error"]


def given(bound: BoundPlan, step_id: str) -> list[str]:
    return [*bound.validated.permissions_at(bound.validated.steps[step_id]).names]


def test_the_inputs_of_a_run_decide_its_permissions() -> None:
    assert lint(asks(), TOOLS) == []
    assert given(bind(asks(), may=True), "all") == ["重排"]
    assert refusals(asks()) == [
        ("not-permitted", "steps[0].tool_name", "`reorder` needs the permission `重排`, which this run does not give")
    ]


def test_a_rollback_a_group_and_a_final_step_need_the_permission_as_well() -> None:
    calls = asks(
        step("one", rollback=Rollback(tool_name="reorder")),
        Step(id="each", for_each="${{ [1] }}", steps=[step("inside", tool_name="reorder")]),
        finally_=[step("last", tool_name="reorder")],
    )
    places = [at for _, at, _ in refusals(calls)]
    assert places == ["steps[0].rollback.tool_name", "steps[1].steps[0].tool_name", "finally[0].tool_name"]
    assert given(bind(calls, may=True), "inside") == ["重排"]


@pytest.mark.parametrize(
    ("when", "is_refused"),
    [("${{ inputs.may }}", False), ("${{ !inputs.may }}", True), ("${{ inputs.may && steps.first.result }}", True), (None, True)],
)
def test_a_call_that_the_inputs_skip_needs_no_permission(when: str | None, *, is_refused: bool) -> None:
    checked = asks(step("first"), step("all", tool_name="reorder", when=when))
    inside = asks(runs(plan(step("all", tool_name="reorder"), permissions=["重排"]), when=when), step("first"))
    for each in (checked, inside):
        if is_refused:
            assert [code for code, _, _ in refusals(each)] == ["not-permitted"]
        else:
            assert bind(each).validated.decided_permissions == {"": ()}


@pytest.mark.parametrize(
    ("permissions", "code", "hint"),
    [
        ("${{ inputs.mat ? ['a'] : [] }}", "unknown-reference", "did you mean `may`"),
        ("${{ steps.all.result }}", "bad-permission", "use only `inputs`"),
        ("${{ steps.al.result }}", "unknown-reference", "did you mean `all`"),
        ("${{ [secrets.token] }}", "misplaced-secret", ""),
        ("${{ inputs.may }}", "expression-type", "an expression for a list"),
        ("${{ [1, 2] }}", "expression-type", "permissions are texts"),
        ("a ${{ ['b'] }}", "expression-needed", "in one `${{ … }}`"),
        ("${{ ['a'", "expression-syntax", "close it"),
        ("重排", "wrong-type", "write a list"),
        ("", "wrong-type", "write a list"),
    ],
)
def test_an_expression_that_cannot_give_permissions_is_a_problem_of_the_plan(permissions: str, code: str, hint: str) -> None:
    found = [problem for problem in lint(asks(step("all"), permissions=permissions), TOOLS) if problem.severity == "error"]
    assert [(problem.code, problem.at) for problem in found] == [(code, "permissions")]
    assert hint in found[0].hint


def test_an_entry_of_a_list_is_no_expression() -> None:
    assert errors(asks(step("all"), permissions=["${{ inputs.may }}"])) == [("bad-permission", "permissions[0]")]


@pytest.mark.parametrize("name", ["token", "api_key"])
def test_an_input_with_a_secret_gives_no_permission(name: str) -> None:
    inputs = {name: {}}
    assert errors(asks(step("all"), permissions=f"${{{{ [inputs.{name}] }}}}", inputs=inputs)) == [("bad-permission", "permissions")]
    inner = asks(step("all"), permissions="${{ [inputs.name] }}", inputs={"name": {}})
    outer = plan(runs(inner, inputs={"name": f"${{{{ inputs.{name} }}}}"}), inputs=inputs)
    assert errors(outer) == [("bad-permission", "steps[0].inputs.name")]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([""], "entry 1 of the list that the expression gives is empty, or"),
        (["a", " b"], "entry 2 of the list"),
        (["a\u200b"], "invisible characters"),
        ([1], "entry 1 of the list that the expression gives is not a text"),
        (["x" * 101], "longer than 100 characters"),
        (["x"] * 51, "gives 51 permissions, and a run may get 50"),
    ],
)
def test_a_bad_value_is_a_problem_of_the_inputs(value: list[Any], why: str) -> None:
    checked = asks(step("all"), permissions="${{ inputs.names }}", inputs={"names": {"type": "array"}})
    ((code, at, message),) = refusals(checked, names=value)
    assert (code, at, why in message) == ("bad-permission", "permissions", True)
    assert "a\u200b" not in message


def test_an_expression_that_fails_is_a_problem_of_the_inputs() -> None:
    checked = asks(step("all"), permissions="${{ inputs.box.names }}", inputs={"box": {"type": "object"}})
    assert [(code, at) for code, at, _ in refusals(checked, box={})] == [("bad-permission", "permissions")]
    assert given(bind(checked, box={"names": ["b", "a", "b"]}), "all") == ["b", "a"]


def test_the_approval_covers_what_the_inputs_decided() -> None:
    checked = asks(step("all"), permissions="${{ inputs.may ? ['重排'] : [] }}")
    other = asks(step("all"), permissions=["重排"])
    digests = {bind(checked, may=True).approval_digest, bind(checked).approval_digest, bind(other, may=True).approval_digest}
    assert len(digests) == 3
    assert bind(checked, may=True).approval_digest == bind(checked, may=True).approval_digest


def test_a_sub_plan_decides_from_its_own_inputs() -> None:
    outer = plan(
        runs(asks(), "yes", inputs={"may": "${{ inputs.who == 'ana' }}"}),
        runs(asks(step("all")), "no"),
        permissions=["重排", "net"],
        inputs={"who": {}},
    )
    bound = bind(outer, who="ana")
    assert (given(bound, "yes.all"), given(bound, "no.all")) == (["重排"], [])
    assert bound.validated.decided_permissions == {"yes": ("重排",), "no": ()}
    assert refusals(outer, who="bob") == [
        ("not-permitted", "steps[0].pinned.steps[0].tool_name", "`reorder` needs the permission `重排`, which this run does not give")
    ]


def test_a_sub_plan_gets_only_what_the_plans_around_it_decide_to_give() -> None:
    inner = plan(step("all"), permissions=["重排", "net"])
    middle = asks(runs(inner, "deep"), permissions="${{ inputs.may ? ['net', '重排'] : ['net'] }}")
    outer = asks(runs(middle, inputs={"may": True}))
    assert (given(bind(outer, may=True), "part.deep.all"), given(bind(outer), "part.deep.all")) == (["重排"], [])


@pytest.mark.parametrize("depth", [1, 2])
def test_an_input_that_a_step_decides_cannot_decide_permissions(depth: int) -> None:
    part = asks(step("all"))
    for _ in range(depth - 1):
        part = plan(runs(part, inputs={"may": "${{ inputs.may }}"}), inputs=BOOLEAN)
    outer = plan(step("look"), runs(part, inputs={"may": "${{ steps.look.result == 1 }}"}))
    (problem,) = [problem for problem in lint(outer, TOOLS) if problem.severity == "error"]
    assert (problem.code, problem.at) == ("bad-permission", "steps[1].inputs.may")
    assert problem.message == "permissions of the plan that the step runs depend on its input `may`, which `steps.look` decides too late"


def test_another_input_of_the_sub_plan_may_depend_on_a_step() -> None:
    inner = asks(step("all", parameters={"value": "${{ inputs.note }}"}), inputs={**BOOLEAN, "note": {}})
    outer = plan(step("look"), runs(inner, inputs={"may": True, "note": "${{ string(steps.look.result) }}"}), permissions=["重排"])
    assert given(bind(outer), "part.all") == ["重排"]


def test_an_input_of_a_sub_plan_that_does_not_fit_is_a_problem_of_the_step() -> None:
    inner = asks(step("all"), permissions="${{ [inputs.name] }}", inputs={"name": {"max_length": 3}})
    outer = plan(runs(inner, inputs={"name": "${{ inputs.name }}"}), inputs={"name": {}})
    assert [(code, at) for code, at, _ in refusals(outer, name="long")] == [("bad-input", "steps[0].inputs.name")]


def test_a_call_is_not_permitted_by_a_list_around_an_expression() -> None:
    assert errors(plan(runs(asks(), inputs={"may": True}), permissions=["net"])) == [
        ("not-permitted", "steps[0].pinned.steps[0].tool_name")
    ]


def test_a_goal_shows_what_the_inputs_decide() -> None:
    goal = Step(id="goal", goal="Tidy up", done_when="It is tidy", tools=["reorder", "push"])
    validated = validate(asks(goal), TOOLS)
    unknown = preview_text(preview_plan(validated, inputs=None, approval_digest=None, requires_approval=True, missing=("may",)))
    assert "`reorder` (write, only if the inputs of the run give its permission)" in unknown
    for may, shown in (
        (True, "`reorder` (write, each call asks)"),
        (False, "`reorder` (write, refused: the plan does not give its permission)"),
    ):
        bound = bind_inputs(validated, {"may": may})
        assert shown in preview_text(preview_plan(bound.validated, inputs=bound.inputs, approval_digest=None, requires_approval=True))


def test_a_document_with_permissions_of_another_type_says_what_they_may_be() -> None:
    for value in (3, {"a": 1}, ["a", 3]):
        checked = asks(step("all"))
        vars(checked)["permissions"] = value
        (problem,) = [problem for problem in lint(checked, TOOLS) if problem.severity == "error"]
        assert (problem.code, problem.at) == ("wrong-type", "permissions")
        assert "`permissions` must be a list of names, or one expression that gives it" in problem.message


def test_an_input_may_be_called_permissions() -> None:
    checked = asks(
        step("all"), permissions=[], inputs={"permissions": {"type": "array"}}, run_name="${{ string(size(inputs.permissions)) }}"
    )
    assert errors(checked) == []
    vars(checked.inputs["permissions"])["title"] = 3
    assert errors(checked) == [("wrong-type", "inputs.permissions.title")]
