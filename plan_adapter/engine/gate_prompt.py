"""`Prompt`: a gate's form on the page of one flow run, shown again until the gate is closed.

It pauses the flow run with the calls that `prefect.pause_flow_run` makes. Prefect's state is never the answer: if the pause ends without
one, because a client sets Running, the prompt pauses again under a new key.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import SetStateStatus
from prefect.input import aread_flow_run_input
from prefect.states import Paused, Running

from plan_adapter.engine.connection import override_settings
from plan_adapter.engine.form import NotAnAnswerError, parse_answer
from plan_adapter.engine.gate_display import MAX_REASON_CHARACTERS, LogWriter, lost_form_message, waiting_message
from plan_adapter.engine.gate_pause import SERVER_ERRORS, FormLostError, GatePause
from plan_adapter.engine.outgoing import state_message
from plan_adapter.gates.approval import PendingGate
from plan_adapter.model.approvals import ApprovalRequest
from plan_adapter.model.readable import call_name, one_line

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
                        if _is_paused(await self._call(self._read_state())):
                            await self._call(self._client.set_flow_run_state(self._flow_run_id, Running(message=state_message(message))))
                        self._shown = False
                    except _RequestFailedError:
                        await asyncio.sleep(FIRST_WAIT)
        except TimeoutError:
            log.info("flow run %s still shows the form of its closed gate: the server did not respond in time", self._flow_run_id)

    async def _show_once(self, refused: str | None) -> str | None:
        """Show the form once. Return why it must be shown again, or None if it need not be."""
        pause, started_at = GatePause(self._flow_run_id, self._client), asyncio.get_running_loop().time()
        await self._enter(pause)
        await self._write_form(pause, refused)
        state = await self._wait_for_pause_end(pause)
        self._shown = False
        _raise_if_cancelled(state)
        raw = await self._retry(partial(aread_flow_run_input, pause.response_key, flow_run_id=self._flow_run_id))
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

    async def _wait_for_pause_end(self, pause: GatePause) -> State | None:
        """Return the state that follows `pause`. Raises _GateClosedError if the gate is closed first."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        while True:
            # A poll costs the client 4 ms and the server 12 ms, so poll less often when people take their time.
            waited = loop.time() - started_at
            if await self._finished_within(self._poll_seconds * min(1 + waited / SLOWDOWN_SECONDS, MAX_SLOWDOWN)):
                raise _GateClosedError
            if not pause.is_in(state := await self._retry(self._read_state)):
                return state

    async def _enter(self, pause: GatePause) -> None:
        """Pause the flow run."""
        paused = pause.attach_to(Paused(message=state_message(_paused_message(self._pending.request))))
        self._shown = True
        if await self._try_set_state(paused):
            return
        state = await self._retry(self._read_state)
        if pause.is_in(state):  # an earlier request set it, and its response was lost
            return
        _raise_if_cancelled(state)
        # A process that died left this state, or someone set it. This process runs the flow run, so Running is correct.
        await self._retry(partial(self._client.set_flow_run_state, self._flow_run_id, Running(), force=True))
        if not await self._try_set_state(paused):
            raise _RequestFailedError("the flow run cannot be paused")

    async def _write_form(self, pause: GatePause, refused: str | None) -> None:
        """Write the form of the paused flow run. If the server does not keep it, say how to answer instead."""
        request, flow_run_id = self._pending.request, str(self._flow_run_id)
        # First, because an answer must be found even if this process ends as soon as the form exists.
        await self._pending.record_form(flow_run_id=flow_run_id, keyset=pause.keyset)
        try:
            await self._retry(partial(pause.write_form, request, refused=refused))
        except FormLostError as error:
            self._write_log(lost_form_message(request))
            log.warning("%s; %s", error, lost_form_message(request))
            await self._pending.report_form(flow_run_id=flow_run_id, keyset=None)
        else:
            await self._pending.report_form(flow_run_id=flow_run_id, keyset=pause.keyset)

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


def _is_paused(state: State | None) -> bool:
    return state is not None and state.is_paused()


def _raise_if_cancelled(state: State | None) -> None:
    if state is not None and (state.is_cancelling() or state.is_cancelled()):
        raise GateCancelledError(state.message or "cancelled in Prefect")
