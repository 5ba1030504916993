"""Tests of `plan promote`: it turns a good run into a runbook that a person can edit, save and run."""

import asyncio
from pathlib import Path

import pytest

from plan_adapter.documents import load_plan
from plan_adapter.gates.approval import os_user
from plan_adapter.local.settings import Settings
from plan_adapter.model.record import PlanVersion
from plan_adapter.store.store import PlanStore
from tests.cli.conftest import Plan
from tests.cli.test_run import TOOLS

DOCUMENT = """
name: 问候
description: Greet web-1.example.com
inputs: {{times: {{type: integer, default: 1}}}}
options: {{require_approval: false, continue_on_error: true}}
steps:
  - {{id: first, tool_name: greet, description: 一, parameters: {{who: {host}}}}}
  - {{id: second, tool_name: greet, description: 二, parameters: {{who: "{host} x${{{{ inputs.times }}}}"}}}}
  - {{id: last, tool_name: {last}, description: 三, depends_on: [first]}}
"""


def run(plan: Plan, host: str = "web-1.example.com", last: str = "fail", **fields: str) -> str:
    """Run the document and return the id of the run, however it ended."""
    Path("plan.yaml").write_text(DOCUMENT.format(host=host, last=last), encoding="utf-8")
    return plan("run", "plan.yaml", "--offline", "--json", *TOOLS).run["id"]


@pytest.fixture
def completed(plan: Plan) -> str:
    """Return the id of a completed run."""
    return run(plan, last="greet, parameters: {who: all}")


async def _versions(name: str) -> list[PlanVersion]:
    async with PlanStore(Settings().store_url) as store:
        return await store.versions(name)


def versions(name: str) -> list[PlanVersion]:
    """Return the versions of a plan in the store."""
    return asyncio.run(_versions(name))


def test_a_run_is_promoted_to_a_document_with_commented_inputs(plan: Plan, completed: str) -> None:
    run(plan, host="web-2.example.com", last="greet, parameters: {who: all}")
    Path("saved.yaml").write_text(DOCUMENT.format(host="web-3.example.com", last="fail"), encoding="utf-8")
    assert plan("import", "saved.yaml", "--save", *TOOLS).code == 0
    result = plan("promote", completed[:18], *TOOLS)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith(f"# promoted from run {completed}, Completed, ")
    (comment,) = [line for line in lines if line.startswith("  # proposed: ")]
    assert "it was web-3.example.com in version 1; it was web-2.example.com in run " in comment
    assert comment.endswith("in first.parameters.who, second.parameters.who; still written out in description")
    assert lines[lines.index(comment) + 1] == "  who:"
    found = load_plan(result.out)
    assert list(found.inputs) == ["times", "who"]
    assert found.inputs["who"].default == "web-1.example.com"
    assert [step.parameters["who"] for step in found.steps] == ["${{ inputs.who }}", "${{ inputs.who }} x${{ inputs.times }}", "all"]
    assert "proposed inputs: who\n" in result.err
    assert "plan import FILE --save" in result.err


def test_a_promoted_runbook_is_saved_under_the_os_user_and_runs_like_the_original(plan: Plan, completed: str) -> None:
    result = plan("promote", completed, "--name", "早安", "--save", "--output", "runbook.yaml", *TOOLS)
    assert (result.code, result.out) == (0, "")
    assert "saved version 1 of 早安" in result.err
    assert f"next: plan run 'store:早安' {' '.join(TOOLS)}\n" in result.err
    (version,) = versions("早安")
    assert version.author == os_user()
    assert plan("validate", "runbook.yaml", *TOOLS).code == 0
    before = plan("show", completed, "--json").run
    again = plan("run", "store:早安", "--offline", "--json", *TOOLS).run
    assert (again["status"], again["digest"]) == ("completed", version.digest)
    assert [step["result"] for step in again["steps"]] == [step["result"] for step in before["steps"]]
    other = plan("run", "store:早安", "--offline", "--json", "--input", "who=小明", *TOOLS).run
    assert other["steps"][0]["result"] == {"text": "你好, 小明"}


def test_json_contains_the_plan_the_inputs_and_the_version(plan: Plan, completed: str) -> None:
    result = plan("promote", completed, "--save", "--without", "who", "--json", *TOOLS)
    (line,) = result.lines
    assert (line["run"], line["inputs"], line["notes"]) == (completed, [], [])
    assert line["plan"]["steps"][0]["parameters"] == {"who": "web-1.example.com"}
    assert line["saved"]["version"] == 1
    (line,) = plan("promote", completed, "--json", *TOOLS).lines
    (one,) = line["inputs"]
    assert (one["name"], one["type"], one["default"], line["saved"]) == ("who", "string", "web-1.example.com", None)
    assert (one["places"], one["remains"]) == (["first.parameters.who", "second.parameters.who"], ["description"])


def test_a_partial_run_is_promoted_with_a_warning_that_names_the_steps(plan: Plan) -> None:
    result = plan("promote", run(plan), *TOOLS)
    assert result.code == 0
    assert "is only partial; nothing proves that these steps work: last\n" in result.err


def test_a_failed_run_is_refused(plan: Plan) -> None:
    Path("plan.yaml").write_text("{description: d, steps: [{tool_name: fail}], options: {require_approval: false}}")
    failed = plan("run", "plan.yaml", "--offline", "--json", *TOOLS).run["id"]
    result = plan("promote", failed, *TOOLS)
    assert (result.code, result.out) == (2, "")
    assert "is Failed: only a completed run becomes a runbook" in result.err


def test_every_missing_tool_is_reported(plan: Plan, completed: str) -> None:
    result = plan("promote", completed)
    assert (result.code, result.out) == (2, "")
    assert "error[unknown-tool] at steps[0].tool_name: no tool is called `greet` (3 steps call it)" in result.err


def test_an_existing_file_is_not_overwritten_and_nothing_is_saved(plan: Plan, completed: str) -> None:
    result = plan("promote", completed, "--output", "plan.yaml", "--save", *TOOLS)
    assert result.code == 2
    assert "plan.yaml already exists" in result.err
    assert versions("问候") == []
    assert plan("promote", completed, "--output", "plan.yaml", "--force", *TOOLS).code == 0
    assert "who" in load_plan(Path("plan.yaml")).inputs


def test_an_unknown_run_is_a_usage_error(plan: Plan) -> None:
    result = plan("promote", "nope", "--json")
    assert (result.code, result.lines[0]["error"]) == (2, "RunConflictError")
