"""Builders of runs and events for tests of the displays."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from plan_adapter.model.hooks import Event, EventKind
from plan_adapter.model.record import PlanRun, StepRun
from plan_adapter.model.status import PlanStatus, StepStatus

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)


def a_step(step_id: str, **fields: Any) -> StepRun:
    """Return a step run that has not started, with `fields` replaced."""
    return replace(StepRun(id=step_id, index=0, tool_name="run_command", description=""), **fields)


def a_run(*steps: StepRun, **fields: Any) -> PlanRun:
    """Return an executing run, with `fields` replaced."""
    run = PlanRun(
        id="0192f0c4-0000-7000-8000-000000000001",
        plan_id="p",
        name="发布流程",
        description="Release",
        digest="d" * 64,
        approval_digest="a" * 64,
        inputs={},
        steps=[replace(step, index=index) for index, step in enumerate(steps)],
        created_at=NOW,
        updated_at=NOW,
        status=PlanStatus.EXECUTING,
    )
    return replace(run, **fields)


def sample_events() -> list[Event]:
    """Return the events of a run with a retried step, a failed step with a log, and a skipped step."""
    build, test, ship = a_step("构建"), a_step("test", description="All tests"), a_step("ship")
    run = a_run(build, test, ship, flow_run_id="f-1")

    def event(kind: EventKind, step: StepRun | None = None, **fields: Any) -> Event:
        return Event(kind, run, step, **fields)

    return [
        event("run_started"),
        event("step_started", build),
        event("attempt_failed", build, message="exit code 1\nand more", delay_ms=2000),
        event("step_started", build),
        event("step_completed", replace(build, status=StepStatus.COMPLETED, attempts=2, retry_count=1, duration_ms=2300)),
        event("step_started", test),
        event("log", test, message="3 passed, 1 failed\x1b[0m"),
        event("step_failed", replace(test, status=StepStatus.FAILED, attempts=1, error="exit code 1", reason="exit code 1")),
        event("step_skipped", replace(ship, status=StepStatus.SKIPPED, reason="`test` failed")),
        event("run_ended"),
    ]
