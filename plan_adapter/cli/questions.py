"""Answers to questions from the command line: the values of their fields."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from plan_adapter.approvals import Decision, Resolution
from plan_adapter.cli.asking import is_at_terminal
from plan_adapter.cli.codes import UsageError
from plan_adapter.commands import Question, answer_command
from plan_adapter.errors import InvalidPlanError
from plan_adapter.gates.conversation import Conversation
from plan_adapter.gates.fields import ask_fields
from plan_adapter.validation.inputs import read_values

if TYPE_CHECKING:
    from pydantic import JsonValue

    from plan_adapter.options import Input


def refuse_mismatched_answer(asked: Question, decision: Decision | Resolution, fields: Sequence[str] | None, *, api: bool = False) -> None:
    """Raise UsageError for a bare approval at a gate that asks a question, and for an answer with `fields` at any other gate."""
    if decision == "approve" and (asked.kind == "question") != (fields is not None):
        asks = "asks a question" if asked.kind == "question" else "asks for an approval, not a question"
        raise UsageError(f"this gate {asks}: `{answer_command(asked, api=api)}`")


async def read_field_values(given: Sequence[str], fields: "Mapping[str, Input]", *, may_ask: bool) -> "dict[str, JsonValue]":
    """Return the values of a question's fields from `field=value` texts. Without any, ask at the terminal if there is one and `may_ask`.

    Raises InvalidPlanError with every problem of the values, and UsageError if the input ends.
    """
    if not given and may_ask and is_at_terminal():
        answer = await ask_fields(fields, Conversation())
        if answer is None:
            raise UsageError("nothing was answered")
        return answer
    values, problems = read_values(fields, _field_texts(given), from_text=True, what="field")
    if problems:
        raise InvalidPlanError(problems)
    return values


def _field_texts(pairs: Sequence[str]) -> dict[str, str]:
    texts = dict[str, str]()
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"`{pair}`: write field=value")
        if name in texts:
            raise UsageError(f"the field `{name}` is given twice")
        texts[name] = value
    return texts
