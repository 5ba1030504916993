"""Where the secrets of a plan would come from, or that they are missing; never a value."""

import asyncio
from collections.abc import Collection
from contextlib import nullcontext
from typing import TYPE_CHECKING

from plan_adapter.errors import NoServerError
from plan_adapter.readable import one_line

if TYPE_CHECKING:
    from plan_adapter.secrets import SecretLocation
    from plan_adapter.settings import Settings
    from plan_adapter.validation import ValidatedPlan


def secret_locations(names: Collection[str], settings: "Settings") -> "list[SecretLocation]":
    """Return where each of these secrets comes from now. Reads blocks only from a server that is already running."""
    if not names:
        return []
    # Only for a plan with secrets.
    from plan_adapter.cli.servers import available_server
    from plan_adapter.runs.secrets import locate_secrets

    try:
        server = available_server(settings)
    except NoServerError:
        server = None  # its blocks are then reported as unavailable
    if server is None:
        context = nullcontext()
    else:
        from plan_adapter.engine.connection import use_server

        context = use_server(server)
    with context:
        return asyncio.run(locate_secrets(names, settings))


def location_line(location: "SecretLocation", validated: "ValidatedPlan") -> str:
    """Return a line with where a secret comes from, or why it cannot be used and which steps will fail without it."""
    if location.problem is None:
        return f"secret `{one_line(location.name)}`: from {location.place}"
    from plan_adapter.runs.secrets import late_use_messages

    late = late_use_messages(validated).get(location.name)
    return f"secret `{one_line(location.name)}`: {one_line(location.problem)}" + (f"; {late}" if late else "")
