"""Asks for typed values at the terminal: the inputs of a plan, and the answer to a question."""

import json
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from plan_adapter.gates.conversation import Conversation
from plan_adapter.options import Input
from plan_adapter.readable import as_text, is_secret_name, one_line
from plan_adapter.validation.inputs import limits_in_words, read_values, type_in_words


async def ask_fields(fields: Mapping[str, Input], conversation: Conversation) -> dict[str, JsonValue] | None:
    """Return the answer to a question, asked field by field, or None at the end of the input. An empty line takes the default."""
    texts = dict[str, str]()
    for name, definition in fields.items():
        text = await ask_value(name, definition, conversation, empty=f"`plan answer RUN STEP {name}=` gives one")
        if text is None:
            return None
        if text:
            texts[name] = text
    return read_values(fields, texts, from_text=True, what="field")[0]


async def ask_value(name: str, definition: Input, conversation: Conversation, *, empty: str) -> str | None:
    """Return a text that fits an input or a field, or None at the end of the input. An empty line takes the default, if there is one.

    `empty` says how else an empty text is given.
    """
    choices = _choices_by_key(definition)
    conversation.say("\n".join(_field_lines(name, definition, choices)))
    while (typed := await conversation.ask(f"{name}: ", hidden=is_secret_name(name))) is not None:
        if not typed and not definition.is_required:
            return ""
        text = choices.get(typed, typed)
        problems = read_values({name: definition}, {name: text}, from_text=True, what="field")[1]
        if typed and not problems:
            return text
        for problem in problems:
            hint = f"; {problem.hint}" if problem.hint and problem.hint != definition.description else ""
            conversation.say(f"  {problem.message}{hint}")
        if not problems:
            conversation.say(f"  an empty text is not accepted here; {empty}")
    return None


def _field_lines(name: str, definition: Input, choices: Mapping[str, str]) -> Iterator[str]:
    """Yield what a person sees of an input, as in the form: its title, type, description, limits and choices."""
    named = f"{one_line(definition.title)} ({name})" if definition.title else name
    yield f"{named}: {type_in_words(definition)}"
    if definition.description:
        yield f"  {one_line(definition.description)}"
    if limits := list(limits_in_words(definition)):
        yield f"  {', '.join(limits)}"
    if not definition.is_required:
        yield f"  default: {one_line(as_text(definition.default))}"
    for key, text in choices.items():
        yield f"  {one_line(text)}" if key == text else f"  {key}) {one_line(text)}"


def _choices_by_key(definition: Input) -> dict[str, str]:
    """Map what a person can type to the text of each choice: its number, or only its text if any choice is itself a number."""
    texts = [member if isinstance(member, str) else json.dumps(member, ensure_ascii=False) for member in definition.enum or ()]
    if any(text.isdecimal() for text in texts):
        return {text: text for text in texts}
    return {str(number): text for number, text in enumerate(texts, start=1)}
