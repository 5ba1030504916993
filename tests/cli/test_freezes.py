"""Tests of change freezes at the command line: `plan policy`, `plan preview`, `plan run`, `plan resume` and `plan show`."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.approval import os_user
from tests.cli.conftest import Plan
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document

ME = os_user()
NOW = datetime.now(UTC)
YEAR_END = {
    "name": "year-end",
    "tags": ["production"],
    "from": (NOW - timedelta(days=1)).isoformat(timespec="minutes"),
    "until": (NOW + timedelta(days=3)).isoformat(timespec="minutes"),
    "reason": "Year-end close",
}
UNTIL = f"{NOW + timedelta(days=3):%Y-%m-%d %H:%M} UTC"
WHY = ("--override-freeze", "INC-123: 热修复")


def freeze(plan: Plan, *freezes: dict[str, Any]) -> None:
    Path("policy.json").write_text(json.dumps({"groups": {"cab": [ME, "ben"]}, "freezes": freezes}), encoding="utf-8")
    done = plan("policy", "set", "policy.json")
    assert done.code == 0, done.err


def a_plan(**fields: Any) -> str:
    return document(GREET, tags=["production"], **fields)


def test_a_freeze_is_shown_with_the_policy_and_in_a_preview(plan: Plan) -> None:
    path = a_plan()
    freeze(plan, {**YEAR_END, "override": {"approvers": ["cab"], "quorum": 2}}, {**YEAR_END, "name": "elsewhere", "tags": ["staging"]})
    line = f"change freeze `year-end` until {UNTIL} (Year-end close): in force; runs are refused; cab can override it, 2 different people"
    assert line in plan("policy", "show").out
    shown = plan("preview", path, *TOOLS).out
    assert line in shown
    assert "elsewhere" not in shown
    (preview,) = plan("preview", path, *TOOLS, "--json").lines
    (found,) = preview["freezes"]
    assert {name: found[name] for name in ("name", "in_force", "when", "reason", "override")} == {
        "name": "year-end",
        "in_force": True,
        "when": "refuse",
        "reason": "Year-end close",
        "override": {"approvers": ["cab"], "quorum": 2},
    }


def test_a_run_is_refused_and_says_how_to_override_the_freeze(plan: Plan) -> None:
    path = a_plan()
    freeze(plan, {**YEAR_END, "override": {"approvers": ["cab"]}})
    refused = plan("run", path, *TOOLS, "--offline")
    assert (refused.code, refused.out) == (10, "")
    assert refused.err == (
        f"plan: the run does not start: change freeze `year-end` until {UNTIL} (Year-end close): cab can override it; "
        "`plan run … --override-freeze REASON` asks for that\n"
    )
    assert plan("runs", "--json").lines == []


def test_people_override_a_freeze_and_every_view_says_so(plan: Plan) -> None:
    path = a_plan(options={"require_approval": False})
    freeze(plan, {**YEAR_END, "override": {"approvers": ["cab"]}})
    waits = plan("run", path, *TOOLS, "--offline", "--detach", "--json", *WHY)
    assert waits.code == 6, waits.err
    run_id = waits.run["id"]
    shown = plan("show", run_id).out
    assert f"FREEZE year-end until {UNTIL} (Year-end close): approving overrides it. Asked for by {ME}: INC-123: 热修复" in shown
    assert f"override of a change freeze: {ME}: INC-123: 热修复" in shown
    (line,) = plan("show", run_id, "--json").lines
    assert line["freeze_override"] == f"{ME}: INC-123: 热修复"
    assert plan("approve", run_id, "--yes").code == 0
    done = plan("resume", run_id, *TOOLS, "--offline", "--json")
    assert (done.code, done.run["status"]) == (0, "completed"), done.err
    assert plan("verify", run_id).code == 0
    assert "override of a change freeze" in plan("show", run_id, "--all").out


def test_a_waiting_run_is_resumed_with_an_override(plan: Plan) -> None:
    path = a_plan(**NEEDS_APPROVAL)
    waits = plan("run", path, *TOOLS, "--offline", "--detach", "--json")
    freeze(plan, {**YEAR_END, "override": {"approvers": ["cab"]}})
    refused = plan("resume", waits.run["id"], *TOOLS, "--offline", "--detach")
    assert (refused.code, f"`plan resume {waits.run['id']} --override-freeze REASON` asks for that" in refused.err) == (10, True)
    again = plan("resume", waits.run["id"], *TOOLS, "--offline", "--detach", *WHY)
    assert again.code == 6, again.err
    (gate,) = plan("gates", "--json").lines
    assert gate["approvers"] == [ME, "ben"]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--override-freeze", " "), 2, "--override-freeze needs the reason"),
        ((*WHY, "--dry-run"), 2, "--override-freeze is for a run of this process"),
        ((*WHY, "--on-server"), 2, "--override-freeze is for a run of this process"),
        ((*WHY, "--offline", "--yes"), 10, "approved by people who see it at the gate, never in advance"),
    ],
)
def test_what_cannot_be_overridden(plan: Plan, options: tuple[str, ...], code: int, message: str) -> None:
    path = a_plan()
    freeze(plan, {**YEAR_END, "override": {"approvers": ["cab"]}})
    refused = plan("run", path, *TOOLS, *options)
    assert (refused.code, message in refused.err) == (code, True), refused.err


def test_a_calendar_with_an_error_sets_no_policy(plan: Plan) -> None:
    Path("policy.yaml").write_text("freezes:\n  - name: blackout\n    calendar: blackout.ics\n", encoding="utf-8")
    Path("blackout.ics").write_text("BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:banana\nEND:VEVENT\nEND:VCALENDAR\n", encoding="utf-8")
    refused = plan("policy", "set", "policy.yaml")
    assert refused.code == 2
    assert "policy.yaml:3:5: error[bad-freeze] at freezes[0].calendar: blackout.ics, line 3: DTSTART cannot be read" in refused.err
    assert plan("policy").out.startswith("the store has no policy")
