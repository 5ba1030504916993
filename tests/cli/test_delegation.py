"""Tests of escalation, delegation and authors on the command line: what is printed, and what is refused."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Plan, digest_of
from tests.cli.gated import ME, resumed, waiting
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document

DELEGATES = {"approvers": [ME, "ben"], "delegate": True}
ESCALATES = {"approvers": [ME, "ben"], "escalate": {"after": "30m", "to": ["老板"]}}


def test_an_approver_names_who_answers_instead(plan: Plan) -> None:
    run_id = waiting(plan, approval=DELEGATES)
    digest = digest_of(plan, run_id)
    given = plan("approve", run_id, "--delegate-to", "小明")
    assert (given.code, given.out) == (0, f"小明 may answer at 试运行, instead of {ME} (os_user): run {run_id}\n")
    assert f"`plan approve {run_id} --digest {digest[:12]}` is what 小明 types" in given.err
    assert "ben, 小明" in plan("gates").out
    (gate,) = plan("gates", "--json").lines
    assert [(each["by"], each["to"]) for each in gate["delegated"]] == [(ME, "小明")]
    assert f"- {ME} (os_user) let 小明 answer instead at " in plan("show", run_id, "--all").out
    refused = plan("approve", run_id, "--digest", digest)
    assert (refused.code, f"{ME} let 小明 answer instead; only ben, 小明 may" in refused.err) == (10, True)
    assert resumed(plan, run_id).code == 6
    assert plan("verify", run_id).code == 0
    entries = [json.loads(line) for line in plan("export", run_id).out.splitlines() if '"delegated"' in line]
    assert [(entry["row"]["by"], entry["row"]["message"]) for entry in entries] == [(ME, "小明")], entries


def test_a_delegation_as_json(plan: Plan) -> None:
    run_id = waiting(plan, approval=DELEGATES)
    answer = plan("approve", run_id, "--delegate-to", "小明", "--json").run
    assert (answer["decision"], answer["by"], answer["to"], answer["end"]) == ("delegate", ME, "小明", None)


def test_an_approver_takes_a_delegation_back(plan: Plan) -> None:
    run_id = waiting(plan, approval=DELEGATES)
    digest = digest_of(plan, run_id)
    assert plan("approve", run_id, "--delegate-to", "小明").code == 0
    given = plan("approve", run_id, "--take-back", "小明", "--note", "不用了")
    assert (given.code, given.out) == (0, f"小明 may no longer answer at 试运行 in the place of {ME} (os_user): run {run_id}\n")
    assert f"`plan approve {run_id} --digest {digest[:12]}` is what {ME} types" in given.err
    (gate,) = plan("gates", "--json").lines
    assert (gate["delegated"], [(each["by"], each["to"]) for each in gate["taken_back"]]) == ([], [(ME, "小明")])
    shown = plan("show", run_id, "--all").out
    assert f"- {ME} (os_user) let 小明 answer instead at " in shown
    assert f"- {ME} (os_user) took back at " in shown and " that 小明 may answer at the plan: 不用了" in shown
    again = plan("approve", run_id, "--take-back", "小明")
    assert (again.code, f"{ME} lets no '小明' answer here" in again.err) == (10, True)
    assert plan("approve", run_id, "--digest", digest).code == 0
    assert resumed(plan, run_id).code == 0
    assert plan("verify", run_id).code == 0


def test_a_name_that_nothing_mentions_is_reported(plan: Plan) -> None:
    Path("policy.json").write_text(json.dumps({"groups": {"cab": ["dana", "小明"]}, "allowed_signers": ["*@example.org ssh-ed25519 AAAA"]}))
    assert plan("policy", "set", "policy.json").code == 0
    assert plan("enroll", "eve").code == 0
    run_id = waiting(plan, approval={**DELEGATES, "escalate": {"after": "30m", "to": ["老板"]}})
    for known in ("老板", "dana", "小明", "zoe@example.org", "eve", "daemon"):
        given = plan("approve", run_id, "--delegate-to", known)
        assert (given.code, "nobody called" in given.err) == (0, False), given
        assert plan("approve", run_id, "--take-back", known).code == 0
    given = plan("approve", run_id, "--delegate-to", "dnaa")
    warning = "nobody called dnaa is among the approvers, operators, groups, signers, Slack users and one-time codes here"
    assert given.code == 0
    assert f"{warning} (did you mean `dana`?); if it is misspelt, `plan approve {run_id} --take-back dnaa` takes it back" in given.err
    assert plan("approve", run_id, "--take-back", "dnaa", "--json").code == 0
    other = plan("approve", run_id, "--delegate-to", "新来的 人", "--json")
    assert (other.run["to"], f"`plan approve {run_id} --take-back '新来的 人'` takes it back" in other.err) == ("新来的 人", True)


def test_the_end_of_a_delegation_as_json(plan: Plan) -> None:
    run_id = waiting(plan, approval=DELEGATES)
    assert plan("approve", run_id, "--delegate-to", "dana").code == 0
    answer = plan("approve", run_id, "--take-back", "dana", "--json").run
    assert (answer["decision"], answer["by"], answer["to"], answer["end"]) == ("take_back", ME, "dana", None)
    both = plan("approve", run_id, "--take-back", "dana", "--delegate-to", "dana")
    assert (both.code, "--delegate-to and --take-back exclude each other" in both.err) == (2, True)
    show = plan("approve", run_id, "--take-back", "dana", "--show")
    assert (show.code, "--take-back and --show exclude each other" in show.err) == (2, True)


@pytest.mark.parametrize(
    ("approval", "arguments", "code", "message"),
    [
        ({"approvers": [ME]}, (), 10, "the plan does not say `approval: {delegate: true}`"),
        (DELEGATES, ("--digest", "00000000"), 10, "no gate of this run has a digest beginning with 00000000"),
        (DELEGATES, ("--api",), 2, "--delegate-to and --api exclude each other"),
        (DELEGATES, ("--show",), 2, "--delegate-to and --show exclude each other"),
        (DELEGATES, ("--by", "ben"), 2, "--by alone proves nothing"),
    ],
    ids=["not allowed", "other content", "api", "show", "no proof"],
)
def test_a_delegation_that_is_refused(plan: Plan, approval: dict[str, object], arguments: tuple[str, ...], code: int, message: str) -> None:
    run_id = waiting(plan, approval=approval)
    result = plan("approve", run_id, "--delegate-to", "dana", *arguments)
    assert (result.code, message in result.err) == (code, True), result


def test_the_gate_says_when_it_escalates(plan: Plan) -> None:
    run_id = waiting(plan, approval=ESCALATES)
    text = plan("approve", run_id, "--show", "--json").run["text"]
    assert "It waits until somebody answers. If nobody has answered after 30 min, `老板` may answer as well." in text
    assert f"{ME}, ben (after 30 min also 老板)" in plan("gates").out
    (gate,) = plan("gates", "--json").lines
    assert (gate["escalates_to"], gate["is_escalated"], gate["escalates_at"] > gate["opened_at"]) == (["老板"], False, True)


@pytest.mark.parametrize(
    ("approval", "code", "message"),
    [
        ({"approvers": ["ana"], "escalate": {"to": ["bo"]}}, 2, "approval.escalate.after"),
        ({"approvers": ["ana"], "escalate": {"after": "30m"}}, 2, "approval.escalate.to"),
        ({"approvers": ["ana"], "escalate": {"after": "30m", "to": []}}, 2, "the gate escalates to nobody"),
        ({"approvers": ["ana"], "escalate": {"after": "30m", "to": [" bo"]}}, 2, "approval.escalate.to[0]"),
        ({"approvers": ["ana"], "escalate": {"after": "soon", "to": ["bo"]}}, 2, "`after` must be a duration with a unit"),
        ({"approvers": ["ana"], "escalate": {"after": "30m", "to": ["ana"]}}, 0, "everybody here may answer already"),
        ({"approvers": ["ana"], "timeout": "10m", "escalate": {"after": "30m", "to": ["bo"]}}, 0, "no gate is open for 30 min"),
        ({"delegate": True}, 0, "anyone may answer, so there is nothing to delegate"),
    ],
    ids=["no time", "nobody", "an empty list", "no name", "no duration", "the same people", "too late", "anyone"],
)
def test_validation_finds_what_cannot_hold(plan: Plan, approval: dict[str, object], code: int, message: str) -> None:
    result = plan("validate", document(GREET, **NEEDS_APPROVAL, approval=approval), *TOOLS)
    assert (result.code, message in result.err + result.out) == (code, True), result


def test_who_saved_a_plan_may_not_approve_it(plan: Plan) -> None:
    path = document(GREET, **NEEDS_APPROVAL, approval={"author_approval": False})
    assert plan("save", path, *TOOLS).code == 0
    run = plan("run", path, "--offline", "--json", "--detach", *TOOLS)
    assert run.run["status"] == "pending_approval", run
    assert f"anyone (not {ME}, an author)" in plan("gates").out
    refused = plan("approve", run.run["id"], "--yes")
    assert (refused.code, f"{ME} is an author of this plan and may not approve it; somebody else must approve it" in refused.err) == (
        10,
        True,
    )


def test_the_policy_of_the_store_excludes_authors_of_all_plans(plan: Plan) -> None:
    Path("policy.json").write_text(json.dumps({"author_approval": False}), encoding="utf-8")
    assert plan("policy", "set", "policy.json").code == 0
    run_id = waiting(plan)
    refused = plan("approve", run_id, "--yes")
    assert (refused.code, f"{ME} is an author of this plan" in refused.err) == (10, True)
