"""Tests of `plan approve`, `reject` and `revise` without a server: real commands on one store."""

import asyncio
import json
from pathlib import Path

import pytest

from plan_adapter.store.store import PlanStore
from tests.cli.conftest import Plan, digest_of
from tests.cli.gated import ME, resumed, signer, waiting
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document, step

__all__ = ["signer"]


def test_an_approved_run_continues_when_it_is_resumed(plan: Plan) -> None:
    run_id = waiting(plan)
    result = plan("approve", run_id[:-2], "--note", "看过了", "--yes")
    assert result.code == 0
    assert result.out == f"approved 试运行, by {ME} (os_user): run {run_id}\n"
    assert "- 1. greet: `greet`" in result.err
    assert "approval digest: `" in result.err
    assert "cannot be undone" in result.err.casefold()
    assert f"`plan resume {run_id} --offline` resumes the run" in result.err
    assert plan("gates", "--json").lines == []
    done = resumed(plan, run_id)
    assert (done.code, done.run["status"], done.run["approved_by"]) == (0, "completed", ME)


def test_show_prints_the_gate_without_answering_it(plan: Plan) -> None:
    run_id = waiting(plan)
    result = plan("approve", run_id, "--show")
    assert (result.code, "## Approve 试运行?" in result.out) == (0, True)
    assert len(plan("gates", "--json").lines) == 1


def test_a_rejection_ends_a_run_without_a_waiting_process(plan: Plan) -> None:
    run_id = waiting(plan)
    result = plan("reject", run_id, "--note", "不行", "--yes", "--json")
    assert (result.code, result.run["decision"], result.run["by"], result.run["known_by"]) == (0, "reject", ME, "os_user")
    run = plan("show", run_id, "--json").run
    assert (run["status"], run["reason"], run["rejection_note"]) == ("cancelled", "rejected", "不行")
    assert [plan(verb, run_id).code for verb in ("approve", "reject")] == [3, 3]
    assert plan("resume", run_id, "--offline", *TOOLS).code == 3


def test_a_second_answer_is_refused_and_the_error_shows_the_first(plan: Plan) -> None:
    run_id = waiting(plan)
    assert plan("approve", run_id, "--yes").code == 0
    result = plan("reject", run_id)
    assert result.code == 8
    assert f"{ME} answered at" in result.err
    assert result.err.splitlines()[0].endswith(f": approve; `plan resume {run_id} --offline` resumes it")


def test_a_refused_answer_says_who_may_answer(plan: Plan) -> None:
    run_id = waiting(plan, approval={"approvers": ["ana"], "self_approval": False})
    result = plan("approve", run_id, "--json", "--yes")
    (error,) = result.lines
    assert (result.code, error["code"], error["message"]) == (10, "not-approved", f"{ME} may not answer here; only ana may")
    assert len(plan("gates", "--json").lines) == 1

    async def last() -> tuple[str, str | None, str | None]:
        async with PlanStore() as store:
            entry = (await store.audit(run_id))[-1]
            return entry.kind, entry.by, entry.message

    assert asyncio.run(last()) == ("refused", ME, f"approve is refused: {ME} may not answer here; only ana may")


def test_the_error_names_the_next_command_if_no_gate_is_open(plan: Plan) -> None:
    run_id = waiting(plan)
    result = plan("approve", run_id, "--step", "greet")
    command = f"plan approve {run_id} --digest {digest_of(plan, run_id)[:12]}"
    assert result.err == f"plan: step `greet` of run {run_id} does not wait yet; the plan itself does: `{command}`\n"
    run_id = plan("run", document(step("b", "fail"), **NEEDS_APPROVAL), "--offline", "--yes", "--json", *TOOLS).run["id"]
    result = plan("approve", run_id, "--yes")
    assert (result.code, f"run {run_id} does not wait for an answer; it is Failed" in result.err) == (8, True)
    assert f"`plan resume {run_id} --offline` resumes it" in result.err


def test_an_open_gate_keeps_its_approvers_whatever_groups_the_resuming_process_has(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = waiting(plan, approval={"approvers": ["sre", "ana"]})
    assert plan("approve", run_id, "--yes").code == 10
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"sre": [ME], "others": ["bo"]}))
    assert plan("resume", run_id, "--offline", "--detach", *TOOLS).code == 6
    assert plan("approve", run_id, "--yes").code == 10
    result = plan("resume", run_id, "--offline", "--yes", *TOOLS)
    assert (result.code, f"{ME} may not answer here; only sre, ana may" in result.err) == (10, True)
    assert "; only sre, ana may answer" in plan("show", run_id, "--all").out
    run_id = waiting(plan, approval={"approvers": ["others", "sre", "ana"]})
    assert "`ana` may answer as a person:" in plan("approve", run_id, "--show").out
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"sre": ["li"], "others": ["bo", ME]}))
    assert plan("approve", run_id, "--yes").code == 0
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"sre": ["li"], "others": ["bo"]}))
    result = plan("resume", run_id, "--offline", "--detach", *TOOLS)
    assert (result.code, f"{ME} may not answer here; only bo, li, ana may" in plan("show", run_id, "--all").out) == (6, True)


def test_doctor_lists_approvers_that_are_not_groups(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"sre": ["ana"]}))
    path = document(GREET, **NEEDS_APPROVAL, approval={"approvers": ["sre", "ana", "dba"], "operators": ["run-plan/nightly"]})
    result = plan("doctor", path, *TOOLS)
    assert [line.split("`")[1] for line in result.out.splitlines() if "counts as a person" in line] == ["dba"]


def test_an_answer_without_valid_proof_leaves_the_run_waiting(plan: Plan) -> None:
    result = plan("approve", waiting(plan), "--code", "123456", "--yes")
    assert (result.code, f"{ME} has no one-time codes: set them up with `plan enroll {ME}`" in result.err) == (10, True)


def test_yes_starts_nothing_if_the_policy_refuses_it(plan: Plan) -> None:
    path = document(GREET, **NEEDS_APPROVAL, approval={"self_approval": False})
    result = plan("run", path, "--offline", "--yes", *TOOLS)
    assert result.code == 10
    assert "--yes is refused, and nothing has started" in result.err
    assert "may not approve it; somebody else must" in result.err
    assert plan("runs", "--json").lines == []
    run_id = plan("run", path, "--offline", "--detach", "--json", *TOOLS).run["id"]
    assert plan("resume", run_id, "--offline", "--yes", *TOOLS).code == 10
    assert [gate["run_id"] for gate in plan("gates", "--json").lines] == [run_id]
    run = plan("show", run_id, "--json").run
    assert (run["status"], run["flow_run_id"]) == ("pending_approval", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "which run? `plan gates` lists the runs that wait"),
        (("0000000",), "no run has the id `0000000`"),
        (("RUN", "--step", "nope"), "has no step `nope`; known: `greet`"),
        (("RUN", "--by", "ana"), "--by alone proves nothing"),
        (("RUN", "--step", "a", "--step", "b"), "see `plan approve --help`"),
    ],
    ids=["no run", "unknown", "no step", "by", "two steps"],
)
def test_an_invalid_answer_is_a_usage_error(plan: Plan, arguments: tuple[str, ...], message: str) -> None:
    run_id = waiting(plan)
    result = plan("approve", *(run_id if word == "RUN" else word for word in arguments))
    assert result.code == 2
    assert message in result.err


def test_resuming_without_a_terminal_asks_again_after_requested_changes(plan: Plan) -> None:
    run_id = waiting(plan)
    plan("reject", run_id, "--changes", "--note", "greet everybody")
    resumed = plan("resume", run_id, "--offline", *TOOLS)
    answer = f"plan approve {run_id} --digest {digest_of(plan, run_id)[:12]}"
    assert (resumed.code, f"`{answer}`, then `plan resume {run_id} --offline {' '.join(TOOLS)}`" in resumed.err) == (6, True), resumed.err
    assert "greet everybody" in plan("approve", run_id, "--show").out
    assert plan(*answer.split()[1:]).code == 0
    assert plan("resume", run_id, "--offline", *TOOLS).code == 0


def test_doctor_checks_the_allowed_signers_file(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ok  PLAN_ADAPTER_ALLOWED_SIGNERS names no file" in plan("doctor").out
    allowed = tmp_path / "allowed"
    monkeypatch.setenv("PLAN_ADAPTER_ALLOWED_SIGNERS", str(allowed))
    assert f"BAD the file of allowed signers {allowed} cannot be read: No such file" in plan("doctor").out
    allowed.write_text("# nobody yet\n")
    assert f"BAD file of allowed signers {allowed}: 0 keys" in plan("doctor").out
    allowed.write_text("ana ssh-ed25519 AAAA\n")
    assert f"ok  file of allowed signers {allowed}: 1 key\n" in plan("doctor").out
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "BAD there is no `ssh-keygen`" in plan("doctor").out


def test_requesting_changes_needs_a_note_and_names_the_revise_command(plan: Plan) -> None:
    run_id = waiting(plan)
    assert "--changes needs --note" in plan("reject", run_id, "--changes").err
    result = plan("reject", run_id, "--changes", "--note", "greet everybody")
    assert result.code == 0
    assert f"`plan revise {run_id} FILE`" in result.err
    assert plan("show", run_id, "--json").run["status"] == "pending_approval"


def test_a_revision_shows_its_changes_and_needs_a_new_approval(plan: Plan) -> None:
    run_id = waiting(plan)
    loud = step("loud", "write_and_wait", effect="write")
    path = document(step("greet", "greet", parameters={"who": "大家"}), loud, **NEEDS_APPROVAL)
    result = plan("revise", run_id, path, *TOOLS, "--note", "as you wish")
    assert result.code == 0, result.err
    assert result.out.splitlines() == [
        "what the new version changes (2 places):",
        "added `loud`: `write_and_wait`, write",
        "`greet.parameters.who`: `世界` → `大家`",
        f"run {run_id} has the new version: pending_approval",
    ]
    assert f"`plan approve {run_id} --digest {digest_of(plan, run_id)[:12]}`" in result.err
    (gate,) = plan("gates", "--json").lines
    assert gate["run_id"] == run_id
    assert "What changed" in plan("approve", run_id, "--show").out
    again = plan("revise", run_id, path, *TOOLS)
    assert (again.code, "nothing would change" in again.err) == (8, True)


def test_a_raised_effect_is_shown_first(plan: Plan) -> None:
    run_id = waiting(plan, steps=[{**GREET, "effect": "read"}])
    result = plan("revise", run_id, document({**GREET, "effect": "write"}, **NEEDS_APPROVAL), *TOOLS, "--json")
    assert result.run["changes"] == ["MAY DO MORE THAN BEFORE: `greet`, read → write", "`greet.effect`: `read` → `write`"]


def test_revise_needs_a_file_or_an_edit(plan: Plan) -> None:
    run_id = waiting(plan)
    assert "give the new version as a file or in words, or use --edit" in plan("revise", run_id).err
    assert "--edit needs a terminal" in plan("revise", run_id, "--edit").err


@pytest.mark.usefixtures("signer")
def test_a_signed_answer_counts_for_the_signer_under_any_account(plan: Plan) -> None:
    run_id = waiting(plan, approval={"approvers": ["ana"], "known_by": ["ssh_signature"]})
    assert "may not answer here" in plan("approve", run_id, "--sign", "--yes").err
    assert "not of bo" in plan("reject", waiting(plan), "--sign", "--by", "bo").err
    result = plan("approve", run_id, "--sign", "--by", "ana", "--json", "--yes")
    assert (result.code, result.run["by"], result.run["known_by"]) == (0, "ana", "ssh_signature")
    assert resumed(plan, run_id).run["approved_by"] == "ana"


@pytest.mark.parametrize(
    ("known_by", "hint", "why"),
    [
        (
            ["proxy", "slack"],
            "answer the first one at `plan desk`, or with a button in Slack",
            "gives proxy or slack, which",
        ),
        (["totp"], "(with --code) answers the first one", "--by alone proves nothing: add --code with that person's one-time code"),
        (["ssh_signature", "sign_in"], "(with --sign) answers the first one", "--by alone proves nothing: add --sign\n"),
        ([], "` answers the first one", "add --sign, or --code with that person's one-time code"),
    ],
    ids=["pages only", "a code", "a signature", "any proof"],
)
def test_hints_name_only_the_ways_that_the_gate_accepts(plan: Plan, known_by: list[str], hint: str, why: str) -> None:
    run_id = waiting(plan, approval={"approvers": ["ana"], "known_by": known_by})
    assert hint in plan("gates").err
    refused = plan("approve", run_id, "--by", "ana", "--yes")
    assert (refused.code, why in refused.err) == (2, True), refused
    shown = plan("show", run_id).out + plan("show", run_id).err
    assert ("at `plan desk`" in shown, f"plan approve {run_id}" in shown) == (("proxy" in known_by), "proxy" not in known_by), shown


def test_doctor_reports_how_people_answer_at_the_desk(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "plan desk" not in plan("doctor").out
    monkeypatch.setenv("PLAN_ADAPTER_DESK_PROXY_HEADER", "X-Forwarded-Email")
    assert "BAD PLAN_ADAPTER_DESK_PROXY_HEADER and PLAN_ADAPTER_DESK_PROXY_SECRET belong together: set both" in plan("doctor").out
    monkeypatch.setenv("PLAN_ADAPTER_DESK_PROXY_SECRET", secret := "5" * 40)
    found = plan("doctor").out
    assert "ok  people answer at `plan desk` after a sign-in at the proxy that sends X-Forwarded-Email (`known_by: proxy`)" in found
    assert "set PLAN_ADAPTER_DESK_URL to the address that people use" in found
    monkeypatch.setenv("PLAN_ADAPTER_DESK_SLACK_TOKEN", token := "xoxb-1234567890")
    monkeypatch.setenv("PLAN_ADAPTER_DESK_SLACK_CHANNEL", "C024BE91L")
    assert "BAD messages (Slack) link to the desk: set PLAN_ADAPTER_DESK_URL" in plan("doctor").out
    monkeypatch.setenv("PLAN_ADAPTER_DESK_URL", "https://desk.example.org")
    assert "ok  `plan desk` sends what waits to Slack, without buttons" in plan("doctor").out
    monkeypatch.setenv("PLAN_ADAPTER_DESK_SLACK_USERS", '{"U024ANA01": "ana"}')
    assert "BAD PLAN_ADAPTER_DESK_SLACK_SIGNING_SECRET and PLAN_ADAPTER_DESK_SLACK_USERS belong together" in plan("doctor").out
    monkeypatch.setenv("PLAN_ADAPTER_DESK_SLACK_SIGNING_SECRET", signing := "8f742231b10e8888abcd99yyyzzz85a5")
    found = plan("doctor").out
    assert "ok  `plan desk` sends what waits to Slack, with buttons for ana" in found
    assert not [value for value in (secret, token, signing) if value in found]
