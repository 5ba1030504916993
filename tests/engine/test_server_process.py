"""Tests of what the process of the local server changes in Prefect."""

import logging
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.exc import IntegrityError

from plan_adapter.engine.internals import record_failed_batches_singly


class TaskRunEvent:
    """The parts of an event that the recorder's log needs."""

    def __init__(self, *, is_refused: bool) -> None:
        self.id, self.is_refused = uuid4(), is_refused


async def test_a_state_that_the_database_refuses_does_not_lose_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from prefect.server.services import task_run_recorder  # imported here, because it slows test collection by a second

    kept = list[Any]()

    async def write(batch: list[Any]) -> None:
        if any(event.is_refused for event in batch):
            raise IntegrityError("INSERT", {}, Exception("FOREIGN KEY constraint failed"))
        kept.extend(batch)

    monkeypatch.setattr(task_run_recorder, "record_bulk_task_run_events", write)
    record_failed_batches_singly()
    events: list[Any] = [TaskRunEvent(is_refused=number == 1) for number in range(4)]
    with caplog.at_level(logging.WARNING):
        await task_run_recorder.record_bulk_task_run_events(events)
    assert kept == [events[0], events[2], events[3]]
    assert str(events[1].id) in caplog.text
