"""`promote`: turns the plan of a good run into a runbook, and proposes and names its inputs."""

import copy
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.documents.recorded_runs import written_secrets
from plan_adapter.expressions.references import UnclosedError, has_expression, split_expressions
from plan_adapter.model.options import Input, InputType
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.readable import as_text, counted, one_line
from plan_adapter.runbooks.literals import InputReplacement, Literal, find_varying, last_word, literals_of, put_at, value_at
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import validate

_GENERIC_KEYS = frozenset(
    re.findall(
        r"\w+",
        "argument arguments argv args body command content data item items json key list name param parameter parameters params payload "
        "statement text uri url value values",
    )
)
"""Parameter names that say nothing about their value."""

_RESERVED = frozenset({"self", "cls", "return_state", "wait_for", "true", "false", "null", "in"})
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class NameSource:
    """What a name is made from: the kind of value, and the keys it occurs under, each with whether the key holds nothing else."""

    kind: str
    keys: Sequence[tuple[str, bool]]


def free_name(source: NameSource, taken: Collection[str]) -> str:
    """Return a name that is an identifier in expressions and in Python, and not among `taken`."""
    specific = Counter(name for key, is_all in source.keys if is_all and (name := _identifier(key)) and name not in _GENERIC_KEYS)
    inside = (name for key, _ in source.keys if (name := _identifier(key)) and name not in _GENERIC_KEYS)
    wanted = specific.most_common(1)[0][0] if specific else source.kind or next(inside, "") or "value"
    if iskeyword(wanted) or wanted in _RESERVED:
        wanted += "_"
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted.rstrip('_')}_{number}", number + 1
    return name


def _identifier(key: str) -> str:
    """Return `key` in snake_case, or "" if it has no ASCII letters, because input names allow no others."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key) if key.isascii() else last_word(key)
    name = re.sub(r"[^A-Za-z0-9]+", "_", split).strip("_").lower()[:_LONGEST].rstrip("_")
    return name if name[:1].isalpha() else ""


MAX_INPUTS = 20
"""Nobody fills in more inputs than this. Further candidates stay literals and are counted in a note."""

_COMPARED = 200  # candidates whose other occurrences are counted; a plan with thousands of steps has thousands
_LONGEST_NAME = 200  # characters of a text that can count as a value because it is repeated
_SHORTEST = 2
_PLACES_SHOWN = 6
_KINDS: Mapping[type, InputType] = {str: "string", bool: "boolean", int: "integer", float: "number"}

_Key = tuple[type, str | int | float | bool, str]  # for a number, also its key: 30 can mean many things


@dataclass(frozen=True, slots=True)
class ProposedInput:
    """A literal that may become an input: its name, definition, reasons, the places it was in, and those where it remains."""

    name: str
    definition: Input
    reasons: tuple[str, ...]
    places: tuple[str, ...]  # such as `check.parameters.url`
    remains: tuple[str, ...] = ()  # where the value is still written out, because expressions are not allowed there

    @property
    def comment(self) -> str:
        """Return a line that says why it is proposed and where it occurs."""
        still = f"; still written out in {_list_places(self.remains)}" if self.remains else ""
        return f"proposed: {'; '.join(self.reasons)}; in {_list_places(self.places)}{still}"


@dataclass(frozen=True, slots=True)
class Promotion:
    """A proposed runbook: the plan with its proposed inputs, whose defaults are the run's values, and notes about it."""

    plan: ExecutionPlan
    inputs: tuple[ProposedInput, ...]
    notes: tuple[str, ...] = ()

    @property
    def comments(self) -> dict[str, str]:
        """Return the comment of each proposed input by its path in the document."""
        return {f"inputs.{proposed.name}": proposed.comment for proposed in self.inputs}


def promote(
    plan: ExecutionPlan,
    tools: ToolRegistry,
    *,
    others: Sequence[tuple[str, ExecutionPlan]] = (),
    name: str | None = None,
    without: Collection[str] = (),
) -> Promotion:
    """Return `plan` with literals that vary replaced by inputs. With the inputs' defaults, every call gets the same values as before.

    A literal of a call's parameters becomes an input if it differs in `others` (other versions of the plan, each with a label such as
    `version 2`), if it looks like a host, path, version, date, image tag or address, or if it occurs in several places. Secrets, code and
    program names never do. The plan's own inputs stay as they are. `without` are names not to propose. Raises InvalidPlanError if `plan`
    does not fit `tools`.
    """
    plan = validate(plan, tools).plan
    literals = literals_of(plan, tools)
    found = _Candidates(literals)
    found.add_changed([(label, literals_of(other, tools), other) for label, other in others], plan)
    found.add_recognized()
    found.add_repeated()
    editor = _RunbookEditor(copy.deepcopy(plan.to_document()), literals, set(plan.inputs), frozenset(without))
    for candidate in found.ordered():
        editor.propose(candidate)
    document = editor.document
    if name is not None:
        document["name"] = name
    if editor.inputs:
        document["inputs"] = {**cast("dict[str, JsonValue]", document.get("inputs", {})), **editor.definitions()}
    promoted = validate(ExecutionPlan.model_validate(document), tools).plan
    skipped = f"{counted(editor.skipped, 'more literal')} could be inputs and stayed as they are: at most {MAX_INPUTS} inputs are proposed"
    return Promotion(promoted, tuple(editor.inputs), (*((skipped,) if editor.skipped else ()), *written_secrets(promoted)))


@dataclass(slots=True)
class _Candidate:
    value: str | int | float | bool
    kind: str = ""  # the kind of value that it looks like
    reasons: list[str] = field(default_factory=list[str])
    literals: list[Literal] = field(default_factory=list[Literal])
    is_varied: bool = False

    @property
    def is_certain(self) -> bool:
        return self.is_varied or bool(self.kind)


class _Candidates:
    """Collects the candidates for inputs, by value."""

    def __init__(self, literals: Sequence[Literal]) -> None:
        self._literals = literals
        self._found: dict[_Key, _Candidate] = {}

    def ordered(self) -> list[_Candidate]:
        """Return the candidates: those known to vary first, then those with most occurrences, also inside other texts, then the longest."""
        found = sorted(
            self._found.values(), key=lambda candidate: (not candidate.is_varied, -len(candidate.literals), -len(str(candidate.value)))
        )
        rank = {
            id(candidate): (not candidate.is_varied, -self._count_places(candidate), -len(str(candidate.value)))
            for candidate in found[:_COMPARED]
        }
        return [*sorted(found[:_COMPARED], key=lambda candidate: rank[id(candidate)]), *found[_COMPARED:]]

    def _count_places(self, candidate: _Candidate) -> int:
        draft = InputReplacement(candidate.value, "x", candidate.is_certain)
        texts = (literal.value for literal in self._literals)
        return max(len(candidate.literals), sum(isinstance(text, str) and draft.replace_in(text) != text for text in texts))

    def add_changed(self, others: Iterable[tuple[str, list[Literal], ExecutionPlan]], plan: ExecutionPlan) -> None:
        """Add the values that differ in another version of the plan, at the same place of the same call."""
        tool_of = {step.id: step.tool_name for step in plan.all_steps}
        for label, literals, other in others:
            same = {step.id for step in other.all_steps if tool_of.get(step.id) == step.tool_name}
            theirs = {literal.at: literal for literal in literals if literal.at.partition(".")[0] in same}
            for literal in self._literals:
                match = theirs.get(literal.at)
                if match is not None and type(match.value) is type(literal.value) and match.value != literal.value:
                    mine, other_value = _difference(literal.value, match.value)
                    if not has_expression(str(mine)) and not has_expression(str(other_value)):
                        self._add(mine, literal, f"it was {as_text(other_value)} in {label}", is_varied=True)

    def add_recognized(self) -> None:
        """Add values that look as if they vary from run to run."""
        for literal in self._literals:
            if isinstance(literal.value, str) and not literal.choices:
                try:
                    cut = split_expressions(literal.value)
                except UnclosedError:
                    continue
                for kind, text in find_varying(cut, literal.key):
                    self._add(text, literal, f"it looks like {_describe_kind(kind)}", kind=kind)

    def add_repeated(self) -> None:
        """Add values that occur in several places. A number must have the same key."""
        places: dict[_Key, list[Literal]] = {}
        for literal in self._literals:
            if _counts_if_repeated(literal):
                places.setdefault(_candidate_key(literal.value, literal), []).append(literal)
        for several in places.values():
            if len(several) > 1:
                for literal in several:
                    self._add(literal.value, literal, "it occurs in several places")

    def _add(self, value: Any, literal: Literal, reason: str, *, kind: str = "", is_varied: bool = False) -> None:
        candidate = self._found.setdefault(_candidate_key(value, literal), _Candidate(value))
        candidate.kind = candidate.kind or kind
        candidate.is_varied = candidate.is_varied or is_varied
        if reason not in candidate.reasons:
            candidate.reasons.append(reason)
        if literal not in candidate.literals[-1:]:
            candidate.literals.append(literal)


@dataclass(slots=True)
class _RunbookEditor:
    """The runbook's document while it is being edited."""

    document: dict[str, JsonValue]
    literals: Sequence[Literal]
    taken: set[str]
    without: frozenset[str]
    inputs: list[ProposedInput] = field(default_factory=list[ProposedInput])
    skipped: int = 0

    def definitions(self) -> dict[str, JsonValue]:
        """Return the proposed inputs in document form."""
        return {
            proposed.name: proposed.definition.model_dump(mode="json", exclude_defaults=True, exclude_none=True) for proposed in self.inputs
        }

    def propose(self, candidate: _Candidate) -> None:
        """Replace a candidate by an input, if it still occurs in enough places."""
        draft = InputReplacement(candidate.value, "x", candidate.is_certain)
        is_full = len(self.inputs) >= MAX_INPUTS
        found = self._find_replacements(draft, candidate, candidate.literals if is_full else self.literals)
        if len(found) < (1 if candidate.is_certain else 2):
            return
        if is_full:
            self.skipped += 1
            return
        keys = [(literal.key, literal.value == candidate.value) for literal in candidate.literals]
        name = free_name(NameSource(candidate.kind, keys), self.taken)
        self.taken.add(name)
        if name in self.without:
            return
        replacing = InputReplacement(candidate.value, name, candidate.is_certain)
        replaced = self._find_replacements(replacing, candidate, self.literals)
        for literal, value in replaced:
            put_at(self.document, literal.path, value)
        self._replace_in_expressions(replacing)
        places = tuple(literal.at for literal, _ in replaced)
        self.inputs.append(
            ProposedInput(name, _define_input(candidate, places), tuple(candidate.reasons), places, self._find_remaining(replacing))
        )

    def _find_replacements(self, replacing: InputReplacement, candidate: _Candidate, among: Sequence[Literal]) -> list[tuple[Literal, str]]:
        """Return the literals that contain the value now, each with its replacement."""
        found: list[tuple[Literal, str]] = []
        keys = {literal.key for literal in candidate.literals}
        for literal in among:
            now = value_at(self.document, literal.path)
            if isinstance(now, str) and isinstance(replacing.value, str) and not (literal.choices and literal.value != replacing.value):
                if (text := replacing.replace_in(now)) != now:
                    found.append((literal, text))
            elif type(now) is type(replacing.value) and now == replacing.value and literal.key in keys:
                found.append((literal, replacing.reference))
        return found

    def _replace_in_expressions(self, replacing: InputReplacement) -> None:
        """Replace constants in conditions and outputs by the input, so that they keep their meaning."""
        steps = cast("list[dict[str, JsonValue]]", self.document["steps"])
        inner = [inner_step for step in steps for inner_step in cast("list[dict[str, JsonValue]]", step.get("steps", []))]
        for step in (*steps, *inner):
            for name in ("when", "for_each", "done_when"):
                text = step.get(name)
                if isinstance(text, str):
                    step[name] = replacing.replace_in_expression(text)
        outputs = cast("dict[str, JsonValue]", self.document.get("outputs", {}))
        outputs.update({name: replacing.replace_in_expression(value) for name, value in outputs.items() if isinstance(value, str)})

    def _find_remaining(self, replacing: InputReplacement) -> tuple[str, ...]:
        found: list[str] = []
        for step in cast("list[dict[str, Any]]", self.document["steps"]):
            written = {key: value for key, value in step.items() if key not in ("id", "tool_name", "depends_on", "tools", "metadata")}
            found += replacing.find_remaining(written, str(step["id"]))
        return (*(at for at in ("name", "description") if [*replacing.find_remaining(self.document.get(at), at)]), *found)


def _define_input(candidate: _Candidate, places: Sequence[str]) -> Input:
    """Return the input. It has the tool's type and choices if they accept the value, else the literal's own type."""
    whole = [literal for literal in candidate.literals if literal.value == candidate.value]
    types = {str(schema.get("type")) for literal in whole for schema in literal.schemas}
    kind = _KINDS[type(candidate.value)]
    if kind == "integer" and "number" in types and "integer" not in types:
        kind = "number"
    choices = next((literal.choices for literal in whole if candidate.value in literal.choices), None)
    if choices and any(type(choice) is not type(candidate.value) for choice in choices):
        choices = None
    more = f" and {counted(len(places) - 1, 'more place')}" if len(places) > 1 else ""
    description = next((str(schema["description"]) for literal in whole for schema in literal.schemas if schema.get("description")), "")
    key = Counter(literal.key for literal in candidate.literals).most_common(1)[0][0]
    what = (
        f"{description.rstrip('. ') or _describe_kind(candidate.kind).partition(' ')[2] or one_line(key)} (in {one_line(places[0])}{more})"
    )
    return Input(type=kind, description=what[:1].upper() + what[1:], default=candidate.value, enum=choices)


def _candidate_key(value: str | float, literal: Literal) -> _Key:
    return type(value), value, "" if isinstance(value, str) else literal.key


def _counts_if_repeated(literal: Literal) -> bool:
    value = literal.value
    if isinstance(value, bool) or literal.choices or literal.is_flag:
        return False
    if isinstance(value, str):
        return _SHORTEST <= len(value.strip()) <= _LONGEST_NAME and "\n" not in value and not has_expression(value)
    return True


def _difference(mine: Any, theirs: Any) -> tuple[Any, Any]:
    """Return the part that differs between two values: for texts, the words between common start and end; else both values."""
    if not isinstance(mine, str) or has_expression(mine) != has_expression(theirs):
        return mine, theirs
    words, others = (re.findall(r"[A-Za-z0-9_.\-]+|[^A-Za-z0-9_.\-]", text) for text in (mine, theirs))
    shorter = min(len(words), len(others))
    start = next((at for at in range(shorter) if words[at] != others[at]), shorter)
    rest = shorter - start
    end = next((at for at in range(rest) if words[-1 - at] != others[-1 - at]), rest)
    part, other = ("".join(parts[start : len(parts) - end]) for parts in (words, others))
    return (part, other) if part.strip() and other.strip() else (mine, theirs)


def _describe_kind(kind: str) -> str:
    word = {"email": "e-mail address", "env": "environment"}.get(kind, kind.replace("_", " "))
    return f"{'an' if word[:1] in 'aeiou' else 'a'} {word}"


def _list_places(places: Sequence[str]) -> str:
    more = f", and {counted(len(places) - _PLACES_SHOWN, 'more place')}" if len(places) > _PLACES_SHOWN else ""
    return ", ".join(places[:_PLACES_SHOWN]) + more
