"""Tests of `plan policy`: operators set it, `show` prints its author and history, and every verb follows it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.approval import os_user
from tests.cli.conftest import Plan
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document

ME = os_user()


def write_policy(name: str = "policy.json", **fields: Any) -> str:
    """Write a policy and return its path."""
    Path(name).write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")
    return name


def test_a_missing_policy_is_reported(plan: Plan) -> None:
    shown = plan("policy")
    assert (shown.code, "the store has no policy" in shown.out, "`plan policy set FILE`" in shown.out) == (0, True, True)
    assert plan("policy", "show", "--json").lines == [{"type": "policy", "number": None, "policy": None, "problem": None}]
    assert "ok  the store has no policy: the environment of each process decides" in plan("doctor").out


def test_a_policy_is_set_and_shown_with_its_author_and_history(plan: Plan) -> None:
    first = plan("policy", "set", write_policy(approvers=["安娜"]))
    assert first.out == f"version 1 of the store's policy applies from now on, set by {ME} (os_user)\n"
    assert (
        "names no operators: anybody who can write to this store can set the next one, and enroll one-time codes for anybody" in first.err
    )
    assert "it names approvers but no `known_by`" in first.err
    (second,) = plan("policy", "set", write_policy(operators=[ME], gate_effects=["write"]), "--json").lines
    assert (second["number"], second["by"], second["policy"]) == (2, ME, {"operators": [ME], "gate_effects": ["write"]})
    shown = plan("policy", "show").out
    assert shown.startswith(f"# version 2, set by {ME} (os_user) at ") and second["digest"] in shown
    assert shown.endswith(f"\noperators: [{ME}]\ngate_effects: [write]\n")
    assert [line["number"] for line in plan("policy", "show", "--all", "--json").lines] == [1, 2]
    assert "ok  version 2 of the store's policy applies to every plan" in plan("doctor").out


def test_all_problems_of_a_policy_are_reported_at_once(plan: Plan) -> None:
    result = plan("policy", "set", write_policy(approver=["ana"], known_by=["ssh"], operators=[""]))
    assert (result.code, result.out) == (2, "")
    assert "policy.json:1:2: error[unknown-field] at approver: a policy has no field `approver`; did you mean `approvers`?" in result.err
    assert "error[bad-value] at known_by[0]" in result.err
    assert plan("policy").out.startswith("the store has no policy")


@pytest.mark.parametrize(
    "arguments",
    [("set",), ("set", "a.json", "--all"), ("show", "a.json"), ("show", "--sign"), ("set", "a.json", "--by", "ana"), ("drop",)],
    ids=" ".join,
)
def test_an_invalid_command_sets_no_policy(plan: Plan, arguments: tuple[str, ...]) -> None:
    write_policy("a.json", approvers=["ana"])
    assert plan("policy", *arguments).code == 2
    assert plan("policy").out.startswith("the store has no policy")


def test_only_operators_can_set_the_policy(plan: Plan) -> None:
    assert plan("policy", "set", write_policy(operators=["somebody-else"])).code == 0
    refused = plan("policy", "set", write_policy(operators=[ME]))
    assert (refused.code, f"{ME} may not set the policy; its operators may: somebody-else" in refused.err) == (10, True)


def test_a_signed_policy_is_verified_with_the_keys_of_the_previous_one(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {}
    for name in ("ana", "mallory"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(tmp_path / name)], check=True)
        keys[name] = (tmp_path / f"{name}.pub").read_text().strip()
    lines = [f"ana {keys['ana']}"]
    assert plan("policy", "set", write_policy(operators=["ana"], known_by=["ssh_signature"], allowed_signers=lines)).code == 0
    monkeypatch.setenv("PLAN_ADAPTER_SIGNING_KEY", str(tmp_path / "mallory"))
    (tmp_path / "allowed").write_text(f"ana {keys['mallory']}\n")
    monkeypatch.setenv("PLAN_ADAPTER_ALLOWED_SIGNERS", str(tmp_path / "allowed"))
    forged = plan("policy", "set", write_policy(operators=["mallory"]), "--sign", "--by", "ana")
    assert (forged.code, "the allowed signers of the store's policy" in forged.err) == (10, True)
    monkeypatch.setenv("PLAN_ADAPTER_SIGNING_KEY", str(tmp_path / "ana"))
    signed = plan("policy", "set", write_policy(operators=["ana", "bo"]), "--sign", "--by", "ana")
    assert signed.out == "version 2 of the store's policy applies from now on, set by ana (ssh_signature)\n"


def test_an_altered_policy_is_reported_and_stops_runs_and_answers(plan: Plan, home: Path) -> None:
    import sqlite3

    assert plan("policy", "set", write_policy(gate_effects=["write"])).code == 0
    with sqlite3.connect(home / "plans.db") as database:
        database.execute("DROP TRIGGER policy_history_refuses_update")
        database.execute("UPDATE policy_history SET document = '{}'")
    database.close()
    shown = plan("policy")
    assert (shown.code, "altered: version 1 of the store's policy was altered" in shown.err) == (1, True)
    assert "BAD the store's policy cannot be read: version 1" in plan("doctor").out
    refused = plan("run", document(GREET), "--offline", *TOOLS)
    assert (refused.code, "was altered" in refused.err) == (9, True)


def test_every_verb_follows_the_policy_of_the_store(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    path = document(GREET, **NEEDS_APPROVAL)
    run_id = plan("run", path, "--offline", "--json", *TOOLS).run["id"]
    assert plan("policy", "set", write_policy(approvers=["ana"], operators=["ops"], groups={"ops": ["bo"]})).code == 0
    monkeypatch.setenv("PLAN_ADAPTER_APPROVERS", ME)
    monkeypatch.setenv("PLAN_ADAPTER_OPERATORS", ME)
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"ops": [ME]}))
    for command in (
        ("run", path, "--offline", *TOOLS),
        ("resume", run_id, "--offline", *TOOLS),
        ("cancel", run_id),
        ("approve", run_id, "--yes"),
    ):
        result = plan(*command)
        assert (result.code, f"{ME} may not" in result.err) == (10, True), (command, result.err)


def test_preview_shows_the_gates_that_the_policy_adds(plan: Plan) -> None:
    path = document({**GREET, "tool_name": "bash", "parameters": {"command": "true"}, "effect": "read"})
    (before,) = plan("preview", path, "--json").lines
    assert plan("policy", "set", write_policy(gate_effects=["write"], allow_unapproved=False)).code == 0
    (after,) = plan("preview", path, "--json").lines
    assert [(shown["steps"][0]["gate"], shown["requires_approval"]) for shown in (before, after)] == [(False, False), (True, True)]


def test_a_run_with_a_stale_approval_is_not_shown_as_approved(plan: Plan) -> None:
    run_id = plan("run", document(GREET, **NEEDS_APPROVAL), "--offline", "--json", *TOOLS).run["id"]
    assert plan("approve", run_id, "--yes").code == 0
    assert "(approved, not resumed yet)" in plan("runs").out
    assert plan("policy", "set", write_policy(approvers=["ana"])).code == 0
    assert "Waiting (the approval is stale)" in plan("runs").out
    shown = plan("show", run_id).next
    assert shown == (
        f"the approval by {ME} is stale: {ME} may not answer here; only ana may; `plan resume {run_id} --offline` asks again\n"
    )


def test_a_gate_that_nobody_may_answer_is_reported(plan: Plan) -> None:
    assert plan("policy", "set", write_policy(approvers=["ana"])).code == 0
    run_id = plan("run", document(GREET, **NEEDS_APPROVAL, approval={"approvers": ["bo"]}), "--offline", "--json", *TOOLS).run["id"]
    assert plan("show", run_id).next == (
        f"nobody may answer: the plan, those around it and the policy contradict each other; `plan cancel {run_id}` ends the run\n"
    )
