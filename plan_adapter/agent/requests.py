"""Request bodies that ask for one JSON object, one form per rung; see `agent.openai_model`."""

import json
import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import JsonValue

from plan_adapter.agent.model import Question
from plan_adapter.drafts import Rung
from plan_adapter.settings import Effort

OPTIONAL = ("reasoning_effort", "temperature", "max_completion_tokens", "stream_options")
"""Options that a request can drop, or express differently, if a server refuses them."""


def request_of(question: Question, rung: Rung, refused: set[str], *, strict: dict[str, JsonValue], stream: bool) -> dict[str, Any]:
    """Return the body of the request that asks `question` on `rung`, without the options in `refused`.

    `strict` is the strict form of the question's schema, for the rung that needs it.
    """
    messages = [{"role": message.role, "content": message.content} for message in question.messages]
    request: dict[str, Any] = {"messages": messages, "stream": stream}
    if stream and "stream_options" not in refused:
        request["stream_options"] = {"include_usage": True}
    if question.max_tokens is not None:
        request["max_tokens" if "max_completion_tokens" in refused else "max_completion_tokens"] = question.max_tokens
    if "reasoning_effort" not in refused and (effort := _accepted_effort(question.effort, refused)) is not None:
        request["reasoning_effort"] = effort
    if question.temperature is not None and "temperature" not in refused:
        request["temperature"] = question.temperature
    schema = dict(question.schema)
    if rung == "strict_schema":
        form = {"name": question.name, "schema": strict, "strict": True}
        request["response_format"] = {"type": "json_schema", "json_schema": form}
    elif rung == "schema":
        request["response_format"] = {"type": "json_schema", "json_schema": {"name": question.name, "schema": schema}}
    elif rung == "json_object":
        request["response_format"] = {"type": "json_object"}
        messages.append({"role": "user", "content": schema_prompt(question.outline or schema)})
    elif rung == "tool_call":
        function = {"name": question.name, "description": "Give your answer.", "parameters": schema}
        request["tools"] = [{"type": "function", "function": function}]
        request["tool_choice"] = {"type": "function", "function": {"name": question.name}}
    else:
        messages.append({"role": "user", "content": schema_prompt(question.outline or schema)})
    return request


def refused_effort(request: Mapping[str, Any], message: str) -> str | None:
    """Return the entry for the refused options if a server refuses only this value of `reasoning_effort`, else None."""
    names_others = any(re.search(rf"\b{effort}\b", message) for effort in get_args(Effort) if effort != request.get("reasoning_effort"))
    return f"reasoning_effort={request['reasoning_effort']}" if names_others else None


def _accepted_effort(wanted: Effort | None, refused: set[str]) -> Effort | None:
    """Return the wanted effort, or the next higher one that the server has not refused. None: the server's default."""
    efforts: tuple[Effort, ...] = get_args(Effort)
    possible = efforts[efforts.index(wanted) :] if wanted is not None else ()
    return next((effort for effort in possible if f"reasoning_effort={effort}" not in refused), None)


def schema_prompt(schema: Mapping[str, JsonValue]) -> str:
    """Return the instruction to answer with one JSON object, followed by its JSON Schema, for servers that cannot enforce a schema."""
    text = json.dumps(schema, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return f"Answer with one JSON object and nothing else. Its JSON Schema:\n{text}"
