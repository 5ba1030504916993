"""What a language model is to the planner: it is asked for one JSON object, and answers with one, or says why there is none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from pydantic import JsonValue

from plan_adapter.agent.answers import Reading
from plan_adapter.drafts import Rung, Usage

Role: TypeAlias = Literal["system", "user", "assistant"]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Question:
    """What a model is asked: messages, and the JSON Schema of the one object that it is to answer with."""

    messages: tuple[Message, ...]
    schema: Mapping[str, JsonValue]
    name: str  # of the object, for servers that want one
    outline: Mapping[str, JsonValue] | None = None  # a shorter schema, for where it stands in the prompt; None: the same
    max_tokens: int | None = None  # of the answer; None: as the server has it
    effort: Effort | None = None  # how much a reasoning model may think; None: as the server has it


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What came back: the text as it was written, the object in it or why there is none, and what it cost, refused rungs included."""

    text: str
    reading: Reading
    model: str
    rung: Rung
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    requests: int = 1
    cut_off: bool = False  # at the limit of tokens


class Model(Protocol):
    """A language model that answers with one JSON object."""

    @property
    def name(self) -> str:
        """What it is called where its answers are kept."""
        ...

    async def ask(self, question: Question) -> ModelAnswer:
        """Return the answer; raises ModelError where there is none to be had."""
        ...
