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


def refuse_other_kind(asked: Question, decision: Decision | Resolution, fields: Sequence[str] | None, *, api: bool = False) -> None:
    """Raise UsageError for an approval at a question, and for the `fields` of an answer at a gate that asks no question."""
    if decision == "approve" and (asked.kind == "question") != (fields is not None):
        asks = "asks a question" if asked.kind == "question" else "asks for an approval, not a question"
        raise UsageError(f"this gate {asks}: `{answer_command(asked, api=api)}`")


async def result_of(given: Sequence[str], fields: "Mapping[str, Input]", *, is_asked: bool) -> "dict[str, JsonValue]":
    """Return the answer to a question from `field=value` texts. Without any, ask at the terminal if `is_asked` and there is one.

    Raises InvalidPlanError with every problem of the values, and UsageError if the input ends.
    """
    if not given and is_asked and is_at_terminal():
        answer = await ask_fields(fields, Conversation())
        if answer is None:
            raise UsageError("nothing was answered")
        return answer
    values, problems = read_values(fields, _texts(given), from_text=True, what="field")
    if problems:
        raise InvalidPlanError(problems)
    return values


def _texts(pairs: Sequence[str]) -> dict[str, str]:
    texts = dict[str, str]()
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"`{pair}`: write field=value")
        if name in texts:
            raise UsageError(f"the field `{name}` is given twice")
        texts[name] = value
    return texts
