"""Tests of plans with goals on the command line, with a scripted model over HTTP and a timetable in a file."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import plan_adapter
from plan_adapter.gates.approval import os_user
from plan_adapter.model.rounds import CHECKS
from tests.agent.conftest import forget_model_servers
from tests.agent.goal_players import Player, Seen, Verifier, decides, playing, reads, writes
from tests.agent.server import scripted
from tests.cli.conftest import Plan
from tests.cli.drafting import configure
from tests.cli.gated import approve_what_was_shown
from tests.timetable.conftest import timetable

__all__ = ["forget_model_servers", "timetable"]

ME = os_user()
TOOLS = ("--tools", "deployments.timetable.week:TOOLS")


def document(**fields: Any) -> Path:
    path = Path("周计划.json")
    goal = {
        "id": "plan_week",
        "goal": "给高数作业 (任务 3) 找一个空位",
        "done_when": "任务 3 有了时间",
        "tools": ["get_task_info", "find_free", "place"],
        **fields.pop("goal", {}),
    }
    plan = {"name": "周计划", "description": "安排一周", "options": {"require_approval": False}, "steps": [goal], **fields}
    path.write_text(json.dumps(plan, ensure_ascii=False), encoding="utf-8")
    return path


def good(seen: Seen) -> dict[str, Any]:
    """Find a free slot, place the task, and cite the receipt."""
    if seen.proof("place"):
        return seen.end(f"任务 3 已安排：{seen.proof('place')}")
    free = seen.result("find_free")
    if free is None:
        return reads("find_free", day=2)
    return writes("place", task=3, day=free[0]["day"], slot=free[0]["slot"])


def unproven(seen: Seen) -> dict[str, Any]:
    return decides("done", goal_check="E1: 已经安排好了")


@pytest.fixture
def run_with_model(plan: Plan, monkeypatch: pytest.MonkeyPatch, timetable: Path):
    """Return a function that runs a command with a scripted model."""

    def call(player: Player, *arguments: str | Path, verifier: Verifier | None = None):
        with scripted(playing(player, verifier=verifier)) as server:
            configure(monkeypatch, server.url)
            return plan(*arguments)

    return call


def planned(plan: Plan, run_with_model: Any) -> str:
    """Complete a run with the `good` model and return its id."""
    run_id = run_with_model(good, "run", document(), "--offline", "--yes", "--json", *TOOLS).run["id"]
    assert approve_what_was_shown(plan).code == 0
    result = run_with_model(good, "resume", run_id, "--offline", "--json", *TOOLS)
    assert result.code == 0, result.err
    return run_id


def test_yes_does_not_confirm_calls_by_a_model(plan: Plan, run_with_model: Any) -> None:
    result = run_with_model(good, "run", document(), "--offline", "--yes", "--json", *TOOLS)
    assert (result.code, result.run["status"]) == (6, "pending_approval"), result.err
    where = (result.run["id"], "--step", "plan_week", "--item", "2")
    asked = plan("approve", *where, "--show").out
    assert asked.startswith("## The model asks to call place\n\n> place?\n")
    (command,) = [gate["command"] for gate in plan("gates", "--json").lines]
    unread = plan("approve", *where)
    assert (unread.code, f"`{command}` approves exactly" in unread.err, "--yes" in unread.err) == (2, True, False)
    unread = plan("approve", *where, "--yes")
    assert (unread.code, "a model asks for this call, which `--yes` does not confirm" in unread.err) == (10, True)
    assert f"then `{command}` approves it" in unread.err
    assert "Round 2 of the goal “给高数作业 (任务 3) 找一个空位”. A step of 周计划 (run …" in asked
    assert "The model has seen: `find_free` succeeded: " in asked
    assert '### The goal\n\n- `done_when`: `任务 3 有了时间`\n- round 1: `find_free` with `{"day": 2}`: succeeded in ' in asked
    rejected = plan("reject", *where, "--note", "太早了")
    assert "ends the run" not in rejected.err
    assert "resumes the run" in rejected.err


def test_a_goal_is_met_and_its_rounds_are_shown(plan: Plan, run_with_model: Any) -> None:
    run_id = planned(plan, run_with_model)
    (step,) = plan("show", run_id, "--json").run["steps"]
    assert tuple(step["result"]) == ("summary", "rounds", "evidence", "results")
    assert step["result"]["results"]["place"]["name"] == "高数作业"
    assert [(record["action"], record["tool"], record["verdict"]) for record in step["rounds"]] == [
        ("continue", "find_free", None),
        ("confirm", "place", None),
        ("done", None, "met"),
    ]
    assert {name: check["passed"] for name, check in step["rounds"][2]["checks"].items()} == dict.fromkeys(CHECKS, True)
    place = step["rounds"][1]
    assert (place["call"]["tool"], place["call"]["arguments"]["day"], place["call"]["outcome"]) == ("place", 2, "succeeded")
    assert [(reply["decision"], reply["by"]) for reply in place["replies"]] == [("approve", ME)]


def test_a_report_has_a_table_of_the_rounds_of_a_goal_with_their_evidence(plan: Plan, run_with_model: Any) -> None:
    assert plan("report", planned(plan, run_with_model), "-o", "run.html").code == 0
    table = Path("run.html").read_text(encoding="utf-8").partition("<th>evidence</th>")[2].partition("</table>")[0]
    rows = [[re.sub("<.*?>", "", cell) for cell in row.split("</td>")] for row in table.split("<tr>")[1:]]
    assert [(row[0], row[1]) for row in rows] == [
        ("1", "continue `find_free`: 好的"),
        ("2", "confirm `place`: place?"),
        ("3", "done: 任务 3 已安排：E2"),
    ]
    assert [row[2].partition(": succeeded in ")[0] for row in rows] == [
        "`find_free` with `{&quot;day&quot;: 2}`",
        "`place` with `{&quot;task&quot;: 3, &quot;day&quot;: 2, &quot;slot&quot;: 1}`",
        "",
    ]
    assert rows[1][3].startswith(f"confirmed by {ME} (os_user) at ") and rows[2][3].startswith("met")


def test_the_rounds_of_a_goal_are_shown_in_chronological_order(plan: Plan, run_with_model: Any) -> None:
    run_id = run_with_model(good, "run", document(), "--offline", "--detach", "--json", *TOOLS).run["id"]
    approve_what_was_shown(plan, "--note", "好")
    waits = run_with_model(good, "resume", run_id, "--offline", "--detach", *TOOLS, verifier=lambda _: "cannot_tell")
    assert waits.code == 6, waits.err
    plan("answer", run_id, "plan_week", "met=true")
    assert run_with_model(good, "resume", run_id, "--offline", *TOOLS).code == 0
    shown = re.sub(r" at [0-9: -]{19}| in \d+ ms|: `[{\[].*", "", plan("show", run_id, "--all").out.replace("\\", ""), flags=re.MULTILINE)
    head, _, rounds = shown.partition(" in calls of tools\n")
    assert "   - summary by the model: 好的\n" in head
    assert rounds.partition("\n\n")[0].splitlines() == [
        "   - round 1: continue `find_free`: 好的",
        '      - `find_free` with `{"day": 2}`: succeeded',
        "   - round 2: confirm `place`: place?",
        f"      - confirmed by {ME} (os_user): 好",
        '      - `place` with `{"task": 3, "day": 2, "slot": 1}`: succeeded',
        "   - round 3: done: 任务 3 已安排：E2",
        "      - cannot_tell: evidence: 依据证据",
        f"      - answered by {ME} (os_user)",
    ]


def test_the_duration_of_a_resumed_goal_covers_all_its_rounds(plan: Plan, run_with_model: Any) -> None:
    run_id = planned(plan, run_with_model)
    (step,) = plan("show", run_id, "--json").run["steps"]
    between = datetime.fromisoformat(step["completed_at"]) - datetime.fromisoformat(step["started_at"])
    assert step["duration_ms"] == round(between.total_seconds() * 1000) > 0
    assert datetime.fromisoformat(step["started_at"]) < datetime.fromisoformat(step["rounds"][1]["replies"][0]["at"])


def test_the_log_of_a_goal_has_a_line_for_each_decision(plan: Plan, run_with_model: Any) -> None:
    run_id = planned(plan, run_with_model)
    lines = plan("logs", run_id, "plan_week", "--json").lines
    assert [(line["step"], line["text"]) for line in lines if " " in line["step"].partition("[")[0] or "[" not in line["step"]] == [
        ("decision plan_week[1]", "continue find_free(day=2): 好的"),
        ("decision plan_week[2]", "confirm place(task=3, day=2, slot=1): place?"),
        ("decision plan_week[3]", "done: 任务 3 已安排：E2"),
        ("check plan_week[3]", "met: 依据证据"),
        ("plan_week", "the goal is met after 3 rounds: 好的"),
    ]


def test_an_unattended_run_waits_for_each_write(plan: Plan, run_with_model: Any) -> None:
    result = run_with_model(good, "run", document(), "--offline", "--detach", "--json", *TOOLS)
    assert result.code == 6, result.err
    run_id = result.run["id"]
    waiting = plan("show", run_id, "--all").out.replace("\\", "")
    assert "plan_week[round 2: place(task=3, day=2, slot=1)]" in waiting
    assert approve_what_was_shown(plan).code == 0
    ended = run_with_model(good, "resume", run_id, "--offline", "--json", *TOOLS)
    assert ended.code == 0, ended.err


def test_plan_answer_answers_a_question_from_the_model(plan: Plan, run_with_model: Any) -> None:
    def asking(seen: Seen) -> dict[str, Any]:
        answers = [evidence for evidence in seen.evidence if evidence["source"] == "user_reply"]
        return seen.end(answers[0]["id"]) if answers else decides("ask_user", speak="哪一天？")

    result = run_with_model(asking, "run", document(), "--offline", "--detach", "--json", *TOOLS)
    assert result.code == 6, result.err
    run_id = result.run["id"]
    assert f"{run_id} plan_week[round 1: question] asks: 哪一天？ (answer with answer=string)" in plan("gates").out
    assert plan("answer", run_id, "plan_week", "answer=星期二").code == 0
    assert run_with_model(asking, "resume", run_id, "--offline", *TOOLS).code == 0
    (step,) = plan("show", run_id, "--json").run["steps"]
    assert step["result"]["evidence"][0]["summary"] == '{"answer":"星期二"}'
    shown = plan("show", run_id, "--all").out.replace("\\", "")
    assert f"   - round 1: ask_user: 哪一天？\n      - answered by {ME} (os_user) at " in shown
    assert ': `{"answer": "星期二"}`\n   - round 2: ' in shown


def test_the_model_sees_a_rejection(plan: Plan, run_with_model: Any) -> None:
    def obeying(seen: Seen) -> dict[str, Any]:
        if seen.refusals:
            assert "太早了" in seen.refusals[0]
            return decides("abort", abort={"code": "refused", "user_message": "不安排了", "internal_reason": ""})
        return good(seen)

    run_id = run_with_model(obeying, "run", document(), "--offline", "--detach", "--json", *TOOLS).run["id"]
    rejected = plan("reject", run_id, "--step", "plan_week", "--item", "2", "--note", "太早了")
    assert rejected.code == 0, rejected.err
    ended = run_with_model(obeying, "resume", run_id, "--offline", "--json", *TOOLS)
    assert (ended.code, ended.run["status"]) == (1, "failed"), ended.err
    (step,) = plan("show", run_id, "--json").run["steps"]
    assert (step["reason"], step["error"]) == ("aborted", "the model gave up (refused): 不安排了")
    assert re.search(
        rf"round 2: confirm `place`: .*\n      - rejected by {ME} \(os_user\) at [^\n]*: 太早了\n   - round 3: abort",
        plan("show", run_id, "--all").out,
    )


def test_a_claim_without_evidence_is_refused_three_times_and_then_fails(plan: Plan, run_with_model: Any) -> None:
    result = run_with_model(unproven, "run", document(), "--offline", "--yes", "--json", *TOOLS)
    assert (result.code, result.run["status"], result.run["reason"]) == (1, "failed", "step_failed")
    (step,) = plan("show", result.run["id"], "--json").run["steps"]
    assert [(record["action"], record["verdict"]) for record in step["rounds"]] == [("done", "not_met")] * 3
    assert "evidence: there is no evidence yet" in step["error"]


def test_a_looping_model_ends_the_run_as_exhausted(run_with_model: Any) -> None:
    result = run_with_model(
        lambda seen: reads("find_free", day=1), "run", document(goal={"max_rounds": 4}), "--offline", "--yes", "--json", *TOOLS
    )
    assert (result.code, result.run["status"], result.run["reason"]) == (1, "failed", "exhausted")


def test_tools_in_always_execute_need_no_confirmation(plan: Plan, run_with_model: Any) -> None:
    path = document(approval={"always_execute": ["place"]})
    result = run_with_model(good, "run", path, "--offline", "--detach", "--json", *TOOLS)
    assert result.code == 0, result.err
    assert [(line["step"], line["message"]) for line in result.lines if line.get("event") == "spoken"] == [
        ("plan_week", "好的"),
        ("plan_week", "place?"),
        ("plan_week", "好的"),
    ]
    assert any("- `slot`: `1`" in line["message"] for line in result.lines if line.get("event") == "log")


def test_preview_shows_which_tools_a_model_may_call(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_MODEL", "m")
    path = document(goal={"max_rounds": 5, "timeout_ms": 60000}, approval={"always_execute": ["place"]})
    shown = plan("preview", path, *TOOLS).out
    assert "a model may call `get_task_info` (read), `find_free` (read), `place` (write, without a confirmation)" in shown
    assert "at most 5 rounds, and 1 min in calls" in shown
    assert (shown.count("找一个空位"), shown.count("任务 3 有了时间")) == (1, 1)
    assert "each call asks" in plan("preview", document(), *TOOLS).out
    assert "`place`" in plan("show", path, "--all").out


def test_a_run_without_a_model_is_refused_before_any_gate_opens(plan: Plan, timetable: Path) -> None:
    result = plan("run", document(), "--offline", "--yes", *TOOLS)
    assert result.code == 2
    assert "PLAN_ADAPTER_MODEL" in result.err


def test_erased_rounds_are_shown_as_erased(plan: Plan, run_with_model: Any) -> None:
    run_id = planned(plan, run_with_model)
    assert plan("erase", run_id, "--fields", "steps.plan_week.result", "--yes").code == 0
    shown = plan("show", run_id, "--all").out
    assert "任务 3 已安排" not in shown
    assert "   - round 1: an answer that could not be used: it was erased" in shown
    assert plan("verify", run_id).code == 0


def test_a_goal_reached_by_hand_can_be_recorded_as_done(plan: Plan, run_with_model: Any) -> None:
    result = run_with_model(
        lambda seen: reads("find_free", day=1), "run", document(goal={"max_rounds": 2}), "--offline", "--yes", "--json", *TOOLS
    )
    run_id = result.run["id"]
    refused = plan("resolve", run_id, "plan_week", "done", "--item", "2")
    assert refused.code == 8
    assert "has no call with an unknown outcome in round 2" in refused.err
    assert plan("resolve", run_id, "plan_week", "done", "--note", "手动安排了").code == 0
    assert plan("resume", run_id, "--offline", *TOOLS).code == 0


def test_the_example_in_the_guide_works_as_described(plan: Plan, run_with_model: Any) -> None:
    page = (Path(plan_adapter.__file__).parent / "guide" / "goals.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)

    def reports(seen: Seen) -> dict[str, Any]:
        if seen.proof("write_file"):
            return seen.end(f"{seen.proof('read_file')} shows the error, {seen.proof('write_file')} the report")
        if (answer := seen.result("read_file")) is None:
            return reads("read_file", path="web.log")
        return writes("write_file", path="report.txt", content=f"The newest error: {answer['text']}.")

    Path("web.log").write_text("disk full", encoding="utf-8")
    Path("report-errors.yaml").write_text(text, encoding="utf-8")
    waits = run_with_model(reports, "run", "report-errors.yaml", "--offline", "--detach", "--json")
    assert " report --item 2 --digest " in waits.err
    assert approve_what_was_shown(plan).code == 0
    done = run_with_model(reports, "resume", waits.run["id"], "--offline", "--json")
    assert (done.code, Path("report.txt").read_text(encoding="utf-8")) == (0, "The newest error: disk full."), done.err
    assert "   - round 3: done: E1 shows the error, E2 the report\n      - met: " in plan("show", waits.run["id"], "--all").out
