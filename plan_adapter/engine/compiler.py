"""`flow_of`: a validated plan as an async Prefect flow whose parameters are the plan's inputs."""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias

from prefect import Flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from pydantic import JsonValue, WithJsonSchema

from plan_adapter.engine.flow_runs import CHECKS_ITSELF, busy_retries, let_flows_check_parameters, run_flow, tag_flow_run
from plan_adapter.engine.left_forms import left_form
from plan_adapter.engine.states import state_of_error, state_of_run
from plan_adapter.errors import PlanAdapterError
from plan_adapter.plan import ExecutionPlan, Input, InputType
from plan_adapter.readable import one_line, prose
from plan_adapter.record import PlanRun
from plan_adapter.validation import ValidatedPlan, bind_inputs
from plan_adapter.validation.input_schema import value_schema

__all__ = ["FlowBody", "fit_as_parameters", "flow_of", "name_of", "run_flow", "safe_name"]

FlowBody: TypeAlias = Callable[[dict[str, JsonValue], str], Awaitable[PlanRun]]
"""Runs a plan: is given its inputs, checked and with their defaults, and the id of the flow run."""

MAX_NAME_CHARACTERS = 200
ID_CHARACTERS = 13  # the first two groups of a UUIDv7: its millisecond
MAX_PARAMETER_CHARACTERS = 400_000
"""Prefect refuses parameters of over 524,288 bytes, as it writes them; ours are ASCII."""
_REFUSED_IN_NAMES = re.compile(r"[/%&<>\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")

_TYPES: dict[InputType, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
}


def flow_of(validated: ValidatedPlan, body: FlowBody, *, with_inputs: bool = True) -> Flow[..., Any]:
    """Return a flow that awaits `body` and ends in the state of the run that it returns.

    Its parameters are the plan's inputs; without `with_inputs` it has none, for a body that has them and that they are too large for.
    `await flow(**inputs)` gives the PlanRun, or raises RunFailedError with it. Inputs that do not fit, and what `body` raises of this
    package's errors, end the flow run as Failed, a StoreError as Crashed and named Interrupted, with the error as its message, and are
    raised. Prefect persists and retries nothing.
    """
    plan = validated.plan
    return PlanFlow(
        _function(plan, partial(_bound, validated, body)) if with_inputs else _function(plan, body, with_inputs=False),
        name=safe_name(plan.name),
        description="\n\n".join(prose(paragraph) for paragraph in plan.description.split("\n\n") if paragraph.strip()),
        version=validated.digest[:12],
        persist_result=False,
        retries=0,
        log_prints=False,
        validate_parameters=False,  # the plan's own check names every problem at once, with hints
    )


class PlanFlow(Flow[..., Any]):
    """A flow whose plan says what is wrong with the parameters of a flow run; Prefect would crash the flow run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the flow."""
        super().__init__(*args, **kwargs)
        let_flows_check_parameters()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what `serve` hands to the process of a flow run."""
        vars(self).update(state)
        let_flows_check_parameters()


def safe_name(name: str) -> str:
    """Return `name` in one line without the characters that Prefect refuses in names, or `plan` where nothing is left."""
    return _REFUSED_IN_NAMES.sub(" ", name).strip()[:MAX_NAME_CHARACTERS].rstrip() or "plan"


def name_of(run: PlanRun) -> str:
    """Return what the flow run of `run` is called: the plan, and as much of the run's id as tells it from others."""
    return f"{safe_name(run.name)[: MAX_NAME_CHARACTERS - ID_CHARACTERS].rstrip()} {run.id[:ID_CHARACTERS]}"


def fit_as_parameters(inputs: Mapping[str, JsonValue]) -> bool:
    """Return whether Prefect takes `inputs` as a flow run's parameters."""
    return len(json.dumps(inputs)) <= MAX_PARAMETER_CHARACTERS


async def _bound(validated: ValidatedPlan, body: FlowBody, inputs: dict[str, JsonValue], flow_run_id: str) -> PlanRun:
    return await body(bind_inputs(validated, inputs).inputs, flow_run_id)


def _function(plan: ExecutionPlan, body: FlowBody, *, with_inputs: bool = True) -> Callable[..., Awaitable[State]]:
    inputs_of_plan = plan.inputs if with_inputs else {}

    async def run_steps(**inputs: JsonValue) -> State:
        context = FlowRunContext.get()
        assert context is not None and context.flow_run is not None  # only Prefect calls this
        async with busy_retries():  # also for a flow that somebody else runs, a worker for one: its end comes after this
            await tag_flow_run(context.flow_run, plan.tags)
        with left_form() as form:
            try:
                return form.on(state_of_run(await body(inputs, str(context.flow_run.id))))
            except PlanAdapterError as error:
                return state_of_error(error)

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
                annotation=Annotated[_TYPES[declared.type], WithJsonSchema(value_schema(declared))],
            )
            for name, declared in inputs.items()
        ]
    )


def _docstring(inputs: Mapping[str, Input]) -> str:
    """Return the docstring in Google's style that Prefect reads the inputs' descriptions from."""
    lines = [f"    {name}: {one_line(declared.description)}" for name, declared in inputs.items() if declared.description.strip()]
    return "\n".join(["Run the plan.", *(["", "Args:", *lines] if lines else [])])
