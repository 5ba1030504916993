"""What differs between two plans."""

import pytest
from hypothesis import HealthCheck, given, settings

from plan_adapter.canonical import Change, PlanDiff, diff_plans, plan_digest
from plan_adapter.plan import ExecutionPlan, Step
from tests.documents.generated import plans


def plan(*steps: Step, **fields: object) -> ExecutionPlan:
    return ExecutionPlan(description="d", steps=[step.model_copy(deep=True) for step in steps], **fields)  # type: ignore[arg-type]


A, B, C, D = (Step(id=name, tool_name="t") for name in "abcd")


def test_equal_plans_differ_in_nothing() -> None:
    assert not diff_plans(plan(A, B), plan(A, B))
    assert diff_plans(plan(A), plan(A)) == PlanDiff()


def test_steps_that_came_and_went() -> None:
    assert diff_plans(plan(A, B), plan(B, C)) == PlanDiff(added=("c",), removed=("a",))


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
    ("order", "moved"),
    [((A, B, C, D), ()), ((B, C, D, A), ("a",)), ((D, A, B, C), ("d",)), ((B, A, C, D), ("b",)), ((D, C, B, A), ("d", "c", "b"))],
)
def test_as_few_steps_as_possible_are_reported_as_moved(order: tuple[Step, ...], moved: tuple[str, ...]) -> None:
    assert diff_plans(plan(A, B, C, D), plan(*order)) == PlanDiff(reordered=moved)


def test_a_step_that_came_moves_none() -> None:
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
def test_a_step_that_may_do_more_is_raised(old: str | None, new: str | None, is_raised: bool) -> None:
    before, after = (Step(id="a", tool_name="t", effect=effect) for effect in (old, new))  # type: ignore[arg-type]
    assert diff_plans(plan(before), plan(after)).raised == (("a",) if is_raised else ())


def test_a_step_that_now_always_runs_is_another_step() -> None:
    diff = diff_plans(plan(A, B), ExecutionPlan(description="d", steps=[A.model_copy()], finally_=[B.model_copy()]))
    assert (diff.added, diff.removed) == (("finally.b",), ("b",))


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(plans, plans)
@pytest.mark.thorough
def test_something_differs_exactly_where_the_digests_do(old: ExecutionPlan, new: ExecutionPlan) -> None:
    for one, other in ((old, new), (old, old.model_copy(deep=True))):
        if any(len({step.id for step in it.steps}) < len(it.steps) for it in (one, other)):
            return  # ids that stand twice are refused before anything is compared
        assert bool(diff_plans(one, other)) == (plan_digest(one) != plan_digest(other))
