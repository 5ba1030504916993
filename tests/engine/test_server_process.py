"""What the local server's process changes about Prefect's own."""

import logging
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.exc import IntegrityError

from plan_adapter.engine.internals import record_singly_what_fails_together


class Said:
    """An event, as far as the recorder's log needs one."""

    def __init__(self, *, is_refused: bool) -> None:
        self.id, self.is_refused = uuid4(), is_refused


async def test_a_state_that_the_database_refuses_takes_no_others_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from prefect.server.services import task_run_recorder  # the server takes a second to import, in every process that collects tests

    kept = list[Any]()

    async def write(events: list[Any]) -> None:
        if any(event.is_refused for event in events):
            raise IntegrityError("INSERT", {}, Exception("FOREIGN KEY constraint failed"))
        kept.extend(events)

    monkeypatch.setattr(task_run_recorder, "record_bulk_task_run_events", write)
    record_singly_what_fails_together()
    said: list[Any] = [Said(is_refused=number == 1) for number in range(4)]
    with caplog.at_level(logging.WARNING):
        await task_run_recorder.record_bulk_task_run_events(said)
    assert kept == [said[0], said[2], said[3]]
    assert str(said[1].id) in caplog.text
