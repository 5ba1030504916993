"""`GatePause`: one pause of a flow run at a gate, with the form that its page shows, and how a process leaves it behind.

When a flow run enters Paused, Prefect 3.9.1 deletes what is stored under the keys of its form. So a form is written after the pause was
accepted, and read back. Until it exists, the server refuses every answer, because the pause already names it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from uuid import UUID, uuid4

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import SetStateStatus
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.input import acreate_flow_run_input, keyset_from_base_key

from plan_adapter.engine.connection import current_server, demands_authentication
from plan_adapter.engine.form import build_form, form_description, notice_schema
from plan_adapter.engine.gate_display import LogWriter, form_labels, log_writer, lost_form_message
from plan_adapter.engine.outgoing import markdown
from plan_adapter.engine.states import unattended_state
from plan_adapter.gates.approval import PendingGate
from plan_adapter.model.approvals import ApprovalRequest

log = logging.getLogger(__name__)

SERVER_ERRORS = (httpx.HTTPError, PrefectException, OSError, ValueError)
"""Raised by calls to a server that is unavailable, busy or being replaced. ValueError: the response is not Prefect's."""

MAX_WRITES = 3
"""How often a form is written that the server does not have when it is read back."""


class FormLostError(Exception):
    """The server accepted a form, and does not have it when it is read back."""


@dataclass(frozen=True, slots=True)
class GatePause:
    """One pause of the flow run `flow_run_id`. Its key is new, because Prefect refuses a key that a flow run has used before."""

    flow_run_id: UUID
    client: PrefectClient
    kind: Literal["paused", "suspended"] = "paused"
    key: str = field(default_factory=lambda: uuid4().hex)

    @property
    def keyset(self) -> str:
        """The base key under which Prefect keeps the form and its answer."""
        return f"{self.kind}-{self.key}"

    @property
    def response_key(self) -> str:
        """The key under which Prefect keeps the answer."""
        return keyset_from_base_key(self.keyset)["response"]

    def attach_to(self, state: State[Any]) -> State[Any]:
        """Return `state` as this pause."""
        state.state_details.pause_key = self.key
        state.state_details.run_input_keyset = {str(part): name for part, name in keyset_from_base_key(self.keyset).items()}
        return state

    def is_in(self, state: State | None) -> bool:
        """Return whether a flow run in `state` is in this pause."""
        return state is not None and state.is_paused() and state.state_details.pause_key == self.key

    async def write_form(self, request: ApprovalRequest, *, refused: str | None) -> None:
        """Write the form of `request`, with the reason why the last answer was refused. Can be repeated.

        Call it once the server has accepted the pause. Raises FormLostError, or one of SERVER_ERRORS.
        """
        takes_codes = await _takes_codes(request)
        schema = build_form(request, takes_codes=takes_codes)
        text = form_description(request, refused=refused, takes_codes=takes_codes)
        try:
            await self._write(lambda: schema.asave(keyset_from_base_key(self.keyset), self.flow_run_id), text)
        except FormLostError:
            await self._label(form_labels(request, self.keyset, refused, is_lost=True))
            raise
        await self._label(form_labels(request, self.keyset, refused))  # last, because they say that the page shows this form

    async def write_notice(self, text: str) -> None:
        """Write a form that shows `text` and takes no answer. Raises the same as `write_form`."""
        key = keyset_from_base_key(self.keyset)["schema"]
        await self._write(lambda: acreate_flow_run_input(key, notice_schema(), flow_run_id=self.flow_run_id), text)

    async def _write(self, write_schema: "_Write", text: str) -> None:
        """Write the schema and the text of a form, and read back whether the server has them."""
        schema, description = (keyset_from_base_key(self.keyset)[part] for part in ("schema", "description"))
        missing: dict[str, _Write] = {
            schema: write_schema,
            description: lambda: acreate_flow_run_input(description, markdown(text), flow_run_id=self.flow_run_id),
        }
        for _ in range(MAX_WRITES):
            for write in missing.values():
                await _ignore_conflict(write())
            stored = await self.client.filter_flow_run_input(self.flow_run_id, self.keyset, limit=len(missing), exclude_keys=set())
            missing = {key: write for key, write in missing.items() if key not in {value.key for value in stored}}
            if not missing:
                return
        raise FormLostError(f"Prefect's server accepted the form of flow run {self.flow_run_id} and does not have it")

    async def _label(self, labels: dict[str, str | int | float | bool]) -> None:
        await self.client.update_flow_run_labels(self.flow_run_id, labels)


_Write: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


async def _ignore_conflict(write: Coroutine[Any, Any, None]) -> None:
    """Await `write`, which writes an input under a new key. If the key exists, an earlier request succeeded and its response was lost."""
    try:
        await write
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.CONFLICT.value:
            raise


async def _takes_codes(request: ApprovalRequest) -> bool:
    """Return whether the form of `request` accepts one-time codes: only if people sign in to the server, or if none is required."""
    if "totp" not in (request.gate_policy.known_by or ()):
        return True
    return await asyncio.to_thread(demands_authentication, current_server().api_url) is True


async def leave_paused(pause: GatePause, state: State[Any], pending: PendingGate, *, write_log: LogWriter) -> State[Any] | None:
    """Pause the flow run with the form of `pending`, for a process that ends right afterwards. Return the state, or None if not paused.

    Call `record_form` before, so that the answer is found. Then raise Prefect's `Pause` with the state, so that Prefect's engine sets none.
    """
    paused = await set_paused(pause, state)
    if paused is None:
        return None
    try:
        await pause.write_form(pending.request, refused=pending.request.refused)
    except (*SERVER_ERRORS, FormLostError) as error:
        message = lost_form_message(pending.request)
        write_log(message)
        log.warning("flow run %s: %s (%s)", pause.flow_run_id, message, type(error).__name__)
        await pending.report_form(flow_run_id=str(pause.flow_run_id), keyset=None)
    else:
        await pending.report_form(flow_run_id=str(pause.flow_run_id), keyset=pause.keyset)
    return paused


async def set_paused(pause: GatePause, state: State[Any]) -> State[Any] | None:
    """Set `state` as this pause. Return the state that the server has then, or None if it refuses the pause or is unavailable."""
    try:
        result = await pause.client.set_flow_run_state(pause.flow_run_id, pause.attach_to(state))
    except SERVER_ERRORS as error:
        log.warning("flow run %s cannot be paused: %s", pause.flow_run_id, type(error).__name__)
        return None
    if result.status is SetStateStatus.ACCEPT:
        return result.state or state
    log.warning("flow run %s cannot be paused: %s", pause.flow_run_id, getattr(result.details, "reason", None) or result.status)
    return None


@dataclass(slots=True)
class UnattendedPause:
    """The pause in which a flow run waits after its process has ended. `state` is None until the run is left."""

    state: State[Any] | None = None


_unattended: ContextVar[UnattendedPause] = ContextVar("plan_adapter_unattended_pause")


@contextmanager
def keep_unattended_pause() -> Generator[UnattendedPause]:
    """Yield a holder for the pause that `leave_form` makes, so that the flow's function can end with it."""
    token = _unattended.set(UnattendedPause())
    try:
        yield _unattended.get()
    finally:
        _unattended.reset(token)


async def leave_form(pending: PendingGate) -> None:
    """Pause the current flow run with the form of a plan gate. The process must then leave the run waiting.

    If the server is unavailable, the gate has no form, and says so where gates are listed.
    """
    flow, pause = _flow_and_pause()
    await pending.record_form(flow_run_id=str(pause.flow_run_id), keyset=pause.keyset)
    state = unattended_state(pending.request.run_id or "")
    paused = await leave_paused(pause, state, pending, write_log=log_writer(flow))
    if paused is None:
        await pending.report_form(flow_run_id=str(pause.flow_run_id), keyset=None)
    _unattended.get().state = paused


async def leave_notice(state: State[Any]) -> State[Any] | None:
    """Pause the current flow run as `state`, with its message as a form that takes no answer. Return the state, or None if not paused.

    For a run that waits without a process and whose gates have no form on this page. Without a form, the button Resume would set it to
    Running, and nothing would run.
    """
    _, pause = _flow_and_pause()
    paused = await set_paused(pause, state)
    if paused is not None:
        try:
            await pause.write_notice(notice_text(state))
        except (*SERVER_ERRORS, FormLostError) as error:
            log.info("flow run %s waits without a notice: %s", pause.flow_run_id, type(error).__name__)
    return paused


def notice_text(state: State[Any]) -> str:
    """Return the text of the page of a flow run that waits in `state` and has no form."""
    return f"This run cannot be answered on this page: {state.message}."


def _flow_and_pause() -> tuple[FlowRunContext, GatePause]:
    flow = FlowRunContext.get()
    if flow is None or flow.flow_run is None or not isinstance(flow.client, PrefectClient):
        raise RuntimeError("a flow run can only be left paused from inside it")
    return flow, GatePause(flow.flow_run.id, flow.client)
