"""`flow_of`: a validated plan as an async Prefect flow whose parameters are the plan's inputs."""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from prefect import Flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.states import Failed
from pydantic import Field, JsonValue, TypeAdapter
from pydantic_core import SchemaError

from plan_adapter.engine.flow_runs import run_flow
from plan_adapter.engine.states import state_of_run
from plan_adapter.errors import PlanAdapterError
from plan_adapter.plan import Input, InputType
from plan_adapter.readable import one_line, prose
from plan_adapter.record import PlanRun

if TYPE_CHECKING:
    from plan_adapter.validation import ValidatedPlan

__all__ = ["FlowBody", "fit_as_parameters", "flow_of", "run_flow", "safe_name"]

FlowBody: TypeAlias = Callable[[dict[str, JsonValue], str], Awaitable[PlanRun]]
"""Runs a plan: is given the flow's parameters and the id of its flow run."""

MAX_NAME_CHARACTERS = 200
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


def flow_of(validated: "ValidatedPlan", body: FlowBody, *, with_inputs: bool = True) -> Flow[..., Any]:
    """Return a flow that awaits `body` and ends in the state of the run that it returns.

    Its parameters are the plan's inputs; without `with_inputs` it has none, for a body that has them and that they are too large for.

    `await flow(**inputs)` gives the PlanRun, or raises RunFailedError with it; what `body` raises of this package's errors ends the
    flow run as Failed with the error as its message, and is raised. Nothing is persisted, and nothing is retried by Prefect.
    """
    plan = validated.plan
    return Flow(
        _function(plan.inputs if with_inputs else {}, body),
        name=safe_name(plan.name),
        description="\n\n".join(prose(paragraph) for paragraph in plan.description.split("\n\n") if paragraph.strip()),
        version=validated.digest[:12],
        persist_result=False,
        retries=0,
        log_prints=False,
        validate_parameters=True,
    )


def safe_name(name: str) -> str:
    """Return `name` in one line without the characters that Prefect refuses in names, or `plan` where nothing is left."""
    return _REFUSED_IN_NAMES.sub(" ", name).strip()[:MAX_NAME_CHARACTERS].rstrip() or "plan"


def fit_as_parameters(inputs: Mapping[str, JsonValue]) -> bool:
    """Return whether Prefect takes `inputs` as a flow run's parameters."""
    return len(json.dumps(inputs)) <= MAX_PARAMETER_CHARACTERS


def _function(inputs_of_plan: Mapping[str, Input], body: FlowBody) -> Callable[..., Awaitable[State]]:
    async def run_steps(**inputs: JsonValue) -> State:
        context = FlowRunContext.get()
        assert context is not None and context.flow_run is not None  # only Prefect calls this
        try:
            return state_of_run(await body(inputs, str(context.flow_run.id)))
        except PlanAdapterError as error:
            return Failed(message=str(error), data=error)

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
                annotation=_annotation(declared),
            )
            for name, declared in inputs.items()
        ]
    )


def _annotation(declared: Input) -> Any:
    """Return the type of an input with its limits, as Prefect's forms and checks read it."""
    if declared.enum and all(isinstance(value, str | int | None) for value in declared.enum):
        return Literal[tuple(declared.enum)]
    base: Any = list[_TYPES[declared.items]] if declared.type == "array" and declared.items else _TYPES[declared.type]
    limits = {
        "min_length": declared.min_length,
        "max_length": declared.max_length,
        "ge": declared.minimum,
        "le": declared.maximum,
        "pattern": declared.pattern if declared.pattern and _is_known_to_pydantic(declared.pattern) else None,
    }
    given: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
    return Annotated[base, Field(**given)] if given else base


def _is_known_to_pydantic(pattern: str) -> bool:
    """Whether pydantic can check `pattern`: it has no look-around; such inputs are checked when they are bound to the plan."""
    try:
        TypeAdapter(Annotated[str, Field(pattern=pattern)])
    except SchemaError:
        return False
    return True


def _docstring(inputs: Mapping[str, Input]) -> str:
    """Return the docstring in Google's style that Prefect reads the inputs' descriptions from."""
    lines = [f"    {name}: {one_line(declared.description)}" for name, declared in inputs.items() if declared.description.strip()]
    return "\n".join(["Run the plan.", *(["", "Args:", *lines] if lines else [])])
