"""What the importers of other programs' documents share: the report, free names, placeholder steps, and steps that may fail."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any, Literal, TypeAlias, cast

from plan_adapter.model.readable import counted, listed, one_line

Document: TypeAlias = dict[str, Any]
"""A plan or a step as a document, or a part of the document that is read."""

Fate: TypeAlias = Literal["kept", "changed", "left out"]

_MOST_PLACES = 6
_LONGEST_ID = 56  # of 64 characters, so that a number fits behind it
_LONGEST_DESCRIPTION = 1000
_RESERVED_INPUTS = frozenset({"self", "cls", "return_state", "wait_for", "true", "false", "null"})
_RESERVED_IDS = frozenset({"true", "false", "in", "null"})


class NotConvertibleError(Exception):
    """A document, or a part of one, has no equivalent in a plan. The message says what and why; `notes` are the report so far."""

    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """What became of each part of a document. Equal findings of several places become one line."""

    _found: dict[tuple[Fate, str], list[str]] = field(default_factory=dict[tuple[Fate, str], list[str]])

    def add(self, fate: Fate, text: str, at: str = "") -> None:
        """Add a finding, and the place that it is about."""
        places = self._found.setdefault((fate, one_line(text)), [])
        if at and at not in places:
            places.append(at)

    def lines(self) -> tuple[str, ...]:
        """Return a line per finding: first what was kept, then what was changed, then what was left out."""
        ordered = sorted(self._found.items(), key=lambda entry: ("kept", "changed", "left out").index(entry[0][0]))
        return tuple(
            f"{fate}: {f'{listed([one_line(place) for place in places], _MOST_PLACES)}: ' if places else ''}{text}"
            for (fate, text), places in ordered
        )


@dataclass(slots=True)
class StandIns:
    """Inputs for values that only the other program knows. Unused ones are dropped at the end."""

    inputs: dict[str, Document]
    _places: dict[str, tuple[str, list[str]]] = field(default_factory=dict[str, tuple[str, list[str]]])  # by input: the source, and where
    _names: dict[str, str] = field(default_factory=dict[str, str])  # by source

    def name_of(self, source: str, wanted: str, at: str) -> str:
        """Return the name of the input that stands for `source` at a place."""
        if source not in self._names:
            name = self._names[source] = input_name(wanted, self.inputs)
            self.inputs[name] = {"type": "string", "description": f"Stands for {prose(source)}"}
            self._places[name] = (source, [])
        name = self._names[source]
        self._places[name][1].append(at)
        return name

    def drop_unused(self, document: Document, report: Report) -> None:
        """Drop the inputs that no text of `document` uses, and report the others."""
        used = {name for text in texts(document) for name in re.findall(r"\binputs\.(\w+)", text)}
        for name, (source, places) in self._places.items():
            if name not in used:
                del self.inputs[name]
            for at in places if name in used else ():
                report.add("changed", f"`{source}` is not known here; give its value as the input `{name}`", at)


def texts(value: Any) -> Iterator[str]:
    """Yield every text in a document."""
    if isinstance(value, str):
        yield value
    for member in [*mapping(value).values(), *members(value)]:
        yield from texts(member)


def step_id(wanted: str, taken: Collection[str]) -> str:
    """Return an id like `wanted` that is valid, not `taken`, and an identifier in expressions."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "_", wanted).strip("_")[:_LONGEST_ID].rstrip("_") or "step"
    if stem[0].isdigit() or stem in _RESERVED_IDS:
        stem = f"step_{stem}"
    return _free_name(stem, taken)


def input_name(wanted: str, taken: Collection[str]) -> str:
    """Return a name like `wanted` that an input can have and that is not `taken`."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "_", wanted).strip("_")[:_LONGEST_ID].rstrip("_") or "value"
    if not stem[0].isalpha():
        stem = f"input_{stem}"
    return _free_name(f"{stem}_" if iskeyword(stem) or stem in _RESERVED_INPUTS else stem, taken)


def _free_name(stem: str, taken: Collection[str]) -> str:
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}_{number}", number + 1
    return name


def prose(text: object) -> str:
    """Return a description on one line, with the expressions of the other program in `< >`, because they mean nothing here."""
    line = re.sub(r"\$?\{\{\s*(.*?)\s*\}\}", r"<\1>", " ".join(str(text).split()))
    line = line.replace("${{", "<")
    return line if len(line) <= _LONGEST_DESCRIPTION else line[: _LONGEST_DESCRIPTION - 1] + "…"


def literal(value: Any) -> str:
    """Return a JSON value as an expression."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(literal, members(value)))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(key)}: {literal(member)}' for key, member in mapping(value).items())}}}"
    text = str(value).replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"'{text}'"


def mapping(value: Any) -> dict[str, Any]:
    """Return a value that should be a mapping, or an empty one."""
    return {str(key): member for key, member in cast("dict[Any, Any]", value).items()} if isinstance(value, dict) else {}


def members(value: Any) -> list[Any]:
    """Return a value that should be a list, or an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_expression(code: str) -> str:
    """Return CEL `code` as an expression in a document."""
    return f"${{{{ {code} }}}}"


def conjunction(*conditions: str) -> str:
    """Return the conjunction of conditions, or "" if there are none."""
    found = [condition for condition in dict.fromkeys(conditions) if condition]
    return found[0] if len(found) == 1 else " && ".join(f"({condition})" for condition in found)


def negation(condition: str) -> str:
    """Return the opposite of a condition."""
    return condition[2:-1] if re.fullmatch(r"!\([^()]*\)", condition) else f"!({condition})"


def is_placeholder(step: Mapping[str, Any]) -> bool:
    """Return whether a step was made by `placeholder_step`."""
    return "not_imported" in step.get("metadata", {})


def check_steps(steps: Sequence[Mapping[str, Any]], inputs: Mapping[str, Any], report: Report) -> None:
    """Report how much was kept. Raises NotConvertibleError if there are no steps."""
    if not steps:
        raise NotConvertibleError("it has no steps that can be converted")
    done = sum(not is_placeholder(step) for step in steps)
    report.add("kept", f"{done} of {counted(len(steps), 'step')}, and {counted(len(inputs), 'input')}")
    if done < len(steps):
        of = f"{len(steps) - done} of {counted(len(steps), 'step')}"
        report.add("left out", f"placeholders: {of}. Each one fails, so that a run stops there, and its description says what to write")


def placeholder_step(what: str, original: Mapping[str, Any]) -> Document:
    """Return the fields of a step that fails and says what to write instead.

    It replaces something that does real work and could not be converted, so that a run stops there instead of doing only the rest. Its
    metadata keeps the original.
    """
    message = f"to do: {prose(what)}"
    return {
        "tool_name": "bash",
        "description": message,
        "parameters": {"command": f"echo {shlex.quote(message)} >&2\nexit 1"},
        "metadata": {"not_imported": _escape_expressions(dict(original))},
    }


def _escape_expressions(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("${{", "$ {{")
    if isinstance(value, list):
        return [_escape_expressions(member) for member in members(value)]
    if isinstance(value, dict):
        return {key.replace("__prefect", "prefect"): _escape_expressions(member) for key, member in mapping(value).items()}
    return value


def ignore_failure(step: Document) -> None:
    """Change a command or script so that its failure is printed and ignored. The next steps run in the same order."""
    parameters = step["parameters"]
    if step["tool_name"] == "bash":
        script = str(parameters["command"]).rstrip("\n")
        ending = 'code=$?\n[ "$code" = 0 ] || echo "exit code $code is ignored" >&2\nexit 0\n'
        parameters["command"] = f"set +e\n(\nset -e -o pipefail\n{script}\n)\n{ending}"
    else:
        parameters["argv"] = ["bash", "-c", '"$@" || echo "exit code $? is ignored" >&2', "bash", *parameters["argv"]]


def in_milliseconds(value: Any, unit_ms: int) -> int | None:
    """Return a duration in a document in milliseconds, or None if it is no positive number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return round(number * unit_ms) if 0 < number < 10**9 else None
