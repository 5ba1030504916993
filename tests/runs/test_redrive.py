"""Tests of partial resumes: from one step, only failed steps, or without a skipped step."""

import json
from pathlib import Path

import pytest

from plan_adapter.cli.app import main
from plan_adapter.store.store import PlanStore

PLAN = """
name: 发布
description: Build, then check and note, then tell
options: {{require_approval: false, stop_on_error: false}}
steps:
  - {{id: build, tool_name: bash, description: Build, parameters: {{command: "echo build >> {log}"}}}}
  - {{id: check, tool_name: bash, description: C, depends_on: [build], parameters: {{command: "test -e {ready} && echo check >> {log}"}}}}
  - {{id: note, tool_name: bash, description: N, depends_on: [build], parameters: {{command: "test -e {ready} && echo note >> {log}"}}}}
  - {{id: tell, tool_name: bash, description: Tell, parameters: {{command: "echo tell >> {log}"}}, depends_on: [check]}}
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def run_id(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the id of a run whose first step succeeded, two steps failed, and last step was not reached."""
    (tmp_path / "plan.yaml").write_text(PLAN.format(log=log, ready=tmp_path / "ready"), encoding="utf-8")
    assert main(["run", str(tmp_path / "plan.yaml"), "--offline", "--json"]) == 1
    return json.loads(capsys.readouterr().out.splitlines()[-1])["id"]


def lines(log: Path) -> list[str]:
    return log.read_text().split()


def test_resuming_from_a_step_runs_only_that_step_and_its_dependents(run_id: str, tmp_path: Path, log: Path) -> None:
    (tmp_path / "ready").touch()
    assert main(["resume", run_id, "--offline", "--from", "check"]) == 1  # not completed: `note` was left out
    assert lines(log) == ["build", "check", "tell"]
    assert main(["resume", run_id, "--offline"]) == 0
    assert lines(log) == ["build", "check", "tell", "note"]


def test_a_skipped_step_keeps_its_reason_and_the_other_steps_run(
    run_id: str, tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", run_id, "--offline", "--only-failed", "--skip", "check", "--note", "它没有用", "--json"]) == 1
    run = json.loads(capsys.readouterr().out.splitlines()[-1])
    ends = {step["id"]: (step["status"], step["reason"]) for step in run["steps"]}
    assert ends["check"][0] == "skipped"
    assert "它没有用" in ends["check"][1]
    assert (ends["tell"][0], ends["note"][0]) == ("completed", "failed")
    assert lines(log) == ["build", "tell"]


def test_only_approvers_can_skip_a_step(
    run_id: str, log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_APPROVERS", "ana-of-elsewhere")
    assert main(["resume", run_id, "--offline", "--skip", "check", "--note", "快点"]) != 0
    assert "the step is not skipped" in capsys.readouterr().err
    assert lines(log) == ["build"]


def test_a_step_done_by_hand_is_carried_with_the_given_result(
    run_id: str, tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resolve", run_id, "check", "done", "--result", '{"checked": "人工"}']) == 0
    capsys.readouterr()
    assert main(["resume", run_id, "--offline", "--from", "tell", "--json"]) == 1
    run = json.loads(capsys.readouterr().out.splitlines()[-1])
    ends = {step["id"]: (step["status"], step["carried"], step["result"]) for step in run["steps"]}
    assert ends["check"] == ("completed", True, {"checked": "人工"})
    assert lines(log) == ["build", "tell"]
    assert main(["verify", run_id]) == 0


async def test_the_preview_shows_what_a_resume_would_do(run_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    assert await asyncio.to_thread(main, ["preview", "--resume", run_id, "--from", "check", "--json"]) == 0
    choices = json.loads(capsys.readouterr().out)["steps"]
    assert [(fate["id"], fate["fate"]) for fate in choices] == [("build", "carried"), ("check", "run"), ("note", "left"), ("tell", "run")]
    async with PlanStore() as store:
        assert (await store.run(run_id)).status == "partial"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--from", "build"], 8, "`build` has succeeded, and is never run again in this run"),
        (["--from", "tell"], 8, "`tell` depends on `check`, which has not succeeded"),
        (["--skip", "check"], 2, "--skip STEP needs --note WHY, and --note needs --skip"),
        (["--skip", "nowhere", "--note", "x"], 2, "no step is called `nowhere`"),
    ],
)
def test_invalid_resume_options_are_refused_before_anything_runs(
    options: list[str], code: int, message: str, run_id: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", run_id, "--offline", *options]) == code
    assert message in capsys.readouterr().err
    assert lines(log) == ["build"]
