"""`Prompt`: a gate's form on the page of one flow run, shown again until the gate is closed.

It pauses the flow run with the calls that `prefect.pause_flow_run` makes, in a different order: the form exists before the pause, so that
no answer can arrive too early. Prefect's state is never the answer. If the pause ends without an answer (a client sets Running, or deletes
the form), the prompt opens the form again under a new key.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid4

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import SetStateStatus
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.input import acreate_flow_run_input, aread_flow_run_input, keyset_from_base_key
from prefect.states import Paused, Running

from plan_adapter.approvals import ApprovalRequest
from plan_adapter.engine.connection import current_server, override_settings
from plan_adapter.engine.form import NotAnAnswerError, build_form, form_description, parse_answer
from plan_adapter.engine.gate_display import MAX_REASON_CHARACTERS, LogWriter, form_labels, waiting_message
from plan_adapter.engine.server_auth import demands_authentication
from plan_adapter.gates.approval import PendingGate
from plan_adapter.readable import call_name, one_line

T = TypeVar("T")

log = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 0.2, 5.0
"""Seconds before the form is opened again or the server is asked again. Doubled each time until a call succeeds."""
FINISH_SECONDS = 5.0
WARN_SECONDS = 5.0
SLOWDOWN_SECONDS, MAX_SLOWDOWN = 120.0, 5.0
"""An opening is polled half as often after this many seconds, and later down to a fifth as often."""
CALM_SECONDS = 30.0
"""If an opening lasted this long, nothing keeps ending it, so the wait is reset."""

SERVER_ERRORS = (httpx.HTTPError, PrefectException, OSError, ValueError)
"""Raised by calls to a server that is unavailable, busy or being replaced. ValueError: the response is not Prefect's."""


class GateCancelledError(Exception):
    """Someone cancelled the flow run that asks. `reason` says who or why, as far as Prefect knows."""

    def __init__(self, reason: str) -> None:
        """Store `reason`."""
        self.reason = reason
        super().__init__(reason)


class _RequestFailedError(Exception):
    """The server did not do what was requested."""


class _GateClosedError(Exception):
    """The gate is closed."""


class Prompt:
    """Asks one gate's question on the page of the flow run `flow_run_id`."""

    def __init__(
        self, pending: PendingGate, flow_run_id: UUID, client: PrefectClient, *, poll_seconds: float, write_log: LogWriter
    ) -> None:
        """Prepare the prompt without asking. `client` must stay open while it asks; `write_log` writes to the log of the page."""
        self.finished = asyncio.Event()
        self._pending = pending
        self._flow_run_id = flow_run_id
        self._client = client
        self._poll_seconds = poll_seconds
        self._write_log = write_log
        self._wait = FIRST_WAIT
        self._shown = False
        self._failing_since: float | None = None
        self._warned = False
        self._context = _context_without_retries()
        pending.closed.add_done_callback(lambda _: self.finished.set())
        if pending.closed.done():
            self.finished.set()

    async def ask(self) -> None:
        """Show the form until an answer is accepted or `finished` is set. Raises GateCancelledError and what `pending` raises."""
        refused = self._pending.request.refused
        if not self.finished.is_set():
            self._write_log(waiting_message(self._pending.request))
        while not self.finished.is_set():
            try:
                refused = await self._show_once(refused)
            except _RequestFailedError as failure:
                await self._back_off(failure)
            except _GateClosedError:
                return
            else:
                if refused is None:
                    return
                self._write_log(f"answer refused: {one_line(refused)[:MAX_REASON_CHARACTERS]}; asking again")

    async def end(self, message: str) -> None:
        """Set the flow run back to Running if it shows the form. Give up after a few seconds: its final state also ends the pause."""
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                while self._shown:
                    try:
                        if _is_pause(await self._call(self._read_state()), None):
                            await self._call(self._client.set_flow_run_state(self._flow_run_id, Running(message=message)))
                        self._shown = False
                    except _RequestFailedError:
                        await asyncio.sleep(FIRST_WAIT)
        except TimeoutError:
            log.info("flow run %s still shows the form of its closed gate: the server did not respond in time", self._flow_run_id)

    async def _show_once(self, refused: str | None) -> str | None:
        """Show the form once. Return why it must be shown again, or None if it need not be."""
        key, started_at = uuid4().hex, asyncio.get_running_loop().time()
        await self._open_form(key, refused)
        await self._pending.record_form(flow_run_id=str(self._flow_run_id), keyset=keyset_name(key))
        state = await self._wait_for_pause_end(key)
        self._shown = False
        _raise_if_cancelled(state)
        raw = await self._retry(partial(aread_flow_run_input, _response_key(key), flow_run_id=self._flow_run_id))
        if raw is None:
            message = f"the pause ended without an answer (state {state.name if state else 'unknown'})"
            log.warning("the gate of flow run %s still waits for an answer: %s", self._flow_run_id, message)
            if asyncio.get_running_loop().time() - started_at > CALM_SECONDS:
                self._wait = FIRST_WAIT
            await self._back_off()
            return message
        self._wait = FIRST_WAIT
        try:
            answer = parse_answer(raw, self._pending.request.kind, self._pending.request.fields)
        except NotAnAnswerError as error:
            return str(error)
        return await self._pending.submit(answer)

    async def _wait_for_pause_end(self, key: str) -> State | None:
        """Return the state that follows the pause with `key`. Raises _GateClosedError if the gate is closed first."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        while True:
            # A poll costs the client 4 ms and the server 12 ms, so poll less often when people take their time.
            waited = loop.time() - started_at
            if await self._finished_within(self._poll_seconds * min(1 + waited / SLOWDOWN_SECONDS, MAX_SLOWDOWN)):
                raise _GateClosedError
            if not _is_pause(state := await self._retry(self._read_state), key):
                return state

    async def _open_form(self, key: str, refused: str | None) -> None:
        request = self._pending.request
        can_take_codes = await takes_codes(request)
        for write in form_writes(request, self._flow_run_id, self._client, key=key, refused=refused, takes_codes=can_take_codes):
            await self._retry(write)
        paused = attach_form(Paused(message=_paused_message(request)), key)
        self._shown = True
        if await self._try_set_state(paused):
            return
        state = await self._retry(self._read_state)
        if _is_pause(state, key):  # an earlier request set it, and its response was lost
            return
        _raise_if_cancelled(state)
        # A process that died left this state, or someone set it. This process runs the flow run, so Running is correct.
        await self._retry(partial(self._client.set_flow_run_state, self._flow_run_id, Running(), force=True))
        if not await self._try_set_state(paused):
            raise _RequestFailedError("the flow run cannot be paused")

    async def _try_set_state(self, state: State) -> bool:
        result = await self._retry(partial(self._client.set_flow_run_state, self._flow_run_id, state))
        return result.status is SetStateStatus.ACCEPT

    async def _read_state(self) -> State | None:
        return (await self._client.read_flow_run(self._flow_run_id)).state

    async def _retry(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `request`, retrying until it succeeds. Raises _GateClosedError if the gate is closed first."""
        while True:
            try:
                result = await self._call(request())
            except _RequestFailedError as failure:
                if await self._back_off(failure):
                    raise _GateClosedError from None
            else:
                if self._failing_since is not None:
                    self._failing_since, self._warned, self._wait = None, False, FIRST_WAIT
                return result

    async def _call(self, request: Coroutine[Any, Any, T]) -> T:
        try:
            return await asyncio.create_task(request, context=self._context)
        except SERVER_ERRORS as error:
            raise _RequestFailedError(f"{type(error).__name__}: {one_line(str(error))[:200]}") from error

    async def _back_off(self, failure: "_RequestFailedError | None" = None) -> bool:
        """Wait with exponential back-off. Return whether the gate was closed meanwhile."""
        if failure is not None:
            self._warn_once(failure)
        wait, self._wait = self._wait, min(2 * self._wait, LONGEST_WAIT)
        return await self._finished_within(wait)

    def _warn_once(self, failure: "_RequestFailedError") -> None:
        """Log one warning if the server is unavailable for long. A server that is briefly busy is not worth a warning."""
        now = asyncio.get_running_loop().time()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since > WARN_SECONDS and not self._warned:
            self._warned = True
            log.warning("the form of flow run %s is unavailable (%s); retrying until the gate is closed", self._flow_run_id, failure)

    async def _finished_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.finished.wait()
        except TimeoutError:
            return False
        return True


def keyset_name(key: str) -> str:
    """Return the base key under which Prefect keeps the form of the pause with `key`."""
    return f"paused-{key}"


async def takes_codes(request: ApprovalRequest) -> bool:
    """Return whether the form of `request` accepts one-time codes: only if people sign in to the server, or if none is required."""
    if "totp" not in (request.gate_policy.known_by or ()):
        return True
    return await asyncio.to_thread(demands_authentication, current_server().api_url) is True


def form_writes(
    request: ApprovalRequest, flow_run_id: UUID, client: PrefectClient, *, key: str, refused: str | None, takes_codes: bool
) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
    """Return the calls that write the form of the pause with `key`, in order. Each can be repeated."""
    keyset = keyset_from_base_key(keyset_name(key))
    form = build_form(request, takes_codes=takes_codes)
    text = form_description(request, refused=refused, takes_codes=takes_codes)
    return (
        lambda: _save(form.asave(keyset, flow_run_id)),
        lambda: _save(acreate_flow_run_input(keyset["description"], text, flow_run_id=flow_run_id)),
        partial(client.update_flow_run_labels, flow_run_id, form_labels(request, keyset_name(key), refused)),
    )


def attach_form(paused: State[Any], key: str) -> State[Any]:
    """Return `paused` as the pause with `key`, which shows the form written under that key."""
    paused.state_details.pause_key = key
    paused.state_details.run_input_keyset = {str(part): name for part, name in keyset_from_base_key(keyset_name(key)).items()}
    return paused


def _context_without_retries() -> Context:
    """Return a copy of the context in which Prefect's client does not retry. A prompt has its own waits, which end with the gate."""
    with override_settings({"client.max_retries": 0}):
        return copy_context()


def _paused_message(request: ApprovalRequest) -> str:
    """Return the message of the paused state."""
    name = one_line(request.name)[:200]
    if request.kind == "approval":
        return f"Waiting for an approval of {name}"
    if request.kind == "question":
        return f"Waiting for an answer to the question `{request.step_id}` of {name}"
    return f"Waiting to know how `{call_name(str(request.step_id), request.item, request.label, kind=request.call_kind)}` of {name} ended"


def _is_pause(state: State | None, key: str | None) -> bool:
    """Return whether `state` is the pause with `key`, or any pause if `key` is None."""
    return state is not None and state.is_paused() and key in (None, state.state_details.pause_key)


async def _save(create: Coroutine[Any, Any, None]) -> None:
    """Await `create`, which writes an input under a new key. If the key exists, an earlier request succeeded and its response was lost."""
    try:
        await create
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.CONFLICT.value:
            raise


def _response_key(key: str) -> str:
    return keyset_from_base_key(keyset_name(key))["response"]


def _raise_if_cancelled(state: State | None) -> None:
    if state is not None and (state.is_cancelling() or state.is_cancelled()):
        raise GateCancelledError(state.message or "cancelled in Prefect")


@dataclass(slots=True)
class UnattendedForm:
    """The form of a flow run that ends as Paused. There is no form while `key` is None."""

    key: str | None = None

    def attach_to(self, state: State[Any]) -> State[Any]:
        """Return `state`, with the form added if it is a pause and there is a form."""
        return state if self.key is None or not state.is_paused() else attach_form(state, self.key)


_unattended_form: ContextVar[UnattendedForm] = ContextVar("plan_adapter_left_form")


@contextmanager
def keep_unattended_form() -> Generator[UnattendedForm]:
    """Yield a holder for the form that `leave_form` writes, so that the flow's function can attach it to the state it returns."""
    token = _unattended_form.set(UnattendedForm())
    try:
        yield _unattended_form.get()
    finally:
        _unattended_form.reset(token)


async def leave_form(pending: PendingGate) -> None:
    """Write a gate's form for the current flow run. The flow's function must then return a paused state.

    If the server is unavailable, the gate has no form; it can be answered elsewhere.
    """
    flow, key = FlowRunContext.get(), uuid4().hex
    if flow is None or flow.flow_run is None or not isinstance(flow.client, PrefectClient):
        raise RuntimeError("a form can only be left inside a running flow")
    can_take_codes, refused = await takes_codes(pending.request), pending.request.refused
    try:
        for write in form_writes(pending.request, flow.flow_run.id, flow.client, key=key, refused=refused, takes_codes=can_take_codes):
            await write()
    except SERVER_ERRORS as error:
        log.warning("flow run %s waits without a form: %s", flow.flow_run.id, type(error).__name__)
        return
    await pending.record_form(flow_run_id=str(flow.flow_run.id), keyset=keyset_name(key))
    _unattended_form.get().key = key
