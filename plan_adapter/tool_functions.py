"""`as_functions`: our tools as functions for an agent of another library. Each call is a run with its gates and receipts."""

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.expressions import has_expression
from plan_adapter.gates.approval import Approver, needs_gate, requires_approval
from plan_adapter.gates.approvers import PrefectApprover
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError, ToolError, UnknownOutcomeError
from plan_adapter.model.hooks import Hooks
from plan_adapter.model.options import ApprovalPolicy, ExecutionOptions, Input
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.record import PlanRun, RunContext
from plan_adapter.model.status import Outcome, PlanStatus, RunReason
from plan_adapter.runner import arun_plan
from plan_adapter.runs.run_session import opened_store
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry, Tools, as_registry
from plan_adapter.tools.tool import Tool, ToolContext, as_json
from plan_adapter.validation import validate

ToolFunction: TypeAlias = Callable[..., Awaitable[JsonValue]]


def as_functions(
    tools: Tools,
    *,
    agent: str = "agent",
    approval: ApprovalPolicy | None = None,
    permissions: Iterable[str] = (),
    approver: Approver | None = None,
    store: PlanStore | None = None,
    hooks: Hooks | None = None,
    context: RunContext | None = None,
    offline: bool = False,
) -> list[ToolFunction]:
    """Return an async function for each of `tools`, for an agent of any library. Each has the tool's name and signature.

    A call is a run of one step, tagged `agent`: a tool that only reads is called at once, and any other waits until a person approves
    exactly this call, in Prefect's UI or with `plan approve`. Pass an `approver` to ask elsewhere, or with `offline`. `approval` says who
    may approve a call. `permissions` are those that the tools get; a tool that needs another one is never called.
    The arguments are data: `${{ }}` in them is not evaluated. The other parameters are those of `arun_plan`.

    A function returns the tool's result as JSON. It raises ToolError, whose message the agent may read, if the arguments do not fit or the
    tool failed; UnknownOutcomeError if the outcome of a write is unknown; NotApprovedError, with the person's reason, if the call was
    not approved; and everything that `arun_plan` raises. If your code cancels a function that waits, its gate stays open: the call is made
    when a person approves it and resumes the run. `plan cancel RUN` withdraws it.
    """
    registry = as_registry(tools)
    approver = approver if approver is not None or offline else PrefectApprover()
    run = partial(arun_plan, tools=registry, approver=approver, store=store, hooks=hooks, context=context, offline=offline)
    calls = _AgentCalls(agent, approval, [*permissions], run, approver is None, registry, store)
    return [_build_function(tool, partial(_call_tool, tool, calls)) for tool in registry]


@dataclass(frozen=True, slots=True)
class _AgentCalls:
    """What all calls of one agent have in common."""

    agent: str
    approval: ApprovalPolicy | None
    permissions: list[str]
    run: Callable[..., Awaitable[PlanRun]]
    asks_nobody: bool
    tools: ToolRegistry
    store: PlanStore | None


def _build_function(tool: Tool[..., Any], call: Callable[[Mapping[str, Any]], Awaitable[JsonValue]]) -> ToolFunction:
    """Return a function with the name, documentation and signature of `tool`, without parameters that a step fills in."""
    known = getattr(inspect.unwrap(tool.source), "__globals__", {})  # where ToolContext may be imported only for type checkers
    hints = typing.get_type_hints(tool.source, globalns={ToolContext.__name__: ToolContext, **known}, include_extras=True)
    signature = inspect.signature(tool.source)
    offered = [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in signature.parameters.items()
        if name in tool.parameter_names
    ]
    own_signature = inspect.Signature(offered, return_annotation=Any)

    async def function(*args: Any, **kwargs: Any) -> JsonValue:
        try:
            arguments = own_signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ToolError(f"the arguments do not fit `{tool.name}`: {error}") from None
        return await call(arguments)

    function.__name__ = function.__qualname__ = tool.name
    function.__doc__ = inspect.getdoc(tool.source) or tool.description
    function.__module__ = tool.source.__module__
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in offered} | {"return": Any}
    function.__dict__["__signature__"] = own_signature
    return function


async def _call_tool(tool: Tool[..., Any], calls: _AgentCalls, given: Mapping[str, Any]) -> JsonValue:
    if (refusal := tool.why_not_permitted(calls.permissions, giver="`as_functions(permissions=...)`")) is not None:
        raise ToolError(refusal)
    arguments = cast("dict[str, JsonValue]", as_json(dict(given)))
    if problems := tool.check(arguments, lambda _: False):
        raise ToolError(f"the arguments do not fit `{tool.name}`: " + "; ".join(message for _, message, _ in problems))
    if code := [name for name in sorted(tool.literal_parameters & arguments.keys()) if has_expression(str(arguments[name]))]:
        raise ToolError(f"`{code[0]}` of `{tool.name}` is code, and must not contain `${{{{ }}}}`")
    if calls.asks_nobody and tool.effect != "read":
        raise NotApprovedError(
            f"`{tool.name}` was not called: it does more than read, and nobody can approve it; pass an approver to `as_functions`"
        )
    plan = _plan_of(tool, calls, arguments)
    if calls.asks_nobody and await _waits_for_a_person(plan, calls):
        raise NotApprovedError(
            f"`{tool.name}` was not called: the policy asks a person before this read, and nobody can approve it; pass an approver to "
            "`as_functions`"
        )
    run = await calls.run(plan, inputs={"arguments": arguments} if plan.inputs else None)
    step = run.step("call")
    if run.status is PlanStatus.COMPLETED:
        return step.result
    if step.outcome is Outcome.UNKNOWN:
        raise UnknownOutcomeError(f"the outcome of `{tool.name}` is unknown: {step.error}; see `plan show {run.id}`")
    if step.outcome is Outcome.FAILED:
        raise ToolError(step.error or f"`{tool.name}` failed")
    why = ": ".join(part for part in (run.message, run.rejection_note) if part) or (run.reason or RunReason.CANCELLED).value
    raise NotApprovedError(f"`{tool.name}` was not called: {why}")


async def _waits_for_a_person(plan: ExecutionPlan, calls: _AgentCalls) -> bool:
    """Return whether a run of `plan` would wait at a gate, as the plan, the settings and the store's policy say now."""
    settings = Settings()
    validated = validate(plan, calls.tools)
    async with opened_store(calls.store, settings) as store:
        policy = await store.policy.effective(settings)
    return requires_approval(validated.plan, policy) or any(needs_gate(step, validated, policy) for step in validated.plan.all_steps)


def _plan_of(tool: Tool[..., Any], calls: _AgentCalls, arguments: Mapping[str, JsonValue]) -> ExecutionPlan:
    """Return the plan of one call. Its arguments are the plan's input, because texts in a plan may contain expressions."""
    code_parameters = tool.literal_parameters
    parameters = {name: value if name in code_parameters else f'${{{{ inputs.arguments["{name}"] }}}}' for name, value in arguments.items()}
    values = any(name not in code_parameters for name in arguments)
    return ExecutionPlan(
        name=f"{calls.agent}: {tool.name}",
        description=f"{calls.agent} calls `{tool.name}`" + (f": {tool.description}" if tool.description else ""),
        inputs={"arguments": Input(type="object", description=f"The arguments of `{tool.name}`.")} if values else {},
        options=ExecutionOptions(require_approval=tool.effect != "read"),
        approval=calls.approval,
        permissions=[*sorted(tool.permissions)],
        steps=[Step(id="call", tool_name=tool.name, description=tool.description, parameters=parameters)],
        tags=[calls.agent],
    )
