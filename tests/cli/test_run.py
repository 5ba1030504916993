"""`plan run` and what can be asked about runs afterwards, without a server: exit codes, events, approvals, cancelling, resuming."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.store.store import PlanStore
from tests.cli.conftest import Plan, Said

TOOLS = ("--tools", "tests.cli.some_tools:registry")


def document(*steps: dict[str, Any], **fields: Any) -> Path:
    """A plan document in a file; it needs no approval unless `options` say so."""
    path = Path("计划.json")
    plan = {"name": "试运行", "description": "A test", "options": {"require_approval": False}, "steps": list(steps), **fields}
    path.write_text(json.dumps(plan, ensure_ascii=False), encoding="utf-8")
    return path


def step(step_id: str, tool_name: str, **fields: Any) -> dict[str, Any]:
    """A step of a document."""
    return {"id": step_id, "tool_name": tool_name, **fields}


GREET = step("greet", "greet", parameters={"who": "世界"})


@pytest.fixture
def go(plan: Plan):
    """Runs a document offline with the tests' tools."""

    def call(path: Path, *arguments: str | Path) -> Said:
        return plan("run", path, "--offline", *TOOLS, *arguments)

    return call


Go = Any


def test_a_good_run_ends_with_0_its_progress_on_stderr_and_its_outputs_on_stdout(go: Go) -> None:
    said = go(document(GREET, outputs={"text": "${{ steps.greet.result.text }}"}))
    assert said.code == 0
    first, second = said.out.splitlines()
    assert first.startswith("试运行: completed in ")
    assert first.endswith(": 1 completed")
    assert second == "text: 你好, 世界"
    lines = said.err.splitlines()
    assert lines[0].endswith(" of 试运行: 1 step")
    assert lines[1] == "greet: started"
    assert lines[2].startswith("greet: completed in ")
    assert "\x1b" not in said.err + said.out


def test_json_is_the_events_and_the_run_as_its_last_line(go: Go) -> None:
    said = go(document(GREET), "--json")
    assert [line.get("event") for line in said.lines] == ["run_started", "step_started", "step_completed", "run_ended", None]
    run = said.run
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
def test_a_run_that_does_not_complete_ends_with_the_code_of_its_reason(
    go: Go, steps: list[dict[str, Any]], fields: dict[str, Any], code: int, status: str, reason: str
) -> None:
    said = go(document(*steps, **fields), "--json")
    assert (said.code, said.run["status"], said.run["reason"]) == (code, status, reason)


def test_a_failed_step_says_why_and_those_behind_it_do_too(go: Go) -> None:
    failing = step("a", "fail", parameters={"text": "磁盘满了"}, max_retries=1)
    said = go(document(failing, step("b", "greet", parameters={"who": "x"}, depends_on=["a"])))
    assert "磁盘满了; retrying now" in said.err
    assert "a: failed after 1 retry: " in said.err
    assert "b: skipped: " in said.err
    assert "plan resume" in said.err


def test_problems_of_the_plan_end_with_2_before_anything_is_recorded(go: Go, plan: Plan) -> None:
    said = go(document(step("a", "gret", parameters={"who": "x"})))
    assert said.code == 2
    assert "did you mean `greet`?" in said.err
    assert said.out == ""
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
def test_inputs_that_do_not_fit_end_with_2(go: Go, arguments: tuple[str, ...], message: str) -> None:
    said = go(document(GREET, inputs={"n": {"type": "integer"}}), *arguments)
    assert said.code == 2
    assert message in said.err


def test_inputs_from_options_override_those_from_a_file(go: Go) -> None:
    Path("inputs.yaml").write_text("who: 文件\nn: 2\n", encoding="utf-8")
    greeting = step("greet", "greet", parameters={"who": "${{ inputs.who }} ${{ inputs.n }}"})
    path = document(greeting, inputs={"who": {"type": "string"}, "n": {"type": "integer"}})
    said = go(path, "--inputs", "inputs.yaml", "--input", "who=a=b", "--json")
    assert said.run["inputs"] == {"who": "a=b", "n": 2}
    assert said.run["steps"][0]["result"] == {"text": "你好, a=b 2"}


NEEDS_APPROVAL: dict[str, Any] = {"options": {"require_approval": True}}


def test_yes_approves_in_the_name_of_the_operating_systems_user(go: Go) -> None:
    said = go(document(GREET, **NEEDS_APPROVAL), "--yes", "--json")
    assert said.code == 0
    assert said.run["approved_by"]
    assert said.run["approved_at"]


@pytest.mark.parametrize("flags", [(), ("--detach",)])
def test_where_nobody_can_be_asked_the_run_waits_and_the_command_ends_with_6(go: Go, plan: Plan, flags: tuple[str, ...]) -> None:
    said = go(document(GREET, **NEEDS_APPROVAL), *flags)
    assert said.code == 6
    run = plan("runs", "--json", "--status", "pending_approval").run
    assert f"plan resume {run['id']}" in said.err
    resumed = plan("resume", run["id"][:-1], "--offline", *TOOLS)
    assert resumed.code == 6
    resumed = plan("resume", run["id"], "--offline", "--yes", "--json", *TOOLS)
    assert (resumed.code, resumed.run["status"], resumed.run["id"]) == (0, "completed", run["id"])


def test_resuming_a_run_that_waits_with_nobody_to_ask_says_how_it_is_approved_and_changes_nothing(go: Go, plan: Plan) -> None:
    run = go(document(GREET, **NEEDS_APPROVAL), "--json").run
    said = plan("resume", run["id"], "--offline", "--detach", *TOOLS, "--json")
    assert (said.code, said.run) == (6, run)
    assert f"`plan approve {run['id']} --digest {run['approval_digest'][:12]}`" in said.err


def test_times_in_json_are_of_iso_8601(go: Go) -> None:
    assert "T" in go(document(GREET), "--json").run["created_at"]


def test_a_run_that_waits_can_be_cancelled(go: Go, plan: Plan) -> None:
    run = go(document(GREET, **NEEDS_APPROVAL), "--json").run
    said = plan("cancel", run["id"], "--reason", "不需要了", "--json")
    assert (said.code, said.run["status"], said.run["reason"]) == (0, "cancelled", "cancelled")
    assert said.run["message"].startswith("不需要了")
    again = plan("cancel", run["id"])
    assert again.code == 2
    assert "has ended" in again.err


def test_ctrl_c_cancels_the_run_with_its_reason_and_ends_with_130(go: Go, plan: Plan) -> None:
    said = go(document(step("a", "interrupt_and_wait"), step("b", "greet", parameters={"who": "x"}, depends_on=["a"])), "--json")
    assert said.code == 130
    run = said.run
    assert (run["status"], run["reason"]) == ("cancelled", "cancelled")
    assert "Ctrl-C" in run["message"]
    assert [found["status"] for found in run["steps"]][1] == "skipped"
    assert plan("show", run["id"], "--json").run["status"] == "cancelled"


def test_a_second_ctrl_c_forces_the_end(go: Go, plan: Plan) -> None:
    said = go(document(step("a", "interrupt_and_wait", parameters={"times": 2})))
    assert said.code == 130
    assert "interrupted" in said.err
    assert plan("runs", "--json").run["status"] in ("executing", "cancelled")


def test_resume_carries_what_succeeded(go: Go, plan: Plan, tmp_path: Path) -> None:
    path = document(GREET, step("b", "once", parameters={"path": str(tmp_path / "mark")}, depends_on=["greet"]))
    first = go(path, "--json")
    assert first.code == 1
    again = plan("resume", first.run["id"][:30], "--offline", "--json", *TOOLS)
    assert (again.code, again.run["id"], again.run["status"]) == (0, first.run["id"], "completed")
    assert [found["carried"] for found in again.run["steps"]] == [True, False]
    third = plan("resume", first.run["id"], "--offline", *TOOLS)
    assert third.code == 2
    assert "has completed" in third.err


def test_runs_are_listed_newest_first(go: Go, plan: Plan) -> None:
    ids = [go(document(GREET), "--json").run["id"] for _ in range(3)]
    failed = go(document(step("a", "fail")), "--json").run["id"]
    listed = plan("runs", "--json").lines
    assert [run["id"] for run in listed] == [failed, *reversed(ids)]
    assert {"id", "name", "status", "digest", "flow_run_id", "created_at"} <= listed[0].keys()
    assert [run["id"] for run in plan("runs", "--json", "--limit", "2").lines] == [failed, ids[2]]
    assert [run["id"] for run in plan("runs", "--json", "--status", "failed").lines] == [failed]
    table = plan("runs").out.splitlines()
    assert table[0].split() == ["RUN", "PLAN", "STATUS", "STEPS", "CREATED", "TOOK"]
    assert table[1].split()[:5] == [failed, "试运行", "failed", "(step_failed)", "0/1"]


def test_show_finds_a_run_by_the_beginning_of_its_id(go: Go, plan: Plan) -> None:
    run = go(document(GREET, step("b", "fail", depends_on=["greet"])), "--json").run
    said = plan("show", run["id"][:-2])
    assert said.code == 0
    assert said.out.startswith("# 试运行: partial, step_failed")
    assert "1. **greet** `greet`: completed in " in said.out
    assert '   - result: `{"text": "你好, 世界"}`' in said.out
    shown = plan("show", run["id"], "--json")
    assert len(shown.lines) == 1
    told = shown.run
    assert [len(step.pop("calls")) for step in told["steps"]] == [1, 1]
    assert told == {**run, "gates": [], "approvals": told["approvals"], "code_changes": [], "earlier_steps": []}
    assert [answer["known_by"] for answer in told["approvals"]] == ["not_required"]


def test_an_ambiguous_or_unknown_run_is_refused(go: Go, plan: Plan) -> None:
    ids = [go(document(GREET), "--json").run["id"] for _ in range(2)]
    said = plan("show", ids[0][:5])
    assert said.code == 2
    assert "several runs begin with" in said.err
    assert plan("show", "0000000").code == 2


def test_logs_without_a_server_are_what_the_receipts_kept(go: Go, plan: Plan) -> None:
    echo = step("echo", "run_command", parameters={"argv": ["printf", "一\\n二\\n"]})
    run = go(document(echo, step("b", "fail", depends_on=["echo"], max_retries=1)), "--json").run
    texts = [(line["step"], line["text"]) for line in plan("logs", run["id"], "--json").lines]
    assert texts[0] == ("echo", "一\n二\n")
    assert [name for name, _ in texts] == ["echo", "b", "b"]
    assert [line.split(" ", 1)[1] for line in plan("logs", run["id"], "--step", "echo").out.splitlines()] == ["echo | 一", "echo | 二"]
    assert plan("logs", run["id"], "echo").out == plan("logs", run["id"], "--step", "echo").out
    assert plan("logs", run["id"], "--step", "ehco").code == 2
    assert plan("logs", run["id"], "ehco").code == 2


async def save(digest: str) -> None:
    """Save the stored plan of this digest under a name."""
    async with PlanStore() as store:
        await store.save(await store.get(digest), name="保存的", author="me")


def test_a_stored_plan_runs_again_by_its_digest(go: Go, plan: Plan) -> None:
    digest = go(document(GREET), "--json").run["digest"]
    Path("计划.json").unlink()
    assert plan("run", digest, "--offline", *TOOLS, "--json").run["digest"] == digest
    assert plan("show", digest, "--json").run["digest"] == digest
    assert plan("preview", f"sha256:{digest}", *TOOLS).code == 0
    asyncio.run(save(digest))
    assert plan("run", "store:保存的@1", "--offline", *TOOLS, "--json").run["digest"] == digest
    assert plan("validate", "store:保存的", *TOOLS).code == 0
    said = plan("run", "store:nothing@3", "--offline")
    assert said.code == 2
    assert "nothing" in said.err


def test_a_store_that_cannot_be_used_ends_with_2_and_shows_no_password(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", "postgresql://me:s3cret@127.0.0.1:1/none")
    said = plan("runs")
    assert said.code == 2
    assert "s3cret" not in said.err + said.out
    assert len(said.err.splitlines()) == 1


def test_a_setting_that_is_none_is_named_without_its_value(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_LOCAL_SERVER", "s3cret")
    said = plan("runs")
    assert said.code == 2
    assert said.err == "plan: PLAN_ADAPTER_LOCAL_SERVER: Input should be 'auto' or 'never'\n"


def test_the_store_is_shown_and_upgraded(plan: Plan, home: Path) -> None:
    said = plan("store", "--json")
    assert said.code == 0
    assert str(home) in said.run["store"]
    assert plan("store", "upgrade").out.splitlines()[0].endswith(f"upgraded to revision {said.run['revision']}")


def test_without_a_server_the_error_names_the_options(plan: Plan) -> None:
    said = plan("run", document(GREET), *TOOLS)
    assert said.code == 2
    assert "--offline" in said.err
    assert plan("runs", "--json").lines == []


def test_the_doctor_names_what_is_wrong_and_ends_with_2(plan: Plan) -> None:
    said = plan("doctor", "--json")
    bad = [finding for finding in said.lines if not finding["ok"]]
    assert said.code == 2
    assert [finding["what"] for finding in bad] == ["Prefect's settings name no API URL, and a local server may not be started"]
    assert "BAD " in plan("doctor").out


def test_an_unexpected_error_is_one_line_and_a_kept_traceback(plan: Plan, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plan_adapter.cli import explain

    def broken(_code: str | None = None, /) -> int:
        raise ZeroDivisionError("postgresql://me:s3cret@host/db")

    monkeypatch.setattr(explain, "explain", broken)
    said = plan("explain", "cycle")
    assert said.code == 1
    assert len(said.err.splitlines()) == 1
    kept = home / "last-error.txt"
    assert str(kept) in said.err
    assert "ZeroDivisionError" in kept.read_text()
    assert "s3cret" not in kept.read_text()
    with pytest.raises(ZeroDivisionError):
        plan("explain", "cycle", "--debug")
