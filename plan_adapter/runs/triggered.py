"""What an event means for a run: its inputs, and whether another run was started for the same alert."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from plan_adapter.gates.approval import refuse_operation
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.model.errors import InvalidPlanError, PlanAdapterError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import Problem
from plan_adapter.model.record import PlanRun
from plan_adapter.model.triggers import EVENT_PARAMETER, EventClaim, UnusedEvent
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import create_run, new_run, refuse_unready
from plan_adapter.runs.variables import note_variables, with_variables_here
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs
from plan_adapter.validation.event_triggers import CODE, CompiledTrigger, matches_event
from plan_adapter.validation.inputs import NotJSONError, parse_json


@dataclass(frozen=True, slots=True)
class TriggeredStart:
    """An event that starts a run: the inputs that its trigger gives, and what the run records of it."""

    inputs: dict[str, JsonValue]
    claim: EventClaim


def read_start(validated: ValidatedPlan, parameter: JsonValue) -> TriggeredStart | UnusedEvent:
    """Return the start that the event in a flow run's parameter asks for. Raises InvalidPlanError with everything that does not fit."""
    number, event = _read_parameter(parameter)
    trigger = _find_trigger(validated, number, event)
    if not trigger.is_met(event):
        return UnusedEvent("Ignored", f"ignored: the condition of trigger {number} is false")
    key, inputs = trigger.key_of(validated.plan, event), trigger.inputs_of(validated.plan, event)
    cooldown = None if trigger.fingerprint is None else trigger.trigger.cooldown_ms
    return TriggeredStart(inputs, EventClaim(key, str(event["name"]), str(event["id"]), cooldown))


async def start_in_flow(
    validated: ValidatedPlan,
    parameters: dict[str, Any],
    event: JsonValue,
    store: PlanStore,
    run_request: RunRequest,
    policy: EffectivePolicy,
    *,
    flow_run_id: str,
) -> tuple[BoundPlan, PlanRun] | UnusedEvent:
    """Create the run of a flow run that has none yet, with its bound plan. `parameters` are inputs; `event` is None if none started it."""
    from plan_adapter.engine.flow import name_by_inputs  # imports Prefect

    if event is None:
        given = await with_variables_here(validated.plan, parameters)
        bound = note_variables(bind_inputs(validated, given), before=parameters, after=given)
        await _refuse(bound, store, run_request, policy)
        if validated.plan.unread_variables(parameters):  # they may be part of its name
            await name_by_inputs(validated, bound.inputs)
        return bound, await create_run(bound, store, run_request, flow_run_id=flow_run_id)
    with _refusals_sent(validated.plan, event, flow_run_id):
        start = read_start(validated, event)
        if isinstance(start, UnusedEvent):
            return start
        before = {**parameters, **start.inputs}
        given = await with_variables_here(validated.plan, before)
        bound = note_variables(bind_inputs(validated, given), before=before, after=given)
        await _refuse(bound, store, run_request, policy)
        created = await _create_triggered(bound, store, run_request, start.claim, flow_run_id=flow_run_id)
    if isinstance(created, UnusedEvent):
        return created
    await name_by_inputs(validated, bound.inputs)
    return bound, created


async def _refuse(bound: BoundPlan, store: PlanStore, run_request: RunRequest, policy: EffectivePolicy) -> None:
    """Raise if the run may not be started, or lacks what it needs."""
    refuse_operation(bound.validated.plan, policy, by=run_request.operator, operation="run")
    await refuse_unready(bound, store, run_request, policy)


async def _create_triggered(
    bound: BoundPlan, store: PlanStore, run_request: RunRequest, claim: EventClaim, *, flow_run_id: str
) -> PlanRun | UnusedEvent:
    """Create the run that an event starts and return it, unless another one was started for the same alert.

    A run with the same key whose process died before the run started is cancelled. Its place is taken by the new one.
    """
    from plan_adapter.engine.flow_runs import has_ended  # imports Prefect

    run = await new_run(bound, store, run_request, flow_run_id=flow_run_id)
    other = await store.ledger.create(run, bound.validated, variables=bound.variables, event=claim)
    if other is not None and other.is_idle and (other.flow_run_id is None or await has_ended(other.flow_run_id)):
        other = await store.ledger.create(run, bound.validated, variables=bound.variables, event=replace(claim, replaces=other.run_id))
    return run if other is None else UnusedEvent("Duplicate", f"duplicate of run {other.run_id}, for which {other.events} events came")


@contextmanager
def _refusals_sent(plan: ExecutionPlan, parameter: JsonValue, flow_run_id: str) -> Generator[None]:
    """Send the event `plan.trigger.refused` to Prefect if the block raises an error of this package, with the error as the reason."""
    from plan_adapter.engine.outgoing import emit_trigger_refused  # imports Prefect

    try:
        yield
    except PlanAdapterError as error:
        try:
            number, event = _read_parameter(parameter)
        except InvalidPlanError:
            number, event = None, dict[str, JsonValue]()
        emit_trigger_refused(plan, number, event, str(error), flow_run_id=flow_run_id)
        raise


def _read_parameter(parameter: JsonValue) -> tuple[int, dict[str, JsonValue]]:
    """Return the number of the trigger, and the event as expressions see it."""
    try:
        read = parse_json(parameter) if isinstance(parameter, str) else None
    except NotJSONError:
        read = None
    number, event = (read.get("trigger"), read.get("event")) if isinstance(read, dict) else (None, None)
    if not isinstance(number, int) or not isinstance(event, dict) or not isinstance(event.get("event"), str):
        message = "the parameter does not hold an event: only an automation that `plan deploy` made fills it"
        raise InvalidPlanError([Problem(CODE, at=EVENT_PARAMETER, message=message)])
    return number, {"name": event["event"], **{name: event.get(name) for name in ("id", "occurred", "resource", "payload")}}


def _find_trigger(validated: ValidatedPlan, number: int, event: Mapping[str, JsonValue]) -> CompiledTrigger:
    found = next((trigger for trigger in validated.triggers if trigger.number == number), None)
    if found is None or not matches_event(found.trigger, str(event["name"])):
        message = f"this version of the plan has no trigger {number} for the event `{str(event['name'])[:100]}`"
        hint = "the runbook was deployed again after the event came"
        raise InvalidPlanError([Problem(CODE, at="triggers", message=message, hint=hint)])
    return found
