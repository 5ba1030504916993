"""Turns a plan into a Prefect flow and drives its flow run to a final state."""

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias
from uuid import UUID

from prefect import Flow, get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, Pause
from pydantic import JsonValue, WithJsonSchema

from plan_adapter.engine.connection import describe_server_error, override_settings
from plan_adapter.engine.flow_runs import CHECKS_ITSELF, name_flow_run, run_flow, tag_flow_run
from plan_adapter.engine.gate_forms import leave_notice
from plan_adapter.engine.internals import (
    busy_retries,
    confirm_delivery,
    count_undelivered,
    discard_stranded,
    end_queues,
    let_flows_check_parameters,
    resend_stranded,
)
from plan_adapter.engine.outgoing import paragraphs
from plan_adapter.engine.states import keep_flow_end, state_of_error, state_of_run, state_of_unused_event
from plan_adapter.model.errors import NoServerError, PlanAdapterError
from plan_adapter.model.options import TEXT_TYPES, Input, InputType
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.readable import MAX_NAME_CHARACTERS, prose, safe_name
from plan_adapter.model.record import PlanRun
from plan_adapter.model.triggers import EVENT_PARAMETER, UnusedEvent
from plan_adapter.text.preview import run_name
from plan_adapter.validation import ValidatedPlan, bind_inputs
from plan_adapter.validation.inputs import shown_value_schema

log = logging.getLogger(__name__)

STALL_SECONDS = 5.0
"""How long the server may accept nothing from the queue before it counts as gone."""
CLOSE_SECONDS = 2.0


async def wait_for_delivery() -> bool:
    """Return whether the server has accepted every task run state. Waits as long as the queue keeps shrinking."""
    loop = asyncio.get_running_loop()
    resend_stranded()
    left, deadline = count_undelivered(), loop.time() + STALL_SECONDS
    while left and loop.time() < deadline:
        await asyncio.sleep(0.01)
        if (now := count_undelivered()) != left:
            left, deadline = now, loop.time() + STALL_SECONDS
    return not left and await _has_confirmed()


async def _has_confirmed() -> bool:
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await confirm_delivery()
    except Exception as error:
        log.info("cannot tell whether the server has accepted all states: %s", error)
        return False
    return True


async def drop_queues() -> None:
    """Shut down Prefect's queues in this process without sending what they hold. Later runs get new queues."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CLOSE_SECONDS
    # Repeated because the first call makes a queue close its connection, which may hang as well.
    while end_queues() and loop.time() < deadline:  # noqa: ASYNC110  # Prefect's threads end the queues and signal nothing
        await asyncio.sleep(0.1)
    discard_stranded()


FlowBody: TypeAlias = Callable[[dict[str, JsonValue], str], Awaitable[PlanRun | UnusedEvent]]
"""Runs a plan. Called with its inputs, checked and completed with defaults, and the id of the flow run.

The parameters of a flow run that an event started, or some of whose inputs Prefect variables give, are passed as they are.
"""

ID_CHARACTERS = 13  # the first two groups of a UUIDv7: its millisecond
MAX_PARAMETER_CHARACTERS = 400_000
"""Prefect refuses serialized parameters of over 524,288 bytes. Ours are ASCII."""

_PARAMETER_TYPES: dict[InputType, Any] = {
    **dict.fromkeys(("string", *TEXT_TYPES), str),
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
}


def build_flow(validated: ValidatedPlan, body: FlowBody, *, with_inputs: bool = True) -> Flow[..., Any]:
    """Return a flow that awaits `body` and ends in the state of the run that it returns.

    Its parameters are the plan's inputs. Without `with_inputs` it has none; use this for a body that already has inputs too large for
    Prefect. `await flow(**inputs)` returns the PlanRun, or raises RunFailedError with it.

    Invalid inputs and this package's errors from `body` are raised. They end the flow run as Failed with the error as its message; a
    StoreError ends it as Crashed with the name Interrupted. Prefect persists and retries nothing.
    """
    plan = validated.plan
    return PlanFlow(
        _flow_function(plan, partial(_bind_and_run, validated, body)) if with_inputs else _flow_function(plan, body, with_inputs=False),
        name=safe_name(plan.name),
        description=paragraphs(plan.description),
        version=validated.digest[:12],
        persist_result=False,
        retries=0,
        log_prints=False,
        validate_parameters=False,  # the plan's own check reports every problem at once, with hints
    )


def failing_flow(parameters: Iterable[str], error: PlanAdapterError) -> Flow[..., Any]:
    """Return a flow with these parameters whose flow run ends as Failed with the message of `error`."""
    plan = ExecutionPlan(description="", inputs={name: Input() for name in parameters})

    async def fail(_inputs: dict[str, JsonValue], _flow_run_id: str) -> PlanRun:
        raise error

    return PlanFlow(_flow_function(plan, fail), name="failed-to-load", persist_result=False, retries=0, validate_parameters=False)


class PlanFlow(Flow[..., Any]):
    """A flow whose plan checks the parameters of a flow run. Prefect's own check would crash the flow run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Create the flow."""
        super().__init__(*args, **kwargs)
        let_flows_check_parameters(CHECKS_ITSELF)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state that `serve` passes to the process of a flow run."""
        vars(self).update(state)
        let_flows_check_parameters(CHECKS_ITSELF)


def flow_run_name(run: PlanRun, validated: ValidatedPlan) -> str:
    """Return the name of the flow run of `run`: as its plan says, or else the plan's name and the distinct part of the run's id."""
    default = f"{safe_name(run.name)[: MAX_NAME_CHARACTERS - ID_CHARACTERS].rstrip()} {run.id[:ID_CHARACTERS]}"
    return run_name(validated, run.inputs) or default


def fit_as_parameters(inputs: Mapping[str, JsonValue]) -> bool:
    """Return whether Prefect accepts `inputs` as a flow run's parameters."""
    return len(json.dumps(inputs)) <= MAX_PARAMETER_CHARACTERS


async def _bind_and_run(validated: ValidatedPlan, body: FlowBody, inputs: dict[str, JsonValue], flow_run_id: str) -> PlanRun | UnusedEvent:
    if EVENT_PARAMETER in inputs or validated.plan.unread_variables(inputs):
        return await body(inputs, flow_run_id)
    bound = bind_inputs(validated, inputs).inputs
    await name_by_inputs(validated, bound)
    return await body(bound, flow_run_id)


async def name_by_inputs(validated: ValidatedPlan, inputs: Mapping[str, JsonValue]) -> None:
    """Name the current flow run as its plan says."""
    if (name := run_name(validated, inputs)) is not None:
        await name_flow_run(name)


def _flow_function(plan: ExecutionPlan, body: FlowBody, *, with_inputs: bool = True) -> Callable[..., Awaitable[State]]:
    inputs_of_plan = plan.inputs if with_inputs else {}

    async def run_steps(**inputs: JsonValue) -> State:
        context = FlowRunContext.get()
        assert context is not None and context.flow_run is not None  # only Prefect calls this
        async with busy_retries():  # it changes the client, and so also covers the end of a flow that a worker runs
            await tag_flow_run(context.flow_run, plan.tags)
        with keep_flow_end() as end:
            try:
                run = await body(inputs, str(context.flow_run.id))
                state = state_of_unused_event(run) if isinstance(run, UnusedEvent) else state_of_run(run, report_url=end.report_url)
            except PlanAdapterError as error:
                return state_of_error(error)
        if not state.is_paused():
            return state
        paused = end.paused or await leave_notice(state)
        if paused is None:
            return state
        raise Pause(state=paused)  # Prefect's engine then sets no state, which would delete the form

    setattr(run_steps, CHECKS_ITSELF, True)
    run_steps.__doc__ = _docstring(inputs_of_plan)
    run_steps.__annotations__ = {}
    run_steps.__signature__ = _signature(inputs_of_plan)  # pyright: ignore[reportFunctionMemberAccess]  # read by inspect.signature
    return run_steps


def _signature(inputs: Mapping[str, Input]) -> inspect.Signature:
    return inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if declared.is_required else declared.default,
                annotation=Annotated[_PARAMETER_TYPES[declared.type], WithJsonSchema(shown_value_schema(declared))],
            )
            for name, declared in inputs.items()
        ]
    )


def _docstring(inputs: Mapping[str, Input]) -> str:
    """Return a Google-style docstring, from which Prefect reads the descriptions of the inputs."""
    lines = [f"    {name}: {prose(declared.description)}" for name, declared in inputs.items() if declared.description.strip()]
    return "\n".join(["Run the plan.", *(["", "Args:", *lines] if lines else [])])


END_SECONDS = 15.0
"""How long Prefect may take to record the end of a run. Left alone it would retry for minutes and then mark the flow run as Failed."""
REPORT_SECONDS = 3.0

SERVER_AWAY = "the Prefect server went away and lacks states or logs of"
FLOW_RUN_DELETED = "the flow run is gone (somebody deleted it in Prefect), so Prefect shows no end of"


async def run_to_end(flow: Flow[..., Any], parameters: Mapping[str, Any], run: PlanRun, ended: asyncio.Future[None], *, name: str) -> None:
    """Run `flow` as a flow run called `name`. Its function completes `run`, then sets `ended` to None or to the exception that it raises.

    If the server becomes unavailable, the run continues. Updates that the server does not accept in time are dropped with a warning. Raises
    the exception that `ended` holds, or NoServerError if Prefect never called the function.
    """
    loop = asyncio.get_running_loop()
    flow_task = asyncio.ensure_future(run_flow(flow, parameters, flow_run_id=run.flow_run_id, name=name))
    ended.add_done_callback(lambda _: loop.call_later(END_SECONDS, _cancel_until_done, flow_task))
    while not flow_task.done():
        try:
            await asyncio.wait({flow_task})
        except asyncio.CancelledError:  # the function cleans up and reports how that ended
            flow_task.cancel()
    if not ended.done():
        raise _start_error(flow_task, run)
    problem = await _report_missing_end(flow_task, run) or (None if await wait_for_delivery() else SERVER_AWAY)
    if problem is not None:
        await drop_queues()
        advice = "; `plan reconcile` reports the end to Prefect" if problem == SERVER_AWAY else ""
        log.warning("%s run %s; the store has its complete record%s", problem, run.id, advice)
    ended.result()


def _cancel_until_done(flow_task: "asyncio.Future[State]") -> None:
    # Prefect reacts to a cancellation with one more attempt to reach the server, so several cancellations are needed.
    if not flow_task.done():
        flow_task.cancel()
        asyncio.get_running_loop().call_later(0.2, _cancel_until_done, flow_task)


def _start_error(flow_task: "asyncio.Future[State]", run: PlanRun) -> BaseException:
    """Return the reason why Prefect did not call the flow's function."""
    error = asyncio.CancelledError() if flow_task.cancelled() else flow_task.exception()
    reason = f"its flow run is {flow_task.result().name}" if error is None else describe_server_error(error)
    if reason is None or isinstance(error, PlanAdapterError):
        return error or asyncio.CancelledError()
    not_started = NoServerError(
        f"the Prefect server did not start run {run.id}: {reason}. No step was called; `plan resume {run.id}` starts it"
    )
    not_started.__cause__ = error
    return not_started


async def _report_missing_end(flow_task: "asyncio.Future[State]", run: PlanRun) -> str | None:
    """Report the end of the flow run once more if Prefect could not. Return why the server does not know it, or None if it does."""
    is_reported = not flow_task.cancelled() and flow_task.exception() is None
    # An exception of the function also arrives here, and is not an end.
    if is_reported or run.completed_at is None or run.flow_run_id is None:
        return None
    try:
        with override_settings({"client.max_retries": 0}):
            async with asyncio.timeout(REPORT_SECONDS):
                await _report_end(UUID(run.flow_run_id), state_of_run(run))
    except ObjectNotFound:
        return FLOW_RUN_DELETED
    except Exception as error:
        log.info("the end of run %s could not be reported to Prefect: %s", run.id, error)
        return SERVER_AWAY
    return None


async def _report_end(flow_run_id: UUID, state: State) -> None:
    async with busy_retries(), get_client() as client:
        await client.set_flow_run_state(flow_run_id, state, force=True)
