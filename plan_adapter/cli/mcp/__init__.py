"""`plan mcp`: plans for agents, over the Model Context Protocol."""

import asyncio
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.sources import drafting_tools_of, model_of, tools_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.record import RunContext

if TYPE_CHECKING:
    from plan_adapter.cli.mcp.offers import Offers

NOT_INSTALLED = "the MCP SDK is not installed: `pip install 'prefect-plan-adapter[mcp]'`"


def mcp(
    *,
    offer: list[str] | None = None,
    plan: list[str] | None = None,
    allow_tool: list[str] | None = None,
    tools: list[str] | None = None,
    secret: list[str] | None = None,
    name: str = "agent",
    agent_id: str | None = None,
    org_id: str | None = None,
    tenant_id: str | None = None,
    task_id: str | None = None,
    offline: bool = False,
    json: bool = False,
) -> int:
    """Let an agent draft, check, preview and start plans, and look at runs: an MCP server on stdin and stdout. It can approve nothing.

    What the agent drafts or submits runs only after a person has approved it. Each run has a process of its own, which continues when the
    agent and this server are gone.

    Args:
        offer: Offer only this operation; may be repeated. Default: all.
        plan: A stored plan (a name, `name@version` or a digest), or a plan document, to offer as a tool of its own; may be repeated.
        allow_tool: A tool that the agent's plans may use; may be repeated. If you name one of your own tools, only the named ones are
            available.
        tools: `package.module:name` of a tool or registry that the agent's plans may use; may be repeated.
        secret: A name that the agent's plans may use as `${{ secrets.NAME }}`; may be repeated. The agent never sees its value.
        name: The agent's name, recorded as `mcp/NAME`; use that form to make it an operator in a policy.
        agent_id: Recorded with every run. The agent sees all runs with the same id, and cancels and resumes those that also have its name.
            Without it, this server gets a new id when it starts: its agent sees only runs that this server process started. It sees none of
            these four ids itself.
        org_id: The organisation, likewise.
        tenant_id: The tenant, likewise.
        task_id: The task, likewise.
        offline: Execute runs without Prefect.
        json: Serve nothing: print the tools that would be offered, one JSON object per line.
    """
    if not name.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"--name {name}: use letters, digits, - and _")
    context = RunContext(agent_id=agent_id, org_id=org_id, tenant_id=tenant_id, task_id=task_id)
    options = _ServerOptions(
        tuple(offer or ()),
        tuple(plan or ()),
        tuple(allow_tool or ()),
        tuple(tools or ()),
        tuple(secret or ()),
        name,
        context,
        offline=offline,
    )
    if not json and importlib.util.find_spec("mcp") is None:
        raise UsageError(NOT_INSTALLED)
    asyncio.run(_print_offers(options) if json else _serve(options))
    return ExitCode.DONE


@dataclass(frozen=True, slots=True)
class _ServerOptions:
    """The options of `plan mcp`."""

    operations: Sequence[str]
    plans: Sequence[str]
    tool_names: Sequence[str]
    imports: Sequence[str]
    secrets: Sequence[str]
    name: str
    context: RunContext
    offline: bool


@asynccontextmanager
async def _open_offers(options: _ServerOptions) -> "AsyncGenerator[Offers]":
    """Yield the offers with an open store and model. Raises UsageError for an unknown operation, and errors of tools and model."""
    # These import SQLAlchemy.
    from plan_adapter.cli.mcp.offers import EFFECTS, Offers, Runbook
    from plan_adapter.cli.mcp.operations import Agent, Operations
    from plan_adapter.cli.mcp.workers import Workers
    from plan_adapter.store.store import PlanStore

    settings, agent = Settings(), Agent(options.name, options.context)
    if unknown := [name for name in options.operations if name not in EFFECTS]:
        hints = ", ".join(f"`{name}` ({did_you_mean(name, list(EFFECTS))})" for name in unknown)
        raise UsageError(f"there is no such operation to --offer: {hints}")
    model = model_of(settings) if settings.model and "draft_plan" in (options.operations or EFFECTS) else None
    names = [name for name in options.operations or EFFECTS if name != "draft_plan" or model is not None]
    workers = Workers(settings.home, agent.by, options.imports, offline=options.offline)
    tools, all_tools = drafting_tools_of(options.imports, options.tool_names), tools_of(options.imports)
    async with PlanStore(settings.store_url, tenant_id=options.context.tenant_id) as store:
        operations = Operations(store, tools, agent, workers, settings, model, options.secrets)
        try:
            yield Offers(operations, names, [Runbook(source, all_tools) for source in options.plans])
        finally:
            if model is not None:
                await model.aclose()


async def _print_offers(options: _ServerOptions) -> None:
    async with _open_offers(options) as offers:
        for offer in await offers.all():
            output.json_line(
                "offer", {"name": offer.name, "description": offer.description, "effect": offer.effect, "parameters": offer.schema}
            )


async def _serve(options: _ServerOptions) -> None:
    from plan_adapter.cli.mcp.server import serve  # imports the MCP SDK, which is an extra

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the SDK's stdin reader would keep the process alive; no run depends on it
    logging.basicConfig(level=logging.WARNING)  # to stderr: stdout carries the protocol
    async with AsyncExitStack() as stack:
        with _stdout_to_stderr():
            offers = await stack.enter_async_context(_open_offers(options))
            offered_names = ", ".join(offer.name for offer in await offers.all())
        output.note(f"plan mcp: serving {offered_names or 'nothing'} to {offers.operations.agent.by} on stdin and stdout")
        await serve(offers)


@contextmanager
def _stdout_to_stderr() -> Generator[None]:
    """Redirect what modules print during import to stderr, before the server takes over stdout."""
    sys.stdout.flush()
    saved_stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved_stdout, 1)
        os.close(saved_stdout)
