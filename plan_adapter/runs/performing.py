"""One run from its first row to its last, with the steps called directly or as task runs of a flow run."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from plan_adapter.approval import ApprovedPlan
from plan_adapter.errors import ExpressionError, StoreError
from plan_adapter.execution.cancellation import Stop, watch
from plan_adapter.execution.carry import Past
from plan_adapter.execution.direct import DirectCalls
from plan_adapter.execution.ports import CallStep
from plan_adapter.execution.results import ResultLimit
from plan_adapter.execution.scheduler import execute
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.slots import Slots
from plan_adapter.execution.status import conclude
from plan_adapter.plan import PlanStatus, new_id
from plan_adapter.record import PlanRun, StepRun
from plan_adapter.runs.approving import approve_run
from plan_adapter.runs.call_gates import CallGates
from plan_adapter.runs.gates import FormDoor, GateKeeper
from plan_adapter.runs.occasion import Occasion
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import BoundPlan, ValidatedPlan

if TYPE_CHECKING:
    from plan_adapter.engine.connection import Server

log = logging.getLogger(__name__)

STORE_POLL_SECONDS = 0.5
PREFECT_POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Way:
    """How steps are called: directly, or as task runs of a flow run, which may be cancelled there, keeps their logs and shows forms."""

    call_step: CallStep
    cancellation: Callable[[], Awaitable[str | None]] | None = None
    log_sink: Callable[[logging.LogRecord], None] | None = None
    door: FormDoor | None = None


async def perform_anywhere(
    bound: BoundPlan, run: PlanRun, store: PlanStore, occasion: Occasion, *, past: Past, server: "Server | None"
) -> PlanRun:
    """Have a run approved and execute it: as a flow run on `server`, or directly where there is none."""
    if server is None:
        return await perform(bound, run, store, occasion, past=past, way=Way(DirectCalls()))
    from plan_adapter.engine.compiler import fit_as_parameters, flow_of
    from plan_adapter.engine.connection import use_server
    from plan_adapter.engine.ending import run_to_end

    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def body(_inputs: dict[str, Any], flow_run_id: str) -> PlanRun:
        run.flow_run_id = flow_run_id
        try:
            await perform(bound, run, store, occasion, past=past, way=prefect_way(flow_run_id, store, server))
        except BaseException as error:
            ended.set_exception(error)
            if run.completed_at is None or not isinstance(error, asyncio.CancelledError):
                raise  # else first let the flow run end as Cancelled, with the reason
        else:
            ended.set_result(None)
        return run

    inputs = bound.inputs if fit_as_parameters(bound.inputs) else {}
    flow = flow_of(bound.validated, body, with_inputs=bool(inputs))
    with use_server(server):
        await run_to_end(flow, inputs, run, ended)
    return run


def prefect_way(flow_run_id: str, store: PlanStore, server: "Server | None" = None) -> Way:
    """Return how steps are called and gates shown inside the flow run `flow_run_id`, whose context this is; `server` knows its UI."""
    from plan_adapter.engine.flow_runs import cancellation_of
    from plan_adapter.engine.tasks import PrefectSteps, log_to_prefect
    from plan_adapter.runs.door import form_door

    return Way(PrefectSteps(), partial(cancellation_of, flow_run_id), log_to_prefect, form_door(flow_run_id, store, server))


async def perform(bound: BoundPlan, run: PlanRun, store: PlanStore, occasion: Occasion, *, past: Past, way: Way) -> PlanRun:
    """Have `run` approved, execute its steps, and keep the record, whatever happens to them."""
    keeper = GateKeeper(run, store, occasion, way.door, way.cancellation)
    try:
        approved = await approve_run(bound, run, keeper)
        return run if approved is None else await _perform(approved, keeper, past=past, way=way)
    finally:
        await keeper.leave()


async def _perform(approved: ApprovedPlan, keeper: GateKeeper, *, past: Past, way: Way) -> PlanRun:
    """Execute the steps of what is approved."""
    run, store, occasion = keeper.run, keeper.store, keeper.occasion
    options = approved.bound.validated.plan.options
    recorder, stop = await store.recorder(run), Stop()
    scope = RunScope(
        approved=approved,
        run=run,
        recorder=recorder,
        stop=stop,
        slots=Slots(options.parallel_limit),
        limit=ResultLimit(occasion.settings.result_limit_bytes, occasion.settings.results_path),
        past=past,
        hooks=occasion.hooks,
        listener=occasion.listener,
        log_sink=way.log_sink,
        gates=CallGates(approved, keeper, stop),
    )
    run.status, run.reason, run.message, run.completed_at = PlanStatus.EXECUTING, None, None, None
    run.started_at = run.started_at or recorder.now()
    run.steps = _step_runs(approved.bound.validated, past)
    await store.claim(run)
    scope.tell("run_started")
    watches = [asyncio.ensure_future(work) for work in _watches(scope, store, way)]
    try:
        await execute(scope, way.call_step)
    finally:
        for task in watches:
            task.cancel()
        if all(step.completed_at for step in run.steps):
            await _conclude(scope, store)
        else:
            await _let_go(run, store)
    return run


def _watches(scope: RunScope, store: PlanStore, way: Way) -> Iterator[Coroutine[Any, Any, None]]:
    yield watch(scope.stop, partial(store.cancel_request, scope.run.id), every_seconds=STORE_POLL_SECONDS)
    if way.cancellation is not None:
        yield watch(scope.stop, way.cancellation, every_seconds=PREFECT_POLL_SECONDS)


async def _let_go(run: PlanRun, store: PlanStore) -> None:
    """Leave a run that could not be brought to an end to whoever resumes it."""
    try:
        await store.release(run.id)
    except StoreError as error:
        log.info("run %s could not be released: %s", run.id, error)  # the store's error comes to the caller anyway


async def _conclude(scope: RunScope, store: PlanStore) -> None:
    run, now = scope.run, scope.recorder.now()
    conclude(run, scope.stop, scope.refusal)
    run.outputs, problem = _outputs(scope)
    run.message = run.message or problem
    run.completed_at = run.updated_at = now
    run.total_duration_ms = round((now - (run.started_at or now)).total_seconds() * 1000)
    await store.update_run(run)
    scope.tell("run_ended", message=run.message)
    await scope.call_hook(scope.hooks.on_plan_complete, run)


def _outputs(scope: RunScope) -> tuple[dict[str, JsonValue], str | None]:
    """Return the plan's outputs; those that cannot be computed are null, and their errors are returned in words."""
    outputs, problems = dict[str, JsonValue](), list[str]()
    for name, template in scope.approved.bound.validated.outputs.items():
        try:
            outputs[name] = template.resolve(scope.variables())
        except ExpressionError as error:
            outputs[name] = None
            problems.append(f"output `{name}`: {error}")
    return outputs, "; ".join(problems) or None


async def create_run(bound: BoundPlan, store: PlanStore, occasion: Occasion, *, flow_run_id: str | None = None) -> PlanRun:
    """Return a new run of `bound`, recorded as pending its approval."""
    plan, context, now = bound.validated.plan, occasion.context, await store.now()
    run = PlanRun(
        id=new_id(),
        plan_id=plan.id,
        name=plan.name,
        description=plan.description,
        digest=bound.validated.digest,
        approval_digest=bound.approval_digest,
        inputs=bound.inputs,
        steps=_step_runs(bound.validated, Past()),
        created_at=now,
        updated_at=now,
        status=PlanStatus.PENDING_APPROVAL,
        flow_run_id=flow_run_id,
        requested_by=occasion.requested_by,
        task_id=context.task_id,
        agent_id=context.agent_id,
        org_id=context.org_id,
        tenant_id=context.tenant_id,
        metadata=dict(plan.metadata),
    )
    await store.create_run(run, bound.validated)
    return run


def _step_runs(validated: ValidatedPlan, past: Past) -> list[StepRun]:
    tried = Counter[str]()
    for (step_id, _), number in past.attempts.items():
        tried[step_id] += number
    return [
        StepRun(
            id=step.id,
            index=step.index,
            tool_name=step.tool_name or "",
            description=step.description,
            depends_on=validated.dependencies[step.id],
            attempts=tried[step.id],
            max_retries=step.max_retries,
            retry_delay_ms=step.retry_delay_ms,
            metadata=dict(step.metadata),
        )
        for step in validated.plan.steps
    ]
