"""The inputs of a new run whose values come from Prefect variables."""

from collections.abc import Mapping
from dataclasses import replace

from pydantic import JsonValue

from plan_adapter.engine.connection import Server, use_server
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import Problem
from plan_adapter.model.values import join
from plan_adapter.validation import BoundPlan
from plan_adapter.validation.inputs import value_of_text


async def with_variables(plan: ExecutionPlan, given: Mapping[str, object], *, server: Server | None) -> dict[str, object]:
    """Return `given` with the values of the Prefect variables that its plan reads. Variables that do not exist are left out.

    A text in a variable is read as the type of its input, as on the command line. Raises NoServerError. Without a server, raises
    InvalidPlanError: a default must not hide that a variable could not be read.
    """
    unread = plan.unread_variables(given)
    if not unread:
        return {**given}
    if server is None:
        raise InvalidPlanError([_offline_problem(name, variable) for name, variable in unread.items()])
    with use_server(server):
        return await with_variables_here(plan, given)


async def with_variables_here(plan: ExecutionPlan, given: Mapping[str, object]) -> dict[str, object]:
    """Return `given` with the same values, read from the server that Prefect's settings name, as in a flow run."""
    unread = plan.unread_variables(given)
    if not unread:
        return {**given}
    from plan_adapter.engine.prefect_variables import read_variables  # imports Prefect

    found = await read_variables({*unread.values()})
    read: dict[str, JsonValue] = {
        name: value_of_text(value, plan.inputs[name]) if isinstance(value := found[variable], str) else value
        for name, variable in unread.items()
        if variable in found
    }
    return {name: value for name, value in given.items() if name not in unread} | read


def note_variables(bound: BoundPlan, *, before: Mapping[str, object], after: Mapping[str, object]) -> BoundPlan:
    """Return `bound` with the variables that gave it values. `before` and `after` are the inputs that `with_variables` got and returned."""
    read = {name: variable for name, variable in bound.validated.plan.unread_variables(before).items() if name in after}
    return replace(bound, variables=read)


def _offline_problem(name: str, variable: str) -> Problem:
    return Problem(
        "missing-input",
        at=join("inputs", name),
        message=f"no value for `{name}`: the Prefect variable `{variable}` is not read offline",
        hint=f"give a value: --input {name}=…",
    )
