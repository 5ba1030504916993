"""Where the secrets of a plan would come from, or that they are missing; never a value."""

import asyncio
from collections.abc import Collection
from contextlib import nullcontext
from typing import TYPE_CHECKING

from plan_adapter.errors import NoServerError
from plan_adapter.readable import one_line

if TYPE_CHECKING:
    from plan_adapter.secrets import Sight
    from plan_adapter.settings import Settings
    from plan_adapter.validation import ValidatedPlan


def seen(names: Collection[str], settings: "Settings") -> "list[Sight]":
    """Return where each of these secrets comes from now. Reads blocks only from a server that is already running."""
    if not names:
        return []
    # Only for a plan with secrets.
    from plan_adapter.cli.servers import answering_server
    from plan_adapter.engine.connection import use_server
    from plan_adapter.runs.secrets import sights

    try:
        server = answering_server(settings)
    except NoServerError:
        server = None  # its blocks are then reported as unavailable
    with nullcontext() if server is None else use_server(server):
        return asyncio.run(sights(names, settings))


def sight_line(sight: "Sight", validated: "ValidatedPlan") -> str:
    """Return a line with where a secret comes from, or why it cannot be used and which steps will fail without it."""
    if sight.problem is None:
        return f"secret `{one_line(sight.name)}`: from {sight.place}"
    from plan_adapter.runs.secrets import late_uses  # only for a plan with secrets

    late = late_uses(validated).get(sight.name)
    return f"secret `{one_line(sight.name)}`: {one_line(sight.problem)}" + (f"; {late}" if late else "")
