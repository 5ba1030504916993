"""What a process answers a worker that wants its flow run cancelled: that it ends the flow run itself."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect._internal import control_listener
from prefect.context import FlowRunContext
from prefect.runner._control_channel import ControlChannel, ControlSignalStatus

from plan_adapter.engine.internals import concluded_here


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    control_listener.reset_for_testing()
    yield
    control_listener.reset_for_testing()


async def signalled(monkeypatch: pytest.MonkeyPatch, hooks: list[object]) -> ControlSignalStatus:
    """Return what Prefect's side of a cancellation makes of the answer of a process whose flow has these hooks."""
    monkeypatch.setattr(FlowRunContext, "get", lambda: SimpleNamespace(flow=SimpleNamespace(on_cancellation_hooks=hooks)))
    flow_run_id = uuid4()
    async with ControlChannel() as channel:
        port, token = channel.register(flow_run_id)
        monkeypatch.setenv("PREFECT__CONTROL_PORT", str(port))
        monkeypatch.setenv("PREFECT__CONTROL_TOKEN", token)
        with concluded_here():
            await asyncio.to_thread(control_listener.start)
            await asyncio.to_thread(control_listener._negotiation_complete.wait)
            return await channel.signal(flow_run_id, "cancel")


async def test_a_worker_leaves_process_and_state_to_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await signalled(monkeypatch, []) is ControlSignalStatus.ALREADY_CONCLUDED
    assert control_listener.engine_outcome_is_handled()


async def test_a_flow_with_hooks_for_its_cancellation_is_left_to_the_worker_which_calls_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await signalled(monkeypatch, [print]) is not ControlSignalStatus.ALREADY_CONCLUDED


async def test_another_word_of_the_worker_is_not_answered_so(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = control_listener._handle_intent_byte
    monkeypatch.setattr(FlowRunContext, "get", lambda: SimpleNamespace(flow=SimpleNamespace(on_cancellation_hooks=[])))
    heard = list[bytes]()
    monkeypatch.setattr(control_listener, "_handle_intent_byte", lambda _connection, data: heard.append(data))
    with concluded_here():
        control_listener._handle_intent_byte(SimpleNamespace(), b"r")
    assert heard == [b"r"]
    monkeypatch.undo()
    assert control_listener._handle_intent_byte is handle
