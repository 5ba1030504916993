"""A question for a model, and a model client for a scripted server."""

from typing import Any

from plan_adapter.agent.model import Message, Question
from plan_adapter.agent.openai_model import OpenAIModel

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["n"],
    "additionalProperties": False,
}
QUESTION = Question((Message("system", "Count."), Message("user", "数到三")), SCHEMA, "count", max_tokens=100)


def model_at(url: str, **options: Any) -> OpenAIModel:
    return OpenAIModel("m", base_url=url, api_key="sk-canary", **{"max_retries": 0, **options})
