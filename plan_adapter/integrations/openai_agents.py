"""`plan_tools`: our tools for an agent of the OpenAI Agents SDK. Each call is a run with its gate and receipt."""

from collections.abc import Mapping
from typing import Any, Unpack

from pydantic import JsonValue

from plan_adapter.agent.answer_schemas import from_strict_form, strict_form
from plan_adapter.agent.plan_tools import read_arguments
from plan_adapter.integrations import missing_extra, result_text
from plan_adapter.model.errors import NotApprovedError, ToolError, UnknownOutcomeError
from plan_adapter.tool_calls import AgentTool, CallOptions, agent_tools
from plan_adapter.tools.registry import Tools

try:
    from agents import FunctionTool
    from agents.tool_context import ToolContext
except ImportError as error:
    raise missing_extra("the OpenAI Agents SDK", "openai-agents") from error


def plan_tools(tools: Tools, **options: Unpack[CallOptions]) -> list[FunctionTool]:
    """Return each of `tools` for `Agent(tools=...)`, with a strict schema. The options are those of `as_functions`.

    If a tool fails or a call is not approved, the model reads why. UnknownOutcomeError, and every error that is not about the call, ends
    the run of the agent; the SDK raises it as the cause of its own UserError.

    A call is identified by the model's response, if the SDK knows its id, and the id of the call in it. If a run is resumed from its
    RunState, a call that was already made is not made again.
    """
    return [_build_tool(called) for called in agent_tools(tools, **options)]


def _build_tool(called: AgentTool) -> FunctionTool:
    tool = called.tool

    async def call(context: ToolContext[Any], given: str) -> str:
        try:
            arguments = from_strict_form(_read(given), tool.parameters_schema)
            result = await called.call(arguments, call_id=_call_id(context))
        except UnknownOutcomeError:
            raise
        except (ToolError, NotApprovedError) as error:
            return str(error)
        return result_text(result)

    schema = strict_form(tool.parameters_schema)
    return FunctionTool(name=tool.name, description=tool.description, params_json_schema=schema, on_invoke_tool=call)


def _call_id(context: ToolContext[Any]) -> tuple[str, ...]:
    """Return the identity of this call. Some servers count the calls of each conversation, so the id of the call alone is not enough."""
    provider_data: dict[str, Any] = getattr(context.tool_call, "provider_data", None) or {}
    return context.tool_call_id, str(provider_data.get("response_id", ""))


def _read(given: str) -> Mapping[str, JsonValue]:
    """Return the arguments of a call. Raises ToolError if they are not a JSON object."""
    try:
        return read_arguments(given)
    except ValueError as error:
        raise ToolError(str(error)) from error
