"""Tests of every runbook: it has no problems, can be deployed, and matches the current schema."""

import json

import pytest
import yaml
from jsonschema import Draft202012Validator

from plan_adapter import ExecutionPlan, Step, ToolRegistry
from plan_adapter.documents import is_test_file, plan_schema
from plan_adapter.engine.deployments import DeploymentOptions
from plan_adapter.gates.policy import effective_policy
from plan_adapter.local.settings import Settings
from plan_adapter.plans import lint, validate
from plan_adapter.runbooks.deploy import runbook_deployment
from plan_adapter.store import load_plan
from tests.deployments.conftest import RUNBOOKS

NAMES = sorted(path.stem for path in RUNBOOKS.glob("*.yaml") if not is_test_file(path))
SCHEMA = RUNBOOKS.parent / "plan.schema.json"


def test_the_list_of_runbooks_is_complete() -> None:
    assert NAMES == [
        "certificate-rotation",
        "ci-pipeline",
        "data-pipeline",
        "data-quality",
        "dependency-upgrade",
        "disk-full",
        "fleet-upgrade",
        "incident-response",
        "own-pipeline",
        "postgres-backup",
        "release-package",
        "rolling-restart",
        "schema-migration",
        "site-check",
        "tls-rotation",
        "user-offboarding",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_has_no_problems(name: str) -> None:
    problems = lint(load_plan(RUNBOOKS / f"{name}.yaml"), ToolRegistry.with_builtins())
    # The author of a runbook declares the effects of its commands.
    assert [problem for problem in problems if problem.code != "lowered-effect"] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_can_be_deployed_with_a_form_that_explains_each_input(name: str) -> None:
    validated = validate(load_plan(RUNBOOKS / f"{name}.yaml"), ToolRegistry.with_builtins())
    deployment = runbook_deployment(validated, effective_policy(Settings()), inputs={}, options=DeploymentOptions())
    assert (deployment.name, deployment.form["required"]) == (
        name,
        [key for key, definition in validated.plan.inputs.items() if definition.is_required],
    )
    assert all(field["description"] for field in deployment.form["properties"].values())


def test_the_description_of_a_deployment_names_questions_and_groups() -> None:
    described = dict[str, str]()
    for name in ("incident-response", "rolling-restart", "user-offboarding"):
        validated = validate(load_plan(RUNBOOKS / f"{name}.yaml"), ToolRegistry.with_builtins())
        deployment = runbook_deployment(validated, effective_policy(Settings()), inputs={}, options=DeploymentOptions())
        described[name] = deployment.description
    assert "- `decide` (question): 由值班负责人决定如何处置\n" in described["incident-response"]
    assert "\n\n**Approval**: a run asks before `decide`; anyone may answer\n\n" in described["incident-response"]
    group = "- `nodes` (for each item): Restart each node before the next one is touched\n"
    assert f"{group}  - `drain` (http_send, idempotent_write): Take the node out of the pool\n" in described["rolling-restart"]
    approval = "**Approval**: each run waits for an approval by anyone and asks again before `nodes`"
    assert f"\n\n{approval}\n\n" in described["rolling-restart"]
    assert "**Cannot be undone**: `report`\n\n**Secrets**: `application_database_url`\n" in described["user-offboarding"]


def test_the_description_of_a_deployment_says_what_always_runs_at_the_end() -> None:
    plan = ExecutionPlan(description="d")
    plan.add_step("run_command", "Do it", {"argv": ["true"]}, id="do")
    plan.finally_.append(Step(id="clean", tool_name="run_command", description="Clean up", parameters={"argv": ["true"]}))
    validated = validate(plan, ToolRegistry.with_builtins())
    deployment = runbook_deployment(validated, effective_policy(Settings()), inputs={}, options=DeploymentOptions())
    steps, _, picture = deployment.description.partition("\n\n### Order\n\n")
    assert steps.endswith("do` (run_command, write): Do it\n\nalways, at the end\n\n- `clean` (run_command, write): Clean up")
    assert picture.startswith("```mermaid\nflowchart TD\n")
    assert "Clean up" in picture


def test_the_description_of_a_deployment_names_goals() -> None:
    plan = load_plan(
        "name: free\ndescription: Free a slot\nsteps: [{id: free, goal: Free a slot on Monday, tools: [read_file], description: Free it}]"
    )
    validated = validate(plan, ToolRegistry.with_builtins())
    deployment = runbook_deployment(validated, effective_policy(Settings()), inputs={}, options=DeploymentOptions())
    assert "\n- `free` (goal): Free it\n" in deployment.description


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_starts_with_the_schema_line_for_editors(name: str) -> None:
    first = (RUNBOOKS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=../plan.schema.json"


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_matches_the_schema(name: str) -> None:
    document = yaml.safe_load((RUNBOOKS / f"{name}.yaml").read_text(encoding="utf-8"))
    assert list(Draft202012Validator(plan_schema()).iter_errors(document)) == []


def test_the_schema_file_is_current() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == plan_schema(), "`make generated` writes it again"
