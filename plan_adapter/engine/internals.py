"""All calls to parts of Prefect that are not quite public. `missing_prefect_features` lists what a later Prefect has changed.

In a short step, Prefect's task engine spends most of its time on things that most steps do not use: a Task object per step, result records,
transactions, parameters. Here the task run of such a step moves from state to state through the events that the engine would send. The API,
the UI and automations see no difference. A step with tags, or whose tool is a Prefect task, runs in Prefect's engine, on the same task run.
`plain.py` uses only Prefect's public calls, in case a later Prefect breaks one of these.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from copy import copy
from functools import cache
from queue import Empty
from socket import socket
from typing import Any, cast
from uuid import UUID, uuid4, uuid5

import httpx
from prefect import Flow, Task, flow_engine
from prefect._internal import control_listener
from prefect._internal.attempt_control import INTENT_FOR_BYTE, EngineOutcomeReceipt, encode_receipt
from prefect._internal.concurrency.services import _active_services  # pyright: ignore[reportPrivateUsage]
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State, TaskRun, TaskRunPolicy, TaskRunResult
from prefect.context import AsyncClientContext, FlowRunContext, TagsContext, TaskRunContext
from prefect.events import Event
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker
from prefect.flow_engine import run_flow_async
from prefect.logging.handlers import APILogWorker
from prefect.states import Pending
from prefect.task_engine import run_task_async
from prefect.types import DateTime
from prefect.utilities.engine import emit_task_run_state_change_event

from plan_adapter.engine.connection import csrf_remembered

MAX_EDGES = 1000
"""The most upstream task runs that one task run names. An event may have 1.5 MB, and the UI draws no more."""

MAX_SHOWN_DELAYS = 50
"""Prefect refuses longer lists of retry delays."""

_name: ContextVar[tuple[Flow[..., Any], str] | None] = ContextVar("plan_adapter_flow_run_name", default=None)

BUSY_WAITS = (0.02, 0.05, 0.1, 0.1, 0.25, 0.5, 1.0)
"""Seconds until a request that a busy server refused is sent again. The last value holds for all further retries.

The first waits are short: a write that SQLite refuses because another was committed meanwhile usually succeeds at once.
"""
BUSY_SECONDS = 60.0
"""How long a request is retried this way before a refusal uses up one of the few retries of Prefect's client."""


class StepTaskRun:
    """A task run of the current flow run. Its id derives from flow run and key, so a rerun of the flow run continues the same task run."""

    def __init__(
        self,
        flow: FlowRunContext,
        *,
        step_id: str,
        name: str,
        key: str | None = None,
        upstream: Sequence[UUID] = (),
        retry_delays: Sequence[float] = (),
        timeout_seconds: float | None = None,
        tags: Collection[str] = (),
    ) -> None:
        """Create the task run; Prefect learns of it with its first state. `key` identifies it within the flow run, by default the name."""
        assert flow.flow_run is not None  # only Prefect's background tasks have none
        flow_run = flow.flow_run
        self._flow = flow
        self._last_event: Event | None = None
        self.task_run = TaskRun(
            id=uuid5(flow_run.id, key or name),
            name=name,
            flow_run_id=flow_run.id,
            flow_run_run_count=flow_run.run_count,
            task_key=step_id,
            dynamic_key=key or name,
            empirical_policy=TaskRunPolicy(retries=len(retry_delays), retry_delay=list(retry_delays[:MAX_SHOWN_DELAYS])),
            task_inputs={"wait_for": [TaskRunResult(id=task_run_id) for task_run_id in upstream[:MAX_EDGES]]} if upstream else {},
            labels={} if timeout_seconds is None else {"timeout_seconds": timeout_seconds},
            tags=sorted(TagsContext.get().current_tags.union(tags)),
        )

    @property
    def id(self) -> UUID:
        """The id of the task run."""
        return self.task_run.id

    def context(self) -> TaskRunContext:
        """Return the context to enter around the attempts: loggers, subflows and tasks in it belong to this task run."""
        task = copy(_prototype())
        task.name = self.task_run.name
        return TaskRunContext(
            task=task,
            task_run=self.task_run,
            parameters={},
            result_store=self._flow.result_store,
            client=self._flow.client,
            persist_result=False,
        )

    def enter(self, state: State) -> None:
        """Move the task run to `state` and report it to Prefect. Never blocks."""
        run, last = self.task_run, self.task_run.state
        state.state_details.task_run_id = run.id
        state.state_details.flow_run_id = run.flow_run_id
        run.state, run.state_id, run.state_type, run.state_name = state, state.id, state.type, state.name
        now = cast(DateTime, state.timestamp)  # Prefect declares pendulum's type and accepts any datetime
        run.expected_start_time = run.expected_start_time or now
        if last is not None and last.is_running():
            run.total_run_time += state.timestamp - last.timestamp
        if state.is_running():
            run.run_count += 1
            run.start_time = run.start_time or now
        if state.is_final():
            run.end_time = now
        self._last_event = emit_task_run_state_change_event(
            task_run=run, initial_state=last, validated_state=state, follows=self._last_event
        )


async def run_by_engine(task: Task[..., Any], run: StepTaskRun) -> None:
    """Let Prefect's own task engine execute `task` as the task run `run`, from Pending to its final state."""
    run.enter(Pending())
    await run_task_async(task, task_run=run.task_run, return_type="state")


async def rerun(flow: Flow[..., Any], flow_run: FlowRun, parameters: dict[str, Any]) -> State:
    """Run `flow` in this process as `flow_run`, whatever its state, and return its final state."""
    return cast(State, await run_flow_async(flow, flow_run=flow_run, parameters=parameters, return_type="state"))


@asynccontextmanager
async def busy_retries() -> AsyncGenerator[None]:
    """Give Prefect's API client short retry waits, in this context, when the server is busy. See `retry_busy_server_soon`."""
    async with AsyncClientContext.get_or_create() as context:
        let_name(context.client)
        retry_busy_server_soon(context.client)
        with csrf_remembered(context.client):
            yield


def retry_busy_server_soon(client: PrefectClient) -> None:
    """Make `client` retry within a second when a busy server answers 503. Prefect waits 2 s first, then 4, 8, 16 and 32.

    A server on SQLite answers 503 to every write that collides with a write of its own, usually while it still records the previous run.
    """
    http = getattr(client, "_client", None)
    if isinstance(http, httpx.AsyncClient) and advise_retry not in http.event_hooks["response"]:
        http.event_hooks = {**http.event_hooks, "response": [*http.event_hooks["response"], advise_retry]}


@contextmanager
def named(flow: Flow[..., Any], name: str) -> Generator[None]:
    """Name the flow run that a call of `flow` in this context creates. Naming it on creation saves a request."""
    token = _name.set((flow, name))
    try:
        yield
    finally:
        _name.reset(token)


def let_name(client: PrefectClient) -> None:
    """Let `named` set the names of flow runs that `client` creates."""
    create = getattr(client, "create_flow_run", None)
    if create is None or "create_flow_run" in vars(client):
        return

    async def create_named(**given: Any) -> FlowRun:
        flow, name = _name.get() or (None, None)
        if flow is not None and given.get("flow") is flow:
            given = {"name": name, **given}
        return await create(**given)

    vars(client)["create_flow_run"] = create_named


async def advise_retry(response: httpx.Response) -> None:
    """Add the `Retry-After` that a busy server left out, and mark the response so that it uses up none of the client's retries."""
    if response.status_code != httpx.codes.SERVICE_UNAVAILABLE.value or "Retry-After" in response.headers:
        return
    extensions = response.request.extensions
    tries: int = extensions.get("busy_tries", 0)
    deadline: float = extensions.setdefault("busy_deadline", time.monotonic() + BUSY_SECONDS)
    extensions["busy_tries"] = tries + 1
    response.headers["Retry-After"] = str(BUSY_WAITS[min(tries, len(BUSY_WAITS) - 1)])
    if time.monotonic() < deadline:
        response.headers["Prefect-Maintenance"] = "true"


@contextmanager
def concluded_here() -> Generator[None]:
    """Let only this process set the end of its flow run when its worker wants to cancel it.

    A worker, or `serve`, announces a cancellation to the process, ends it with SIGTERM, and then sets Cancelled with its own message over
    whatever state the process has set. If the process replies that it has concluded the attempt, the worker leaves process and state alone,
    as it does when the process was quicker. Nothing changes for a worker that accepts no such reply, or for a flow with cancellation hooks,
    which the worker calls.
    """
    context, session = FlowRunContext.get(), cast("Any", control_listener)
    if context is None or context.flow is None or context.flow.on_cancellation_hooks:
        yield
        return
    handle: Callable[[socket, bytes], bool | None] = session._handle_intent_byte

    def answered(connection: socket, data: bytes) -> bool | None:
        is_answered = INTENT_FOR_BYTE.get(data) == "cancel" and _conclude_attempt(session, connection)
        return False if is_answered else handle(connection, data)  # False: the worker's response is still read

    session._handle_intent_byte = answered
    try:
        yield
    finally:
        session._handle_intent_byte = handle


def _conclude_attempt(session: Any, connection: socket) -> bool:
    """Report to the worker that this process has concluded its attempt. Return False if it is too late or no worker listens."""
    receipt = encode_receipt(EngineOutcomeReceipt.state_reported(state_id=uuid4(), state_type="CANCELLING", state_name="Cancelling"))
    with session._send_lock, session._terminal_lock:
        if session._terminal_claimed or session._outcome_report_started or not session._receipt_capable:
            return False
        session._outcome_report_started = session._engine_outcome_handled = True
        connection.sendall(receipt)
    return True


def let_flows_check_parameters(mark: str) -> None:
    """Let functions with the attribute `mark` receive parameters that their signature lacks, or miss some that it requires.

    A deployment keeps the parameters of the plan that it was created from. Prefect compares a flow run's parameters with the signature
    before the flow run begins: on a mismatch it would crash with a traceback, and no state would say what is wrong.
    """
    engine = cast("Any", flow_engine)
    prepare, call = engine._flow_parameters, engine.call_with_parameters
    if hasattr(prepare, mark):
        return

    def prepared(flow: Flow[..., Any], flow_run: FlowRun | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
        if parameters or flow_run is None or not hasattr(flow.fn, mark):
            return prepare(flow=flow, flow_run=flow_run, parameters=parameters)
        return dict(flow_run.parameters)

    def called(fn: Callable[..., Any], parameters: dict[str, Any]) -> Any:
        return fn(**parameters) if hasattr(fn, mark) else call(fn, parameters)

    setattr(prepared, mark, True)
    engine._flow_parameters, engine.call_with_parameters = prepared, called


def undelivered() -> int:
    """Return how many task run states this process has not sent yet."""
    items = [getattr(queue, "_queue", None) for queue in delivery_queues() if type(queue) is EventsWorker]
    return sum(getattr(found, "unfinished_tasks", 0) for found in items)


def rescue() -> None:
    """Move states that are stuck in ended queues, because no server was available at their start, to a working queue."""
    for event, context in _stranded():
        context.run(_send, event)


def _send(event: Event) -> None:
    EventsWorker.instance().send(event)


def forget() -> None:
    """Discard the states that ended queues still hold."""
    for _ in _stranded():
        pass


async def confirm() -> None:
    """Return once the server has confirmed everything sent. Events that it may have lost are sent again. Raises if it is unavailable."""
    for queue in delivery_queues():
        client = getattr(queue, "_client", None)
        if isinstance(client, PrefectEventsClient) and getattr(client, "_unconfirmed_events", None):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_confirm(client), queue._loop))


async def _confirm(client: Any) -> None:
    try:
        await client._force_checkpoint()
    except Exception:  # the connection failed or was missing: a new one resends what was not confirmed
        await client._reconnect()
        await client._force_checkpoint()


def _stranded() -> Iterator[tuple[Event, Context]]:
    """Remove and yield what the ended queues hold."""
    every: list[Any] = [queue for queue in list(_active_services) if isinstance(queue, EventsWorker)]
    for ended in [queue for queue in every if queue._done_event is not None and queue._done_event.is_set()]:
        with suppress(Empty):
            while True:
                if (event := ended._queue.get_nowait()) is not None:  # None marks the end
                    yield event, ended._context_cache.pop(event.id, None) or copy_context()


def end_queues() -> int:
    """Ask Prefect's queues in this process to end without sending what they hold. Return how many were still working."""
    working = [(queue, task) for queue in delivery_queues() if (task := getattr(queue, "_task", None)) is not None and not task.done()]
    for queue, task in working:
        queue._loop.call_soon_threadsafe(task.cancel)
    return len(working)


def delivery_queues() -> list[Any]:
    """Return Prefect's queues in this process. If a later Prefect keeps them elsewhere, return none; Prefect then ends them itself."""
    every: dict[int, Any] = getattr(EventsWorker, "_instances", {})  # of every kind of queue
    return [queue for queue in list(every.values()) if isinstance(queue, (EventsWorker, APILogWorker))]


def missing_prefect_features() -> list[str]:
    """Return what this module relies on and the installed Prefect no longer offers; empty if nothing is missing."""
    return [
        *_lacking(emit_task_run_state_change_event, {"task_run", "initial_state", "validated_state", "follows"}),
        *_lacking(run_flow_async, {"flow", "flow_run", "parameters", "return_type"}),
        *_lacking(cast("Any", flow_engine)._flow_parameters, {"flow", "flow_run", "parameters"}),
        *_lacking(cast("Any", flow_engine).call_with_parameters, {"fn", "parameters"}),
        *_lacking(run_task_async, {"task", "task_run", "return_type"}),
        *_lacking(TaskRun, {"id", "name", "flow_run_id", "flow_run_run_count", "task_key", "dynamic_key", "task_inputs", "labels", "tags"}),
        *_lacking(TaskRun, {"empirical_policy", "expected_start_time", "state", "run_count", "total_run_time", "start_time", "end_time"}),
        *_lacking(TaskRunPolicy, {"retries", "retry_delay"}),
        *_lacking(cast("Any", control_listener)._handle_intent_byte, {"sock", "data"}),
        *_lacking(TaskRunContext, {"task", "task_run", "parameters", "result_store", "client", "persist_result"}),
    ]


def _lacking(called: Callable[..., Any], given: set[str]) -> list[str]:
    """Return the parameters of ours that `called` does not take, and the ones it requires that we do not pass."""
    parameters = inspect.signature(called).parameters
    wanted = {name for name, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    name = f"{called.__module__}.{called.__qualname__}"
    lacks = [f"{name} takes no `{parameter}`" for parameter in sorted(given - parameters.keys())]
    return lacks + ([] if called is TaskRun else [f"{name} wants `{parameter}`" for parameter in sorted(wanted - given)])


@cache
def _prototype() -> Task[..., Any]:
    return Task(_unused, cache_policy=NO_CACHE, persist_result=False)


async def _unused() -> None:
    """Fill the task field of Prefect's context. Never called."""
