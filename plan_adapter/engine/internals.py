"""All uses of parts of Prefect that are not quite public. Each is optional: without it, runs are slower or a convenience is missing.

`PRIVATE_NAMES` lists them and says which are replaced, each with the version of Prefect in which it was last seen.
`missing_prefect_features` lists what the installed Prefect lacks.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from importlib import import_module
from queue import Empty
from socket import socket
from typing import Any, Literal, NamedTuple, TypeAlias, cast
from uuid import uuid4

import httpx
from prefect import Flow, Task
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State, TaskRun, TaskRunPolicy
from prefect.context import AsyncClientContext, FlowRunContext, TaskRunContext
from prefect.events import Event

from plan_adapter.engine.connection import remember_csrf_support


def _optional(module: str, name: str | None = None) -> Any:
    """Return Prefect's `module`, or `name` in it. Return None if the installed version does not have it."""
    try:
        found = import_module(f"prefect.{module}")
    except ImportError:
        return None
    return found if name is None else getattr(found, name, None)


emit_task_run_state_change_event = _optional("utilities.engine", "emit_task_run_state_change_event")
run_task_async = _optional("task_engine", "run_task_async")
flow_engine = _optional("flow_engine")
control_listener = _optional("_internal.control_listener")
attempt_control = _optional("_internal.attempt_control")
active_services = _optional("_internal.concurrency.services", "_active_services")
EventsWorker = _optional("events.worker", "EventsWorker")
APILogWorker = _optional("logging.handlers", "APILogWorker")

PREFECT_SEEN = "3.9.1"
"""The version of Prefect in which everything in `PRIVATE_NAMES` was last seen."""


class PrivateName(NamedTuple):
    """A name of Prefect that its documentation does not promise, or that is replaced. `seen` is the last version that had it."""

    module: str  # below `prefect`
    names: str  # separated by spaces
    used_for: str  # what is missing or slower without it
    replaced: bool = False  # whether Prefect then calls ours
    seen: str = PREFECT_SEEN


PRIVATE_NAMES = (
    PrivateName("utilities.engine", "emit_task_run_state_change_event", "steps without Prefect's engine: 1.6 times as fast"),
    PrivateName("task_engine", "run_task_async", "task runs whose id is known before they start: a rerun continues them"),
    PrivateName("flow_engine", "run_flow_async", "a resumed run continues its flow run; without it, a new one is created"),
    PrivateName("client.orchestration", "_client", "waits of at most a second, not 2 to 32, at a busy server (63 s before a first step)"),
    PrivateName(
        "client.orchestration._flow_runs.client",
        "create_flow_run",
        "a new flow run has its name at once; naming it afterwards takes a run of one step 15 % more processor time",
        replaced=True,  # on the client of a run
    ),
    PrivateName("client.base", "enable_csrf_support", "one request less for every new client (`connection.remember_csrf_support`)"),
    PrivateName("events.worker", "EventsWorker _context_cache _client", "sending states again that a lost server did not take"),
    PrivateName("logging.handlers", "APILogWorker", "ending at once although the server is away"),
    PrivateName("_internal.concurrency.services", "_active_services _instances _queue _done_event _task _loop", "both of these"),
    PrivateName("events.clients", "_unconfirmed_events _force_checkpoint _reconnect", "knowing that the server has every state"),
    PrivateName(
        "_internal.control_listener",
        "_send_lock _terminal_lock _terminal_claimed _outcome_report_started _receipt_capable _engine_outcome_handled",
        "the reason of a cancellation stays when a worker cancels",
    ),
    PrivateName("_internal.attempt_control", "INTENT_FOR_BYTE EngineOutcomeReceipt encode_receipt", "the same"),
    PrivateName("_internal.control_listener", "_handle_intent_byte", "the same", replaced=True),
    PrivateName("flow_engine", "_flow_parameters call_with_parameters", "a message about wrong parameters, not a crash", replaced=True),
    PrivateName(
        "server.services.task_run_recorder",
        "record_bulk_task_run_events",
        "local server: a state that the database refuses does not lose the other states of its batch",
        replaced=True,
    ),
    PrivateName("server.services.task_run_recorder", "record_task_run_event", "the same"),
    PrivateName("server.database.configurations", "AioSqliteConfiguration", "where the next one is"),
    PrivateName(
        "server.database.configurations", "setup_sqlite", "local server: a request waits 10 s for SQLite's lock, not 60", replaced=True
    ),
)
"""Every private name of Prefect that the package uses. All but `enable_csrf_support` are used in this file."""

Feature: TypeAlias = Literal["task runs", "reruns", "parameters", "cancellation"]
"""A part of Prefect that this package uses and can do without."""

LOCK_MILLISECONDS = 10_000
"""How long a statement of the local server waits for SQLite's lock."""

_new_flow_run: ContextVar[tuple[Flow[..., Any], str] | None] = ContextVar("plan_adapter_flow_run_name", default=None)

BUSY_WAITS = (0.02, 0.05, 0.1, 0.1, 0.25, 0.5, 1.0)
"""Seconds until a request that a busy server refused is sent again. The last value holds for all further retries.

The first waits are short: a write that SQLite refuses because another was committed meanwhile usually succeeds at once.
"""
BUSY_SECONDS = 60.0
"""How long a request is retried this way before a refusal uses up one of the few retries of Prefect's client."""


async def execute(task: Task[..., Any], task_run: TaskRun) -> None:
    """Let Prefect's task engine execute `task` as `task_run`, to its final state."""
    await run_task_async(task, task_run=task_run, return_type="state")


def report_state(task_run: TaskRun, before: State | None, *, follows: Event | None) -> Event | None:
    """Send the state of `task_run` to Prefect as the event of its change from `before`, and return the event. Never blocks."""
    return emit_task_run_state_change_event(task_run=task_run, initial_state=before, validated_state=task_run.state, follows=follows)


async def rerun(flow: Flow[..., Any], flow_run: FlowRun, parameters: dict[str, Any]) -> State:
    """Run `flow` in this process as `flow_run`, whatever its state, and return its final state."""
    return cast(State, await flow_engine.run_flow_async(flow, flow_run=flow_run, parameters=parameters, return_type="state"))


@asynccontextmanager
async def busy_retries() -> AsyncGenerator[None]:
    """Give Prefect's API client short retry waits, in this context, when the server is busy. See `retry_busy_server_soon`."""
    async with AsyncClientContext.get_or_create() as context:
        support_naming(context.client)
        retry_busy_server_soon(context.client)
        with remember_csrf_support(context.client):
            yield


def retry_busy_server_soon(client: PrefectClient) -> None:
    """Make `client` retry within a second when a busy server answers 503. Prefect waits 2 s first, then 4, 8, 16 and 32.

    A server on SQLite answers 503 to every write that collides with a write of its own, usually while it still records the previous run.
    """
    http = getattr(client, "_client", None)
    if isinstance(http, httpx.AsyncClient) and add_retry_after not in http.event_hooks["response"]:
        http.event_hooks = {**http.event_hooks, "response": [*http.event_hooks["response"], add_retry_after]}


@contextmanager
def name_new_flow_run(flow: Flow[..., Any], name: str) -> Generator[None]:
    """Give the flow run that a call of `flow` in this context creates this name. Naming it on creation saves a request."""
    token = _new_flow_run.set((flow, name))
    try:
        yield
    finally:
        _new_flow_run.reset(token)


def support_naming(client: PrefectClient) -> None:
    """Let `name_new_flow_run` set the names of flow runs that `client` creates."""
    create = getattr(client, "create_flow_run", None)
    if create is None or "create_flow_run" in vars(client):
        return

    async def create_named(**given: Any) -> FlowRun:
        flow, name = _new_flow_run.get() or (None, None)
        if flow is not None and given.get("flow") is flow:
            given = {"name": name, **given}
        return await create(**given)

    vars(client)["create_flow_run"] = create_named


async def add_retry_after(response: httpx.Response) -> None:
    """Add the `Retry-After` that a busy server left out, and mark the response so that the client does not count it as a retry."""
    if response.status_code != httpx.codes.SERVICE_UNAVAILABLE.value or "Retry-After" in response.headers:
        return
    extensions = response.request.extensions
    attempts: int = extensions.get("busy_tries", 0)
    deadline: float = extensions.setdefault("busy_deadline", time.monotonic() + BUSY_SECONDS)
    extensions["busy_tries"] = attempts + 1
    response.headers["Retry-After"] = str(BUSY_WAITS[min(attempts, len(BUSY_WAITS) - 1)])
    if time.monotonic() < deadline:
        response.headers["Prefect-Maintenance"] = "true"


@contextmanager
def conclude_cancellation_here() -> Generator[None]:
    """Let only this process end its flow run when its worker wants to cancel it.

    A worker, or `serve`, announces a cancellation to the process, ends it with SIGTERM, and then sets Cancelled with its own message over
    whatever state the process has set. If the process replies that it has concluded the attempt, the worker leaves process and state alone,
    as it does when the process was quicker. Nothing changes for a worker that accepts no such reply, or for a flow with cancellation hooks,
    which the worker calls.
    """
    context, session = FlowRunContext.get(), control_listener
    if context is None or context.flow is None or context.flow.on_cancellation_hooks or missing_prefect_features("cancellation"):
        yield
        return
    handle: Callable[[socket, bytes], bool | None] = session._handle_intent_byte

    def handle_intent(connection: socket, data: bytes) -> bool | None:
        is_concluded = attempt_control.INTENT_FOR_BYTE.get(data) == "cancel" and _conclude_attempt(session, connection)
        return False if is_concluded else handle(connection, data)  # False: the worker's response is still read

    session._handle_intent_byte = handle_intent
    try:
        yield
    finally:
        session._handle_intent_byte = handle


def _conclude_attempt(session: Any, connection: socket) -> bool:
    """Report to the worker that this process has concluded its attempt. Return False if it is too late or no worker listens."""
    outcome = attempt_control.EngineOutcomeReceipt.state_reported(state_id=uuid4(), state_type="CANCELLING", state_name="Cancelling")
    receipt: bytes = attempt_control.encode_receipt(outcome)
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
    if missing_prefect_features("parameters"):
        return
    prepare, call = flow_engine._flow_parameters, flow_engine.call_with_parameters
    if hasattr(prepare, mark):
        return

    def prepare_unchecked(flow: Flow[..., Any], flow_run: FlowRun | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
        if parameters or flow_run is None or not hasattr(flow.fn, mark):
            return prepare(flow=flow, flow_run=flow_run, parameters=parameters)
        return dict(flow_run.parameters)

    def call_unchecked(fn: Callable[..., Any], parameters: dict[str, Any]) -> Any:
        return fn(**parameters) if hasattr(fn, mark) else call(fn, parameters)

    setattr(prepare_unchecked, mark, True)
    flow_engine._flow_parameters, flow_engine.call_with_parameters = prepare_unchecked, call_unchecked


def count_undelivered() -> int:
    """Return how many task run states this process has not sent yet."""
    items = [getattr(queue, "_queue", None) for queue in _event_queues()]
    return sum(getattr(found, "unfinished_tasks", 0) for found in items)


def resend_stranded() -> None:
    """Send states again that are stuck in ended queues, because no server was available when these started."""
    for event, context in _take_stranded():
        context.run(_send, event)


def _send(event: Event) -> None:
    EventsWorker.instance().send(event)


def discard_stranded() -> None:
    """Discard the states that ended queues still hold."""
    for _ in _take_stranded():
        pass


async def confirm_delivery() -> None:
    """Wait until the server has confirmed everything sent. Send again what it may have lost. Raises if it is unavailable."""
    for queue in _event_queues():
        client = getattr(queue, "_client", None)
        if hasattr(client, "_force_checkpoint") and getattr(client, "_unconfirmed_events", None):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_confirm(client), queue._loop))


async def _confirm(client: Any) -> None:
    try:
        await client._force_checkpoint()
    except Exception:  # the connection failed or was missing: a new one resends what was not confirmed
        await client._reconnect()
        await client._force_checkpoint()


def _take_stranded() -> Iterator[tuple[Event, Context]]:
    """Remove and yield what the ended queues hold."""
    queues: list[Any] = [] if EventsWorker is None else [queue for queue in active_services or () if isinstance(queue, EventsWorker)]
    for ended in [queue for queue in queues if queue._done_event is not None and queue._done_event.is_set()]:
        with suppress(Empty):
            while True:
                if (event := ended._queue.get_nowait()) is not None:  # None marks the end
                    yield event, ended._context_cache.pop(event.id, None) or copy_context()


def end_queues() -> int:
    """Tell Prefect's queues in this process to end without sending what they hold. Return how many were still working."""
    working = [(queue, task) for queue in delivery_queues() if (task := getattr(queue, "_task", None)) is not None and not task.done()]
    for queue, task in working:
        queue._loop.call_soon_threadsafe(task.cancel)
    return len(working)


def delivery_queues() -> list[Any]:
    """Return Prefect's queues in this process. If a later Prefect keeps them elsewhere, return none; Prefect then ends them itself."""
    queues: dict[int, Any] = getattr(EventsWorker, "_instances", {})  # of every kind of queue
    kinds = tuple(kind for kind in (EventsWorker, APILogWorker) if kind is not None)
    return [queue for queue in list(queues.values()) if isinstance(queue, kinds)]


def _event_queues() -> list[Any]:
    return [queue for queue in delivery_queues() if type(queue) is EventsWorker]


def record_failed_batches_singly() -> None:
    """Keep a task run state that the server's database refuses, such as one of a deleted flow run, from blocking other states.

    Called in the process of the local server. Prefect writes states in batches, and drops the whole batch if one of its states is refused
    repeatedly.
    """
    recorder = _optional("server.services.task_run_recorder")
    record_batch, record_one, refused = (
        getattr(recorder, name, None) for name in ("record_bulk_task_run_events", "record_task_run_event", "IntegrityError")
    )
    if record_batch is None or record_one is None or refused is None:
        return

    async def record(events: list[Any]) -> None:
        try:
            await record_batch(events)
        except refused:
            if len(events) == 1:
                raise
            for event in events:
                await record_one(event)  # logs and skips a state that is refused

    recorder.record_bulk_task_run_events = record


def shorten_lock_wait() -> None:
    """Let the server's SQLite wait ten seconds for a lock, in place of sixty.

    Called in the process of the local server. A request that waits longer is answered with 503, which Prefect's client sends again. The
    wait may block the event loop (see `collect_garbage_in_thread`), and then it lasts until SQLite gives up.
    """
    sqlite: Any = getattr(_optional("server.database.configurations"), "AioSqliteConfiguration", None)
    if not hasattr(sqlite, "setup_sqlite"):
        return
    set_up = sqlite.setup_sqlite

    def set_up_with_short_wait(self: object, connection: Any, record: object) -> None:
        set_up(self, connection, record)
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {LOCK_MILLISECONDS}")
        cursor.close()

    sqlite.setup_sqlite = set_up_with_short_wait


def missing_prefect_features(feature: Feature | None = None) -> list[str]:
    """Return a message for each name or parameter that the installed Prefect lacks and `feature` (or, without it, any feature) needs."""
    listener, engine = control_listener, flow_engine
    task_run_fields = {"id", "name", "flow_run_id", "flow_run_run_count", "task_key", "dynamic_key", "task_inputs", "labels", "tags"}
    features: dict[Feature, list[str]] = {
        "task runs": [
            *_missing_parameters(
                "emit_task_run_state_change_event",
                emit_task_run_state_change_event,
                {"task_run", "initial_state", "validated_state", "follows"},
            ),
            *_missing_parameters("run_task_async", run_task_async, {"task", "task_run", "return_type"}),
            *_missing_parameters("TaskRun", TaskRun, {*task_run_fields, "empirical_policy", "expected_start_time", "state", "end_time"}),
            *_missing_parameters("TaskRun", TaskRun, {"run_count", "total_run_time", "start_time"}),
            *_missing_parameters("TaskRunPolicy", TaskRunPolicy, {"retries", "retry_delay"}),
            *_missing_parameters(
                "TaskRunContext", TaskRunContext, {"task", "task_run", "parameters", "result_store", "client", "persist_result"}
            ),
        ],
        "reruns": _missing_parameters(
            "run_flow_async", getattr(engine, "run_flow_async", None), {"flow", "flow_run", "parameters", "return_type"}
        ),
        "parameters": [
            *_missing_parameters("_flow_parameters", getattr(engine, "_flow_parameters", None), {"flow", "flow_run", "parameters"}),
            *_missing_parameters("call_with_parameters", getattr(engine, "call_with_parameters", None), {"fn", "parameters"}),
        ],
        "cancellation": [
            *_missing_parameters("_handle_intent_byte", getattr(listener, "_handle_intent_byte", None), {"sock", "data"}),
            *(
                f"Prefect has no `{name}`"
                for name in ("INTENT_FOR_BYTE", "EngineOutcomeReceipt", "encode_receipt")
                if not hasattr(attempt_control, name)
            ),
        ],
    }
    return [text for name, missing in features.items() if feature in (None, name) for text in missing]


def _missing_parameters(name: str, function: Callable[..., Any] | None, given: set[str]) -> list[str]:
    """Return a message for each of `given` that `function` does not take, and for each parameter that it requires beside them."""
    if function is None:
        return [f"Prefect has no `{name}`"]
    parameters = inspect.signature(function).parameters
    wanted = {key for key, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    missing = [f"`{name}` takes no `{parameter}`" for parameter in sorted(given - parameters.keys())]
    return missing + ([] if function is TaskRun else [f"`{name}` wants `{parameter}`" for parameter in sorted(wanted - given)])
