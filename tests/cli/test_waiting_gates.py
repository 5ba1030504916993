"""Tests of waiting runs in `plan gates`, `plan show` and `plan runs`: what is shown of a gate, and when it expires."""

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from plan_adapter import ToolRegistry
from plan_adapter.model.approvals import Gate, GatePolicy
from plan_adapter.model.plan import new_id
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import create_run
from plan_adapter.store import load_plan
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import bind_inputs, validate
from tests.cli.conftest import Plan, digest_of
from tests.cli.gated import ME, resumed, waiting
from tests.cli.some_tools import greet
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document, step


def test_open_gates_are_listed_newest_first_with_everything_an_answer_needs(plan: Plan) -> None:
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
    head, *rows = plan("gates", "--wide").out.splitlines()
    assert head.split() == ["RUN", "RUNBOOK", "WAITS", "FOR", "AGE", "UNTIL", "WHO", "DIGEST", "WAITING"]
    assert rows[0].split()[0] == second
    assert [row.split()[0] for row in plan("gates").out.splitlines()] == ["RUN", second[-6:], first[-6:]]
    assert re.search(r" in \d+ min ", rows[0])
    assert "ana, bo, with ssh_signature" in rows[0]
    assert rows[0].split("  ")[-1].strip() == "no process"
    assert " the plan " in rows[1]
    assert " no limit " in rows[1]
    assert len(plan("gates", "--json", "--limit", "1").lines) == 1


@pytest.mark.parametrize(
    ("approval", "reason"),
    [
        ({"approvers": ["ana", "小明"]}, f"{ME} may not answer here; only ana, 小明 may"),
        ({"approvers": [ME, "bo"], "self_approval": False}, f"{ME} started this run and may not approve it; only bo may"),
        ({"self_approval": False}, f"{ME} started this run and may not approve it; somebody else must approve it"),
        ({"approvers": [ME], "known_by": ["ssh_signature"]}, None),
    ],
    ids=["another approver", "self-approval, with approvers", "self-approval", "another proof"],
)
def test_hints_say_who_may_approve_if_the_current_user_may_not(plan: Plan, approval: dict[str, Any], reason: str | None) -> None:
    run_id = waiting(plan, approval=approval)
    command = f"`plan approve {run_id} --digest {digest_of(plan, run_id)[:12]}`"
    who = "" if reason is None else f"; {reason}"
    proof = " (with --sign)" if "known_by" in approval else ""
    assert plan("gates").err == f"{command}{proof} answers the first one{who}\n"
    assert plan("show", run_id).next.startswith(f"waiting for an approval{who}: {command}{proof}, then ")


def test_an_empty_store_has_no_open_gates(plan: Plan) -> None:
    result = plan("gates")
    assert (result.code, result.out, result.err) == (0, "", "nothing waits for an answer\n")


def test_a_waiting_run_shows_its_gate_its_age_and_the_command(plan: Plan) -> None:
    run_id = waiting(plan, options={"require_approval": True, "approval_timeout_ms": 600_000})
    result = plan("show", run_id, "--all")
    assert re.search(
        r"\*\*waits for an approval of the plan\*\* since .* \(.* s\), until .* \(in .* min.*\); no process is waiting", result.out
    )
    digest = digest_of(plan, run_id)
    assert f"--digest {digest[:12]}`, then `plan resume {run_id} --offline`; `plan gates` lists everything" in result.err
    assert "Waiting for approval (no process waits)" in plan("runs").out
    assert [gate["step"] for gate in plan("show", run_id, "--json").run["gates"]] == [None]


def test_an_answer_that_no_process_picks_up_is_reported(plan: Plan) -> None:
    run_id = waiting(plan)
    plan("approve", run_id, "--note", "看过了", "--yes")
    result = plan("show", run_id, "--all")
    assert re.search(rf"- approved by {ME} \(os_user\) at .*: 看过了", result.out)
    assert result.err == f"the gate was answered, but the run has no process: `plan resume {run_id} --offline`\n"
    assert "Waiting (approved, not resumed yet)" in plan("runs").out
    assert "看过了" in plan("show", run_id, "--json").run["approvals"][0]["note"]


@pytest.mark.parametrize(
    ("answer", "fields", "shown"),
    [
        (("approve", "--yes"), {}, "approved at a"),
        (("reject",), {}, "rejected at a"),
        ((), {"approval": {"expires": "skip"}, "options": {"require_approval": False, "approval_timeout_ms": 1}}, "expired at a"),
    ],
    ids=["approved", "rejected", "expired"],
)
def test_a_run_says_how_a_step_was_answered_while_no_process_waited(
    plan: Plan, answer: tuple[str, ...], fields: dict[str, Any], shown: str
) -> None:
    run_id = waiting_at_step(plan, **fields)
    if answer:
        plan(*answer, run_id, "--step", "a")
    assert f"Waiting ({shown}, not resumed yet)" in plan("runs").out
    assert f"{shown}, but the run has no process: `plan resume {run_id} --offline`" in plan("show", run_id).next


def test_an_answer_at_the_wrong_place_says_what_waits(plan: Plan) -> None:
    run_id = waiting_at_step(plan)
    result = plan("approve", run_id, "--step", "b", "--yes")
    assert (result.code, "nobody has been asked" in result.err) == (8, False)
    assert f"step `b` of run {run_id} does not wait for this answer; what waits: `plan approve {run_id} a" in result.err


def test_a_cancelled_run_without_a_process_says_that_its_finally_steps_did_not_run(plan: Plan) -> None:
    run_id = waiting_at_step(plan, **{"finally": [step("unlock", "greet", parameters={"who": "C"})]})
    result = plan("cancel", run_id)
    assert result.err == "the `finally` steps did not run, because no process executes the run: `unlock`\n"


def waiting_at_step(plan: Plan, **fields: Any) -> str:
    """Return the id of a run that no process executes, that has completed a step, and that waits at its step `a`."""
    first = step("first", "greet", parameters={"who": "F"})
    asking = step("a", "greet", parameters={"who": "A"}, requires_approval=True, depends_on=["first"])
    last = step("b", "greet", parameters={"who": "B"}, depends_on=["a"])
    result = plan("run", document(first, asking, last, **fields), "--offline", *TOOLS)
    assert result.code == 6, result.err
    return plan("runs", "--json").lines[0]["id"]


def test_requested_changes_are_shown_wherever_the_run_is_shown(plan: Plan) -> None:
    run_id = waiting(plan)
    plan("reject", run_id, "--changes", "--note", "greet everybody")
    both = f"`plan revise {run_id} FILE` submits a new version; `plan resume {run_id} --offline` asks about this one again"
    assert "greet everybody" in plan("show", run_id, "--all").out
    assert "changes requested, not resumed yet" in plan("runs").out
    assert both in plan("show", run_id).next
    assert both in plan("approve", run_id).err


@pytest.mark.parametrize(
    ("fields", "status", "hint"),
    [
        (NEEDS_APPROVAL, "nobody was asked", "nobody has been asked yet: `plan resume {} --offline` asks for the approval"),
        ({}, "needs no approval", "the plan needs no approval, but no process is running it: `plan resume {} --offline`"),
    ],
    ids=["needs approval", "needs none"],
)
def test_a_run_whose_process_died_before_its_gate_shows_what_it_waits_for(
    plan: Plan, fields: dict[str, Any], status: str, hint: str
) -> None:
    async def create() -> str:
        bound = bind_inputs(validate(load_plan(document(GREET, **fields)), ToolRegistry([greet])), {})
        async with PlanStore() as store:
            return (await create_run(bound, store, RunRequest())).id

    run_id = asyncio.run(create())
    assert f"({status}, not resumed yet)" in plan("runs").out
    assert hint.format(run_id).replace(" --offline", "") in plan("show", run_id).next


@pytest.mark.parametrize("verb", ["gates", "runs"])
def test_an_unattended_gate_expires_when_it_is_listed(plan: Plan, verb: str) -> None:
    run_id = waiting(plan, options={"require_approval": True, "approval_timeout_ms": 1})
    assert [line["status"] for line in plan(verb, "--json").lines] == ([] if verb == "gates" else ["cancelled"])
    run = plan("show", run_id, "--json").run
    assert (run["status"], run["reason"]) == ("cancelled", "expired")
    result = plan("approve", run_id, "--yes")
    assert (result.code, "nobody answered until" in result.err) == (3, True)
    assert plan("resume", run_id, "--offline", *TOOLS).code == 3


@pytest.mark.parametrize(
    ("verb", "code", "message"),
    [
        (("show",), 0, "nobody answered within 1 ms"),
        (("approve",), 3, "nobody answered until"),
        (("reject",), 3, "nobody answered until"),
        (("resume", "--offline", *TOOLS), 3, "has expired; resuming does not approve it"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_every_command_closes_an_expired_gate(plan: Plan, verb: tuple[str, ...], code: int, message: str) -> None:
    run_id = waiting(plan, options={"require_approval": True, "approval_timeout_ms": 1})
    result = plan(verb[0], run_id, *verb[1:])
    assert (result.code, message in result.out + result.err) == (code, True)
    assert plan("show", run_id, "--json").run["reason"] == "expired"


async def open_many(count: int) -> None:
    """Open `count` step gates of the newest run."""
    async with PlanStore() as store:
        (run, *_) = await store.runs()
        policy = GatePolicy(approvers=("ana", "bo"), requested_by="me")
        gate = Gate("", run.id, None, None, "d" * 64, run.name, "说明", "text\n" * 200, policy, opened_at=run.created_at)
        for number in range(count):
            await store.gates.open(replace(gate, id=new_id(), step_id=f"step-{number}"), timeout_ms=60_000)


def test_two_open_gates_show_both_commands(plan: Plan) -> None:
    run_id = waiting(plan)
    asyncio.run(open_many(1))
    assert f"`, `plan approve {run_id} step-0 --digest {'d' * 12}`; `plan gates` lists" in plan("show", run_id).next


@pytest.mark.thorough
def test_a_thousand_open_gates_are_listed(plan: Plan) -> None:
    waiting(plan)
    asyncio.run(open_many(999))
    for arguments in (("--json",), ()):
        result = plan("gates", "--limit", "2000", *arguments)
        assert (result.code, len(result.out.splitlines())) == (0, 1000 + (not arguments))


def test_gates_are_shown_in_json_events(plan: Plan) -> None:
    result = plan("run", document(GREET, **NEEDS_APPROVAL), "--offline", "--yes", "--json", *TOOLS)
    opened, answered = (line for line in result.lines if line.get("event") in ("gate_opened", "gate_answered"))
    assert (opened["gate"]["step"], opened["gate"]["end"], answered["gate"]["end"]) == (None, None, "answered")
    assert answered["message"] == f"approved by {ME} (os_user): --yes"
    assert json.loads(result.out.splitlines()[-1])["status"] == "completed"


def test_an_approval_that_is_valid_again_closes_the_reopened_gate(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"sre": [ME]}))
    run_id = waiting(plan, approval={"approvers": ["sre"]})
    assert f"; only {ME} may answer; no process is waiting" in plan("show", run_id, "--all").out
    assert plan("approve", run_id, "--digest", digest_of(plan, run_id)).code == 0
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"sre": ["li"]}))
    assert resumed(plan, run_id).code == 6  # the approval is stale, so the gate opens again
    assert len(plan("gates", "--json").lines) == 1
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"sre": [ME]}))
    assert resumed(plan, run_id).code == 0
    assert plan("gates", "--json").lines == []
    assert [gate.end for gate in _gates(run_id)] == ["answered", "cancelled"]


def _gates(run_id: str) -> list[Gate]:
    async def read() -> list[Gate]:
        async with PlanStore() as store:
            return await store.gates.find(run_id=run_id, open_only=False)

    return asyncio.run(read())
