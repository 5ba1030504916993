"""Tests of how a process answers a worker that cancels its flow run: the process ends the flow run itself."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect._internal import control_listener
from prefect.context import FlowRunContext
from prefect.runner._control_channel import ControlChannel, ControlSignalStatus

from plan_adapter.engine.internals import conclude_cancellation_here


@pytest.fixture(autouse=True)
def reset_listener() -> Iterator[None]:
    control_listener.reset_for_testing()
    yield
    control_listener.reset_for_testing()


async def signal_cancel(monkeypatch: pytest.MonkeyPatch, hooks: list[object]) -> ControlSignalStatus:
    """Return the status that Prefect's control channel gets when it cancels a flow with these hooks."""
    monkeypatch.setattr(FlowRunContext, "get", lambda: SimpleNamespace(flow=SimpleNamespace(on_cancellation_hooks=hooks)))
    flow_run_id = uuid4()
    async with ControlChannel() as channel:
        port, token = channel.register(flow_run_id)
        monkeypatch.setenv("PREFECT__CONTROL_PORT", str(port))
        monkeypatch.setenv("PREFECT__CONTROL_TOKEN", token)
        with conclude_cancellation_here():
            await asyncio.to_thread(control_listener.start)
            await asyncio.to_thread(control_listener._negotiation_complete.wait)
            return await channel.signal(flow_run_id, "cancel")


async def test_the_worker_leaves_the_process_and_its_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await signal_cancel(monkeypatch, []) is ControlSignalStatus.ALREADY_CONCLUDED
    assert control_listener.engine_outcome_is_handled()


async def test_the_worker_cancels_a_flow_that_has_cancellation_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await signal_cancel(monkeypatch, [print]) is not ControlSignalStatus.ALREADY_CONCLUDED


async def test_other_signals_from_the_worker_go_to_prefects_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = control_listener._handle_intent_byte
    monkeypatch.setattr(FlowRunContext, "get", lambda: SimpleNamespace(flow=SimpleNamespace(on_cancellation_hooks=[])))
    received = list[bytes]()
    monkeypatch.setattr(control_listener, "_handle_intent_byte", lambda _connection, data: received.append(data))
    with conclude_cancellation_here():
        control_listener._handle_intent_byte(SimpleNamespace(), b"r")
    assert received == [b"r"]
    monkeypatch.undo()
    assert control_listener._handle_intent_byte is handle
