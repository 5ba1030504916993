"""Tests of gates with several approvers on the command line: what is printed, and what is refused."""

import asyncio
import json
from pathlib import Path

import pytest

from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.gate import request_of
from plan_adapter.store.store import PlanStore
from tests.cli.conftest import Plan, digest_of
from tests.cli.gated import ME, resumed, waiting
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document

TWO = {"approvers": [ME, "ben", "小明"], "quorum": 2}
MISSING = "1 of 2 approvals; the gate waits for ben or 小明"


def approve_as(by: str) -> None:
    """Approve at the only open gate, as another person would."""

    async def answer() -> None:
        async with PlanStore() as store:
            (gate,) = await store.gates.find()
            await store.gates.answer(gate.id, answer_to(request_of(gate), decision="approve", by=by, known_by="os_user"))

    asyncio.run(answer())


def test_the_first_of_two_approvals_says_what_is_missing_and_the_second_one_runs(plan: Plan) -> None:
    run_id = waiting(plan, approval=TWO)
    digest = digest_of(plan, run_id)
    assert "**Needs 2 approvals by different people.**" in plan("approve", run_id, "--show", "--json").run["text"]
    assert f"{ME}, ben, 小明: 0 of 2 approved" in plan("gates").out
    first = plan("approve", run_id, "--digest", digest)
    assert (first.code, first.out) == (0, f"one approval of 试运行, by {ME} (os_user): run {run_id}\n")
    assert first.err == f"recorded: {MISSING}\n"
    again = plan("approve", run_id, "--digest", digest)
    assert (again.code, f"{ME} has already approved; 1 more approval needed, by ben or 小明" in again.err) == (10, True)
    assert f"{ME}, ben, 小明: 1 of 2 approved" in plan("gates").out
    (gate,) = plan("gates", "--json").lines
    assert (gate["quorum"], [given["by"] for given in gate["approved_by"]], gate["end"]) == (2, [ME], None)
    assert f"; {MISSING} ({ME} approved at " in plan("show", run_id, "--all").out
    assert f"- approved by {ME} (os_user) at " in plan("show", run_id, "--all").out
    waits = resumed(plan, run_id)
    assert (waits.code, waits.run["status"]) == (6, "pending_approval")
    approve_as("ben")
    done = resumed(plan, run_id)
    assert (done.code, done.run["status"], done.run["approved_by"]) == (0, "completed", f"{ME} and ben")
    shown = plan("show", run_id, "--all").out
    assert f"- approved by {ME} and ben at " in shown
    assert f"- approved by {ME} (os_user) and ben (os_user) at " in shown
    assert plan("verify", run_id).code == 0


def test_an_approval_as_json_says_what_is_missing(plan: Plan) -> None:
    run_id = waiting(plan, approval=TWO)
    answer = plan("approve", run_id, "--digest", digest_of(plan, run_id), "--json").run
    assert (answer["decision"], answer["end"], answer["quorum"], answer["next"]) == ("approve", None, 2, f"recorded: {MISSING}")


def test_yes_is_one_approval(plan: Plan) -> None:
    path = document(GREET, **NEEDS_APPROVAL, approval=TWO)
    run = plan("run", path, "--offline", "--json", "--yes", *TOOLS)
    assert (run.code, run.run["status"]) == (6, "pending_approval")
    (gate,) = plan("gates", "--json").lines
    assert [given["by"] for given in gate["approved_by"]] == [ME]
    again = plan("resume", run.run["id"], "--offline", "--json", "--yes", *TOOLS)
    assert (again.code, "has already approved" in again.err) == (10, True)


def test_a_standing_approval_is_refused(plan: Plan) -> None:
    path = document(GREET, **NEEDS_APPROVAL, approval=TWO)
    result = plan("standing", "add", path, "--schedule", "a/b", "--runs", "1", *TOOLS)
    assert result.code == 2
    assert "2 different people must approve, each at the gate; a standing approval is by one person" in result.err
    assert plan("standing", "--json").lines == []


@pytest.mark.parametrize(
    ("approval", "code", "message"),
    [
        ({"quorum": 2}, 2, "2 different people must approve, and no `approvers` are named: one person could type several names"),
        ({"quorum": 0, "approvers": ["ana"]}, 2, "approval.quorum"),
        ({"quorum": 3, "approvers": ["ana", "Ana"]}, 0, "3 different people must approve, and `approvers` has 1 name"),
        ({"quorum": 2, "approvers": ["ana", "ben"]}, 0, "one person can claim several names"),
        ({"quorum": 2, "approvers": ["ana", "ben"], "known_by": ["totp", "form"]}, 0, "one person can claim several names"),
    ],
    ids=["nobody", "zero", "too few", "no proof", "weak proof"],
)
def test_validation_finds_a_quorum_that_cannot_hold(plan: Plan, approval: dict[str, object], code: int, message: str) -> None:
    result = plan("validate", document(GREET, **NEEDS_APPROVAL, approval=approval), *TOOLS)
    assert (result.code, message in result.err + result.out) == (code, True), result


def test_a_run_that_too_few_people_may_approve_does_not_start(plan: Plan) -> None:
    path = document(GREET, **NEEDS_APPROVAL, approval={"approvers": [ME, "ben"], "quorum": 2, "self_approval": False})
    result = plan("run", path, "--offline", *TOOLS)
    assert (result.code, "2 different people must approve, and only ben may" in result.err) == (10, True)
    assert plan("runs", "--json").lines == []


def test_a_policy_that_names_too_few_approvers_is_refused(plan: Plan) -> None:
    Path("policy.json").write_text(json.dumps({"approvers": ["sre"], "groups": {"sre": ["ana"]}, "quorum": 2}), encoding="utf-8")
    result = plan("policy", "set", "policy.json")
    assert (result.code, "2 different people must approve, and `approvers` names only ana" in result.err) == (2, True)


def test_the_setting_asks_for_more_than_the_plan(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_QUORUM", "3")
    waiting(plan, approval=TWO)
    assert [gate["quorum"] for gate in plan("gates", "--json").lines] == [3]
