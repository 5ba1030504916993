"""Tests of cases that are made from runs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Plan, home, plan

__all__ = ["home", "plan"]

TIDY = """
name: tidy
description: Tidy up
inputs: {nodes: {type: array, items: string, default: [a, b]}}
order: sequence
options: {require_approval: false}
steps:
  - id: each
    for_each: ${{ inputs.nodes }}
    run_command: [echo, "${{ item }}"]
    rollback: {tool_name: bash, parameters: {command: "echo back"}}
  - {id: ask, ask: {question: "Go?", fields: {why: {type: string}}}}
  - {id: last, run_command: ["CHECK", "${{ steps.ask.result.why }}"], retry: {times: 1, delay: 1ms}}
  - {id: never, bash: "echo 1"}
"""


def recorded(plan: Plan, check: str, *, answer: tuple[str, ...] = ("answer", "last", "ask", "why=because")) -> dict[str, Any]:
    """Return the case of a run of a plan whose last step runs the command `check`."""
    Path("tidy.yaml").write_text(TIDY.replace("CHECK", check), encoding="utf-8")
    plan("run", "tidy.yaml", "--offline", "--detach")
    plan(*answer)
    plan("resume", "last", "--offline")
    result = plan("test", "tidy.yaml", "--record", "last")
    assert result.code == 0, result.out + result.err
    assert result.out.startswith("ok    tidy.test.yaml:2: run ")
    (case,) = yaml.safe_load(Path("tidy.test.yaml").read_text(encoding="utf-8"))["cases"].values()
    return case


def test_a_run_that_completed_is_a_case_that_passes(plan: Plan) -> None:
    case = recorded(plan, "echo")
    assert [answer["result"]["stdout"] for answer in case["steps"]["each"]] == ["a\n", "b\n"]
    assert (case["inputs"], case["answers"]) == ({"nodes": ["a", "b"]}, {"ask": {"why": "because"}})
    assert case["expect"] == {
        "status": "completed",
        "order": ["each", "ask", "last", "never"],
        "called_with": {
            "each": [{"argv": ["echo", "a"]}, {"argv": ["echo", "b"]}],
            "last": [{"argv": ["echo", "because"]}],
            "never": [{"command": "echo 1"}],
        },
    }


def test_a_run_that_failed_and_was_rolled_back_is_a_case_that_passes(plan: Plan) -> None:
    case = recorded(plan, "false")
    assert case["steps"]["last"] == [{"failure": "`false` ended with exit code 1"}] * 2
    assert (case["expect"]["status"], case["expect"]["failed"]) == ("partial", ["last"])
    assert sorted(case["expect"]["rolled_back"]) == ["each[a]", "each[b]"]


def test_a_run_whose_question_was_rejected_is_a_case_that_passes(plan: Plan) -> None:
    case = recorded(plan, "echo", answer=("reject", "last", "ask", "--note", "no"))
    assert (case["gates"], case["expect"]["reason"]) == ({"ask": "reject"}, "rejected")


def test_cases_are_added_to_a_file_that_is_there(plan: Plan) -> None:
    Path("tidy.test.yaml").write_text("# kept\ncases:\n  it asks: {answers: {ask: {why: x}}}\n", encoding="utf-8")
    Path("tidy.yaml").write_text(TIDY.replace("CHECK", "echo"), encoding="utf-8")
    plan("run", "tidy.yaml", "--offline", "--detach")
    assert "has not ended" in plan("test", "tidy.yaml", "--record", "last").err
    plan("cancel", "last")
    assert plan("test", "tidy.yaml", "--record", "last").code in (0, 1)
    text = Path("tidy.test.yaml").read_text(encoding="utf-8")
    assert text.startswith("# kept\ncases:\n  it asks: {answers: {ask: {why: x}}}\n  run ")
    again = plan("test", "tidy.yaml", "--record", "last")
    assert (again.code, "already has the case `run " in again.err) == (2, True)
    assert Path("tidy.test.yaml").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tidy.yaml", "--record", "nope"), "no run has the id `nope`"),
        (("--record", "last"), "--record needs the document of the plan"),
        (("other.yaml", "--record", "last"), "--record needs the document of the plan"),
    ],
)
def test_what_cannot_be_recorded_is_a_usage_error(plan: Plan, arguments: tuple[str, ...], message: str) -> None:
    Path("tidy.yaml").write_text(TIDY.replace("CHECK", "echo"), encoding="utf-8")
    result = plan("test", *arguments)
    assert (result.code, message in result.err, Path("tidy.test.yaml").exists()) == (2, True, False), result.err


@pytest.mark.parametrize("text", ["cases:\n  a: {}\ninputs: {}\n", "inputs: {}\ncases: {}\n", ""])
def test_a_file_that_does_not_end_with_its_cases_is_left_alone(plan: Plan, text: str) -> None:
    Path("tidy.test.yaml").write_text(text, encoding="utf-8")
    Path("tidy.yaml").write_text(TIDY.replace("CHECK", "echo"), encoding="utf-8")
    plan("run", "tidy.yaml", "--offline", "--detach")
    plan("cancel", "last")
    result = plan("test", "tidy.yaml", "--record", "last")
    assert (result.code, "does not end with `cases:`" in result.err) == (2, True), result.err
    assert Path("tidy.test.yaml").read_text(encoding="utf-8") == text
