"""Tests of plans as values: generated ids, error options that mirror each other, and steps by index and id."""

import copy
import pickle

import pytest

from plan_adapter.model.options import ExecutionOptions, Input
from plan_adapter.model.plan import ExecutionPlan, Step


def test_missing_ids_are_generated_and_given_ids_are_kept() -> None:
    plan = ExecutionPlan(description="d", steps=[Step(tool_name="a"), Step(id="step_1", tool_name="b"), Step(tool_name="c")])
    assert [step.id for step in plan.steps] == ["step_1_2", "step_1", "step_3"]


def test_an_added_step_gets_an_id_and_an_index() -> None:
    plan = ExecutionPlan(description="d", steps=[Step(id="step_2", tool_name="a")])
    second = plan.add_step("b", "B", {"x": 1}, max_retries=2)
    third = plan.add_step("c", "C", id="own", depends_on=[second.id])
    assert [(step.id, step.index) for step in plan.steps] == [("step_2", 0), ("step_2_2", 1), ("own", 2)]
    assert (second.parameters, second.max_retries, third.depends_on) == ({"x": 1}, 2, ["step_2_2"])


def test_generated_ids_stay_unique_after_steps_are_added_and_deleted() -> None:
    plan = ExecutionPlan(description="d")
    plan.add_step("a", "A")
    plan.steps.append(Step(id="step_4", tool_name="b"))
    plan.add_step("c", "C")
    plan.add_step("d", "D")
    del plan.steps[0]
    plan.add_step("e", "E")
    assert [step.id for step in plan.steps] == ["step_4", "step_3", "step_4_2", "step_4_3"]


def test_a_step_added_after_a_group_has_an_index_after_the_steps_of_the_group() -> None:
    plan = ExecutionPlan(description="d", finally_=[Step(id="tidy", tool_name="t")])
    plan.steps.append(
        Step(id="group", description="B", for_each="${{ [1] }}", steps=[Step(id="inner", tool_name="a"), Step(tool_name="b")])
    )
    assert plan.add_step("c", "C").index == 3


def test_steps_are_equal_wherever_they_are() -> None:
    inner = ExecutionPlan(description="d", steps=[Step(id="check", tool_name="a")])
    one, other = (ExecutionPlan(description="d", steps=[Step(id="verify", plan="x", pinned=inner.model_copy(deep=True))]) for _ in range(2))
    assert (one.steps, one.steps[0].inner) == (other.steps, other.steps[0].inner)
    assert one.steps[0].inner[0].within is one.steps[0]
    assert one.steps[0] != inner.steps[0]
    assert Step(id="a", tool_name="t") == ExecutionPlan(description="d", steps=[Step(tool_name="x"), Step(id="a", tool_name="t")]).steps[1]


def test_steps_are_found_by_index_and_id() -> None:
    plan = ExecutionPlan(description="d")
    step = plan.add_step("a", "A")
    assert plan.get_step(0) is step
    assert plan.step("step_1") is step
    assert plan.get_step(1) is None
    assert plan.get_step(-1) is None
    with pytest.raises(KeyError, match=r"did you mean `step_1`\?"):
        plan.step("step_9")


def test_the_name_is_the_first_line_of_the_description() -> None:
    assert ExecutionPlan(description="  部署应用\n到生产环境").name == "部署应用"
    assert ExecutionPlan(description="x" * 200).name == "x" * 80
    assert ExecutionPlan(description="d", name="own").name == "own"
    assert ExecutionPlan(description="").name == ""


def test_generated_plan_ids_are_unique_and_ignored_in_comparisons() -> None:
    one, other = ExecutionPlan(description="d"), ExecutionPlan(description="d")
    assert one.id != other.id
    assert one == other
    assert one != ExecutionPlan(id="x", description="d")
    assert one != "d"


@pytest.mark.parametrize(
    ("written", "stops", "continues"),
    [
        ({}, True, False),
        ({"stop_on_error": False}, False, True),
        ({"continue_on_error": True}, False, True),
        ({"stop_on_error": True, "continue_on_error": True}, True, True),
        ({"stop_on_error": False, "continue_on_error": False}, False, False),
    ],
)
def test_an_unset_error_option_is_the_opposite_of_the_other_one(written: dict[str, bool], stops: bool, continues: bool) -> None:
    assigned = ExecutionOptions()
    for name, value in written.items():
        setattr(assigned, name, value)
    for options in (ExecutionOptions(**written), assigned):  # type: ignore[arg-type]
        assert (options.stop_on_error, options.continue_on_error) == (stops, continues)


def test_contradictory_error_options_are_kept_in_the_document() -> None:
    plan = ExecutionPlan(description="d", options=ExecutionOptions(stop_on_error=False, continue_on_error=False))
    assert plan.to_document()["options"] == {"stop_on_error": False, "continue_on_error": False}


def test_option_defaults_are_those_of_the_seed_examples() -> None:
    options = ExecutionOptions()
    assert (options.require_approval, options.auto_approve, options.allow_parallel, options.max_parallel_steps) == (True, False, False, 3)
    assert (options.stop_on_error, options.continue_on_error) == (True, False)
    assert (options.step_timeout_ms, options.total_timeout_ms, options.approval_timeout_ms) == (0, 0, 0)
    assert options.parallel_limit == 1
    assert ExecutionOptions(allow_parallel=True, max_parallel_steps=5).parallel_limit == 5


def test_an_input_without_a_default_is_required() -> None:
    assert Input().is_required
    assert not Input(type="boolean", default=False).is_required


def test_a_document_contains_fields_that_differ_from_their_defaults_in_order() -> None:
    plan = ExecutionPlan(description="d", inputs={"x": Input()}, metadata={"empty": {}})
    plan.add_step("t", "", {"a": None}, depends_on=["b"], for_each="${{ [1] }}")
    assert list(plan.to_document()) == ["description", "inputs", "steps", "metadata"]
    assert plan.to_document() == {
        "description": "d",
        "inputs": {"x": {}},
        "steps": [{"id": "step_1", "tool_name": "t", "for_each": "${{ [1] }}", "parameters": {"a": None}, "depends_on": ["b"]}],
        "metadata": {"empty": {}},
    }


def test_a_plan_can_be_copied_and_pickled() -> None:
    plan = ExecutionPlan(description="d")
    plan.add_step("t", "T", {"x": [1]})
    for twin in (copy.deepcopy(plan), plan.model_copy(deep=True), pickle.loads(pickle.dumps(plan))):
        assert twin == plan
        assert twin.steps[0].index == 0
        twin.steps[0].parameters["x"] = 2
        assert twin != plan
