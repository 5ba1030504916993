"""A plan as the store keeps it is the plan that was kept, whose steps are made when somebody asks for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan_adapter.canonical import canonical_document, canonical_json
from plan_adapter.plan import ExecutionPlan, Input, Step
from plan_adapter.stored_plan import Shape, StoredPlan
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import tool
from plan_adapter.validation import validate

SHAPE = Shape({}, is_in_order=True, is_reduced=True)


@tool(effect="read")
def look(where: str = "") -> str:
    """Look."""
    return where


def a_plan(count: int = 3) -> ExecutionPlan:
    plan = ExecutionPlan(description="看一看", inputs={"where": Input(default="here")}, outputs={"seen": "${{ steps.s1.result }}"})
    for number in range(count):
        after = [f"s{number - 1}"] if number else []
        plan.add_step("look", f"步骤 {number}", {"where": "${{ inputs.where }}"}, id=f"s{number}", depends_on=after, metadata={"n": number})
    return plan


def stored(plan: ExecutionPlan) -> StoredPlan:
    return StoredPlan.read(canonical_json(canonical_document(plan)).decode(), SHAPE)


def test_it_is_the_plan_that_was_kept() -> None:
    plan = a_plan()
    again = stored(plan)
    assert again == plan
    assert again.to_document() == plan.to_document()
    assert [step.id for step in again.steps] == ["s0", "s1", "s2"]
    assert [step.index for step in again.steps] == [0, 1, 2]
    assert canonical_json(canonical_document(stored(plan))) == canonical_json(canonical_document(plan))


@given(st.lists(st.integers(0, 4), max_size=6))
def test_a_step_is_the_same_one_however_it_is_asked_for(order: list[int]) -> None:
    plan = stored(a_plan(5))
    made = {place: plan.step(f"s{place}") for place in order}
    assert all(plan.get_step(place) is step and plan.step(step.id) is step for place, step in made.items())
    assert len(plan.steps) == 5


def test_only_what_is_asked_for_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[str]()
    validate_step = Step.model_validate
    monkeypatch.setattr(Step, "model_validate", lambda document: made.append(document["id"]) or validate_step(document))
    plan = stored(a_plan(5))
    assert (list(plan.stored), made) == (["s0", "s1", "s2", "s3", "s4"], [])
    assert plan.step("s3").description == "步骤 3"
    plan.step("s3")
    assert made == ["s3"]


def test_a_step_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(KeyError, match="no step is called 'gone'; steps: s0, s1, s2"):
        stored(a_plan()).step("gone")


def test_it_is_validated_copied_and_changed_like_any_other() -> None:
    plan = a_plan()
    assert validate(stored(plan), ToolRegistry([look])).digest == validate(plan, ToolRegistry([look])).digest
    copy = stored(plan).model_copy(deep=True)
    assert copy == plan
    copy.steps = copy.steps[:1]
    assert [step["id"] for step in copy.to_document()["steps"]] == ["s0"]  # type: ignore[index, call-overload]
    with pytest.raises(KeyError):
        copy.step("s1")
    longer = stored(plan)
    longer.add_step("look", "One more", id="s3")
    assert longer.step("s3").index == 3


@pytest.mark.parametrize("document", ['{"description":"x","steps":[{"id":"a","tool_name":"look","later":1}]}', '{"steps":[]}', "[1]", "{"])
def test_what_no_version_like_this_one_wrote_is_refused(document: str) -> None:
    with pytest.raises((ValueError, AttributeError, TypeError)):
        StoredPlan.read(document, None)


@pytest.mark.parametrize(("text", "may_have"), [("${{ secrets.token }}", True), ("plain", False)])
def test_it_knows_whether_it_may_have_secrets(text: str, may_have: bool) -> None:
    plan = a_plan()
    plan.steps[0].parameters = {"where": text}
    assert stored(plan).may_have_secrets is may_have
