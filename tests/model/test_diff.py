"""Tests of the diff of two plans."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from plan_adapter.model.canonical import Change, PlanDiff, diff_plans, plan_digest
from plan_adapter.model.plan import ExecutionPlan, Step
from tests.documents.generated import plans


def plan(*steps: Step, **fields: object) -> ExecutionPlan:
    return ExecutionPlan(description="d", steps=[step.model_copy(deep=True) for step in steps], **fields)  # type: ignore[arg-type]


A, B, C, D = (Step(id=name, tool_name="t") for name in "abcd")


def test_equal_plans_have_an_empty_diff() -> None:
    assert not diff_plans(plan(A, B), plan(A, B))
    assert diff_plans(plan(A), plan(A)) == PlanDiff()


def test_added_and_removed_steps_are_reported() -> None:
    assert diff_plans(plan(A, B), plan(B, C)) == PlanDiff(added=("c",), removed=("a",))


@pytest.mark.parametrize(
    ("old", "new"),
    [((A, B), (B,)), ((B,), (A, B)), ((A, B), (B, A)), ((A,), (Step(id="a", tool_name="u"),))],
    ids=["removed", "added", "reordered", "changed"],
)
def test_one_difference_makes_plans_different(old: tuple[Step, ...], new: tuple[Step, ...]) -> None:
    assert diff_plans(plan(*old), plan(*new))


def test_every_change_of_a_value_is_reported_whatever_it_was_before() -> None:
    old, new = (
        plan(Step(id="a", tool_name="t", parameters=parameters))
        for parameters in ({"m": 1, "n": {"x": 1}, "o": {"p": 1}, "q": [1]}, {"m": 2, "n": {"x": 2}, "o": "p", "q": {"p": 1}})
    )
    assert diff_plans(old, new).changed == (
        Change("a.parameters.m", 1, 2),
        Change("a.parameters.n.x", 1, 2),
        Change("a.parameters.o", {"p": 1}, "p"),
        Change("a.parameters.q", [1], {"p": 1}),
    )


def test_changes_are_reported_down_to_the_value() -> None:
    old = plan(Step(id="a", tool_name="t", parameters={"x": {"y": 1, "z": [1]}}, max_retries=1), metadata={"owner": "ana"})
    new = plan(Step(id="a", tool_name="t", parameters={"x": {"y": True, "z": [1, 2]}, "n": None}), metadata={"owner": "bo"})
    assert diff_plans(old, new).changed == (
        Change("metadata.owner", "ana", "bo"),
        Change("a.parameters.x.y", 1, True),
        Change("a.parameters.x.z", [1], [1, 2]),
        Change("a.parameters.n", None, None),
        Change("a.max_retries", 1, None),
    )


@pytest.mark.parametrize(
    ("old", "new", "is_secret", "shown"),
    [
        ("one", "two", False, ("one", "two")),
        ("one", "two", True, ("***", "***")),
        (None, "two", False, (None, "two")),
        ({"x": "p"}, None, False, ('{"x": "p"}', None)),
        (None, "two", True, (None, "***")),
        ("two", None, True, ("***", None)),
        ({"password": "p"}, {"password": "q", "n": 1}, False, ('{"password": "***"}', '{"password": "***", "n": 1}')),
        ("x" * 201, None, False, ("x" * 200 + "… 1 more", None)),
        (None, "x" * 201, False, (None, "x" * 200 + "… 1 more")),
        ("a" * 300 + "1", "a" * 300 + "2", False, ("…" + "a" * 40 + "1", "…" + "a" * 40 + "2")),
    ],
)
def test_a_change_is_shown_where_it_differs_and_without_secrets(old: Any, new: Any, is_secret: bool, shown: Any) -> None:
    assert Change("a.parameters.x", old, new).shown(is_secret=is_secret) == shown


@pytest.mark.parametrize(
    ("order", "moved"),
    [((A, B, C, D), ()), ((B, C, D, A), ("a",)), ((D, A, B, C), ("d",)), ((B, A, C, D), ("b",)), ((D, C, B, A), ("d", "c", "b"))],
)
def test_as_few_steps_as_possible_are_reported_as_moved(order: tuple[Step, ...], moved: tuple[str, ...]) -> None:
    assert diff_plans(plan(A, B, C, D), plan(*order)) == PlanDiff(reordered=moved)


def test_an_added_step_does_not_move_other_steps() -> None:
    assert diff_plans(plan(A, B), plan(C, A, D, B)).reordered == ()


@pytest.mark.parametrize(
    ("old", "new", "is_raised"),
    [
        ("read", "write", True),
        ("read", None, True),
        ("idempotent_write", "read", False),
        ("write", None, True),
        (None, "write", False),
        ("read", "read", False),
    ],
)
def test_a_step_with_a_stronger_effect_is_reported_as_raised(old: str | None, new: str | None, is_raised: bool) -> None:
    before, after = (Step(id="a", tool_name="t", effect=effect) for effect in (old, new))  # type: ignore[arg-type]
    assert diff_plans(plan(before), plan(after)).raised == (("a",) if is_raised else ())


def test_a_step_that_moved_to_finally_is_reported_as_removed_and_added() -> None:
    diff = diff_plans(plan(A, B), ExecutionPlan(description="d", steps=[A.model_copy()], finally_=[B.model_copy()]))
    assert (diff.added, diff.removed) == (("finally.b",), ("b",))


def grouped(*steps: Step, **fields: object) -> Step:
    return Step(id="g", for_each="${{ ['x'] }}", steps=[step.model_copy(deep=True) for step in steps], **fields)  # type: ignore[arg-type]


def test_steps_in_a_group_are_compared_one_by_one() -> None:
    old = plan(A, grouped(B, Step(id="c", tool_name="t", effect="read", parameters={"argv": ["k" * 300, "harmless"]})))
    new = plan(A, grouped(B, Step(id="c", tool_name="t", effect="write", parameters={"argv": ["k" * 300, "rm"]}), D, batch=2))
    diff = diff_plans(old, new)
    assert [change.at for change in diff.changed] == ["g.batch", "c.parameters.argv", "c.effect"]
    assert (diff.added, diff.removed, diff.reordered, diff.raised) == (("d",), (), (), ("c",))


def test_a_step_that_moves_into_a_group_is_reported_as_changed() -> None:
    assert diff_plans(plan(grouped(A), B), plan(grouped(A, B))).changed == (Change("b.group", None, "g"),)
    assert diff_plans(plan(grouped(A, B)), plan(grouped(A), B)).changed == (Change("b.group", "g", None),)


def test_steps_in_a_group_that_change_places_are_reported_as_moved() -> None:
    assert diff_plans(plan(grouped(A, B)), plan(grouped(B, A))) == PlanDiff(reordered=("b",))


def test_a_group_of_a_sub_plan_is_compared_step_by_step() -> None:
    old, new = (plan(Step(id="s", pinned=plan(grouped(A, b)))) for b in (B, Step(id="b", tool_name="t", effect="write")))
    assert [change.at for change in diff_plans(old, new).changed] == ["s.b.effect"]


def test_what_a_sub_plan_says_besides_its_steps_is_compared() -> None:
    old, new = (plan(Step(id="s", pinned=plan(A, metadata={"owner": owner}))) for owner in ("ana", "bo"))
    assert diff_plans(old, new).changed == (Change("s.pinned.metadata.owner", "ana", "bo"),)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(plans, plans)
@pytest.mark.thorough
def test_a_diff_is_empty_exactly_if_the_digests_are_equal(old: ExecutionPlan, new: ExecutionPlan) -> None:
    for before, after in ((old, new), (old, old.model_copy(deep=True))):
        if any(len({step.id for step in plan.steps}) < len(plan.steps) for plan in (before, after)):
            return  # duplicate ids are refused before plans are compared
        assert bool(diff_plans(before, after)) == (plan_digest(before) != plan_digest(after))


def test_a_name_that_stays_is_no_change_even_if_a_description_makes_it_the_default() -> None:
    old, new = ExecutionPlan(name="o", description="o"), ExecutionPlan(name="o", description="Do it")
    assert [change.at for change in diff_plans(old, new).changed] == ["description"]
    assert [change.at for change in diff_plans(new, old).changed] == ["description"]
    (change, _) = diff_plans(new, ExecutionPlan(name="Do more", description="Do more")).changed
    assert (change.at, change.old, change.new) == ("name", "o", "Do more")
