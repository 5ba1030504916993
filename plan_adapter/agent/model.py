"""The planner's view of a language model: a `Question` asks for one JSON object, a `ModelAnswer` holds it or the reason it is missing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from pydantic import JsonValue

from plan_adapter.agent.answer_text import Reading
from plan_adapter.local.settings import Effort
from plan_adapter.model.drafts import Rung, Usage

Role: TypeAlias = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Question:
    """A request to a model: messages, and the JSON Schema of the one object to answer with."""

    messages: tuple[Message, ...]
    schema: Mapping[str, JsonValue]
    name: str  # of the object, for servers that require one
    outline: Mapping[str, JsonValue] | None = None  # a shorter schema to put into the prompt; None: the full schema
    max_tokens: int | None = None  # limit for the answer; None: the server's default
    effort: Effort | None = None  # reasoning effort; None: the server's default
    temperature: float | None = None  # None: the server's default


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A model's answer: its text, the object read from it, and the cost in tokens, seconds and requests, including refused rungs."""

    text: str
    reading: Reading
    model: str
    rung: Rung
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    requests: int = 1
    cut_off: bool = False  # at the token limit
    is_estimated: bool = False  # whether `usage` is an estimate, because the server did not count the tokens


def count_tokens(answer: ModelAnswer, question: Question) -> ModelAnswer:
    """Return `answer` with an estimate of each token count that its server did not report, so that limits hold with every server."""
    used = answer.usage
    if used.prompt <= 0:
        asked = [message.content for message in question.messages] + [json.dumps(question.schema, ensure_ascii=False)]
        used = replace(used, prompt=_estimate_tokens(*asked) * answer.requests)
    if used.completion <= 0:
        used = replace(used, completion=_estimate_tokens(answer.text) * answer.requests)
    return answer if used == answer.usage else replace(answer, usage=used, is_estimated=True)


def _estimate_tokens(*texts: str) -> int:
    return sum(len(text.encode(errors="surrogatepass")) for text in texts) // _BYTES_PER_TOKEN


_BYTES_PER_TOKEN = 4  # a token of English has about 4 bytes, a Chinese character 3


class Model(Protocol):
    """A language model that answers with one JSON object."""

    @property
    def name(self) -> str:
        """The name under which its answers are recorded."""
        ...

    async def ask(self, question: Question) -> ModelAnswer:
        """Return the model's answer. Raises ModelError if there is none."""
        ...


@runtime_checkable
class ClosableModel(Protocol):
    """A model that keeps connections open. They belong to the event loop that opened them."""

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        ...
