"""A plan gives permissions by name. A step or rollback whose tool needs another one is refused before anything runs."""

import pytest

from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.plan import ExecutionPlan, Rollback, Step
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import lint, validate
from tests.validation.builders import plan, step


@tool(effect="write", permissions=["allow_reorder", "网络"])
def reorder(value: int = 0) -> None:
    """Reorder the tasks."""


@tool(effect="write")
def push(value: int = 0) -> None:
    """Push a value."""


TOOLS = ToolRegistry([reorder, push])
REORDER = step("all", tool_name="reorder")
BOTH = ["allow_reorder", "网络"]


def messages(*steps: Step, permissions: list[str]) -> list[tuple[str, str, str]]:
    found = lint(plan(*steps, permissions=permissions), TOOLS)
    return [(problem.code, problem.at, problem.message) for problem in found]


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ([], "permissions `allow_reorder`, `网络`"),
        (["网络"], "permission `allow_reorder`"),
        (["Allow_Reorder", "网络"], "permission `allow_reorder`"),
    ],
)
def test_a_call_without_all_its_permissions_is_refused_with_their_names(given: list[str], missing: str) -> None:
    why = f"`reorder` needs the {missing}, which the plan does not give"
    assert messages(REORDER, permissions=given) == [("not-permitted", "steps[0].tool_name", why)]


def test_the_permissions_of_the_plan_hold_for_every_kind_of_call() -> None:
    rollback = step("one", rollback=Rollback(tool_name="reorder"))
    group = Step(id="group", for_each="${{ [1] }}", steps=[step("in_it", tool_name="reorder")])
    calls = (rollback, group)
    places = [at for _, at, _ in messages(*calls, permissions=[])]
    assert places == ["steps[0].rollback.tool_name", "steps[1].steps[0].tool_name"]
    assert messages(*calls, permissions=["网络", "allow_reorder"]) == []


def test_a_final_step_needs_permissions_as_well() -> None:
    checked = plan(finally_=[REORDER])
    assert [(problem.code, problem.at) for problem in lint(checked, TOOLS)] == [("not-permitted", "finally[0].tool_name")]


def around(*permissions: list[str]) -> ExecutionPlan:
    """Return plans inside each other, the outermost first, that give these permissions. The innermost calls `reorder`."""
    found = plan(REORDER, name="level", permissions=permissions[-1])
    for level, given in reversed([*enumerate(permissions[:-1])]):
        found = plan(Step(id="part", plan="inner.yaml", pinned=found), name=f"level {level}", permissions=given)
    return found


@pytest.mark.parametrize(
    ("given", "message", "names"),
    [
        (
            ([], BOTH),
            "`reorder` needs the permissions `allow_reorder`, `网络`, which the plan around it, `level 0`, does not give",
            "`level 0`",
        ),
        (
            (BOTH, ["网络"], BOTH),
            "`reorder` needs the permission `allow_reorder`, which the plan around it, `level 1`, does not give",
            "`level 1`",
        ),
        (
            (["网络"], [], BOTH),
            "`reorder` needs the permissions `allow_reorder`, `网络`, which the plan around it, `level 1`, does not give",
            "`level 1` and `level 0`",
        ),
        (([], []), "`reorder` needs the permissions `allow_reorder`, `网络`, which the plan does not give", "`level` and `level 0`"),
        ((BOTH, []), "`reorder` needs the permissions `allow_reorder`, `网络`, which the plan does not give", "the plan"),
    ],
)
def test_every_plan_around_a_step_must_give_its_permissions(given: tuple[list[str], ...], message: str, names: str) -> None:
    (problem,) = lint(around(*given), TOOLS)
    at = "steps[0].pinned." * (len(given) - 1) + "steps[0].tool_name"
    assert (problem.code, problem.at, problem.message) == ("not-permitted", at, message)
    assert problem.hint.endswith(f"let a person add the name to `permissions` of {names}")


def test_the_permissions_that_all_plans_give_are_enough() -> None:
    assert lint(around([*BOTH, "disk"], BOTH, BOTH), TOOLS) == []


def test_permission_names_no_tool_can_match_are_problems() -> None:
    found = messages(permissions=["", " a", "a", "a", "b\u200b"])
    assert [(code, at) for code, at, _ in found] == [
        ("bad-permission", "permissions[0]"),
        ("bad-permission", "permissions[1]"),
        ("duplicate-entry", "permissions[3]"),
        ("bad-permission", "permissions[4]"),
    ]


def test_the_digest_covers_the_permissions() -> None:
    given, more = plan(REORDER, permissions=["allow_reorder", "网络"]), plan(REORDER, permissions=["allow_reorder", "网络", "disk"])
    assert validate(given, TOOLS).digest == plan_digest(given) != plan_digest(more)
