"""The values in the text of a gate: what is secret masked, short ones in their line and long ones in blocks of their own."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from unicodedata import east_asian_width

from pydantic import JsonValue

from plan_adapter.readable import as_text, code, counted, fenced, is_secret_name, masked, visible
from plan_adapter.validation import BoundPlan, ValidatedPlan

SHORT_COLUMNS = 72
"""How wide a value in a line may be; a wider one gets a block of its own."""

FOLD_COLUMNS = 50
"""How wide a word, or a line of a block, may be: both UIs have a form of 512 pixels, and hide what is further right."""

SHOWN_CHARACTERS = 20_000
"""How much of a single value is shown; what is missing is said."""


@dataclass(slots=True)
class Values:
    """Masks values, and knows whether any was: each of `inputs` that is secret by its name, wherever it stands, and what `schemas` say."""

    inputs: Mapping[str, JsonValue]
    schemas: Mapping[str, dict[str, JsonValue]] = field(default_factory=dict[str, dict[str, JsonValue]])  # of parameters, by tool
    expressions: bool = True  # whether an expression may still stand in a value
    literals: frozenset[str] = frozenset()  # what the plan writes beside references to secrets: `Bearer `
    has_masked: bool = False
    _hidden: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._hidden = [text for name, value in self.inputs.items() if is_secret_name(name) for text in _texts(value)]

    @classmethod
    def of(cls, bound: BoundPlan, *, expressions: bool = True) -> "Values":
        """Return what masks the values of a run of `bound`."""
        tools = ((str(tool["name"]), tool["parameters"]) for tool in bound.validated.definitions)
        schemas = {name: schema for name, schema in tools if isinstance(schema, dict)}
        return cls(bound.inputs, schemas, expressions, _literals(bound.validated) if bound.validated.secrets else frozenset())

    def masked(self, name: str, value: JsonValue, schema: Mapping[str, JsonValue] | None = None) -> JsonValue:
        """Return `value`, which stands under `name`, as it may be shown; `schema` is that of the object in which it stands."""
        shown = masked({name: value}, schema=schema, hidden=self._hidden, expressions=self.expressions, literals=self.literals)
        result = shown[name] if isinstance(shown, dict) else shown
        self.has_masked = self.has_masked or result != value
        return result

    def parameters(self, tool_name: str, parameters: Mapping[str, JsonValue]) -> list[tuple[str, JsonValue]]:
        """Return the parameters of a call of this tool as they may be shown, with their names."""
        schema = self.schemas.get(tool_name)
        return [(name, self.masked(name, value, schema)) for name, value in parameters.items()]


def columns_of(text: str) -> int:
    """Return how wide `text` is in a font of fixed width."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def fits(text: str, columns: int = SHORT_COLUMNS) -> bool:
    """Return whether a line can show `text` exactly: browsers show one blank for several, and hide the end of a word that is too wide."""
    words = text.split(" ")
    return columns_of(text) <= columns and all(words) and max(map(columns_of, words)) <= FOLD_COLUMNS


def line_of(value: JsonValue) -> str | None:
    """Return a value as it stands in a line, exactly; None for one that needs a block."""
    if isinstance(value, str) and "\n" in value:
        return None
    text = as_text(value)
    return text if fits(text) else None


def extent_of(value: JsonValue) -> str:
    """Return in words how long a value is."""
    text = value if isinstance(value, str) else as_text(value)
    lines = text.count("\n") + 1
    return counted(lines, "line") if lines > 1 else f"{len(text):,} characters"


def value_lines(label: str, value: JsonValue) -> list[str]:
    """Return a value as an item of a list: in its line, or in a block."""
    text = line_of(value)
    return [f"- {label}: {code(text)}"] if text is not None else block(label, value)


def block(label: str, value: JsonValue, *, most_lines: int | None = None) -> list[str]:
    """Return a value in a fence, whose lines are indented: none of them can be taken for a line of ours.

    Of more than `most_lines` the first are shown, and it says so.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    cut = text[:SHOWN_CHARACTERS]
    pieces = [piece for line in visible(cut).split("\n") for piece in folded(line)]
    how = "; ↩ the line goes on" if pieces != visible(cut).split("\n") else ""
    if most_lines is not None and len(pieces) > most_lines:
        pieces, how = pieces[:most_lines], f"; **cut here, whole below**{how}"
        cut = text
    lines = fenced("\n".join(pieces), "" if isinstance(value, str) else "json").split("\n")
    more = len(text) - len(cut)
    rest = ["", f"  **{more:,} more characters are not shown here.**"] if more > 0 else []
    return [f"- {label} ({extent_of(value)}{how}):", "", *(f"  {line}" for line in lines), *rest]


def folded(line: str) -> list[str]:
    """Return `line` in pieces of at most FOLD_COLUMNS: the form hides what is further right, and with it what a command does there."""
    pieces, width = [""], 0
    for character in line:
        columns = columns_of(character)
        if width + columns > FOLD_COLUMNS:
            pieces[-1] += " ↩"
            pieces.append("")
            width = 0
        pieces[-1] += character
        width += columns
    return pieces


def _literals(validated: ValidatedPlan) -> frozenset[str]:
    """Return the texts that the plan writes beside references to secrets; a value that was filled in is none of them."""
    templates = [*validated.parameters.values(), *(call.parameters for call in validated.rollbacks.values())]
    texts = [parts for template in templates if template.secrets for parts in template.texts.values()]
    with_secrets = [parts for parts in texts if any(not isinstance(part, str) and part.secrets for part in parts)]
    return frozenset(part for parts in with_secrets for part in parts if isinstance(part, str))


def _texts(value: JsonValue) -> list[str]:
    if isinstance(value, dict | list):
        return [text for member in (value.values() if isinstance(value, dict) else value) for text in _texts(member)]
    return [value] if isinstance(value, str) else []
