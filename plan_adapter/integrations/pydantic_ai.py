"""`PlanToolset`: our tools for an agent of pydantic-ai. Each call is a run with its gate and receipt."""

from typing import Any, Unpack

from pydantic_core import SchemaValidator, core_schema

from plan_adapter.integrations import missing_extra
from plan_adapter.model.errors import NotApprovedError, ToolError, UnknownOutcomeError
from plan_adapter.tool_calls import AgentTool, CallOptions, NotPermittedError, agent_tools
from plan_adapter.tools.registry import Tools

try:
    from pydantic_ai import AbstractToolset, ModelResponse, ModelRetry, RunContext, ToolDefinition, ToolDenied, ToolsetTool
except ImportError as error:
    raise missing_extra("pydantic-ai", "pydantic-ai") from error

_ANY = SchemaValidator(core_schema.any_schema())
"""Accepts all arguments: the call itself checks them, and names everything that does not fit."""


class PlanToolset(AbstractToolset[Any]):
    """The tools of a registry as a toolset of pydantic-ai. The options are those of `as_functions`.

    A tool that fails raises ModelRetry, so the model can correct the call; `max_retries` limits that. A call that was not approved or is
    not permitted is denied: the model reads the reason, and is not told to try again. UnknownOutcomeError, and every error that is not
    about the call, ends the agent.

    A call is identified by the model's response and the id of the call in it. If the agent is retried, replayed by durable execution,
    or continued from its messages, a call that was already made is not made again.
    """

    def __init__(self, tools: Tools, *, id: str | None = None, max_retries: int = 1, **options: Unpack[CallOptions]) -> None:
        self._id = id
        self._max_retries = max_retries
        self._tools = {called.tool.name: called for called in agent_tools(tools, **options)}

    @property
    def id(self) -> str | None:
        """The id of the toolset within its agent."""
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the definitions of the tools."""
        return {name: self._definition(called) for name, called in self._tools.items()}

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
        """Return the result of a call, or a ToolDenied with the reason why it was not made."""
        try:
            return await self._tools[name].call(tool_args, call_id=_call_id(ctx))
        except UnknownOutcomeError:
            raise
        except (NotApprovedError, NotPermittedError) as error:
            return ToolDenied(str(error))
        except ToolError as error:
            raise ModelRetry(str(error)) from error

    def _definition(self, called: AgentTool) -> ToolsetTool[Any]:
        tool = called.tool
        definition = ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.parameters_schema)
        return ToolsetTool(toolset=self, tool_def=definition, max_retries=self._max_retries, args_validator=_ANY)


def _call_id(ctx: RunContext[Any]) -> tuple[str, ...]:
    """Return the identity of this call. Stored messages keep it, while a continued agent has another run id."""
    for message in reversed(ctx.messages):
        if isinstance(message, ModelResponse) and any(call.tool_call_id == ctx.tool_call_id for call in message.tool_calls):
            return str(ctx.tool_call_id), message.provider_response_id or "", message.timestamp.isoformat()
    return str(ctx.tool_call_id), ctx.run_id or "", str(ctx.run_step)
