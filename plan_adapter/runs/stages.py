"""The stages of one start of an approved run: claim, turn, steps, new version, rollback, `finally` steps and end."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from pydantic import JsonValue

from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.limits import Slots
from plan_adapter.execution.ports import Cluster
from plan_adapter.execution.results import ResultLimit
from plan_adapter.execution.rollback import Rollback
from plan_adapter.execution.run_status import FAILURES, rolls_back
from plan_adapter.execution.scheduler import execute
from plan_adapter.execution.scope import RunScope
from plan_adapter.gates.approval import ApprovedPlan
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.local.crash_points import reached
from plan_adapter.model.errors import PlanAdapterError, StoreError
from plan_adapter.model.goals import GoalModel
from plan_adapter.model.record import Recorder, StepRun
from plan_adapter.model.status import PlanStatus, RunReason, StepStatus
from plan_adapter.runs.ending import (
    check_prefect_cancellation,
    conclude_run,
    ending_without_finally_steps,
    leave_waiting,
    release_run,
    watch_run,
)
from plan_adapter.runs.folders import in_folder
from plan_adapter.runs.keeper import GateKeeper
from plan_adapter.runs.plan_approval import load_new_version
from plan_adapter.runs.replan import AUTOMATIC_REPLAN, draft_automatically, revision_note, wants_replanning
from plan_adapter.runs.run_session import RunSession, cluster_of, goal_model_of
from plan_adapter.runs.secret_lookup import secrets_of
from plan_adapter.runs.step_gates import CallGates, OutcomeGates
from plan_adapter.runs.turn import wait_for_turn
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs, validate


async def execute_approved(approved: ApprovedPlan, keeper: GateKeeper) -> BoundPlan | None:
    """Execute the approved plan. Return the new version that a failure led to, which waits for approval, or None."""
    session, store = keeper.session, keeper.store
    validated, settings = approved.bound.validated, keeper.run_request.settings
    async with goal_model_of(validated, keeper.run_request) as goal_model, cluster_of(validated, settings) as cluster:
        recorder = await _claim(approved, session)
        policy = await store.policy.effective(settings)
        scope = scope_of(approved, keeper, recorder, cluster=cluster, goal_model=goal_model, policy=policy)
        scope.notify("run_started")
        return await Start(scope, keeper, policy).execute()


async def _claim(approved: ApprovedPlan, session: RunSession) -> Recorder:
    """Make this process the owner of the run, with its steps pending, and return the recorder of this start."""
    run, store = session.run, session.store
    run.transition(PlanStatus.EXECUTING)
    run.rollback = None
    run.steps = pending_steps(approved.bound.validated, session.history)
    run.started_at = run.started_at or await store.now()
    await store.ledger.claim(run)
    reached("claimed")
    return await store.ledger.recorder(run)


@dataclass(slots=True)
class Start:
    """One start of a claimed run. Each stage says whether the next one follows; the end always does."""

    scope: RunScope
    keeper: GateKeeper
    policy: EffectivePolicy  # as of this start
    version: BoundPlan | None = None  # the new version that a failure led to
    replan_failure: str | None = None  # why there is none, although the plan wants one
    rollback: Rollback | None = None  # of a run that is rolled back

    async def execute(self) -> BoundPlan | None:
        """Execute the stages. Return the new version of the plan, which waits for approval, or None."""
        try:
            if await self._before_finally_steps():
                await self._execute_finally_steps()
                await self._goes_on_without_answers()
        finally:
            await self._end()
        return self.version

    async def _before_finally_steps(self) -> bool:
        try:
            for stage in (self._execute_steps, self._goes_on_without_answers, self._replan, self._roll_back):
                if not await stage():
                    return False
        except asyncio.CancelledError:
            await self._execute_finally_steps()
            raise
        return True

    async def _execute_steps(self) -> bool:
        """Execute the steps once it is the run's turn. Without its turn, `scope.stop` says why, and nothing else follows."""
        scope, store, backend = self.scope, self.keeper.store, self.keeper.session.backend
        async with watch_run(scope, store, partial(store.ledger.cancel_request, scope.run.id), backend.cancellation):
            may_start = await wait_for_turn(scope, store, self.policy, self.keeper.run_request.settings)
            await execute(scope, backend.run_step)
        return may_start

    async def _goes_on_without_answers(self) -> bool:
        """Return whether no step waits for an answer. Otherwise record that the run waits without a process."""
        if self.scope.is_left:
            await leave_waiting(self.scope.run, self.keeper.store)
        return not self.scope.is_left

    async def _replan(self) -> bool:
        """Draft a new version of the remaining steps if a failure asks for it. With one, this start has no more stages."""
        self.version, self.replan_failure = await _replan_after_failure(self.scope, self.keeper)
        return self.version is None

    async def _roll_back(self) -> bool:
        """Roll back what was done, if the way in which the steps ended asks for it."""
        self.rollback = await _prepare_rollback(self.scope, self.keeper.session)
        if self.rollback is not None:
            # A run cancelled in Prefect still shows as cancelled. That stopped the steps, but must not stop their rollback.
            cancellation = None if self.scope.stop.is_from_prefect else self.keeper.session.backend.cancellation
            await execute_rollback(self.rollback, self.keeper.store, cancellation)
        return True

    async def _execute_finally_steps(self) -> None:
        status = ending_without_finally_steps(self.scope).status
        await execute_finally_steps(self.scope, self.keeper, status, self.rollback)

    async def _end(self) -> None:
        """Conclude the run if all its steps have ended here. If they have to end elsewhere, release it."""
        scope, store, run = self.scope, self.keeper.store, self.scope.run
        if all(step.status.has_ended for step in run.steps) and not (self.keeper.session.backend.is_cut_short() and scope.stop.is_set):
            await conclude_run(scope, store, self.rollback, self.replan_failure)
        elif run.status is PlanStatus.EXECUTING:
            await release_run(run, store)


def scope_of(
    approved: ApprovedPlan,
    keeper: GateKeeper,
    recorder: Recorder,
    *,
    cluster: Cluster | None,
    goal_model: GoalModel | None = None,
    policy: EffectivePolicy | None = None,
) -> RunScope:
    """Return the scope that all calls of one start of a run share, with the gates of `keeper`.

    `policy`, as of this start, says which steps have a gate. None: no step has one, because only a rollback follows.
    """
    session, run_request, stop = keeper.session, keeper.run_request, Stop()
    secrets = secrets_of(run_request.settings, run_request.secrets)
    keeper.answers.redact = secrets.redactor.value
    keeper.ask_until(stop)
    return RunScope(
        approved=approved,
        run=session.run,
        recorder=recorder,
        stop=stop,
        slots=Slots(approved.bound.validated.plan.options.parallel_limit),
        limit=ResultLimit(run_request.settings.result_limit_bytes, run_request.settings.results_path),
        history=session.history,
        gates=session.backend.gates or (None if policy is None else CallGates(approved, keeper, policy, session.history.asked)),
        outcomes=OutcomeGates(approved, keeper),
        cluster=cluster,
        goal_model=goal_model,
        goal_tokens=run_request.settings.goal_tokens,
        hooks=run_request.hooks,
        listener=run_request.listener,
        leave=run_request.leave,
        log_sink=session.backend.log_sink,
        publish=session.backend.publish,
        report=session.backend.report,
        assume=session.backend.assume,
        secrets=secrets,
    )


async def execute_finally_steps(scope: RunScope, keeper: GateKeeper, status: PlanStatus, rollback: Rollback | None) -> None:
    """Execute the plan's `finally` steps once all others have ended, with `status` as `run.status`. Sets `scope.is_left` if they wait.

    Their expressions also see what `rollback` undid, or else what the rollbacks of items that failed did.

    Cancelling the run does not stop them; their own timeout does. If the process has to end now, they run when the run is resumed.
    """
    session, run, validated = keeper.session, scope.run, scope.approved.bound.validated
    main = [step for step in run.steps if step.id not in validated.finally_order]
    if not validated.finally_order or not all(step.status.has_ended for step in main):
        return
    if session.backend.is_cut_short() and scope.stop.is_set:
        return
    reports = scope.item_rollbacks if rollback is None else [rollback.report()]
    end: dict[str, JsonValue] = {
        "status": status.value,
        "progress": replace(run, steps=main).summary().text,
        "failed_steps": [step.id for step in main if step.status is StepStatus.FAILED],
        "rolled_back": [name for report in reports for name in report.undone],
        "not_rolled_back": [name for report in reports for name in report.left],
    }
    run.transition(PlanStatus.EXECUTING, reason=run.reason, message=run.message)
    history, order = await keeper.store.ledger.history(run.id), await keeper.store.ledger.call_order(run.id)
    history = history.for_finally_steps(validated.finally_order, order)
    run.steps = [*main, *(step for step in pending_steps(validated, history) if step.id in validated.finally_order)]
    policy, stop = await keeper.store.policy.effective(keeper.run_request.settings), Stop()
    keeper.ask_until(stop)
    finally_scope = replace(
        scope,
        stop=stop,
        history=replace(history, choices=scope.history.choices),
        gates=session.backend.gates or CallGates(scope.approved, keeper, policy, history.asked),
        outcomes=OutcomeGates(scope.approved, keeper),
        refusal=None,
        end=end,
    )
    async with watch_run(finally_scope, keeper.store, _no_cancel_request, None):
        await execute(finally_scope, session.backend.run_step, is_finally=True)
    scope.take_over(finally_scope)


async def _no_cancel_request() -> str | None:
    return None


async def _replan_after_failure(scope: RunScope, keeper: GateKeeper) -> tuple[BoundPlan | None, str | None]:
    """Return the new version if a failure led to one, or why replanning failed.

    Both are None if nothing is replanned or the run was stopped. A run with a new version waits for its approval. Cancelling the run also
    ends the drafting.
    """
    run, store, validated = scope.run, keeper.store, scope.approved.bound.validated
    ending = ending_without_finally_steps(scope)
    if ending.reason not in FAILURES or not await wants_replanning(run, validated.plan, store):
        return None, None
    if (await store.ledger.history(run.id)).has_rollbacks:
        return None, "an item was rolled back, and no new version can follow a rollback"
    run.transition(ending.status, reason=ending.reason, message=ending.message)
    run.message = scope.secrets.redactor.text(run.message or "")  # it goes to a model and into the note of the version
    scope.notify("replanning", message=run.message)
    ended = await store.now()
    drafting = asyncio.ensure_future(draft_automatically(run, validated, await store.ledger.history(run.id), store, keeper.run_request))
    try:
        async with watch_run(scope, store, partial(store.ledger.cancel_request, run.id), keeper.session.backend.cancellation):
            await asyncio.wait({drafting, scope.stop.future}, return_when=asyncio.FIRST_COMPLETED)
        if (reason := await store.ledger.cancel_request(run.id)) is not None:  # cancelled just as the draft arrived
            scope.stop.set("cancelled", reason)
        if scope.stop.is_set:
            return None, None
        draft, tools = await drafting
        if draft.plan is None:
            return None, draft.failure
        bound = in_folder(bind_inputs(validate(draft.plan, tools), run.inputs), run.folder)
        if bound.approval_digest == run.approval_digest:
            return None, f"the model's draft changes nothing (`plan show --draft {draft.id}`)"
    except StoreError:
        raise
    except PlanAdapterError as error:
        return None, str(error)
    finally:
        drafting.cancel()
        await asyncio.gather(drafting, return_exceptions=True)
    run.completed_at = ended
    await store.ledger.update(run)  # end it here: the new version runs in the next start
    note = revision_note(draft, run.message or "")
    await store.revisions.revise(run.id, bound.validated, bound.approval_digest, by=AUTOMATIC_REPLAN, note=note)
    keeper.session.run_request = replace(keeper.run_request, tools=tools)
    return await load_new_version(run, keeper), None


async def _prepare_rollback(scope: RunScope, session: RunSession) -> Rollback | None:
    """Return the rollback of a run whose steps have ended, recorded as in progress, or None if nothing is rolled back."""
    run, store, plan = session.run, session.store, scope.approved.bound.validated.plan
    if not scope.approved.bound.validated.rollbacks:
        return None
    ending = ending_without_finally_steps(scope)
    if ending.status is PlanStatus.COMPLETED:
        return None
    run.transition(ending.status, reason=ending.reason, message=ending.message)
    requested = await store.ledger.is_rollback_requested(run.id) if run.reason is RunReason.CANCELLED else None
    if requested is None and not rolls_back(run, plan):
        return None
    rollback = Rollback(scope, await store.ledger.history(run.id), session.backend.run_step)
    if not rollback.left:
        return None
    if requested is False:  # the request was withdrawn: only report the state of the rollback
        rollback.halt.set("cancelled", await store.ledger.cancel_request(run.id) or "cancelled")
    run.transition(PlanStatus.EXECUTING, reason=run.reason, message=run.message)
    await store.ledger.update(run)  # with its reason, needed to resume an interrupted rollback
    return rollback


async def execute_rollback(rollback: Rollback, store: PlanStore, in_prefect: Callable[[], Awaitable[str | None]] | None) -> None:
    """Roll back a run. If the run is cancelled, here or `in_prefect`, calls in progress finish and no further call starts."""
    run = rollback.scope.run

    async def stop_reason() -> str | None:
        return None if await store.ledger.is_rollback_requested(run.id) else await store.ledger.cancel_request(run.id)

    if (
        in_prefect is not None
        and run.reason is RunReason.CANCELLED
        and (reason := await check_prefect_cancellation(in_prefect)) is not None
    ):
        rollback.halt.set("cancelled", reason)
    async with watch_run(rollback.scope, store, stop_reason, in_prefect, stop=rollback.halt):
        await rollback.undo()


def pending_steps(validated: ValidatedPlan, history: RunHistory) -> list[StepRun]:
    """Return the steps of a plan at the start of a run, with their attempts from earlier starts."""
    tried = dict[str, int]()
    for (step_id, _), number in history.attempts.items():
        tried[step_id] = tried.get(step_id, 0) + number
    return [
        StepRun.pending(vars(step), index, depends_on=validated.dependencies[step.id], group=step.outer, attempts=tried.get(step.id, 0))
        for index, step in enumerate(validated.plan.all_steps)
    ]
