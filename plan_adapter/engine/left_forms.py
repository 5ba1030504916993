"""Forms that take answers after the process that put them up has ended."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext

from plan_adapter.approval import Asking
from plan_adapter.engine.gate_prompt import TROUBLE, base_of, form_writes, takes_codes, with_form

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LeftForm:
    """The form with which a flow run ends as Paused; none as long as `key` is None."""

    key: str | None = None

    def on(self, state: State[Any]) -> State[Any]:
        """Return `state`, if it is a pause with the form."""
        return state if self.key is None or not state.is_paused() else with_form(state, self.key)


_left: ContextVar[LeftForm] = ContextVar("plan_adapter_left_form")


@contextmanager
def left_form() -> Generator[LeftForm]:
    """Yield what holds the form that is left within, for the state that the flow's function returns."""
    token = _left.set(LeftForm())
    try:
        yield _left.get()
    finally:
        _left.reset(token)


async def leave_form(asking: Asking) -> None:
    """Write the form of a gate for the current flow run, whose function must then return that it is paused.

    A server that is away leaves the gate without a form; it takes answers elsewhere.
    """
    flow, key = FlowRunContext.get(), uuid4().hex
    if flow is None or flow.flow_run is None or not isinstance(flow.client, PrefectClient):
        raise RuntimeError("a form is left inside a running flow")
    private, refused = await takes_codes(asking.request), asking.request.refused
    try:
        for write in form_writes(asking.request, flow.flow_run.id, flow.client, key=key, refused=refused, takes_codes=private):
            await write()
    except TROUBLE as error:
        log.warning("flow run %s waits without a form: %s", flow.flow_run.id, type(error).__name__)
        return
    await asking.shown(flow_run_id=str(flow.flow_run.id), keyset=base_of(key))
    _left.get().key = key
