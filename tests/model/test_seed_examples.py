"""Tests of the example plans in Aster's guide and reference: each is valid, has its documented structure, and survives a round trip."""

from collections.abc import Callable

import pytest

from plan_adapter.documents import dump_plan, load_plan
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.graph import waves
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool
from plan_adapter.validation import ValidatedPlan, find_problems, lint, validate
from tests import seed_plans
from tests.seed_plans import SEED_PLANS, SeedPlan


def _no_op(
    *,
    repository: str = "",
    branch: str = "",
    test_suite: str = "",
    environment: str = "",
    url: str = "",
    source: str = "",
    command: str = "",
) -> None:
    """Do nothing with any parameter of the examples."""


def no_ops(names: list[str]) -> ToolRegistry:
    return ToolRegistry([Tool(_no_op, name=name) for name in names])


def validated(build: Callable[[], SeedPlan]) -> ValidatedPlan:
    plan, names = build()
    return validate(plan, no_ops(names))


def shape(validated: ValidatedPlan) -> list[list[str]]:
    """Return the tools of each wave. The steps of a wave depend only on earlier waves."""
    tool_names = {step.id: step.tool_name or "" for step in validated.plan.steps}
    return [[tool_names[step_id] for step_id in wave] for wave in waves(validated.dependencies, validated.order)]


@pytest.mark.parametrize("build", SEED_PLANS, ids=lambda build: build.__name__)
def test_an_example_has_no_problems_and_survives_a_round_trip(build: Callable[[], SeedPlan]) -> None:
    plan, names = build()
    assert find_problems(plan, no_ops(names)) == []
    again = load_plan(dump_plan(plan))
    assert again == plan
    assert plan_digest(again) == plan_digest(plan) == validated(build).digest


@pytest.mark.parametrize("build", SEED_PLANS, ids=lambda build: build.__name__)
def test_the_texts_of_an_example_are_written_unchanged(build: Callable[[], SeedPlan]) -> None:
    plan, _ = build()
    text = dump_plan(plan)
    assert all(words in text for words in (plan.description, *(step.description for step in plan.steps)))


@pytest.mark.parametrize("build", SEED_PLANS, ids=lambda build: build.__name__)
def test_a_missing_tool_of_an_example_is_reported(build: Callable[[], SeedPlan]) -> None:
    plan, names = build()
    problems = find_problems(plan, no_ops(names[1:]))
    assert [(problem.code, f"`{names[0]}`" in problem.message) for problem in problems] == [("unknown-tool", True)]


def test_the_manual_plan_is_a_chain_that_waits_for_an_approval() -> None:
    plan = validated(seed_plans.manual_plan)
    assert shape(plan) == [["git_pull"], ["run_tests"], ["deploy"]]
    assert plan.plan.options.require_approval
    assert plan.plan.options.on_error == "stop"


def test_the_parallel_build_is_one_wave_of_three() -> None:
    plan = validated(seed_plans.parallel_build)
    assert shape(plan) == [["build_frontend", "build_backend", "run_linter"]]
    assert plan.plan.options.parallel_limit == 3


def test_the_ci_cd_example_has_the_dependencies_that_are_written() -> None:
    plan = validated(seed_plans.dependencies)
    assert shape(plan) == [["install"], ["build", "lint"], ["test"], ["deploy"]]
    assert plan.dependencies["step_5"] == ("step_2", "step_4")
    assert plan.reduced["step_5"] == ("step_4",)


def test_the_ci_cd_scenario_deploys_after_build_lint_and_test() -> None:
    plan = validated(seed_plans.ci_cd)
    assert shape(plan) == [["git_checkout"], ["npm_install"], ["npm_build", "npm_lint"], ["npm_test"], ["deploy"]]
    assert plan.dependencies["step_6"] == ("step_3", "step_4", "step_5")


def test_the_data_pipeline_transforms_in_parallel() -> None:
    plan = validated(seed_plans.data_pipeline)
    assert shape(plan) == [["extract_data"], ["transform_users", "transform_orders"], ["load_data"], ["validate_data"]]
    assert plan.plan.options.on_error == "stop"


def test_the_program_of_the_reference_is_a_chain() -> None:
    assert shape(validated(seed_plans.reference_program)) == [["git_checkout"], ["npm_install"], ["npm_test"]]


def test_retries_of_a_write_that_is_not_idempotent_get_a_warning() -> None:
    plan, names = seed_plans.sensible_retries()
    warned = [(problem.code, problem.at) for problem in lint(plan, no_ops(names))]
    assert warned == [("retried-write", "steps[0].max_retries"), ("retried-write", "steps[1].max_retries")]
