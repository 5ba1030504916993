"""One run from its first row to its last, with the steps called directly or as task runs of a flow run."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import JsonValue

from plan_adapter.approval import ApprovedPlan
from plan_adapter.crash_points import reached
from plan_adapter.errors import ExpressionError, LeaseLostError, PlanAdapterError, StoreError
from plan_adapter.execution.cancellation import Stop, watch
from plan_adapter.execution.carry import Past
from plan_adapter.execution.direct import DirectCalls
from plan_adapter.execution.ports import CallStep
from plan_adapter.execution.printing import cleaned_prints
from plan_adapter.execution.results import ResultLimit
from plan_adapter.execution.rollback import Rollback
from plan_adapter.execution.scheduler import execute
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.secrets import hidden_in_logs
from plan_adapter.execution.slots import Slots
from plan_adapter.execution.standing import with_rollback
from plan_adapter.execution.status import conclude, rolls_back
from plan_adapter.plan import PlanStatus, new_id
from plan_adapter.record import PlanRun, Recorder, RunReason, StepRun
from plan_adapter.runs.approving import approve_run, open_detached, renewed
from plan_adapter.runs.call_gates import CallGates
from plan_adapter.runs.gates import FormDoor, GateKeeper
from plan_adapter.runs.occasion import Occasion
from plan_adapter.runs.outcomes import OutcomeGates
from plan_adapter.runs.replanning import BY_ITSELF, drafted_by_itself, note_of, wants_replanning
from plan_adapter.runs.secrets import secrets_of
from plan_adapter.settings import Settings
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs, validate

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
    is_cut_short: Callable[[], bool] = lambda: False  # whether the process is to end, and the run to go on elsewhere


class Work(Protocol):
    """What is done with a run: `perform`, or what undoes it."""

    async def __call__(self, bound: BoundPlan, run: PlanRun, store: PlanStore, occasion: Occasion, /, *, past: Past, way: Way) -> PlanRun:
        """Do it, and return the run with its end kept."""
        ...


async def perform_anywhere(
    bound: BoundPlan,
    run: PlanRun,
    store: PlanStore,
    occasion: Occasion,
    *,
    past: Past,
    server: "Server | None",
    work: Work | None = None,
) -> PlanRun:
    """Have a run approved and execute it, or do other `work` with it: as a flow run on `server`, or directly where there is none."""
    work, store = work or perform, store.patient(occasion.settings.store_patience_seconds)
    if server is None:
        return await work(bound, run, store, occasion, past=past, way=Way(DirectCalls()))
    from plan_adapter.engine.compiler import fit_as_parameters, flow_of
    from plan_adapter.engine.connection import use_server
    from plan_adapter.engine.ending import run_to_end

    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def body(_inputs: dict[str, Any], flow_run_id: str) -> PlanRun:
        run.flow_run_id = flow_run_id
        try:
            await work(bound, run, store, occasion, past=past, way=prefect_way(flow_run_id, store, occasion.settings, server))
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


def prefect_way(flow_run_id: str, store: PlanStore, settings: Settings, server: "Server | None" = None) -> Way:
    """Return how steps are called and gates shown inside the flow run `flow_run_id`, whose context this is; `server` knows its UI."""
    from plan_adapter.engine.flow_runs import cancellation_of
    from plan_adapter.engine.tasks import PrefectSteps, log_to_prefect
    from plan_adapter.runs.door import form_door

    steps = PrefectSteps(carried_task_runs=settings.carried_task_runs)
    return Way(steps, partial(cancellation_of, flow_run_id), log_to_prefect, form_door(flow_run_id, store, server))


async def perform(bound: BoundPlan, run: PlanRun, store: PlanStore, occasion: Occasion, *, past: Past, way: Way) -> PlanRun:
    """Have `run` approved, execute its steps, and keep the record, whatever happens to them."""
    keeper = GateKeeper(run, store, occasion, way.door, way.cancellation)
    try:
        while (approved := await approve_run(bound, run, keeper)) is not None:
            version = await _perform(approved, keeper, past=past, way=way)
            if version is None:
                return run
            bound, past = version, await past_of(run, store)
            keeper.occasion = _for_drafted(keeper.occasion)
            if keeper.occasion.approver is None and not keeper.occasion.asks_in_form:
                await open_detached(bound, run, store, occasion.settings)
                return run
        run.steps = (await store.run(run.id)).steps  # who goes on with a run reads it without results
        return run
    finally:
        await keeper.leave()


def _for_drafted(occasion: Occasion) -> Occasion:
    """Return who is asked about what a model drafted: nobody whose word was given before that."""
    is_beforehand = getattr(occasion.approver, "is_beforehand", False)
    return replace(occasion, approval=None, approver=None if is_beforehand else occasion.approver)


async def _perform(approved: ApprovedPlan, keeper: GateKeeper, *, past: Past, way: Way) -> BoundPlan | None:
    """Execute the steps of what is approved; return the new version of the rest where a failure has one drafted, which waits then."""
    run, store, occasion = keeper.run, keeper.store, keeper.occasion
    run.status, run.reason, run.message, run.completed_at = PlanStatus.EXECUTING, None, None, None
    past = replace(past, ended={} if run.started_at is None else await store.ended_steps(run.id))
    run.started_at = run.started_at or await store.now()
    run.steps = _step_runs(approved.bound.validated, past)
    await store.claim(run)
    reached("claimed")
    scope = scope_of(approved, run, await store.recorder(run), occasion, past=past, way=way)
    scope.gates = CallGates(approved, keeper, scope.stop, past.ended.keys())
    ask_about_doubts(scope, keeper)
    scope.tell("run_started")
    rollback = undrafted = None
    try:
        async with watched(scope, store, partial(store.cancel_request, run.id), way.cancellation):
            await execute(scope, way.call_step)
        if scope.is_left:
            await _leave_waiting(run, store)
            return None
        version, undrafted = await _replanned(scope, keeper, way)
        if version is not None:
            return version
        rollback = await _rollback_of(scope, store, way)
        if rollback is not None:
            # One that was cancelled in Prefect is so still: that ended the steps, and says nothing against their rollback.
            was_in_prefect = scope.stop.kind == "cancelled" and scope.stop.message != await store.cancel_request(run.id)
            await undo(rollback, store, None if was_in_prefect else way.cancellation)
    finally:
        if all(step.completed_at for step in run.steps) and not (way.is_cut_short() and scope.stop.is_set):
            await _conclude(scope, store, rollback, undrafted)
        elif run.status is PlanStatus.EXECUTING:
            await _let_go(run, store)
    return None


async def _replanned(scope: RunScope, keeper: GateKeeper, way: Way) -> tuple[BoundPlan | None, str | None]:
    """Return the new version of what is left where a failure is to have one drafted, or in words why none came of it.

    The run waits for its approval then. Whoever cancels it meanwhile ends the draft.
    """
    run, store, validated = scope.run, keeper.store, scope.approved.bound.validated
    conclude(run, scope.stop, scope.refusal, left=scope.past.left)
    if run.reason is not RunReason.STEP_FAILED or not await wants_replanning(run, validated.plan, store):
        return None, None
    run.message = scope.secrets.scrubber.text(run.message or "")  # a model is told it, and the note of the version holds it
    scope.tell("replanning", message=run.message)
    ended = await store.now()
    drafting = asyncio.ensure_future(drafted_by_itself(run, validated, await past_of(run, store), store, keeper.occasion))
    try:
        async with watched(scope, store, partial(store.cancel_request, run.id), way.cancellation):
            await asyncio.wait({drafting, scope.stop.future}, return_when=asyncio.FIRST_COMPLETED)
        if (reason := await store.cancel_request(run.id)) is not None:  # in the moment when the draft was there
            scope.stop.set("cancelled", reason)
        if scope.stop.is_set:
            return None, None
        draft, tools = await drafting
        if draft.plan is None:
            return None, draft.failure
        bound = bind_inputs(validate(draft.plan, tools), run.inputs)
        if bound.approval_digest == run.approval_digest:
            return None, f"the model changes nothing (`plan show --draft {draft.id}`)"
    except StoreError:
        raise
    except PlanAdapterError as error:
        return None, str(error)
    finally:
        drafting.cancel()
        await asyncio.gather(drafting, return_exceptions=True)
    run.completed_at = ended
    await store.update_run(run)  # it has ended: the next start of it is that of the new version
    note = note_of(draft, run.message or "")
    await store.revise_run(run.id, bound.validated, bound.approval_digest, by=BY_ITSELF, note=note)
    keeper.occasion = replace(keeper.occasion, tools=tools)
    return await renewed(run, keeper), None


def ask_about_doubts(scope: RunScope, keeper: GateKeeper) -> None:
    """Let people be asked at gates of `keeper` how calls of `scope` ended of which nobody knows it."""
    scope.outcomes = OutcomeGates(scope.approved, keeper)
    keeper.clean, keeper.why_stopped = scope.secrets.scrubber.value, lambda: scope.stop.message


async def _leave_waiting(run: PlanRun, store: PlanStore) -> None:
    """Keep `run`, of which nothing but gates of steps is open, as one that waits for them without a process."""
    run.status = PlanStatus.PENDING_APPROVAL
    await store.update_run(run)
    if (reason := await store.cancel_request(run.id)) is not None:  # it came too late for the steps to see it
        await store.cancel(run.id, reason)
        run.status, run.reason, run.message = PlanStatus.CANCELLED, RunReason.CANCELLED, reason
        run.completed_at = (await store.run(run.id, with_results=False)).completed_at


def scope_of(approved: ApprovedPlan, run: PlanRun, recorder: Recorder, occasion: Occasion, *, past: Past, way: Way) -> RunScope:
    """Return what the calls of one start of `run` share; no step of it is asked about yet."""
    return RunScope(
        approved=approved,
        run=run,
        recorder=recorder,
        stop=Stop(),
        slots=Slots(approved.bound.validated.plan.options.parallel_limit),
        limit=ResultLimit(occasion.settings.result_limit_bytes, occasion.settings.results_path),
        past=past,
        hooks=occasion.hooks,
        listener=occasion.listener,
        log_sink=way.log_sink,
        secrets=secrets_of(occasion.settings),
    )


async def _rollback_of(scope: RunScope, store: PlanStore, way: Way) -> Rollback | None:
    """Return what undoes the run, whose steps have ended, kept as one that is being undone; None where nothing is to be."""
    run, plan = scope.run, scope.approved.bound.validated.plan
    if not scope.approved.bound.validated.rollbacks:
        return None
    conclude(run, scope.stop, scope.refusal, left=scope.past.left)
    asked = await store.asks_rollback(run.id) if run.reason is RunReason.CANCELLED else None
    if asked is None and not rolls_back(run, plan):
        return None
    rollback = Rollback(scope, await past_of(run, store), way.call_step)
    if not rollback.left:
        return None
    if asked is False:  # and then called off: it only says where things stand
        rollback.halt.set("cancelled", await store.cancel_request(run.id) or "cancelled")
    run.status = PlanStatus.EXECUTING
    await store.update_run(run)  # with its reason: whoever goes on with an interrupted rollback must know it
    return rollback


async def undo(rollback: Rollback, store: PlanStore, in_prefect: Callable[[], Awaitable[str | None]] | None) -> None:
    """Undo what a run did; whoever cancels it before or meanwhile, here or `in_prefect`, lets what is under way end and nothing begin."""
    run = rollback.scope.run

    async def told_to_end() -> str | None:
        return None if await store.asks_rollback(run.id) else await store.cancel_request(run.id)

    if in_prefect is not None and run.reason is RunReason.CANCELLED and (reason := await _answer_soon(in_prefect)) is not None:
        rollback.halt.set("cancelled", reason)
    async with watched(rollback.scope, store, told_to_end, in_prefect, ends=rollback.halt):
        await rollback.undo()


async def _answer_soon(in_prefect: Callable[[], Awaitable[str | None]]) -> str | None:
    """Return the reason for which the run is cancelled in Prefect; None also where that cannot be told at once."""
    try:
        async with asyncio.timeout(PREFECT_POLL_SECONDS):
            return await in_prefect()
    except Exception as error:
        log.info("whether the run was cancelled in Prefect cannot be told now: %s", error)
        return None


async def past_of(run: PlanRun, store: PlanStore) -> Past:
    """Return what every start of `run` has left in the record."""
    past = Past.of(await store.open_attempts(run.id), await store.receipts(run.id))
    return past.leaving_out(await store.left_out(run.id))


@asynccontextmanager
async def watched(
    scope: RunScope,
    store: PlanStore,
    asked: Callable[[], Awaitable[str | None]],
    in_prefect: Callable[[], Awaitable[str | None]] | None,
    *,
    ends: Stop | None = None,
) -> AsyncGenerator[None]:
    """Keep the lease of the run, and set `ends`, if not given the stop of all work, once one of the two gives a reason."""
    ends = ends or scope.stop
    works = [_keep_lease(scope, store), watch(ends, asked, every_seconds=STORE_POLL_SECONDS)]
    if in_prefect is not None:
        works.append(watch(ends, in_prefect, every_seconds=PREFECT_POLL_SECONDS))
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        async with _hidden_secrets(scope):
            yield
    finally:
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def _hidden_secrets(scope: RunScope) -> AsyncGenerator[None]:
    """Keep the values of the plan's secrets out of all that is logged and printed within; nothing is done for a plan without secrets."""
    if names := scope.approved.bound.validated.secrets:
        await scope.secrets.expect(names)
        with hidden_in_logs(scope.secrets.scrubber), cleaned_prints(scope.secrets.scrubber.text):
            yield
    else:
        yield


async def _keep_lease(scope: RunScope, store: PlanStore) -> None:
    """Renew the lease of the run while it is executed, and stop it once another process has taken it over."""
    while True:
        await asyncio.sleep(store.lease_seconds / 4)
        try:
            await store.renew(scope.run.id)
        except LeaseLostError as error:
            scope.stop.set("cancelled", str(error))
            return
        except StoreError as error:
            log.info("the lease of run %s cannot be renewed now: %s", scope.run.id, error)


async def _let_go(run: PlanRun, store: PlanStore) -> None:
    """Leave a run that could not be brought to an end to whoever resumes it."""
    try:
        await store.release(run.id)
    except StoreError as error:
        log.info("run %s could not be released: %s", run.id, error)  # the store's error comes to the caller anyway


async def _conclude(scope: RunScope, store: PlanStore, rollback: Rollback | None, undrafted: str | None) -> None:
    conclude(scope.run, scope.stop, scope.refusal, left=scope.past.left)
    scope.run.outputs, problem = _outputs(scope)
    scope.run.message = scope.run.message or problem
    if undrafted is not None:
        scope.run.message = f"{scope.run.message}; what is left could not be drafted anew: {undrafted}"
    await end_run(scope, store, rollback)


async def end_run(scope: RunScope, store: PlanStore, rollback: Rollback | None) -> None:
    """Keep and tell the end of the run, whose status, reason and message are set; the message also tells where its rollback stands."""
    run, now, scrubber = scope.run, scope.recorder.now(), scope.secrets.scrubber
    if rollback is not None:
        run.message = with_rollback(run.message, rollback.standing())
    if scrubber:
        run.message = None if run.message is None else scrubber.text(run.message)
        run.outputs = {name: scrubber.value(value) for name, value in run.outputs.items()}
    run.completed_at = run.updated_at = now
    run.total_duration_ms = round((now - (run.started_at or now)).total_seconds() * 1000)
    reached("before-end")
    await store.update_run(run)
    reached("after-end")
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
            index=index,
            tool_name=step.tool_name or "",
            description=step.description,
            depends_on=validated.dependencies[step.id],
            attempts=tried[step.id],
            max_retries=step.max_retries,
            retry_delay_ms=step.retry_delay_ms,
            metadata=dict(step.metadata),
        )
        for index, step in enumerate(validated.plan.steps)  # a step looks its own index up slowly
    ]
