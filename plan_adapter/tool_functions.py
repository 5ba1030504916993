"""`as_functions`: our tools as functions for an agent of another library. Each call is a run with its gates and receipts."""

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from pydantic import JsonValue

from plan_adapter.gates.approval import Approver
from plan_adapter.model.errors import ToolError
from plan_adapter.model.hooks import Hooks
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.record import RunContext
from plan_adapter.store.store import PlanStore
from plan_adapter.tool_calls import AgentTool, agent_tools
from plan_adapter.tools.registry import Tools
from plan_adapter.tools.tool import ToolContext

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

    Raises NotApprovedError if `offline` without an `approver` leaves nobody who could approve a tool that writes.

    A function returns the tool's result as JSON. It raises ToolError, whose message the agent may read, if the arguments do not fit or the
    tool failed; UnknownOutcomeError if the outcome of a write is unknown; NotApprovedError, with the person's reason, if the call was
    not approved; and everything that `arun_plan` raises. If your code cancels a function that waits, its gate stays open: the call is made
    when a person approves it and resumes the run. `plan cancel RUN` withdraws it.
    """
    made = agent_tools(
        tools,
        agent=agent,
        approval=approval,
        permissions=[*permissions],
        approver=approver,
        store=store,
        hooks=hooks,
        context=context,
        offline=offline,
    )
    return [_build_function(tool) for tool in made]


def _build_function(called: AgentTool) -> ToolFunction:
    """Return a function with the name, documentation and signature of a tool, without parameters that a step fills in."""
    tool = called.tool
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
        return await called.call(arguments)

    function.__name__ = function.__qualname__ = tool.name
    function.__doc__ = inspect.getdoc(tool.source) or tool.description
    function.__module__ = tool.source.__module__
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in offered} | {"return": Any}
    function.__dict__["__signature__"] = own_signature
    return function
