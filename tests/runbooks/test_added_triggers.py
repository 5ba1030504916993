"""Tests of `plan deploy --trigger`: triggers that options add to a plan, and the places of their problems."""

from pathlib import Path

import pytest

from plan_adapter import ExecutionPlan, ToolRegistry
from plan_adapter.cli.verbs.deploy import checked_runbooks
from plan_adapter.engine.deployments import DeploymentOptions
from plan_adapter.gates.policy import effective_policy
from plan_adapter.local.settings import Settings
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.options import Trigger
from plan_adapter.runbooks.added_triggers import RESOURCE, add_triggers, read_added_triggers
from plan_adapter.store import load_plan

PLAN = """\
name: greet
description: Greet somebody
inputs: {who: {type: string}, times: {type: integer, default: 1}}
triggers: [{event: own.firing, inputs: {who: ana}}]
steps:
  - {id: greet, description: Greet, run_command: [echo, "${{ inputs.who }}", "${{ inputs.times }}"], timeout: 5s}
"""


@pytest.fixture
def plan() -> ExecutionPlan:
    return load_plan(PLAN)


def write(folder: Path, text: str) -> str:
    """Write a file of triggers and return its path."""
    (folder / "alerts.yaml").write_text(text, encoding="utf-8")
    return str(folder / "alerts.yaml")


def problems_of(plan: ExecutionPlan, *options: str) -> list[str]:
    """Return the problems with which a deployment with these options is refused."""
    with pytest.raises(InvalidPlanError) as error:
        deploy(plan, *options)
    return [str(problem).partition(":")[2] if problem.line else str(problem) for problem in error.value.problems]


def deploy(plan: ExecutionPlan, *options: str) -> tuple[Trigger, ...]:
    """Return the triggers of the deployment."""
    policy, added = effective_policy(Settings()), read_added_triggers(options)
    ((_, deployment),) = checked_runbooks([plan], ToolRegistry.with_builtins(), policy, {}, DeploymentOptions(), added)
    return deployment.triggers


def test_an_event_with_its_resource_gives_the_required_inputs(plan: ExecutionPlan) -> None:
    own, added, any_resource = deploy(plan, "alert.firing@alert.*", "重启.*")
    assert own == plan.triggers[0]
    assert added == Trigger(event="alert.firing", resource={RESOURCE: "alert.*"}, inputs={"who": "${{ event.payload.who }}"})
    assert (any_resource.event, any_resource.resource) == ("重启.*", {})


def test_a_file_adds_its_triggers_and_the_digest_covers_them(plan: ExecutionPlan, tmp_path: Path) -> None:
    inputs = "inputs: {who: '${{ event.payload.name }}', times: 2}"
    file = write(tmp_path, f"triggers:\n  - {{event: a.b, fingerprint: '${{{{ event.payload.id }}}}', cooldown: 5m, {inputs}}}\n")
    added = read_added_triggers([file])
    extended = add_triggers(plan, added)
    assert [(trigger.event, trigger.cooldown_ms) for trigger in extended.triggers] == [("own.firing", 0), ("a.b", 300_000)]
    assert extended.triggers[1].inputs["times"] == 2
    assert len(plan.triggers) == 1
    assert plan_digest(extended) != plan_digest(plan) == plan_digest(add_triggers(plan, ()))


def test_the_problems_of_added_triggers_have_their_places(plan: ExecutionPlan, tmp_path: Path) -> None:
    file = write(tmp_path, "triggers:\n  - event: a.b\n    inputs: {whom: x}\n  - event: c.d\n    inputs: {who: '${{ event.x }}'}\n")
    first, second, third = problems_of(plan, file)
    assert first.startswith("3:5: error[missing-input] at triggers[0].inputs: an event gives no value for `who`")
    assert second.startswith("3:14: error[unknown-input] at triggers[0].inputs.whom: the plan has no input `whom`")
    assert third.startswith("5:14: error[")
    assert " at triggers[1].inputs.who: " in third


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("two words@x", "--trigger two words@x: error[bad-trigger] at event: 'two words' cannot be the name of an event"),
        ("", "--trigger : error[bad-trigger] at event: the name of the event is empty"),
        ("own.firing", "--trigger own.firing: error[bad-trigger]: trigger 2 has the same event"),
        ("plan.run.*", "--trigger plan.run.*: error[bad-trigger] at event: runs of this runbook would start further ones"),
    ],
)
def test_an_event_that_cannot_start_the_runbook_is_refused(option: str, message: str, plan: ExecutionPlan) -> None:
    assert [found[: len(message)] for found in problems_of(plan, option)] == [message]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("triggers: []", "1:1: error[bad-trigger] at triggers: the file has no trigger"),
        ("trigger: x", "1:1: error[unknown-field] at trigger: a file of triggers has no field `trigger`"),
        ("triggers: [{event: a, cooldown: 5}]", "1:23: error[wrong-type] at triggers[0].cooldown: `cooldown` must be a duration"),
        ("- event: a", "1:1: error[wrong-type]: the file must contain a mapping"),
    ],
)
def test_a_file_that_holds_no_triggers_is_refused(text: str, message: str, plan: ExecutionPlan, tmp_path: Path) -> None:
    assert [found[: len(message)] for found in problems_of(plan, write(tmp_path, text))] == [message]


def test_a_file_that_does_not_exist_is_refused(plan: ExecutionPlan) -> None:
    assert problems_of(plan, "missing.yaml") == ["missing.yaml: error[unreadable]: the file does not exist; check the path"]
