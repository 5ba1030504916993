"""A Prefect server that is already running, for commands that start none, and where a plan's secrets are looked up."""

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.daemon_thread import in_daemon_thread
from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.engine.connection import Server, configured_api_url, is_set_by_environment, url_without_credentials, use_server
from plan_adapter.model.errors import NoServerError
from plan_adapter.model.readable import one_line
from plan_adapter.runs.variables import with_variables
from plan_adapter.text.listing import created_by

if TYPE_CHECKING:
    from plan_adapter.local.secrets import SecretLocation
    from plan_adapter.local.settings import Settings
    from plan_adapter.model.plan import ExecutionPlan
    from plan_adapter.store.store import PlanStore
    from plan_adapter.validation import ValidatedPlan


def available_server(settings: "Settings") -> Server | None:
    """Return the server of Prefect's settings, or else the local one if it is running; None if there is none. Raises NoServerError."""
    from plan_adapter.engine.local_server import configured_server, server_status  # imports http.client

    if configured_api_url() is not None:
        return configured_server(settings)
    status = server_status(settings)
    return status.server() if status.state == "healthy" else None


async def with_known_variables(plan: "ExecutionPlan", texts: Mapping[str, str], settings: "Settings") -> dict[str, object]:
    """Return inputs for a plan that is not run: with the Prefect variables of a server that is already running.

    Raises NoServerError, and InvalidPlanError if there is no server.
    """
    is_needed = bool(plan.unread_variables(texts))
    return await with_variables(plan, texts, server=await in_daemon_thread(lambda: available_server(settings)) if is_needed else None)


@asynccontextmanager
async def running_server(settings: "Settings") -> AsyncGenerator[Server]:
    """Use a server that is already running until the block ends. Raises UsageError if there is none."""
    server = await in_daemon_thread(lambda: available_server(settings))
    if server is None:
        raise UsageError("there is no Prefect server: Prefect's settings name no API URL, and no local server is running")
    with use_server(server):
        yield server


def known_server(settings: "Settings") -> Server | None:
    """Return the server for links, without a request and without importing Prefect; None if that is not possible."""
    from plan_adapter.engine.local_server import server_status  # imports http.client

    if url := os.environ.get("PREFECT_API_URL"):
        ui = os.environ.get("PREFECT_UI_URL") or url.rstrip("/").removesuffix("/api")
        return Server(api_url=url_without_credentials(url), ui_url=url_without_credentials(ui))
    return server_status(settings).server()


def worker_command(pool: str, server: Server) -> str:
    """Return the command that starts a worker of `pool`, in any terminal: with the address and password that only this process may know."""
    address = f"PREFECT_API_URL={server.api_url} " if server.is_local or is_set_by_environment() else ""
    if server.password_file is not None:
        address = f'{address}PREFECT_API_AUTH_STRING="$(cat {server.password_file})" '
    return f"{address}{_prefect_program()} worker start --pool {shlex.quote(pool)}"


def _prefect_program() -> str:
    """Return how to start the Prefect of this environment, whose workers can import this package."""
    own = Path(sys.executable).parent / "prefect"
    found = shutil.which("prefect")
    return shlex.quote(str(own)) if own.exists() and (found is None or Path(found).resolve() != own.resolve()) else "prefect"


def lacks_store_of_server(settings: "Settings") -> bool:
    """Return whether the store is this machine's default one while Prefect's settings name a server."""
    return settings.database_url is None and configured_api_url() is not None


async def show_end_in_prefect(run_id: str, store: "PlanStore", settings: "Settings") -> None:
    """Make Prefect show that a run has ended whose flow run was left waiting. If the server is away, `plan reconcile` does it later."""
    run = await store.run(run_id)
    if run.flow_run_id is None or run.completed_at is None:
        return
    try:
        server = await in_daemon_thread(lambda: available_server(settings))
        if server is not None:
            from plan_adapter.engine.reconciling import reconcile_flow_run  # imports Prefect

            with use_server(server):
                await reconcile_flow_run(run, hint="", is_unchanged=_always_true)
    except NoServerError as error:
        output.note(f"plan: Prefect does not show yet that the run has ended: {error}; `plan reconcile` corrects that")


async def _always_true() -> bool:
    return True  # a run that has ended stays ended


def secret_locations(names: Collection[str], settings: "Settings") -> "list[SecretLocation]":
    """Return where each of these secrets comes from now. Reads blocks only from a server that is already running."""
    if not names:
        return []
    # Only for a plan with secrets.
    from plan_adapter.runs.secret_lookup import locate_secrets

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
