"""Reads Prefect variables."""

from collections.abc import Collection

from prefect.client.orchestration import get_client
from pydantic import JsonValue

from plan_adapter.engine.connection import describe_server_error
from plan_adapter.model.errors import NoServerError


async def read_variables(names: Collection[str]) -> dict[str, JsonValue]:
    """Return the values of the variables that exist on the configured server, by name. Raises NoServerError."""
    found = dict[str, JsonValue]()
    try:
        async with get_client() as client:
            for name in names:
                if (variable := await client.read_variable_by_name(name)) is not None:
                    found[name] = variable.value
    except Exception as error:
        reason = describe_server_error(error)
        if reason is None:
            raise
        what, listed = "variable" if len(names) == 1 else "variables", ", ".join(f"`{name}`" for name in sorted(names))
        raise NoServerError(f"the Prefect {what} {listed} cannot be read: {reason}") from error
    return found
