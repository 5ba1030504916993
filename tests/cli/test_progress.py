"""Tests of the displays: events as plain lines, as JSON Lines and on a live terminal."""

import io
import json
import re
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from plan_adapter.cli.exit_codes import ExitCode, code_of_run
from plan_adapter.cli.foreground import choose_display
from plan_adapter.cli.live import LiveDisplay
from plan_adapter.cli.progress_lines import CARRIED_LINES, JsonDisplay, PlainDisplay
from plan_adapter.cli.records import run_status_line
from plan_adapter.gates.conversation import Conversation
from plan_adapter.model.approvals import Gate, GatePolicy
from plan_adapter.model.hooks import Event
from plan_adapter.model.status import PlanStatus, RunReason, StepStatus
from plan_adapter.text.run_facts import step_end_text
from tests.cli.builders import NOW, a_run, a_step, sample_events


def links(flow_run_id: str) -> list[str]:
    return [f"http://127.0.0.1:4200/runs/flow-run/{flow_run_id}"]


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_plain_lines_show_every_event_without_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay(links)
    for event in sample_events():
        display(event)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "run 0192f0c4-0000-7000-8000-000000000001 of 发布流程: 3 steps",
        "http://127.0.0.1:4200/runs/flow-run/f-1",
        "构建: started",
        "构建: exit code 1 and more; retrying in 2 s",
        "构建: started",
        "构建: completed in 2.3 s after 1 retry",
        "test: started",
        r"test | 3 passed, 1 failed\x1b[0m",
        "test: failed: exit code 1",
        "ship: skipped: `test` failed",
    ]


@pytest.mark.parametrize(("count", "lines"), [(CARRIED_LINES, CARRIED_LINES), (CARRIED_LINES + 1, 1)])
def test_many_carried_steps_are_shown_in_one_line(
    count: int, lines: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = [a_step(f"s{number}", status=StepStatus.COMPLETED, carried=True) for number in range(count)]
    run = a_run(steps=[*carried, last := a_step("last", status=StepStatus.COMPLETED, duration_ms=72)])
    events = [Event("run_started", run), *(Event("step_completed", run, step) for step in [*carried, last])]
    plain, screen = PlainDisplay(links), Screen()
    for event in [*events, *events]:  # a new version of the plan starts over
        plain(event)
    shown = capsys.readouterr().err.splitlines()
    assert sum("carried from an earlier start of this run" in line for line in shown) == 2 * lines
    assert shown.count("last: completed in 72 ms") == 2
    monkeypatch.setattr(sys, "stderr", screen)
    live = LiveDisplay(links)
    for event in events:
        live(event)
    live.close()
    assert screen.getvalue().count("carried from an earlier start of this run") == lines


def test_attempts_of_items_are_not_counted_as_retries() -> None:
    assert step_end_text(a_step("a", status=StepStatus.COMPLETED, attempts=3, duration_ms=72)) == "72 ms"
    assert step_end_text(a_step("a", status=StepStatus.COMPLETED, attempts=5, retry_count=2, duration_ms=72)) == "72 ms after 2 retries"


def test_a_long_status_message_is_shortened() -> None:
    assert run_status_line(a_run(message="x" * 5000)).endswith("; " + "x" * 400 + "…")


def test_json_events_are_one_object_per_line_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    display = JsonDisplay(links)
    for event in sample_events():
        display(event)
    captured = capsys.readouterr()
    objects = [json.loads(line) for line in captured.out.splitlines()]
    assert [found["event"] for found in objects] == [event.kind for event in sample_events()]
    assert objects[0]["flow_run_id"] == "f-1"
    assert objects[2]["message"] == "exit code 1\nand more"
    assert objects[2]["delay_ms"] == 2000
    assert objects[4]["step"]["status"] == "completed"
    assert objects[6]["step"] == "test"
    assert captured.err == "http://127.0.0.1:4200/runs/flow-run/f-1\n"


def test_a_closed_output_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class ClosedStream(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", ClosedStream())
    monkeypatch.setattr(sys, "stderr", ClosedStream())
    for display in (JsonDisplay(links), PlainDisplay(links)):
        for event in sample_events():
            display(event)


def test_finished_steps_stay_on_the_terminal_with_the_logs_of_failed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    display = choose_display(as_json=False, links=links)
    assert isinstance(display, LiveDisplay)
    for event in sample_events():
        display(event)
    raw = screen.getvalue()
    shown = re.sub(r"\x1b\[\d*m", "", raw)
    assert "✓ 构建  2.3 s after 1 retry" in shown
    assert "✗ test  failed: exit code 1  All tests" in shown
    assert r"    3 passed, 1 failed\x1b[0m" in shown
    assert "- ship  skipped: `test` failed" in shown
    assert "\x1b[3" not in raw  # NO_COLOR


def test_model_messages_are_printed_as_they_arrive(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    step = a_step("排课")
    spoken = Event("spoken", a_run(step), step, "1. 看\n2. \x1b[2J排", name="decision 排课[1]")
    PlainDisplay(links)(spoken)
    assert capsys.readouterr().err.splitlines() == ["排课 says: 1. 看", r"排课 says: 2. \x1b[2J排"]
    JsonDisplay(links)(spoken)
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["step"], event["message"]) == ("spoken", "排课", spoken.message)
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    LiveDisplay(links)(spoken)
    assert screen.getvalue().splitlines() == ["排课 says: 1. 看", r"排课 says: 2. \x1b[2J排"]


def test_a_step_waiting_for_a_retry_shows_a_countdown(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    display = LiveDisplay(links)
    for event in sample_events()[:3]:
        display(event)
    display.close()
    console = Console(file=io.StringIO(), width=200)
    console.print(display)
    waiting, total = console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]
    assert re.fullmatch(r"! 构建  exit code 1 and more; again in [12] s", waiting)
    assert total == "0 of 3 steps done, 3 not started"


def a_live_display(monkeypatch: pytest.MonkeyPatch, *events: Event) -> tuple[LiveDisplay, Screen]:
    """Return a display after `events`, and what it printed."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("NO_COLOR", "1")
    display = LiveDisplay(links)
    for event in events:
        display(event)
    return display, screen


def live_lines(display: LiveDisplay) -> list[str]:
    """Return what a display shows below the lines that stay."""
    console = Console(file=io.StringIO(), width=200)
    console.print(display)
    return console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]


def test_the_next_attempt_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    step = a_step("build", max_retries=3, status=StepStatus.RUNNING)
    run = a_run(steps=[step])
    failed = Event("attempt_failed", run, step, "exit code 1", delay_ms=2000)
    display, _ = a_live_display(monkeypatch, Event("run_started", run), Event("step_started", run, step), failed)
    assert re.fullmatch(r"! build  exit code 1; attempt 2 of 4 in [12] s", live_lines(display)[0])
    display(Event("step_started", run, step))
    assert re.fullmatch(r". build  attempt 2 of 4", live_lines(display)[0])
    display.close()


def test_the_time_of_earlier_runs_is_shown_while_a_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    step = a_step("a-step-with-a-name-that-is-longer-than-thirty-two-characters", status=StepStatus.RUNNING)
    run = a_run(steps=[step])
    display, _ = a_live_display(monkeypatch, Event("run_started", run), Event("step_started", run, step))
    display.expect(5, 240_000)
    name, total = live_lines(display)
    assert "a-step-with-a-name-that-is-longer-than-…" in name  # half of 80 columns
    assert re.fullmatch(r"0 of 1 step done, 1 running; \d+ m?s so far, at most 4 min in 5 earlier runs", total)
    display.close()


def test_running_steps_stay_on_the_screen_while_a_question_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    step = a_step("build", status=StepStatus.RUNNING)
    run = a_run(steps=[step])
    conversation = Conversation()
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    display = LiveDisplay(links, conversation)
    for event in (Event("run_started", run), Event("step_started", run, step)):
        display(event)
    before = len(screen.getvalue())
    with conversation.foreground():
        assert "build" in screen.getvalue()[before:].splitlines()[-2]
    display.close()


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose_display(as_json=False, links=links), PlainDisplay)


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        (PlanStatus.COMPLETED, None, ExitCode.DONE),
        (PlanStatus.PARTIAL, RunReason.STEP_FAILED, ExitCode.FAILED),
        (PlanStatus.FAILED, RunReason.STEP_FAILED, ExitCode.FAILED),
        (PlanStatus.PARTIAL, RunReason.TIMED_OUT, ExitCode.TIMED_OUT),
        (PlanStatus.CANCELLED, RunReason.REJECTED, ExitCode.REJECTED),
        (PlanStatus.CANCELLED, RunReason.EXPIRED, ExitCode.REJECTED),
        (PlanStatus.CANCELLED, RunReason.CANCELLED, ExitCode.CANCELLED),
        (PlanStatus.PENDING_APPROVAL, None, ExitCode.WAITING),
        (PlanStatus.FAILED, RunReason.UNKNOWN, ExitCode.UNKNOWN),
        (PlanStatus.EXECUTING, RunReason.UNKNOWN, ExitCode.UNKNOWN),
    ],
)
def test_every_run_status_has_its_exit_code(status: PlanStatus, reason: RunReason | None, code: ExitCode) -> None:
    assert code_of_run(a_run(status=status, reason=reason)) is code


@pytest.mark.parametrize("kind", ["plain", "json"])
def test_the_link_to_a_step_gate_form_is_shown_once_it_exists(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    gate = Gate("g", "r", "restart", None, "a" * 64, "plan", "", "", GatePolicy(), NOW)
    run, display = a_run(a_step("restart"), flow_run_id="f-1"), PlainDisplay(links) if kind == "plain" else JsonDisplay(links)
    display(Event("run_started", run))
    display(Event("gate_opened", run, gate=gate, in_form=True))
    display(Event("gate_shown", run, gate=replace(gate, flow_run_id="f-2"), in_form=True))
    shown = capsys.readouterr().err.splitlines()
    assert shown[-2:] == [
        "answer in its form (link below), or with `plan approve r restart --digest aaaaaaaaaaaa`",
        "restart: its form is on http://127.0.0.1:4200/runs/flow-run/f-2",
    ]
