"""The values in the text of a gate: what is secret masked, short ones in their line and long ones in blocks of their own."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from unicodedata import east_asian_width

from pydantic import JsonValue

from plan_adapter.readable import as_text, code, counted, fenced, is_secret_name, masked, visible
from plan_adapter.validation import BoundPlan

SHORT_CHARACTERS = 72
"""What a value may be long to stand in its line; a longer one gets a block of its own."""

UNBROKEN_CHARACTERS = 32
"""How long a word of a value may be: the form of UI V2 is 512 pixels wide, whatever the window."""

FOLD_COLUMNS = 56
"""How wide a line of a block may be: Prefect's form shows 60 columns, and the rest only to who scrolls aside."""

SHOWN_CHARACTERS = 20_000
"""How much of a single value is shown; what is missing is said."""


@dataclass(slots=True)
class Values:
    """Masks values, and knows whether any was: each of `inputs` that is secret by its name, wherever it stands, and what `schemas` say."""

    inputs: Mapping[str, JsonValue]
    schemas: Mapping[str, dict[str, JsonValue]] = field(default_factory=dict[str, dict[str, JsonValue]])  # of parameters, by tool
    expressions: bool = True  # whether an expression may still stand in a value
    has_masked: bool = False
    _hidden: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._hidden = [text for name, value in self.inputs.items() if is_secret_name(name) for text in _texts(value)]

    @classmethod
    def of(cls, bound: BoundPlan, *, expressions: bool = True) -> "Values":
        """Return what masks the values of a run of `bound`."""
        tools = ((str(tool["name"]), tool["parameters"]) for tool in bound.validated.definitions)
        return cls(bound.inputs, {name: schema for name, schema in tools if isinstance(schema, dict)}, expressions)

    def masked(self, name: str, value: JsonValue, schema: Mapping[str, JsonValue] | None = None) -> JsonValue:
        """Return `value`, which stands under `name`, as it may be shown; `schema` is that of the object in which it stands."""
        shown = masked({name: value}, schema=schema, hidden=self._hidden, expressions=self.expressions)
        result = shown[name] if isinstance(shown, dict) else shown
        self.has_masked = self.has_masked or result != value
        return result

    def parameters(self, tool_name: str, parameters: Mapping[str, JsonValue]) -> list[tuple[str, JsonValue]]:
        """Return the parameters of a call of this tool as they may be shown, with their names."""
        schema = self.schemas.get(tool_name)
        return [(name, self.masked(name, value, schema)) for name, value in parameters.items()]


def line_of(value: JsonValue) -> str | None:
    """Return a value as it stands in a line, exactly; None for one that is too long for it, or that a line or a cell cannot show."""
    if isinstance(value, str) and (len(value) > SHORT_CHARACTERS or "\n" in value):
        return None
    text = as_text(value)
    # A cell of a table cannot show a backslash before a pipe; nor does a browser show blanks side by side; and what has no blank in it
    # makes the table wider than the form.
    parts = text.split()
    fits = len(text) <= SHORT_CHARACTERS and max(map(len, parts), default=0) <= UNBROKEN_CHARACTERS
    return text if fits and "\\|" not in text and text == " ".join(parts) else None


def extent_of(value: JsonValue) -> str:
    """Return in words how long a value is."""
    text = value if isinstance(value, str) else as_text(value)
    lines = text.count("\n") + 1
    return counted(lines, "line") if lines > 1 else f"{len(text):,} characters"


def value_lines(label: str, value: JsonValue) -> list[str]:
    """Return a value as an item of a list: in its line, or in a block."""
    text = line_of(value)
    return [f"- {label}: {code(text)}"] if text is not None else block(label, value)


def block(label: str, value: JsonValue) -> list[str]:
    """Return a value in a fence, whose lines are indented: none of them can be taken for a line of ours."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    shown, more = text[:SHOWN_CHARACTERS], len(text) - SHOWN_CHARACTERS
    folded = "\n".join(piece for line in visible(shown).split("\n") for piece in _folded(line))
    lines = fenced(folded, "" if isinstance(value, str) else "json").split("\n")
    rest = ["", f"  **{more:,} more characters are not shown here.**"] if more > 0 else []
    how = "; ↩: goes on in the next line" if folded != visible(shown) else ""
    return [f"- {label} ({extent_of(value)}{how}):", "", *(f"  {line}" for line in lines), *rest]


def _folded(line: str) -> list[str]:
    """Return `line` in pieces of at most FOLD_COLUMNS: the form hides what is further right, and with it what a command does there."""
    pieces, width = [""], 0
    for character in line:
        columns = 2 if east_asian_width(character) in "WF" else 1
        if width + columns > FOLD_COLUMNS:
            pieces[-1] += " ↩"
            pieces.append("")
            width = 0
        pieces[-1] += character
        width += columns
    return pieces


def _texts(value: JsonValue) -> list[str]:
    if isinstance(value, dict | list):
        return [text for member in (value.values() if isinstance(value, dict) else value) for text in _texts(member)]
    return [value] if isinstance(value, str) else []
