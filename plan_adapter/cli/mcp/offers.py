"""`Offers`: the tools that one agent sees: the operations, and the named runbooks with their inputs as parameters."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import JsonValue

from plan_adapter.agent.plan_tools import function_name, tool_inputs
from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.cli.mcp.operations import MAX_WAIT_SECONDS, Operations, Output
from plan_adapter.cli.sources import STORE_PREFIX, is_path, plan_of
from plan_adapter.model.options import Effect
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import did_you_mean
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool, ToolContext
from plan_adapter.validation import ValidatedPlan, validate
from plan_adapter.validation.inputs import inputs_schema

log = logging.getLogger(__name__)

EFFECTS: Mapping[str, Effect] = {
    "list_tools": "read",
    "draft_plan": "write",
    "validate_plan": "read",
    "preview_plan": "read",
    "run_plan": "write",
    "show_run": "read",
    "list_runs": "read",
    "list_gates": "read",
    "cancel_run": "idempotent_write",
    "resume_run": "write",
}
"""Every operation that can be offered, and its effect. None answers at a gate or records an outcome."""

DESTRUCTIVE = frozenset(("run_plan", "cancel_run", "resume_run"))
"""Operations that can destroy something."""

RUNBOOK_WAIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Offer:
    """One tool as the agent sees it. `call` takes unchecked arguments, and raises an error for invalid ones."""

    name: str
    title: str
    description: str
    schema: dict[str, JsonValue]
    effect: Effect
    is_destructive: bool
    call: Callable[[Mapping[str, JsonValue]], Awaitable[Output]]


@dataclass(frozen=True, slots=True)
class Runbook:
    """A plan that a person named for the agent: from the store, or from a file. A plan from a file always needs an approval."""

    source: str  # as on the command line
    tools: ToolRegistry  # all tools, because a person wrote the plan

    async def load(self, operations: Operations) -> ValidatedPlan:
        """Return the current plan, validated. Only a stored plan can say that it needs no approval."""
        is_file = not self.source.startswith(STORE_PREFIX) and is_path(self.source)
        source = self.source if is_file else f"{STORE_PREFIX}{self.source.removeprefix(STORE_PREFIX).removeprefix('sha256:')}"
        plan = await plan_of(source, operations.store)
        if is_file:  # an agent may be able to write to a file
            plan.options.require_approval, plan.options.auto_approve = True, False
        return validate(plan, self.tools)


@dataclass(frozen=True, slots=True)
class Offers:
    """The tools of one agent."""

    operations: Operations
    names: Collection[str]  # of operations
    runbooks: Sequence[Runbook] = ()

    async def all(self) -> list[Offer]:
        """Return every offer. Runbooks that cannot run now are logged and left out."""
        offers = [_operation_offer(self.operations, name) for name in EFFECTS if name in self.names]
        taken = set(EFFECTS)
        for runbook in self.runbooks:
            try:
                plan = (await runbook.load(self.operations)).plan
            except Exception as error:  # one broken runbook must not hide the others
                log.warning("the runbook %s is not offered: %s", runbook.source, error)
                continue
            offer = _runbook_offer(self.operations, runbook, plan, taken)
            if offer.name in taken:
                log.warning("the runbook %s is not offered: another one is also called `%s`", runbook.source, offer.name)
                continue
            taken.add(offer.name)
            offers.append(offer)
        return offers

    async def call(self, name: str, arguments: Mapping[str, JsonValue]) -> Output:
        """Call the tool `name` and return its answer. Raises UsageError if there is no such tool."""
        offers = [_operation_offer(self.operations, name)] if name in self.names else await self.all()
        for offer in offers:
            if offer.name == name:
                return await offer.call(arguments)
        raise UsageError(f"there is no tool `{name[:80]}`", hint=did_you_mean(name, [offer.name for offer in offers]))


def _operation_offer(operations: Operations, name: str) -> Offer:
    tool = Tool(getattr(operations, name), effect=EFFECTS[name])
    title = name.replace("_", " ").capitalize()
    return Offer(name, title, tool.description, tool.parameters_schema, tool.effect, name in DESTRUCTIVE, partial(_call_tool, tool))


async def _call_tool(tool: Tool[..., Any], arguments: Mapping[str, JsonValue]) -> Output:
    context = ToolContext("", tool.name, 1, "", None, None, None, log, None)  # no operation asks for one
    return await tool(**tool.bind(arguments, context))


def _runbook_offer(operations: Operations, runbook: Runbook, plan: ExecutionPlan, taken: Collection[str]) -> Offer:
    notice = (
        f"Starts a run, and waits up to {RUNBOOK_WAIT_SECONDS:g} s for its end; where a person must approve it first, the answer says how."
    )
    description = f"{plan.description.strip()}\n\n{notice}"
    call = partial(_start_runbook, operations, runbook)
    return Offer(function_name(plan.name, taken), plan.name, description, inputs_schema(plan.inputs), "write", True, call)


async def _start_runbook(operations: Operations, runbook: Runbook, arguments: Mapping[str, JsonValue]) -> Output:
    validated = await runbook.load(operations)
    inputs = tool_inputs(validated.plan, arguments)
    return await operations.start(validated, inputs, wait_seconds=min(RUNBOOK_WAIT_SECONDS, MAX_WAIT_SECONDS), is_runbook=True)
