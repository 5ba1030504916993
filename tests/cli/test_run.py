"""Tests of `plan run`, `runs`, `show`, `logs`, `cancel` and `resume` without a server: exit codes, events and approvals."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.store.store import PlanStore
from tests.cli.conftest import CommandResult, Plan

TOOLS = ("--tools", "tests.cli.some_tools:registry")


def document(*steps: dict[str, Any], **fields: Any) -> Path:
    """Write a plan document and return its path; it needs no approval unless `options` require one."""
    path = Path("计划.json")
    plan = {"name": "试运行", "description": "A test", "options": {"require_approval": False}, "steps": list(steps), **fields}
    path.write_text(json.dumps(plan, ensure_ascii=False), encoding="utf-8")
    return path


def step(step_id: str, tool_name: str, **fields: Any) -> dict[str, Any]:
    """Return a step of a document."""
    return {"id": step_id, "tool_name": tool_name, **fields}


GREET = step("greet", "greet", parameters={"who": "世界"})


@pytest.fixture
def run_offline(plan: Plan):
    """Return a function that runs a document offline with the tests' tools."""

    def call(path: Path, *arguments: str | Path) -> CommandResult:
        return plan("run", path, "--offline", *TOOLS, *arguments)

    return call


RunOffline = Any


def test_a_completed_run_exits_with_0_and_prints_progress_to_stderr_and_outputs_to_stdout(run_offline: RunOffline) -> None:
    result = run_offline(document(GREET, outputs={"text": "${{ steps.greet.result.text }}"}))
    assert result.code == 0
    first, second = result.out.splitlines()
    assert first.startswith("试运行: Completed in ")
    assert first.endswith(": 1 of 1 step done")
    assert second == "text: 你好, 世界"
    lines = result.err.splitlines()
    assert lines[0].endswith(" of 试运行: 1 step")
    assert lines[1] == "greet: started"
    assert lines[2].startswith("greet: completed in ")
    assert "\x1b" not in result.err + result.out


def test_json_prints_the_events_and_the_run_as_the_last_line(run_offline: RunOffline) -> None:
    result = run_offline(document(GREET), "--json")
    assert [line.get("event") for line in result.lines] == ["run_started", "step_started", "step_completed", "run_ended", None]
    run = result.run
    assert {"id", "name", "status", "digest", "flow_run_id", "created_at", "steps"} <= run.keys()
    assert (run["name"], run["status"], run["flow_run_id"]) == ("试运行", "completed", None)
    assert {"id", "status", "outcome", "result", "error", "attempts", "started_at", "completed_at"} <= run["steps"][0].keys()
    assert run["steps"][0]["result"] == {"text": "你好, 世界"}


@pytest.mark.parametrize(
    ("steps", "fields", "code", "status", "reason"),
    [
        ([step("a", "fail")], {}, 1, "failed", "step_failed"),
        ([GREET, step("b", "fail", depends_on=["greet"])], {}, 1, "partial", "step_failed"),
        ([step("a", "wait")], {"options": {"require_approval": False, "total_timeout_ms": 50}}, 5, "failed", "timed_out"),
        ([step("a", "write_and_wait", timeout_ms=50)], {}, 7, "failed", "unknown"),
    ],
    ids=["failed", "partial", "timed out", "unknown"],
)
def test_an_incomplete_run_exits_with_the_code_of_its_reason(
    run_offline: RunOffline, steps: list[dict[str, Any]], fields: dict[str, Any], code: int, status: str, reason: str
) -> None:
    result = run_offline(document(*steps, **fields), "--json")
    assert (result.code, result.run["status"], result.run["reason"]) == (code, status, reason)


def test_a_failed_step_and_its_skipped_dependents_show_their_reasons(run_offline: RunOffline) -> None:
    failing = step("a", "fail", parameters={"text": "磁盘满了"}, max_retries=1)
    result = run_offline(document(failing, step("b", "greet", parameters={"who": "x"}, depends_on=["a"])))
    assert "磁盘满了; retrying now" in result.err
    assert "a: failed after 1 retry: " in result.err
    assert "b: skipped: " in result.err
    assert "plan resume" in result.err


def test_an_invalid_plan_exits_with_2_before_anything_is_recorded(run_offline: RunOffline, plan: Plan) -> None:
    result = run_offline(document(step("a", "gret", parameters={"who": "x"})))
    assert result.code == 2
    assert "did you mean `greet`?" in result.err
    assert result.out == ""
    assert plan("runs", "--json").lines == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing-input"),
        (("--input", "n=many"), "bad-input"),
        (("--input", "n=1", "--input", "m=2"), "unknown-input"),
        (("--input", "n"), "write --input name=value"),
        (("--input", "n=1", "--input", "n=2"), "given twice"),
        (("--inputs", "missing.json"), "missing.json"),
    ],
)
def test_invalid_inputs_exit_with_2(run_offline: RunOffline, arguments: tuple[str, ...], message: str) -> None:
    result = run_offline(document(GREET, inputs={"n": {"type": "integer"}}), *arguments)
    assert result.code == 2
    assert message in result.err


def test_inputs_from_options_override_those_from_a_file(run_offline: RunOffline) -> None:
    Path("inputs.yaml").write_text("who: 文件\nn: 2\n", encoding="utf-8")
    greeting = step("greet", "greet", parameters={"who": "${{ inputs.who }} ${{ inputs.n }}"})
    path = document(greeting, inputs={"who": {"type": "string"}, "n": {"type": "integer"}})
    result = run_offline(path, "--inputs", "inputs.yaml", "--input", "who=a=b", "--json")
    assert result.run["inputs"] == {"who": "a=b", "n": 2}
    assert result.run["steps"][0]["result"] == {"text": "你好, a=b 2"}


NEEDS_APPROVAL: dict[str, Any] = {"options": {"require_approval": True}}


def test_yes_approves_as_the_os_user(run_offline: RunOffline) -> None:
    result = run_offline(document(GREET, **NEEDS_APPROVAL), "--yes", "--json")
    assert result.code == 0
    assert result.run["approved_by"]
    assert result.run["approved_at"]


@pytest.mark.parametrize("flags", [(), ("--detach",)])
def test_the_run_waits_and_exits_with_6_if_nobody_can_be_asked(run_offline: RunOffline, plan: Plan, flags: tuple[str, ...]) -> None:
    result = run_offline(document(GREET, **NEEDS_APPROVAL), *flags)
    assert result.code == 6
    run = plan("runs", "--json", "--status", "pending_approval").run
    assert f"plan resume {run['id']}" in result.err
    resumed = plan("resume", run["id"][:-1], "--offline", *TOOLS)
    assert resumed.code == 6
    resumed = plan("resume", run["id"], "--offline", "--yes", "--json", *TOOLS)
    assert (resumed.code, resumed.run["status"], resumed.run["id"]) == (0, "completed", run["id"])


def test_resuming_an_unapproved_run_shows_the_approve_command_and_changes_nothing(run_offline: RunOffline, plan: Plan) -> None:
    run = run_offline(document(GREET, **NEEDS_APPROVAL), "--json").run
    result = plan("resume", run["id"], "--offline", "--detach", *TOOLS, "--json")
    assert (result.code, result.run) == (6, run)
    assert f"`plan approve {run['id']} --digest {run['approval_digest'][:12]}`" in result.err


def test_times_in_json_use_iso_8601(run_offline: RunOffline) -> None:
    assert "T" in run_offline(document(GREET), "--json").run["created_at"]


def test_a_waiting_run_can_be_cancelled(run_offline: RunOffline, plan: Plan) -> None:
    run = run_offline(document(GREET, **NEEDS_APPROVAL), "--json").run
    result = plan("cancel", run["id"], "--note", "不需要了", "--json")
    assert (result.code, result.run["status"], result.run["reason"]) == (0, "cancelled", "cancelled")
    assert result.run["message"].startswith("不需要了")
    again = plan("cancel", run["id"])
    assert again.code == 8
    assert "has ended" in again.err


def test_ctrl_c_cancels_the_run_with_its_reason_and_exits_with_130(run_offline: RunOffline, plan: Plan) -> None:
    result = run_offline(document(step("a", "interrupt_and_wait"), step("b", "greet", parameters={"who": "x"}, depends_on=["a"])), "--json")
    assert result.code == 130
    run = result.run
    assert (run["status"], run["reason"]) == ("cancelled", "cancelled")
    assert "Ctrl-C" in run["message"]
    assert [found["status"] for found in run["steps"]][1] == "skipped"
    assert plan("show", run["id"], "--json").run["status"] == "cancelled"


def test_a_second_ctrl_c_forces_the_end(run_offline: RunOffline, plan: Plan) -> None:
    result = run_offline(document(step("a", "interrupt_and_wait", parameters={"times": 2})))
    assert result.code == 130
    assert "interrupted" in result.err
    assert plan("runs", "--json").run["status"] in ("executing", "cancelled")


def test_resume_carries_completed_steps(run_offline: RunOffline, plan: Plan, tmp_path: Path) -> None:
    path = document(GREET, step("b", "once", parameters={"path": str(tmp_path / "mark")}, depends_on=["greet"]))
    first = run_offline(path, "--json")
    assert first.code == 1
    again = plan("resume", first.run["id"][:30], "--offline", "--json", *TOOLS)
    assert (again.code, again.run["id"], again.run["status"]) == (0, first.run["id"], "completed")
    assert [found["carried"] for found in again.run["steps"]] == [True, False]
    third = plan("resume", first.run["id"], "--offline", *TOOLS)
    assert third.code == 8
    assert "has completed" in third.err


def test_runs_are_listed_newest_first(run_offline: RunOffline, plan: Plan) -> None:
    ids = [run_offline(document(GREET), "--json").run["id"] for _ in range(3)]
    failed = run_offline(document(step("a", "fail")), "--json").run["id"]
    listed = plan("runs", "--json").lines
    assert [run["id"] for run in listed] == [failed, *reversed(ids)]
    assert {"id", "name", "status", "digest", "flow_run_id", "created_at"} <= listed[0].keys()
    assert [run["id"] for run in plan("runs", "--json", "--limit", "2").lines] == [failed, ids[2]]
    assert [run["id"] for run in plan("runs", "--json", "--status", "failed").lines] == [failed]
    table = [line.split() for line in plan("runs").out.splitlines()]
    assert table[0] == ["RUN", "RUNBOOK", "STATE", "DONE", "AGE"]
    assert table[1][:4] == [failed[-6:], "试运行", "Failed", "0/1"]
    table = [line.split() for line in plan("runs", "--wide").out.splitlines()]
    assert table[0] == ["RUN", "RUNBOOK", "STATE", "DONE", "CREATED", "TOOK"]
    assert table[1][:7] == [failed, "试运行", "Failed", "0", "of", "1", "step"]
    assert plan("show", failed[-6:]).code == 0


def test_show_finds_a_run_by_an_id_prefix(run_offline: RunOffline, plan: Plan) -> None:
    run = run_offline(document(GREET, step("b", "fail", depends_on=["greet"])), "--json").run
    result = plan("show", run["id"][:-2], "--all")
    assert result.code == 0
    assert result.out.startswith("# 试运行: Partial\n")
    assert "1. **greet** `greet`: completed in " in result.out
    assert '   - result: `{"text": "你好, 世界"}`' in result.out
    shown = plan("show", run["id"], "--json")
    assert len(shown.lines) == 1
    printed = shown.run
    assert [len(step.pop("calls")) for step in printed["steps"]] == [1, 1]
    assert printed.pop("next") == f"`plan resume {run['id']} --offline` resumes the run; completed steps are kept"
    more = {"gates": [], "code_changes": [], "earlier_steps": [], "trigger": None, "freeze_override": None, "variables": {}}
    assert printed == {**run, **more, "approvals": printed["approvals"]}
    assert [answer["known_by"] for answer in printed["approvals"]] == ["not_required"]


def test_an_ambiguous_or_unknown_run_is_refused(run_offline: RunOffline, plan: Plan) -> None:
    ids = [run_offline(document(GREET), "--json").run["id"] for _ in range(2)]
    result = plan("show", ids[0][:5], "--all")
    assert result.code == 2
    assert "several runs have an id that begins or ends with" in result.err
    assert plan("show", "0000000").code == 2


def test_logs_without_a_server_come_from_the_receipts(run_offline: RunOffline, plan: Plan) -> None:
    echo = step("echo", "run_command", parameters={"argv": ["printf", "一\\n二\\n"]})
    run = run_offline(document(echo, step("b", "fail", depends_on=["echo"], max_retries=1)), "--json").run
    texts = [(line["step"], line["text"]) for line in plan("logs", run["id"], "--json").lines]
    assert texts[0] == ("echo", "一\n二\n")
    assert [name for name, _ in texts] == ["echo", "b", "b"]
    assert [line.split(" ", 1)[1] for line in plan("logs", run["id"], "--step", "echo").out.splitlines()] == ["echo | 一", "echo | 二"]
    assert plan("logs", run["id"], "echo").out == plan("logs", run["id"], "--step", "echo").out
    assert plan("logs", run["id"], "--step", "ehco").code == 2
    assert plan("logs", run["id"], "ehco").code == 2


async def save(digest: str) -> None:
    """Save the stored plan with this digest under a name."""
    async with PlanStore() as store:
        await store.save(await store.get(digest), name="保存的", author="me")


def test_a_stored_plan_runs_again_by_its_digest(run_offline: RunOffline, plan: Plan) -> None:
    digest = run_offline(document(GREET), "--json").run["digest"]
    Path("计划.json").unlink()
    assert plan("run", digest, "--offline", *TOOLS, "--json").run["digest"] == digest
    assert plan("show", digest, "--json").run["digest"] == digest
    assert plan("preview", f"sha256:{digest}", *TOOLS).code == 0
    asyncio.run(save(digest))
    assert plan("run", "store:保存的@1", "--offline", *TOOLS, "--json").run["digest"] == digest
    assert plan("validate", "store:保存的", *TOOLS).code == 0
    result = plan("run", "store:nothing@3", "--offline")
    assert result.code == 2
    assert "nothing" in result.err


def test_an_unusable_store_exits_with_9_and_shows_no_password(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", "postgresql://me:s3cret@127.0.0.1:1/none")
    result = plan("runs")
    assert result.code == 9
    assert "s3cret" not in result.err + result.out
    assert len(result.err.splitlines()) == 1


def test_an_invalid_setting_is_reported_without_its_value(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_LOCAL_SERVER", "s3cret")
    result = plan("runs")
    assert result.code == 2
    assert result.err == "plan: PLAN_ADAPTER_LOCAL_SERVER: must be one of `auto`, `never`\n"


def test_the_store_is_shown_and_upgraded(plan: Plan, home: Path) -> None:
    result = plan("store", "--json")
    assert result.code == 0
    assert str(home) in result.run["store"]
    assert plan("store", "upgrade").out.splitlines()[0].endswith(f"upgraded to revision {result.run['revision']}")


def test_the_error_without_a_server_names_the_options(plan: Plan) -> None:
    result = plan("run", document(GREET), *TOOLS)
    assert result.code == 9
    assert "--offline" in result.err
    assert plan("runs", "--json").lines == []


def test_doctor_reports_problems_and_exits_with_9_without_a_server(plan: Plan) -> None:
    result = plan("doctor", "--json")
    bad = [finding for finding in result.lines if not finding["ok"]]
    assert result.code == 9
    assert [finding["what"] for finding in bad] == ["Prefect's settings name no API URL, and a local server may not be started"]
    assert "BAD " in plan("doctor").out


def test_an_unexpected_error_prints_one_line_and_saves_the_traceback(plan: Plan, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plan_adapter.cli.verbs import explain

    def broken(_code: str | None = None, /) -> int:
        raise ZeroDivisionError("postgresql://me:s3cret@host/db")

    monkeypatch.setattr(explain, "explain", broken)
    result = plan("explain", "cycle")
    assert result.code == 1
    assert len(result.err.splitlines()) == 1
    kept = home / "last-error.txt"
    assert str(kept) in result.err
    assert "ZeroDivisionError" in kept.read_text()
    assert "s3cret" not in kept.read_text()
    with pytest.raises(ZeroDivisionError):
        plan("explain", "cycle", "--debug")
