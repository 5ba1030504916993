"""`plan gates`, `approve`, `reject`, `revise` without a server: real commands, one after the other, on one store."""

import asyncio
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import ToolRegistry, load_plan
from plan_adapter.gates.approval import os_user
from plan_adapter.plan import new_id
from plan_adapter.record import Gate, GatePolicy
from plan_adapter.runs.session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import bind_inputs, validate
from tests.cli.conftest import Plan, Said, digest_of
from tests.cli.some_tools import greet
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document, step
from tests.gates.world import Says

ME = os_user()


def waiting(plan: Plan, **fields: Any) -> str:
    """The id of a run that waits at its gate, with nobody there."""
    said = plan("run", document(GREET, **{**NEEDS_APPROVAL, **fields}), "--offline", "--json", *TOOLS)
    assert said.code == 6, said.err
    return said.run["id"]


def resumed(plan: Plan, run_id: str) -> Said:
    return plan("resume", run_id, "--offline", "--json", *TOOLS)


def test_what_waits_is_listed_newest_first_with_all_that_an_answer_needs(plan: Plan) -> None:
    first = waiting(plan)
    second = waiting(
        plan,
        approval={"approvers": ["ana", "bo"], "known_by": ["ssh_signature"]},
        options={"require_approval": True, "approval_timeout_ms": 600_000},
    )
    listed = plan("gates", "--json").lines
    assert [gate["run_id"] for gate in listed] == [second, first]
    assert (listed[0]["approvers"], listed[0]["known_by"], listed[0]["attended"]) == (["ana", "bo"], ["ssh_signature"], False)
    assert (listed[1]["step"], listed[1]["expires_at"], listed[1]["link"]) == (None, None, None)
    head, *rows = plan("gates").out.splitlines()
    assert head.split() == ["RUN", "PLAN", "STEP", "DIGEST", "SINCE", "UNTIL", "APPROVERS", "WAITING"]
    assert rows[0].split()[0] == second
    assert re.search(r" in (10 min|9 min 5\d s) ", rows[0])
    assert "ana, bo, with ssh_signature" in rows[0]
    assert rows[0].split()[-1] == "-"
    assert len(plan("gates", "--json", "--limit", "1").lines) == 1


def test_nothing_waits_at_first(plan: Plan) -> None:
    said = plan("gates")
    assert (said.code, said.out, said.err) == (0, "", "nothing waits for an answer\n")


def test_an_approved_run_continues_when_it_is_resumed(plan: Plan) -> None:
    run_id = waiting(plan)
    said = plan("approve", run_id[:-2], "--note", "看过了")
    assert said.code == 0
    assert said.out == f"approved 试运行, by {ME} (os_user): run {run_id}\n"
    assert "**1. greet**" in said.err
    assert "approval digest: `" in said.err
    assert "cannot be undone" in said.err.casefold()
    assert f"`plan resume {run_id} --offline` resumes the run" in said.err
    assert plan("gates", "--json").lines == []
    done = resumed(plan, run_id)
    assert (done.code, done.run["status"], done.run["approved_by"]) == (0, "completed", ME)


def test_show_prints_all_and_answers_nothing(plan: Plan) -> None:
    run_id = waiting(plan)
    said = plan("approve", run_id, "--show")
    assert (said.code, "## Approve 试运行?" in said.out) == (0, True)
    assert len(plan("gates", "--json").lines) == 1


def test_a_rejection_ends_a_run_that_nobody_waits_for(plan: Plan) -> None:
    run_id = waiting(plan)
    said = plan("reject", run_id, "--note", "不行", "--json")
    assert (said.code, said.run["decision"], said.run["by"], said.run["known_by"]) == (0, "reject", ME, "os_user")
    run = plan("show", run_id, "--json").run
    assert (run["status"], run["reason"], run["rejection_note"]) == ("cancelled", "rejected", "不行")
    assert [plan(verb, run_id).code for verb in ("approve", "reject")] == [3, 3]
    assert plan("resume", run_id, "--offline", *TOOLS).code == 3


def test_a_second_answer_is_refused_with_the_first_one(plan: Plan) -> None:
    run_id = waiting(plan)
    assert plan("approve", run_id).code == 0
    said = plan("reject", run_id)
    assert said.code == 2
    assert f"{ME} answered at" in said.err
    assert said.err.splitlines()[0].endswith(f": approve; `plan resume {run_id} --offline` resumes it")


def test_a_refused_answerer_learns_who_may_answer(plan: Plan) -> None:
    run_id = waiting(plan, approval={"approvers": ["ana"], "self_approval": False})
    said = plan("approve", run_id, "--json")
    assert (said.code, said.lines) == (6, [{"error": "NotApprovedError", "message": f"{ME} may not answer here; only ana may"}])
    assert len(plan("gates", "--json").lines) == 1

    async def last() -> tuple[str, str | None, str | None]:
        async with PlanStore() as store:
            entry = (await store.audit(run_id))[-1]
            return entry.kind, entry.by, entry.message

    assert asyncio.run(last()) == ("refused", ME, f"approve is refused: {ME} may not answer here; only ana may")


def test_without_a_gate_to_answer_the_error_names_the_next_command(plan: Plan) -> None:
    run_id = waiting(plan)
    said = plan("approve", run_id, "--step", "greet")
    command = f"plan approve {run_id} --digest {digest_of(plan, run_id)[:12]}"
    assert said.err == f"plan: step `greet` of run {run_id} does not wait yet; the plan itself does: `{command}`\n"
    run_id = plan("run", document(step("b", "fail"), **NEEDS_APPROVAL), "--offline", "--yes", "--json", *TOOLS).run["id"]
    said = plan("approve", run_id)
    assert (said.code, f"run {run_id} does not wait for an answer; it is failed" in said.err) == (2, True)
    assert f"`plan resume {run_id} --offline` resumes it" in said.err


def test_a_new_group_member_may_answer_if_the_resuming_process_knows_the_group(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = waiting(plan, approval={"approvers": ["sre", "ana"]})
    assert plan("approve", run_id).code == 6
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"sre": [ME], "others": ["bo"]}))
    said = plan("resume", run_id, "--offline", "--yes", "--json", *TOOLS)
    assert (said.code, said.run["status"]) == (0, "completed"), said.err
    run_id = waiting(plan, approval={"approvers": ["others", "sre", "ana"]})
    assert "`ana` may answer as a person:" in plan("approve", run_id, "--show").out
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"sre": ["li"], "others": ["bo", ME]}))
    assert plan("approve", run_id).code == 0
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"sre": ["li"], "others": ["bo"]}))
    said = plan("resume", run_id, "--offline", "--detach", *TOOLS)
    assert (said.code, f"{ME} may not answer here; only bo, li, ana may" in plan("show", run_id).out) == (6, True)


def test_the_doctor_names_approvers_that_are_no_group(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"sre": ["ana"]}))
    path = document(GREET, **NEEDS_APPROVAL, approval={"approvers": ["sre", "ana", "dba"], "operators": ["run-plan/nightly"]})
    said = plan("doctor", path, *TOOLS)
    assert [line.split("`")[1] for line in said.out.splitlines() if "counts as a person" in line] == ["dba"]


def test_an_answer_that_cannot_be_proved_leaves_the_run_waiting(plan: Plan) -> None:
    said = plan("approve", waiting(plan), "--code", "123456")
    assert (said.code, f"{ME} has no one-time codes: set them up with `plan enroll {ME}`" in said.err) == (6, True)


def test_yes_ends_with_6_where_the_policy_does_not_take_it_and_nothing_is_begun(plan: Plan) -> None:
    path = document(GREET, **NEEDS_APPROVAL, approval={"self_approval": False})
    said = plan("run", path, "--offline", "--yes", *TOOLS)
    assert said.code == 6
    assert "--yes is refused, and nothing has started" in said.err
    assert "may not approve it; somebody else must" in said.err
    assert plan("runs", "--json").lines == []
    run_id = plan("run", path, "--offline", "--detach", "--json", *TOOLS).run["id"]
    assert plan("resume", run_id, "--offline", "--yes", *TOOLS).code == 6
    assert [gate["run_id"] for gate in plan("gates", "--json").lines] == [run_id]
    run = plan("show", run_id, "--json").run
    assert (run["status"], run["flow_run_id"]) == ("pending_approval", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "which run? `plan gates` lists the runs that wait"),
        (("0000000",), "no run has the id `0000000`"),
        (("RUN", "--step", "nope"), "has no step `nope`; steps: greet"),
        (("RUN", "--by", "ana"), "--by alone proves nothing"),
        (("RUN", "--step", "a", "--step", "b"), "see `plan approve --help`"),
    ],
    ids=["no run", "unknown", "no step", "by", "two steps"],
)
def test_what_cannot_be_answered_is_a_usage_error(plan: Plan, arguments: tuple[str, ...], message: str) -> None:
    run_id = waiting(plan)
    said = plan("approve", *(run_id if word == "RUN" else word for word in arguments))
    assert said.code == 2
    assert message in said.err


def test_a_waiting_run_shows_its_gate_its_age_and_the_command(plan: Plan) -> None:
    run_id = waiting(plan, options={"require_approval": True, "approval_timeout_ms": 600_000})
    said = plan("show", run_id)
    assert re.search(
        r"\*\*waits for an approval of the plan\*\* since .* \(.* s\), until .* \(in .* min.*\); no process is waiting", said.out
    )
    digest = digest_of(plan, run_id)
    assert f"--digest {digest[:12]}`, then `plan resume {run_id} --offline`; `plan gates` lists everything" in said.err
    assert "pending_approval (no process waits)" in plan("runs").out
    assert [gate["step"] for gate in plan("show", run_id, "--json").run["gates"]] == [None]


def test_an_answer_that_no_process_picks_up_is_reported(plan: Plan) -> None:
    run_id = waiting(plan)
    plan("approve", run_id, "--note", "看过了")
    said = plan("show", run_id)
    assert re.search(rf"- approved by {ME} \(os_user\) at .*: 看过了", said.out)
    assert said.err == f"it has been answered, but no process is running it: `plan resume {run_id} --offline`\n"
    assert "pending_approval (approved, not resumed yet)" in plan("runs").out
    assert "看过了" in plan("show", run_id, "--json").run["approvals"][0]["note"]


def test_requested_changes_are_shown_wherever_the_run_is_shown(plan: Plan) -> None:
    run_id = waiting(plan)
    plan("reject", run_id, "--changes", "--note", "greet everybody")
    both = f"`plan revise {run_id} FILE` submits a new version; `plan resume {run_id} --offline` asks about this one again"
    assert "greet everybody" in plan("show", run_id).out
    assert "changes requested, not resumed yet" in plan("runs").out
    for arguments in (("show", run_id), ("approve", run_id)):
        assert both in plan(*arguments).err


def test_a_resume_without_a_terminal_asks_again_about_the_plan_that_somebody_wants_changed(plan: Plan) -> None:
    run_id = waiting(plan)
    plan("reject", run_id, "--changes", "--note", "greet everybody")
    resumed = plan("resume", run_id, "--offline", *TOOLS)
    answer = f"plan approve {run_id} --digest {digest_of(plan, run_id)[:12]}"
    assert (resumed.code, f"`{answer}`, then `plan resume {run_id} --offline`" in resumed.err) == (6, True), resumed.err
    assert "greet everybody" in plan("approve", run_id, "--show").out
    assert plan(*answer.split()[1:]).code == 0
    assert plan("resume", run_id, "--offline", *TOOLS).code == 0


def test_the_doctor_looks_at_the_allowed_signers(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_request_for_changes_says_what_and_how_the_new_version_comes(plan: Plan) -> None:
    run_id = waiting(plan)
    assert "--changes needs --note" in plan("reject", run_id, "--changes").err
    said = plan("reject", run_id, "--changes", "--note", "greet everybody")
    assert said.code == 0
    assert f"`plan revise {run_id} FILE`" in said.err
    assert plan("show", run_id, "--json").run["status"] == "pending_approval"


def test_a_revision_shows_what_it_changes_and_is_asked_about_anew(plan: Plan) -> None:
    run_id = waiting(plan)
    loud = step("loud", "write_and_wait", effect="write")
    path = document(step("greet", "greet", parameters={"who": "大家"}), loud, **NEEDS_APPROVAL)
    said = plan("revise", run_id, path, *TOOLS, "--note", "as you wish")
    assert said.code == 0, said.err
    assert said.out.splitlines() == [
        "what the new version changes (2 places):",
        "+ step loud is new (write_and_wait)",
        "~ greet.parameters.who: 世界 → 大家",
        f"run {run_id} has the new version: pending_approval",
    ]
    assert f"`plan approve {run_id} --digest {digest_of(plan, run_id)[:12]}`" in said.err
    (gate,) = plan("gates", "--json").lines
    assert gate["run_id"] == run_id
    assert "What changed" in plan("approve", run_id, "--show").out
    again = plan("revise", run_id, path, *TOOLS)
    assert (again.code, "nothing would change" in again.err) == (2, True)


def test_a_raised_effect_is_shown_first(plan: Plan) -> None:
    run_id = waiting(plan, steps=[{**GREET, "effect": "read"}])
    said = plan("revise", run_id, document({**GREET, "effect": "write"}, **NEEDS_APPROVAL), *TOOLS, "--json")
    assert said.run["changes"] == ["! EFFECT RAISED: step greet read → write"]


def test_a_revision_is_a_file_or_an_edit(plan: Plan) -> None:
    run_id = waiting(plan)
    assert "give the new version as a file or in words, or use --edit" in plan("revise", run_id).err
    assert "--edit needs a terminal" in plan("revise", run_id, "--edit").err


def test_a_gate_that_nobody_waits_at_expires_when_it_is_listed(plan: Plan) -> None:
    run_id = waiting(plan, options={"require_approval": True, "approval_timeout_ms": 1})
    assert plan("gates", "--json").lines == []
    run = plan("show", run_id, "--json").run
    assert (run["status"], run["reason"]) == ("cancelled", "expired")
    said = plan("approve", run_id)
    assert (said.code, "nobody answered until" in said.err) == (3, True)
    assert plan("resume", run_id, "--offline", *TOOLS).code == 3


@pytest.mark.parametrize(
    ("verb", "code", "told"),
    [
        (("show",), 0, "nobody answered within 1 ms"),
        (("approve",), 3, "nobody answered until"),
        (("reject",), 3, "nobody answered until"),
        (("resume", "--offline", *TOOLS), 3, "has expired; resuming approves nothing"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_listing_an_expired_gate_closes_it(plan: Plan, verb: tuple[str, ...], code: int, told: str) -> None:
    run_id = waiting(plan, options={"require_approval": True, "approval_timeout_ms": 1})
    said = plan(verb[0], run_id, *verb[1:])
    assert (said.code, told in said.out + said.err) == (code, True)
    assert plan("show", run_id, "--json").run["reason"] == "expired"


async def open_many(count: int) -> None:
    """Open gates of as many steps of one run that executes."""
    async with PlanStore() as store:
        (run, *_) = await store.runs()
        rules = GatePolicy(approvers=("ana", "bo"), requested_by="me")
        gate = Gate("", run.id, None, None, "d" * 64, run.name, "说明", "text\n" * 200, rules, opened_at=run.created_at)
        for number in range(count):
            await store.open_gate(replace(gate, id=new_id(), step_id=f"step-{number}"), timeout_ms=60_000)


def test_two_open_gates_show_both_commands(plan: Plan) -> None:
    run_id = waiting(plan)
    asyncio.run(open_many(1))
    assert f"`, `plan approve {run_id} --step step-0 --digest {'d' * 12}`; `plan gates` lists" in plan("show", run_id).err


@pytest.mark.thorough
def test_a_thousand_open_gates_are_listed(plan: Plan) -> None:
    waiting(plan)
    asyncio.run(open_many(999))
    for arguments in (("--json",), ()):
        said = plan("gates", "--limit", "2000", *arguments)
        assert (said.code, len(said.out.splitlines())) == (0, 1000 + (not arguments))


@pytest.fixture
def signer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ana's key, which counts, as the one that is signed with."""
    key = tmp_path / "ana"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True)
    allowed = tmp_path / "allowed"
    allowed.write_text(f"ana {key.with_suffix('.pub').read_text()}")
    monkeypatch.setenv("PLAN_ADAPTER_ALLOWED_SIGNERS", str(allowed))
    monkeypatch.setenv("PLAN_ADAPTER_SIGNING_KEY", str(key))
    return key


@pytest.mark.usefixtures("signer")
def test_a_signed_answer_is_ones_own_under_any_account(plan: Plan) -> None:
    run_id = waiting(plan, approval={"approvers": ["ana"], "known_by": ["ssh_signature"]})
    assert "may not answer here" in plan("approve", run_id, "--sign").err
    assert "not of bo" in plan("reject", waiting(plan), "--sign", "--by", "bo").err
    said = plan("approve", run_id, "--sign", "--by", "ana", "--json")
    assert (said.code, said.run["by"], said.run["known_by"]) == (0, "ana", "ssh_signature")
    assert resumed(plan, run_id).run["approved_by"] == "ana"


STANDING = ("--schedule", "试运行/nightly", "--until", "2099-12-31", "--runs", "3", "--input", "who=[a-z]+", "--step", "greet", *TOOLS)
BY_INPUT = step("greet", "greet", parameters={"who": "${{ inputs.who }}"})


def test_a_standing_approval_is_given_listed_and_revoked(plan: Plan) -> None:
    path = document(BY_INPUT, inputs={"who": {"type": "string"}}, **NEEDS_APPROVAL)
    said = plan("standing", "add", path, *STANDING, "--json")
    assert said.code == 0, said.err
    standing = said.run
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
    assert [one["id"] for one in plan("standing", "list", "--all", "--json").lines] == [standing["id"]]


def test_a_run_by_a_standing_approval_says_which_one_and_who_gave_it_when(plan: Plan) -> None:
    path = document(BY_INPUT, inputs={"who": {"type": "string"}}, **NEEDS_APPROVAL)
    given = plan("standing", "add", path, *STANDING[:4], "--runs", "1", *STANDING[6:], "--note", "每晚", "--json").run
    tools = ToolRegistry([greet])
    bound = bind_inputs(validate(load_plan(path), tools), {"who": "ana"})
    run_request = RunRequest(approver=Says("reject"), schedule="试运行/nightly", requested_by="schedule of 试运行/nightly", tools=tools)
    run = asyncio.run(execute_plan(bound, run_request=run_request, offline=True))
    assert run.status == "completed"
    shown = plan("show", run.id).out
    assert f"- approved by {ME}, with the standing approval `{given['id']}`, given at " in shown
    assert f"- approved by the standing approval `{given['id']}` of 试运行, which {ME} (os_user) gave at " in shown
    assert [line.endswith("每晚") for line in shown.splitlines() if line.startswith("- approved by the standing")] == [True]
    assert "used up" in plan("standing", "list", "--all").out.splitlines()[1]


def test_every_mistake_in_a_standing_approval_is_reported(plan: Plan) -> None:
    path = document(BY_INPUT, inputs={"who": {"type": "string"}}, **NEEDS_APPROVAL)
    said = plan("standing", "add", path, "--step", "nope", *TOOLS)
    assert said.code == 2
    for words in ("no limit", "names no schedule", "so the approval would cover no run", "no step is called `nope`"):
        assert words in said.err
    assert "write a day" in plan("standing", "add", path, "--schedule", "a/b", "--until", "soon", *TOOLS).err


@pytest.mark.usefixtures("signer")
def test_a_standing_approval_may_be_a_signed_file_beside_the_plan(plan: Plan) -> None:
    path = document(BY_INPUT, inputs={"who": {"type": "string"}}, **NEEDS_APPROVAL)
    assert "--file needs --sign" in plan("standing", "add", path, *STANDING, "--file").err
    said = plan("standing", "add", path, *STANDING, "--file", "--sign", "--by", "ana")
    assert said.code == 0, said.err
    assert "runbook_digest" in Path("计划.approval.yaml").read_text(encoding="utf-8")
    assert Path("计划.approval.yaml.sig").read_text().startswith("-----BEGIN SSH SIGNATURE-----")
    assert plan("standing", "--json").lines == []


def test_gates_are_shown_in_json_events(plan: Plan) -> None:
    said = plan("run", document(GREET, **NEEDS_APPROVAL), "--offline", "--yes", "--json", *TOOLS)
    opened, answered = (line for line in said.lines if line.get("event") in ("gate_opened", "gate_answered"))
    assert (opened["gate"]["step"], opened["gate"]["end"], answered["gate"]["end"]) == (None, None, "answered")
    assert answered["message"] == f"approved by {ME} (os_user): --yes"
    assert json.loads(said.out.splitlines()[-1])["status"] == "completed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add",), "add what? `plan standing add PLAN`"),
        (("revoke",), "revoke which one? `plan standing revoke ID`"),
        (("list", "计划.json"), "`plan standing add 计划.json` approves a plan"),
        (("revoke", "0123abcd", "--runs", "3"), "takes none of the options of `plan standing add`"),
        (("add", "计划.json", "--all"), "--all and --limit go with `plan standing list`"),
    ],
    ids=["nothing to add", "nothing to revoke", "a plan to list", "terms to revoke", "a list to add"],
)
def test_options_of_another_action_are_a_usage_error(plan: Plan, arguments: tuple[str, ...], message: str) -> None:
    said = plan("standing", *arguments)
    assert (said.code, message in said.err) == (2, True), said.err
