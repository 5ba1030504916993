"""Tests of `plan standing`: standing approvals are given, listed, used and revoked."""

import asyncio
from pathlib import Path

import pytest

from plan_adapter import ToolRegistry
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import load_plan
from plan_adapter.validation import bind_inputs, validate
from tests.cli.conftest import Plan
from tests.cli.gated import ME, signer
from tests.cli.some_tools import greet
from tests.cli.test_run import NEEDS_APPROVAL, TOOLS, document, step
from tests.gates.world import FixedApprover

__all__ = ["signer"]

STANDING = ("--schedule", "试运行/nightly", "--until", "2099-12-31", "--runs", "3", "--input", "who=[a-z]+", "--step", "greet", *TOOLS)
BY_INPUT = step("greet", "greet", parameters={"who": "${{ inputs.who }}"})


def test_a_standing_approval_is_given_listed_and_revoked(plan: Plan) -> None:
    path = document(BY_INPUT, inputs={"who": {"type": "string"}}, **NEEDS_APPROVAL)
    result = plan("standing", "add", path, *STANDING, "--json")
    assert result.code == 0, result.err
    standing = result.run
    assert (standing["max_runs"], standing["runs_left"], standing["schedules"]) == (3, 3, ["试运行/nightly"])
    assert (standing["inputs"], standing["steps"], standing["by"]) == ({"who": "[a-z]+"}, ["greet"], ME)
    assert plan("standing", "--json").lines == [standing]
    row = plan("standing", "list").out.splitlines()[1]
    assert "3 runs of 3" in row
    revoked = plan("standing", "revoke", standing["id"][:-1])
    assert revoked.out.startswith(f"revoked standing approval {standing['id']} of 试运行, by {ME}")
    assert plan("standing", "--json").lines == []
    assert "`--all` also lists those that have ended" in plan("standing", "list").err
    assert f"revoked by {ME} at " in plan("standing", "list", "--all").out
    assert [line["id"] for line in plan("standing", "list", "--all", "--json").lines] == [standing["id"]]


def test_a_run_shows_its_standing_approval_and_who_gave_it(plan: Plan) -> None:
    path = document(BY_INPUT, inputs={"who": {"type": "string"}}, **NEEDS_APPROVAL)
    given = plan("standing", "add", path, *STANDING[:4], "--runs", "1", *STANDING[6:], "--note", "每晚", "--json").run
    tools = ToolRegistry([greet])
    bound = bind_inputs(validate(load_plan(path), tools), {"who": "ana"})
    run_request = RunRequest(
        approver=FixedApprover("reject"), schedule="试运行/nightly", requested_by="schedule of 试运行/nightly", tools=tools
    )
    run = asyncio.run(execute_plan(bound, run_request=run_request, offline=True))
    assert run.status == "completed"
    shown = plan("show", run.id, "--all").out
    assert f"- approved by {ME}, with the standing approval `{given['id']}`, given at " in shown
    assert f"- approved by the standing approval `{given['id']}` of 试运行, which {ME} (os_user) gave at " in shown
    assert [line.endswith("每晚") for line in shown.splitlines() if line.startswith("- approved by the standing")] == [True]
    assert "used up" in plan("standing", "list", "--all").out.splitlines()[1]


def test_every_mistake_in_a_standing_approval_is_reported(plan: Plan) -> None:
    path = document(BY_INPUT, inputs={"who": {"type": "string"}}, **NEEDS_APPROVAL)
    result = plan("standing", "add", path, "--step", "nope", *TOOLS)
    assert result.code == 2
    for message in ("no limit", "names no schedule", "so the approval would cover no run", "no step is called `nope`"):
        assert message in result.err
    assert "write a day" in plan("standing", "add", path, "--schedule", "a/b", "--until", "soon", *TOOLS).err


@pytest.mark.usefixtures("signer")
def test_a_standing_approval_can_be_a_signed_file_beside_the_plan(plan: Plan) -> None:
    path = document(BY_INPUT, inputs={"who": {"type": "string"}}, **NEEDS_APPROVAL)
    assert "--file needs --sign" in plan("standing", "add", path, *STANDING, "--file").err
    result = plan("standing", "add", path, *STANDING, "--file", "--sign", "--by", "ana")
    assert result.code == 0, result.err
    assert "runbook_digest" in Path("计划.approval.yaml").read_text(encoding="utf-8")
    assert Path("计划.approval.yaml.sig").read_text().startswith("-----BEGIN SSH SIGNATURE-----")
    assert plan("standing", "--json").lines == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add",), "PLAN requires an argument; see `plan standing add --help`"),
        (("revoke",), "ID requires an argument; see `plan standing revoke --help`"),
        (("list", "计划.json"), "`plan standing list` does not take `计划.json`"),
        (("revoke", "0123abcd", "--runs", "3"), "Unknown option: --runs; see `plan standing revoke --help`"),
        (("add", "计划.json", "--all"), "Unknown option: --all; see `plan standing add --help`"),
    ],
    ids=["nothing to add", "nothing to revoke", "a plan to list", "terms to revoke", "a list to add"],
)
def test_options_of_another_action_are_a_usage_error(plan: Plan, arguments: tuple[str, ...], message: str) -> None:
    result = plan("standing", *arguments)
    assert (result.code, message in result.err) == (2, True), result.err
