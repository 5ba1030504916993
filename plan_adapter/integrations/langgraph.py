"""`plan_tools`: our tools for an agent or a graph of LangGraph. Each call is a run with its gate and receipt."""

from collections.abc import Mapping
from typing import Any, Unpack, cast

from plan_adapter.integrations import missing_extra, result_text
from plan_adapter.model.errors import NotApprovedError, ToolError, UnknownOutcomeError
from plan_adapter.tool_calls import AgentTool, CallOptions, agent_tools
from plan_adapter.tools.registry import Tools

try:
    from langchain_core.messages import AIMessage
    from langchain_core.tools import StructuredTool, ToolException
    from langgraph.prebuilt import ToolRuntime
except ImportError as error:
    raise missing_extra("LangGraph", "langgraph") from error


def plan_tools(tools: Tools, **options: Unpack[CallOptions]) -> list[StructuredTool]:
    """Return each of `tools` for LangGraph's `ToolNode`, or an agent on top of it. The options are those of `as_functions`.

    A tool that fails and a call that was not approved become a ToolMessage with the status `error` and the reason. UnknownOutcomeError,
    and every error that is not about the call, ends the graph, unless `handle_tool_errors` of the ToolNode says otherwise.

    A call is identified by the thread, the model's message and the id of the call in it. If the graph is resumed from a checkpoint, a call
    that was already made is not made again.
    """
    return [_build_tool(called) for called in agent_tools(tools, **options)]


def _build_tool(called: AgentTool) -> StructuredTool:
    async def call(runtime: ToolRuntime[Any, Any], **arguments: Any) -> str:
        try:
            result = await called.call(arguments, call_id=_call_id(runtime))
        except UnknownOutcomeError:
            raise
        except (ToolError, NotApprovedError) as error:
            raise ToolException(str(error)) from error
        return result_text(result)

    tool = called.tool
    return StructuredTool(
        name=tool.name,
        description=tool.description or tool.name,
        args_schema=tool.parameters_schema,
        coroutine=call,
        handle_tool_error=True,
    )


def _call_id(runtime: ToolRuntime[Any, Any]) -> tuple[str, ...]:
    """Return the identity of this call. Checkpoints keep the thread and the message. Empty without both: nothing can be resumed then."""
    thread = str(runtime.config.get("configurable", {}).get("thread_id", ""))
    for message in reversed(_messages(runtime.state)):
        if isinstance(message, AIMessage) and any(call["id"] == runtime.tool_call_id for call in message.tool_calls):
            return (str(runtime.tool_call_id), thread, message.id or "") if thread or message.id else ()
    return (str(runtime.tool_call_id), thread) if thread else ()


def _messages(state: Any) -> list[Any]:
    """Return the messages of a graph's state, which is a mapping, an object or the list itself."""
    found: Any = cast("Mapping[str, Any]", state).get("messages") if isinstance(state, Mapping) else getattr(state, "messages", state)
    return cast("list[Any]", found) if isinstance(found, list) else []
