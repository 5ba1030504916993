"""Tests of sub-plans on the command line: validating, previewing, testing, saving, running, resolving and resuming them."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Plan

SITE = """\
name: verify-site
description: 检查站点
inputs: {site: {type: string, description: Which one}}
steps:
  - {id: check, tool_name: run_command, description: Check it, parameters: {argv: [echo, "${{ inputs.site }}"]}}
  - id: mark
    tool_name: run_command
    description: Mark it
    parameters: {argv: [sh, -c, 'exit 1', mark, "${{ steps.check.result.stdout }}"]}
outputs: {marked: "${{ steps.mark.result.stdout }}"}
"""
MOVE = """\
name: move
description: Move to another site
options: {require_approval: false, step_timeout_ms: 60000}
steps:
  - id: verify
    plan: parts/site.yaml
    description: Verify the new site
    inputs: {site: 北京}
  - {id: tell, tool_name: run_command, parameters: {argv: [echo, "moved to ${{ steps.verify.result.marked }}"]}}
"""


@pytest.fixture(autouse=True)
def documents(home: Path) -> None:
    """Write both documents into the working directory."""
    Path("parts").mkdir()
    Path("parts/site.yaml").write_text(SITE.replace("steps:\n", "options: {require_approval: false}\nsteps:\n"), encoding="utf-8")
    Path("move.yaml").write_text(MOVE, encoding="utf-8")


def test_a_runbook_runs_a_sub_plan(plan: Plan) -> None:
    assert plan("validate", "move.yaml").err == "move.yaml: valid\n"
    assert "   2. **verify.check** `run_command` (write): Check it" in plan("preview", "move.yaml").out
    failed = plan("run", "move.yaml", "--offline", "--json")
    assert failed.code == 1, failed
    run_id = failed.run["id"]
    shown = plan("show", run_id, "--json").run
    assert {step["id"]: step["status"] for step in shown["steps"]} == {
        "verify": "failed",
        "verify.check": "completed",
        "verify.mark": "failed",
        "tell": "skipped",
    }
    skipped = plan("resume", run_id, "--offline", "--skip", "mark", "--note", "marked by hand")
    assert (skipped.code, "no step is called `mark` (did you mean `verify.mark`?)" in skipped.err) == (2, True), skipped.err
    Path("parts/site.yaml").unlink()  # the run has its own copy
    assert "`verify` runs a plan and calls no tool: name one of its steps, `verify.check`" in plan("resolve", run_id, "verify", "done").err
    done = plan("resolve", run_id, "verify.mark", "done", "--result", '{"stdout": "北京"}')
    assert done.code == 0, done
    resumed = plan("resume", run_id, "--offline", "--json")
    assert resumed.code == 0, resumed
    steps = {step["id"]: step for step in plan("show", run_id, "--json").run["steps"]}
    assert steps["verify"]["result"]["marked"].startswith("北京")
    assert steps["tell"]["result"]["stdout"].startswith("moved to 北京")
    assert "   3. **verify.mark**" in plan("show", run_id, "--all").out


def test_a_missing_sub_plan_is_reported_at_the_line_that_names_it(plan: Plan) -> None:
    Path("parts/site.yaml").unlink()
    result = plan("validate", "move.yaml")
    assert result.code == 2
    where = "move.yaml:6:5: error[bad-sub-plan] at steps[0].plan"
    assert result.out == f"{where}: `parts/site.yaml`: the file does not exist; check the path\n"
    assert plan("validate", "move.yaml", "--json").lines[0]["code"] == "bad-sub-plan"


def test_a_stored_plan_includes_its_sub_plans(plan: Plan) -> None:
    assert plan("save", "parts/site.yaml").code == 0
    Path("move.yaml").write_text(MOVE.replace("parts/site.yaml", '"store:verify-site@1"'), encoding="utf-8")
    assert plan("validate", "move.yaml").code == 0
    saved = plan("save", "move.yaml")
    assert saved.code == 0, saved
    shown = plan("show", "store:move", "--json")
    assert shown.code == 0, shown
    document = json.loads(shown.out)
    assert json.dumps(document, ensure_ascii=False).count("检查站点") >= 1
    Path("move.yaml").write_text(MOVE.replace("parts/site.yaml", '"store:verify-site"'), encoding="utf-8")
    result = plan("validate", "move.yaml")
    assert (result.code, "names no version" in result.out) == (2, True)


def test_a_test_file_answers_the_steps_of_a_sub_plan(plan: Plan) -> None:
    answers = """\
steps:
  verify.check: {result: {stdout: a}}
  verify.mark: {result: {stdout: b}}
cases:
  moved: {expect: {status: completed, order: [verify.check, verify.mark, tell]}}
  not marked:
    steps: {verify.mark: {failure: boom}}
    expect: {status: partial, failed: {verify: boom, verify.mark: boom}, skipped: [tell]}
"""
    Path("move.test.yaml").write_text(answers, encoding="utf-8")
    result = plan("test", "move.test.yaml")
    assert result.code == 0, result
    Path("move.test.yaml").write_text("cases:\n  moved: {steps: {verify.check: {result: {stdout: a}}}}\n", encoding="utf-8")
    short = plan("test", "move.test.yaml")
    assert short.code == 1
    assert "verify.mark" in short.out


def test_a_test_file_cannot_answer_a_step_that_calls_no_tool(plan: Plan) -> None:
    text = "steps: {verify: {result: {marked: a}}, mark: {result: 1}}\ncases: {moved: {steps: {vrify.mark: {result: 1}}}}\n"
    Path("move.test.yaml").write_text(text, encoding="utf-8")
    result = plan("test", "move.test.yaml")
    assert result.code == 2
    assert [line.partition(" at ")[2] for line in (result.out + result.err).splitlines() if " at " in line] == [
        "steps.verify: `verify` runs a plan and calls no tool; answer the calls of its steps, such as `verify.check`",
        "steps.mark: no step is called `mark`; did you mean `verify.mark`?",
        "cases.moved.steps.vrify.mark: no step is called `vrify.mark`; did you mean `verify.mark`?",
    ]


def test_exports_include_the_steps_of_a_sub_plan(plan: Plan) -> None:
    result = plan("export", "move.yaml", "--format", "mermaid")
    assert result.code == 0, result
    assert "verify#46;check" in result.out
    assert '"DependsOn": ["verify"]' in plan("export", "move.yaml", "--format", "aster", "--json").out


def test_diff_with_a_git_revision_reads_the_sub_plan_of_that_revision(plan: Plan) -> None:
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"]):
        subprocess.run(["git", *command], check=True)
    assert plan("diff", "git:HEAD:move.yaml", "move.yaml").err == "no differences\n"
    path = Path("parts/site.yaml")
    path.write_text(path.read_text(encoding="utf-8").replace("Check it", "Look at it"), encoding="utf-8")
    assert "`verify.check.description`: `Check it` → `Look at it`" in plan("diff", "git:HEAD:move.yaml", "move.yaml").out
