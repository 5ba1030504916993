"""Tests of `plan import` for GitHub Actions workflows and AWS Automation documents: the plan does what the document did."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.documents import load_plan
from tests.cli.conftest import Plan
from tests.importers.builders import FIXTURES

NASTY = 'a\'b "c" $(touch hacked) `touch hacked` ; touch hacked'

WORKFLOW = r"""
on:
  workflow_dispatch:
    inputs: {name: {default: x}}
jobs:
  first:
    outputs: {greeting: "${{ steps.greet.outputs.greeting }}"}
    steps:
      - run: 'false'
        continue-on-error: true
      - id: greet
        run: |
          # it's a comment with a quote, ${{ inputs.name }}
          echo "plain: ${{ inputs.name }}"
          echo 'single: ${{ inputs.name }}'
          cat <<END
          here: ${{ inputs.name }}, it's
          END
          echo "greeting=hello ${{ inputs.name }}" >> "$GITHUB_OUTPUT"
  second:
    needs: first
    steps:
      - run: echo "got ${{ needs.first.outputs.greeting }}"
      - run: exit 3
        if: inputs.name == 'nobody'
"""

DOCUMENT = """
schemaVersion: '0.3'
parameters: {Id: {type: String}, Tags: {type: StringList, default: [a, b]}}
mainSteps:
  - name: Broken
    action: aws:executeAwsApi
    onFailure: Continue
    isCritical: false
    inputs: {Service: fails, Api: Always}
  - name: Look
    action: aws:executeAwsApi
    inputs: {Service: ec2, Api: DescribeInstances, Filters: [{Name: 'tag:x', Values: ['{{ Id }}']}]}
    outputs:
      - {Name: State, Selector: '$.State', Type: String}
      - {Name: Ids, Selector: '$.Ids[*]', Type: StringList}
  - name: Choose
    action: aws:branch
    inputs:
      Choices: [{NextStep: Never, Variable: '{{ Look.State }}', StringEquals: stopped}]
      Default: Count
  - name: Never
    action: aws:executeAwsApi
    inputs: {Service: fails, Api: Never}
  - name: Count
    action: aws:executeScript
    inputs:
      Runtime: python3.11
      Handler: count
      InputPayload: {id: '{{ Id }}', tags: '{{ Tags }}', ids: '{{ Look.Ids }}'}
      Script: |
        def count(events, context):
            print("noise")
            return {"text": events["id"], "sum": len(events["tags"]) + len(events["ids"])}
    outputs:
      - {Name: Text, Selector: '$.Payload.text', Type: String}
      - {Name: Sum, Selector: '$.Payload.sum', Type: Integer}
outputs: [Count.Text, Count.Sum, Look.State]
"""

AWS = """#!/bin/sh
printf '%s\\n' "$@" >> "$PWD/calls"
case "$1" in
  fails) exit 9 ;;
  ec2) printf 'running\\ti-1,i-2,i-3\\n' ;;
esac
"""


def run_imported(plan: Plan, *arguments: str) -> dict[str, Any]:
    """Run plan.yaml and return the completed run."""
    result = plan("run", "plan.yaml", "--offline", "--yes", "--json", *arguments)
    assert result.code == 0, result.err
    return result.run


def test_a_workflow_runs_as_a_plan_and_no_input_is_executed_as_code(plan: Plan) -> None:
    Path("ci.yml").write_text(WORKFLOW)
    result = plan("import", "ci.yml", "-o", "plan.yaml")
    assert result.code == 0, result.err
    assert "note: ci: changed: first.greet, second.step_1: values in the script are variables now" in result.err
    run = run_imported(plan, "--input", f"name={NASTY}")
    steps = {step["id"]: step for step in run["steps"]}
    printed, _, written = steps["first_greet"]["result"]["stdout"].partition("\n::what the step wrote::\n")
    assert f"greeting=hello {NASTY}" in written
    assert printed.splitlines() == [
        f"plain: {NASTY}",
        f"single: {NASTY}",
        f"here: {NASTY}, it's",
    ]
    assert steps["second_step_1"]["result"]["stdout"] == f"got hello {NASTY}\n"
    assert (steps["first_step_1"]["status"], "exit code 1 is ignored" in steps["first_step_1"]["result"]["stderr"]) == ("completed", True)
    assert steps["second_step_2"]["status"] == "skipped"
    assert not Path("hacked").exists()


def test_an_automation_runs_as_a_plan(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "aws"
    program.parent.mkdir()
    program.write_text(AWS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    Path("look.yaml").write_text(DOCUMENT)
    assert plan("import", "look.yaml", "-o", "plan.yaml").code == 0
    run = run_imported(plan, "--input", f"Id={NASTY}")
    assert run["outputs"] == {"Count_Text": NASTY, "Count_Sum": 5, "Look_State": "running"}
    assert {step["id"]: step["status"] for step in run["steps"]} == {
        "Broken": "completed",
        "Look": "completed",
        "Never": "skipped",
        "Count": "completed",
    }
    (filters,) = [line.removeprefix("--filters=") for line in Path("calls").read_text().splitlines() if line.startswith("--filters=")]
    assert json.loads(filters) == [{"Name": "tag:x", "Values": [NASTY]}]


def test_a_placeholder_step_stops_the_run(plan: Plan) -> None:
    Path("ci.yml").write_text("on: push\njobs: {a: {steps: [{uses: 'some/deploy@v1'}, {run: touch reached}]}}")
    result = plan("import", "ci.yml", "-o", "plan.yaml")
    assert (result.code, "left out: a.deploy: `some/deploy@v1`: a placeholder step replaces it" in result.err) == (0, True)
    result = plan("run", "plan.yaml", "--offline", "--yes", "--json")
    assert (result.code, Path("reached").exists()) == (1, False)
    assert "to do: write what `some/deploy@v1` does" in result.run["steps"][0]["error"]


def test_an_imported_workflow_is_saved_with_its_report_as_notes(plan: Plan) -> None:
    result = plan("import", str(FIXTURES / "release.yml"), "--save", "--name", "release-shop", "--json")
    line = result.lines[-1]
    assert (result.code, line["plan"]["name"], line["saved"]["version"]) == (0, "release-shop", 1)
    assert "left out: `concurrency`: write `concurrency: {key, when_busy}` if runs must exclude each other" in line["notes"]


@pytest.mark.parametrize("file", ["release.yml", "restart.yaml"])
def test_the_written_plan_is_valid_and_equals_the_printed_one(plan: Plan, file: str) -> None:
    from_yaml = plan("import", str(FIXTURES / file))
    assert plan("import", str(FIXTURES / file), "-o", "plan.yaml").code == 0
    assert plan("validate", "plan.yaml").code == 0
    assert load_plan(from_yaml.out) == load_plan(Path("plan.yaml"))


def test_the_import_example_in_the_guide_is_exact(plan: Plan) -> None:
    page = (Path(__file__).parents[2] / "plan_adapter/guide/importing.md").read_text(encoding="utf-8")
    workflow, written = re.findall(r"```yaml\n(name: deploy\n.*?)```", page, re.DOTALL)
    (report,) = re.findall(r"```\n(plan: warning.*?)```", page, re.DOTALL)
    Path("deploy.yml").write_text(workflow)
    result = plan("import", "deploy.yml")
    assert (result.out, result.err) == (written, report)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("on: push\njobs: {a: {steps: [{uses: actions/checkout@v4}]}}", "x.yml cannot be imported: it has no steps that can be converted"),
        ("on: push\njobs: {a: {if: false, steps: [{run: ls}]}}", "note: left out: a: the whole of it, because `if: False`"),
        ("schemaVersion: '2.2'\nmainSteps: []", "its schemaVersion is 2.2"),
        ("on: push\njobs: &a {b: *a}", "x.yml:2:14: error[anchor]"),
        ("jobs: {a: {}}\nsteps: []", "a plan has no field `jobs`"),
    ],
)
def test_an_unsupported_document_is_a_usage_error_with_the_reason(plan: Plan, text: str, message: str) -> None:
    Path("x.yml").write_text(text)
    result = plan("import", "x.yml")
    assert (result.code, result.out, message in result.err) == (2, "", True), result.err
