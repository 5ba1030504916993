"""The problems of step groups, at their places, and how a preview describes a group."""

from typing import Literal

import pytest

from plan_adapter import ExecutionPlan
from plan_adapter.documents import read_document
from plan_adapter.model.options import ExecutionOptions, Input
from plan_adapter.model.plan import Step
from plan_adapter.plans import find_problems, lint
from plan_adapter.text.formatting import format_plan
from plan_adapter.text.preview import preview_plan, preview_text
from plan_adapter.validation import bind_inputs, validate
from tests.cases import for_each
from tests.runs.cluster import Cluster, act, rolling


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_preview_says_how_a_group_runs(cluster: Cluster) -> None:
    plan = rolling(items="inputs.nodes", batch=2, max_failures="20%")
    plan.inputs = {"nodes": Input(type="array", default=["a", "b", "c"])}
    bound = bind_inputs(validate(plan, cluster.tools))
    preview = preview_plan(bound.validated, inputs=bound.inputs, approval_digest=None, requires_approval=True)
    text = preview_text(preview)
    assert "for each of 3 items of `${{ inputs.nodes }}`, one at a time: `drain`, `restart`, `check`" in text
    assert "starts no further item after more than 20% failed" in text
    assert "if the run fails, rolls back the items that completed" in text
    assert [step.step.id for step in preview.steps] == ["nodes", "drain", "restart", "check"]


@for_each(
    case=[
        ("stop", ["continue"], "continue"),
        ("stop", ["continue", None], "stop, but continue after `s0`"),
        ("continue", ["stop", None, "stop"], "continue, but stop after `s0`, `s2`"),
        ("stop", [None, "stop"], "stop"),
    ]
)
def test_a_plan_says_what_a_failure_does_also_where_steps_differ(
    cluster: Cluster, case: tuple[Literal["stop", "continue"], list[Literal["stop", "continue"] | None], str]
) -> None:
    usual, policies, expected = case
    groups = [
        Step(id=f"s{number}", for_each="${{ ['a'] }}", steps=[act(f"drain{number}", on_error="continue")], on_error=policy)
        for number, policy in enumerate(policies)
    ]  # what a group does about its own steps is not what the plan does
    plan = ExecutionPlan(description="Restart the nodes", steps=groups, options=ExecutionOptions(continue_on_error=usual == "continue"))
    preview = preview_plan(validate(plan, cluster.tools), inputs={}, approval_digest=None, requires_approval=True)
    assert f"; when one fails: {expected}\n" in preview_text(preview)
    assert f"- when a step fails: {expected}\n" in format_plan(plan)


def test_a_group_without_steps_says_so(cluster: Cluster) -> None:
    plan, _ = read_document("description: No steps\nsteps:\n  - {id: nodes, for_each: \"${{ ['a'] }}\", steps: []}\n")
    (problem,) = [problem for problem in find_problems(plan, cluster.tools) if problem.severity == "error"]
    assert problem.hint == "write `tool_name`, or, for a group, at least one step in `steps`"
    assert (problem.code, problem.at, problem.message) == ("missing-field", "steps[0].tool_name", "the step has neither a tool nor steps")


PROBLEMS = """
description: 组
inputs: {nodes: {type: array}}
steps:
  - {id: first, tool_name: do, parameters: {what: "${{ steps.drain.result }}"}, depends_on: [restart]}
  - id: nodes
    for_each: "${{ inputs.nodes }}"
    tool_name: do
    max_failures: some
    steps:
      - {id: drain, tool_name: do, parameters: {what: x}, depends_on: [nodes], batch: 2}
      - {id: restart, tool_name: do, parameters: {what: "${{ item }}"}, for_each: "${{ [1] }}"}
      - {id: inner, for_each: "${{ [1] }}", steps: [{id: x, tool_name: do, parameters: {what: x}}]}
  - {id: others, steps: [{id: late, tool_name: nothing, parameters: {what: "${{ steps.drain.result }}"}}]}
"""


def test_every_problem_of_a_group_is_reported_at_its_place(cluster: Cluster) -> None:
    plan, problems = read_document(PROBLEMS)
    assert plan is not None
    assert problems == []
    found = {(problem.code, problem.at): problem for problem in find_problems(plan, cluster.tools)}
    assert set(found) >= {
        ("unknown-reference", "steps[0].parameters.what"),
        ("bad-group", "steps[0].depends_on[0]"),
        ("bad-group", "steps[1].tool_name"),
        ("bad-group", "steps[1].max_failures"),
        ("bad-group", "steps[1].steps[0].depends_on[0]"),
        ("bad-group", "steps[1].steps[0].batch"),
        ("bad-group", "steps[1].steps[1].for_each"),
        ("bad-group", "steps[1].steps[2].steps"),
        ("bad-group", "steps[2].steps"),
        ("unknown-tool", "steps[2].steps[0].tool_name"),
        ("unknown-reference", "steps[2].steps[0].parameters.what"),
    }
    problem = found["unknown-reference", "steps[0].parameters.what"]
    assert (problem.line, problem.hint) == (5, "use steps.nodes.result, a list of {label, status, results}")
    assert found["bad-group", "steps[1].steps[0].batch"].line == 11


def test_steps_of_a_group_accept_the_same_spellings_as_steps() -> None:
    plan, problems = read_document('{"description": "x", "steps": [{"forEach": "${{ [1] }}", "Steps": [{"toolName": "do"}]}]}')
    assert (problems, plan and [step.id for step in plan.all_steps]) == ([], ["step_1", "step_1_1"])


def test_writes_chained_over_one_list_are_a_warning(cluster: Cluster) -> None:
    each = {"for_each": "${{ ['a', 'b'] }}"}
    plan = ExecutionPlan(description="x", steps=[act("drain", **each), act("restart", "drain", for_each="${{['a','b']}}")])
    (problem,) = [problem for problem in lint(plan, cluster.tools) if problem.code == "chained-for-each-writes"]
    assert (problem.severity, problem.at) == ("warning", "steps[1].for_each")
    plan.steps[0].effect = plan.steps[1].effect = "read"
    assert "chained-for-each-writes" not in {problem.code for problem in lint(plan, cluster.tools)}
