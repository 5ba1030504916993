"""What a command sees of a plan's secrets: where each would come from, or that it is missing; never a value."""

import asyncio
from collections.abc import Collection
from contextlib import nullcontext
from typing import TYPE_CHECKING

from plan_adapter.readable import one_line

if TYPE_CHECKING:
    from plan_adapter.secrets import Sight
    from plan_adapter.settings import Settings


def seen(names: Collection[str], settings: "Settings") -> "list[Sight]":
    """Return what is seen of these secrets now, with the blocks of a server that is there already; none is started."""
    if not names:
        return []
    from plan_adapter.cli.servers import answering_server
    from plan_adapter.errors import NoServerError
    from plan_adapter.runs.secrets import sights

    try:
        server = answering_server(settings)
    except NoServerError:
        server = None  # what could have come from there is said to be unavailable
    if server is None:
        context = nullcontext()
    else:
        from plan_adapter.engine.connection import use_server

        context = use_server(server)
    with context:
        return asyncio.run(sights(names, settings))


def sight_line(sight: "Sight") -> str:
    """Return in a line where a secret comes from, or why it cannot be used."""
    return f"secret `{one_line(sight.name)}`: " + (f"from {sight.place}" if sight.problem is None else one_line(sight.problem))
