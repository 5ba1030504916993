"""A plan has a description and steps. Each step calls a tool, and the run records how each step ended."""

from plan_adapter import ExecutionPlan, ToolRegistry, run_plan, tool


@tool(effect="read")
def greet(name: str) -> str:
    """Greet a person.

    Args:
        name: The person to greet.
    """
    return f"你好, {name}"


def test_a_plan_runs_its_steps_and_keeps_their_results() -> None:
    plan = ExecutionPlan(description="Greet two people")
    plan.options.require_approval = False
    first = plan.add_step("greet", "Greet Ana", {"name": "Ana"})
    plan.add_step("greet", "Greet the greeting", {"name": f"${{{{ steps.{first.id}.result }}}}"})

    run = run_plan(plan, tools=ToolRegistry([greet]), offline=True)

    assert run.status == "completed"
    assert [step.result for step in run.steps] == ["你好, Ana", "你好, 你好, Ana"]
    assert run.summary().progress == 100.0


def test_a_reference_to_a_result_creates_a_dependency() -> None:
    plan = ExecutionPlan(description="Greet two people")
    plan.options.require_approval = False
    plan.options.allow_parallel = True
    first = plan.add_step("greet", "Greet Ana", {"name": "Ana"})
    plan.add_step("greet", "Greet the greeting", {"name": f"${{{{ steps.{first.id}.result }}}}"})

    run = run_plan(plan, tools=ToolRegistry([greet]), offline=True)

    assert run.steps[1].depends_on == ("step_1",)
