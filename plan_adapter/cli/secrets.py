"""Where the secrets of a plan would come from, or that they are missing; never a value."""

import asyncio
from collections.abc import Collection
from contextlib import nullcontext
from typing import TYPE_CHECKING

from plan_adapter.errors import NoServerError
from plan_adapter.listing import created_by
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
    """Return a line with where a secret comes from, the steps that create it, or why it cannot be used."""
    creators = validated.created_secrets.creators.get(location.name, ())
    now = f"from {location.place}" if location.problem is None else one_line(location.problem)
    facts = [created_by(creators), f"now: {now}"] if creators else [now]
    return f"secret `{one_line(location.name)}`: {'; '.join(facts)}"


def is_ready(location: "SecretLocation", validated: "ValidatedPlan") -> bool:
    """Return whether a run may start as far as this secret is concerned: it exists, or a step creates it."""
    return location.problem is None or location.name in validated.created_secrets.creators
