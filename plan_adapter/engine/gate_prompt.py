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
from plan_adapter.engine.connection import changed_settings, current_server
from plan_adapter.engine.form import NotAnAnswerError, answer_of, description_of, form_of
from plan_adapter.engine.gate_display import MAX_WORDS, Tell, labels_of, waiting
from plan_adapter.engine.server_auth import demands_authentication
from plan_adapter.gates.approval import Asking
from plan_adapter.readable import call_name, one_line

T = TypeVar("T")

log = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 0.2, 5.0
"""Seconds before the form is opened again or the server is asked again. Doubled each time until a call succeeds."""
LAST_WORD_SECONDS = 5.0
TELL_SECONDS = 5.0
SLOWER_SECONDS, MOST_SLOWLY = 120.0, 5.0
"""After this time an opening is polled half as often, and so on down to a fifth."""
CALM_SECONDS = 30.0
"""If an opening lasted this long, whatever ended it is not fighting the prompt, so the wait is reset."""

TROUBLE = (httpx.HTTPError, PrefectException, OSError, ValueError)
"""Raised by calls to a server that is unavailable, busy or being replaced. ValueError: the response is not Prefect's."""


class GateCancelledError(Exception):
    """Someone cancelled the flow run that asks. `reason` says who or why, as far as Prefect knows."""

    def __init__(self, reason: str) -> None:
        """Store `reason`."""
        self.reason = reason
        super().__init__(reason)


class _TroubleError(Exception):
    """The server did not do what was requested."""


class _OverError(Exception):
    """The gate is closed."""


class Prompt:
    """Asks one gate's question on the page of the flow run `flow_run_id`."""

    def __init__(self, asking: Asking, flow_run_id: UUID, client: PrefectClient, *, poll_seconds: float, tell: Tell) -> None:
        """Prepare the prompt without asking. `client` must stay open while it asks; `tell` writes to the log of the page."""
        self.over = asyncio.Event()
        self._asking = asking
        self._id = flow_run_id
        self._client = client
        self._poll_seconds = poll_seconds
        self._say = tell
        self._wait = FIRST_WAIT
        self._shown = False
        self._trouble_since: float | None = None
        self._warned = False
        self._context = _context_without_retries()
        asking.closed.add_done_callback(lambda _: self.over.set())
        if asking.closed.done():
            self.over.set()

    async def ask(self) -> None:
        """Show the form until an answer is accepted or `over` is set. Raises GateCancelledError and what `asking` raises."""
        refused = self._asking.request.refused
        if not self.over.is_set():
            self._say(waiting(self._asking.request))
        while not self.over.is_set():
            try:
                refused = await self._once(refused)
            except _TroubleError as trouble:
                await self._back_off(trouble)
            except _OverError:
                return
            else:
                if refused is None:
                    return
                self._say(f"not taken: {one_line(refused)[:MAX_WORDS]}; asked again")

    async def end(self, message: str) -> None:
        """Set the flow run back to Running if it shows the form. Gives up after a few seconds: its final state also ends the pause."""
        try:
            async with asyncio.timeout(LAST_WORD_SECONDS):
                while self._shown:
                    try:
                        if _shows(await self._call(self._state()), None):
                            await self._call(self._client.set_flow_run_state(self._id, Running(message=message)))
                        self._shown = False
                    except _TroubleError:
                        await asyncio.sleep(FIRST_WAIT)
        except TimeoutError:
            log.info("flow run %s could not be told that its gate is closed", self._id)

    async def _once(self, refused: str | None) -> str | None:
        """Show the form once. Return why it must be shown again, or None if it need not be."""
        key, began = uuid4().hex, asyncio.get_running_loop().time()
        await self._open(key, refused)
        await self._asking.shown(flow_run_id=str(self._id), keyset=base_of(key))
        state = await self._left(key)
        self._shown = False
        _raise_if_cancelled(state)
        raw = await self._retry(partial(aread_flow_run_input, _response_key(key), flow_run_id=self._id))
        if raw is None:
            ended = f"the pause was ended without an answer (state {state.name if state else 'unknown'})"
            log.warning("the gate of flow run %s stays shut: %s", self._id, ended)
            if asyncio.get_running_loop().time() - began > CALM_SECONDS:
                self._wait = FIRST_WAIT
            await self._back_off()
            return ended
        self._wait = FIRST_WAIT
        try:
            answer = answer_of(raw, self._asking.request.kind, self._asking.request.fields)
        except NotAnAnswerError as error:
            return str(error)
        return await self._asking.submit(answer)

    async def _left(self, key: str) -> State | None:
        """Return the state that follows the pause with `key`. Raises _OverError if the gate is closed first."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            # A poll costs the client 4 ms and the server 12 ms, so poll less often when people take their time.
            waited = loop.time() - began
            if await self._over_within(self._poll_seconds * min(1 + waited / SLOWER_SECONDS, MOST_SLOWLY)):
                raise _OverError
            if not _shows(state := await self._retry(self._state), key):
                return state

    async def _open(self, key: str, refused: str | None) -> None:
        request = self._asking.request
        private = await takes_codes(request)
        for write in form_writes(request, self._id, self._client, key=key, refused=refused, takes_codes=private):
            await self._retry(write)
        paused = with_form(Paused(message=_waits_for(request)), key)
        self._shown = True
        if await self._enter(paused):
            return
        state = await self._retry(self._state)
        if _shows(state, key):  # an earlier request set it, and its response was lost
            return
        _raise_if_cancelled(state)
        # A process that died left this state, or someone set it. This process runs the flow run, so Running is correct.
        await self._retry(partial(self._client.set_flow_run_state, self._id, Running(), force=True))
        if not await self._enter(paused):
            raise _TroubleError("the flow run cannot be paused")

    async def _enter(self, state: State) -> bool:
        result = await self._retry(partial(self._client.set_flow_run_state, self._id, state))
        return result.status is SetStateStatus.ACCEPT

    async def _state(self) -> State | None:
        return (await self._client.read_flow_run(self._id)).state

    async def _retry(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `request`, retrying until it succeeds. Raises _OverError if the gate is closed first."""
        while True:
            try:
                result = await self._call(request())
            except _TroubleError as trouble:
                if await self._back_off(trouble):
                    raise _OverError from None
            else:
                if self._trouble_since is not None:
                    self._trouble_since, self._warned, self._wait = None, False, FIRST_WAIT
                return result

    async def _call(self, request: Coroutine[Any, Any, T]) -> T:
        try:
            return await asyncio.create_task(request, context=self._context)
        except TROUBLE as error:
            raise _TroubleError(f"{type(error).__name__}: {one_line(str(error))[:200]}") from error

    async def _back_off(self, trouble: "_TroubleError | None" = None) -> bool:
        """Wait, longer each time, so as not to race with a user's script. Return whether the gate was closed meanwhile."""
        if trouble is not None:
            self._tell(trouble)
        wait, self._wait = self._wait, min(2 * self._wait, LONGEST_WAIT)
        return await self._over_within(wait)

    def _tell(self, trouble: "_TroubleError") -> None:
        """Log one line if the server is unavailable for long. A server that is briefly busy is not worth a warning."""
        now = asyncio.get_running_loop().time()
        self._trouble_since = now if self._trouble_since is None else self._trouble_since
        if now - self._trouble_since > TELL_SECONDS and not self._warned:
            self._warned = True
            log.warning("the form of flow run %s is not at hand (%s); tried again until the gate is closed", self._id, trouble)

    async def _over_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.over.wait()
        except TimeoutError:
            return False
        return True


def base_of(key: str) -> str:
    """Return the name under which Prefect keeps the form of the pause with `key`."""
    return f"paused-{key}"


async def takes_codes(request: ApprovalRequest) -> bool:
    """Return whether the form of `request` accepts one-time codes: only if people sign in to the server, or if none is required."""
    if "totp" not in (request.rules.known_by or ()):
        return True
    return await asyncio.to_thread(demands_authentication, current_server().api_url) is True


def form_writes(
    request: ApprovalRequest, flow_run_id: UUID, client: PrefectClient, *, key: str, refused: str | None, takes_codes: bool
) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
    """Return the calls that write the form of the pause with `key`, in order. Each can be repeated."""
    keyset = keyset_from_base_key(base_of(key))
    form = form_of(request, takes_codes=takes_codes)
    text = description_of(request, refused=refused, takes_codes=takes_codes)
    return (
        lambda: _save(form.asave(keyset, flow_run_id)),
        lambda: _save(acreate_flow_run_input(keyset["description"], text, flow_run_id=flow_run_id)),
        partial(client.update_flow_run_labels, flow_run_id, labels_of(request, base_of(key), refused)),
    )


def with_form(paused: State[Any], key: str) -> State[Any]:
    """Return `paused` as the pause with `key`, which shows the form written under that key."""
    paused.state_details.pause_key = key
    paused.state_details.run_input_keyset = {str(part): name for part, name in keyset_from_base_key(base_of(key)).items()}
    return paused


def _context_without_retries() -> Context:
    """Return a copy of the context in which Prefect's client does not retry. A prompt has its own waits, which end with the gate."""
    with changed_settings({"client.max_retries": 0}):
        return copy_context()


def _waits_for(request: ApprovalRequest) -> str:
    """Return the message of the paused state."""
    name = one_line(request.name)[:200]
    if request.kind == "approval":
        return f"Waiting for an approval of {name}"
    if request.kind == "question":
        return f"Waiting for an answer to the question `{request.step_id}` of {name}"
    return f"Waiting to know how `{call_name(str(request.step_id), request.item, request.label, kind=request.call_kind)}` of {name} ended"


def _shows(state: State | None, key: str | None) -> bool:
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
    return keyset_from_base_key(base_of(key))["response"]


def _raise_if_cancelled(state: State | None) -> None:
    if state is not None and (state.is_cancelling() or state.is_cancelled()):
        raise GateCancelledError(state.message or "cancelled in Prefect")


@dataclass(slots=True)
class LeftForm:
    """The form with which a flow run ends as Paused. There is none while `key` is None."""

    key: str | None = None

    def on(self, state: State[Any]) -> State[Any]:
        """Return `state`, with the form added if it is a pause and there is a form."""
        return state if self.key is None or not state.is_paused() else with_form(state, self.key)


_left: ContextVar[LeftForm] = ContextVar("plan_adapter_left_form")


@contextmanager
def left_form() -> Generator[LeftForm]:
    """Yield the holder of the form that `leave_form` writes, for the state that the flow's function returns."""
    token = _left.set(LeftForm())
    try:
        yield _left.get()
    finally:
        _left.reset(token)


async def leave_form(asking: Asking) -> None:
    """Write a gate's form for the current flow run. The flow's function must then return a paused state.

    If the server is unavailable, the gate has no form; it can be answered elsewhere.
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
