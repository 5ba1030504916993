"""What the texts of all gates share: the first screen, the folded sections after it, and values with secrets masked."""

import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast
from unicodedata import east_asian_width

from pydantic import JsonValue

from plan_adapter.expressions import has_expression
from plan_adapter.model.language import in_all_languages, later, tr
from plan_adapter.model.options import Effect, Expiry
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.readable import (
    as_text,
    code,
    counted,
    cut,
    duration,
    fenced,
    is_secret_name,
    one_line,
    plain,
    redacted,
    visible,
    words,
)
from plan_adapter.text.listing import either, secrets_fact
from plan_adapter.text.preview import Preview, StepPreview
from plan_adapter.validation import BoundPlan, ValidatedPlan

_EFFECTS: dict[Effect, str] = {"read": later("read"), "idempotent_write": later("write, repeatable"), "write": later("**write**")}

IRREVERSIBLE = later("cannot be undone")
"""The words of every sentence about a write without a rollback. A terminal shows each line with them, however long the text is."""

MAX_LISTED = 12
"""The most steps that get a line each. More are named in one sentence."""


@dataclass(frozen=True, slots=True)
class GateContext:
    """The run in which a gate opens: how the run is called, who requested it, and when the gate opens. None is not shown."""

    run: str | None = None
    requested_by: str | None = None
    at: datetime | None = None

    def sentence(self) -> str:
        """Return who asks and when, as a sentence. Empty if neither is known."""
        if self.at is None:
            return tr("Asked by {who}.", who=words(self.requested_by)) if self.requested_by else ""
        if not self.requested_by:
            return tr("Asked at {when}.", when=at_minute(self.at))
        return tr("Asked by {who}, {when}.", who=words(self.requested_by), when=at_minute(self.at))


NO_CONTEXT = GateContext()
"""The context of a gate about which nothing is known but its content."""


def at_minute(at: datetime, *, since: datetime | None = None) -> str:
    """Return a time to the minute, in UTC because a form has readers everywhere. The date is left out if it is that of `since`."""
    at = at.astimezone(UTC)
    is_same_day = since is not None and at.date() == since.astimezone(UTC).date()
    return f"{at:%H:%M} UTC" if is_same_day else f"{at:%Y-%m-%d %H:%M} UTC"


def effect_shown(effect: Effect) -> str:
    """Return an effect in words, as Markdown."""
    return tr(_EFFECTS[effect])


def worst_case_sentence(worst_case_ms: float | None, *, asks: bool = False) -> str:
    """Return how long the calls take at most. None means no limit. `asks`: there are waits for answers, which do not count."""
    if worst_case_ms is None:
        return tr("Runs without a time limit.")
    longest = duration(worst_case_ms)
    return tr("Takes at most {time}, plus waits.", time=longest) if asks else tr("Takes at most {time}.", time=longest)


def joined_lines(texts: Sequence[str], *, lines: int = 2, separator: str = "; ") -> str:
    """Return the first texts that fit into `lines` lines of a form, and how many more there are."""
    shown, width = list[str](), 0
    for index, text in enumerate(texts):
        width += columns_of(text.replace("**", "")) + len(separator)
        if shown and width > lines * _COLUMNS:
            return separator.join([*shown, tr("and {count} more below", count=len(texts) - index)])
        shown.append(text)
    return separator.join(shown)


def secrets_lines(secrets: Sequence[str], creators: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the line that names the secrets passed to tools, and the steps that create them, or no line if there are none."""
    return [f"- {secrets_fact(secrets, creators, MAX_LISTED)}"] if secrets else []


def expiry_sentence(
    plan: ExecutionPlan, expires_ms: int, step: Step | None, *, nobody: str | None = None, at: datetime | None = None, quorum: int = 1
) -> str:
    """Return a sentence about what happens without an answer at the gate of the plan or of `step`. `expires_ms` 0 means no limit.

    `nobody` says why nobody may answer, if nobody may. `at` is when the gate opens. `quorum` is how many people must approve.
    """
    if quorum > 1:
        several = tr("**Needs {count} approvals by different people.**", count=quorum)
        return f"{several} {expiry_sentence(plan, expires_ms, step, nobody=nobody, at=at)}"
    if nobody is not None:
        waits = f" {expiry_sentence(plan, expires_ms, step, at=at)}" if expires_ms else ""
        return tr("**Nobody may answer: {why}.**", why=nobody) + waits
    escalation = plan.escalation_at(None if step is None else step.id)
    if escalation is not None:
        names, after = either(escalation.to), duration(escalation.after_ms)
        adds = tr("If nobody has answered after {time}, {names} may answer as well.", time=after, names=names)
        return f"{_waits(plan, expires_ms, step, at=at)} {adds}"
    return _waits(plan, expires_ms, step, at=at)


def _waits(plan: ExecutionPlan, expires_ms: int, step: Step | None, *, at: datetime | None) -> str:
    if not expires_ms:
        return tr("It waits until somebody answers.")
    expiry, limit = "reject" if step is None else plan.expires_at(step.id), duration(expires_ms)
    if at is None:
        return tr(_EXPIRES_WITHIN[expiry], limit=limit)
    return tr(_EXPIRES_AT[expiry], until=at_minute(at + timedelta(milliseconds=expires_ms), since=at), limit=limit)


_EXPIRES_AT: dict[Expiry, str] = {
    "reject": later("Rejected if nobody answers by {until} ({limit})."),
    "skip": later("Skipped, with the steps that depend on it, if nobody answers by {until} ({limit})."),
    "default": later("The defaults are the answer if nobody answers by {until} ({limit})."),
}
_EXPIRES_WITHIN: dict[Expiry, str] = {
    "reject": later("Rejected if nobody answers within {limit}."),
    "skip": later("Skipped, with the steps that depend on it, if nobody answers within {limit}."),
    "default": later("The defaults are the answer if nobody answers within {limit}."),
}


def retry_summary(step: Step) -> str:
    """Return how often a step is retried, and after how long."""
    delay = tr(" after {delay}", delay=duration(step.retry_delay_ms)) if step.retry_delay_ms else ""
    growth = tr(", each × {factor}", factor=f"{step.retry_backoff:g}") if delay and step.retry_backoff > 1 and step.max_retries > 1 else ""
    jitter = f", ± {step.retry_jitter:.0%}" if delay and step.retry_jitter else ""
    return counted(step.max_retries, "retry", "retries") + delay + growth + jitter


SHORT_COLUMNS = 72
"""How wide a value in a line can be. A wider one gets its own block."""

FOLD_COLUMNS = 50
"""How wide a word or a line of a block can be. Both UIs have a form of 512 pixels and hide what is further right."""

SHOWN_CHARACTERS = 20_000
"""How much of a single value is shown. The text says how much is missing."""


@dataclass(slots=True)
class ValueMask:
    """Masks secret values, and records whether any was masked.

    It masks `inputs` with a secret name, wherever their values appear, and whatever `schemas` mark as secret. It shows the `names` of
    secrets, which inputs give.
    """

    inputs: Mapping[str, JsonValue]
    schemas: Mapping[str, dict[str, JsonValue]] = field(default_factory=dict[str, dict[str, JsonValue]])  # parameter schemas, by tool
    expressions: bool = True  # whether values may contain unresolved expressions
    literals: frozenset[str] = frozenset()  # text that the plan writes next to references to secrets, such as `Bearer `
    names: frozenset[str] = frozenset()
    has_redacted: bool = False
    _hidden: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        secret = (value for name, value in self.inputs.items() if is_secret_name(name))
        self._hidden = [text for value in secret for text in _strings_in(value) if text not in self.names]

    @classmethod
    def of(cls, bound: BoundPlan, *, expressions: bool = True) -> "ValueMask":
        """Return the mask for values of a run of `bound`."""
        tools = ((str(tool["name"]), tool["parameters"]) for tool in bound.validated.definitions)
        schemas = {name: schema for name, schema in tools if isinstance(schema, dict)}
        literals = _literals(bound.validated) if bound.validated.secrets else frozenset[str]()
        names = frozenset(name for named in bound.validated.named_secrets.values() for name in named.values())
        return cls(bound.inputs, schemas, expressions, literals, names)

    def redact(self, name: str, value: JsonValue, schema: Mapping[str, JsonValue] | None = None) -> JsonValue:
        """Return the `value` of `name`, masked for display. `schema` is that of the object that contains it."""
        shown = redacted(
            {name: value},
            schema=schema,
            hidden=self._hidden,
            expressions=self.expressions,
            literals=self.literals,
            names=self.names,
        )
        result = next(iter(shown.values())) if isinstance(shown, dict) else shown
        self.has_redacted = self.has_redacted or result != value
        return result

    def redact_parameters(self, tool_name: str, parameters: Mapping[str, JsonValue]) -> list[tuple[str, JsonValue]]:
        """Return the parameters of a call of this tool with their names, masked for display.

        They are in the order of the tool, because a stored plan has them in alphabetical order.
        """
        schema = self.schemas.get(tool_name)
        declared = [] if schema is None else [*cast("dict[str, JsonValue]", schema.get("properties") or {})]
        ordered = [name for name in declared if name in parameters] + [name for name in parameters if name not in declared]
        return [(name, self.redact(name, parameters[name], schema)) for name in ordered]


def columns_of(text: str) -> int:
    """Return how many columns `text` takes in a fixed-width font."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def in_columns(text: str, columns: int) -> str:
    """Return `text` in at most `columns` columns of a fixed-width font, with an ellipsis in place of what does not fit."""
    return text if columns_of(text) <= columns else f"{cut(text, len(_truncated(text, columns - 1))).rstrip()}…"


def fits_line(text: str, columns: int = SHORT_COLUMNS) -> bool:
    """Return whether a line can show `text` exactly. Browsers collapse repeated spaces and hide the end of a word that is too wide."""
    words = text.split(" ")
    return columns_of(text) <= columns and all(words) and max(map(columns_of, words)) <= FOLD_COLUMNS


def inline_text(value: JsonValue) -> str | None:
    """Return a value exactly as it appears in a line, or None if it needs a block."""
    if isinstance(value, str) and "\n" in value:
        return None
    text = as_text(value)
    return text if fits_line(text) else None


def extent_of(value: JsonValue) -> str:
    """Return how long a value is, in words."""
    text = value if isinstance(value, str) else as_text(value)
    lines = text.count("\n") + 1
    return counted(lines, "line") if lines > 1 else tr("{count} characters", count=f"{len(text):,}")


def value_lines(label: str, value: JsonValue) -> list[str]:
    """Return a value as a list item, in its line or in a block."""
    text = inline_text(value)
    return [f"- {label}: {code(text)}"] if text is not None else value_block(label, value)


def value_block(label: str, value: JsonValue, *, most_lines: int | None = None) -> list[str]:
    """Return a value in a fence with indented lines, so that none of them can pass for a line of ours.

    Beyond `most_lines`, only the first lines are shown, with a note.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    cut = text[:SHOWN_CHARACTERS]
    pieces = [piece for line in visible(cut).split("\n") for piece in fold(line)]
    how = tr("; ↩ the line continues") if pieces != visible(cut).split("\n") else ""
    if most_lines is not None and len(pieces) > most_lines:
        pieces, how = pieces[:most_lines], tr("; **cut here, complete below**") + how
        cut = text
    lines = fenced("\n".join(pieces), "" if isinstance(value, str) else "json").split("\n")
    more = len(text) - len(cut)
    rest = ["", "  " + tr("**{count} more characters are not shown here.**", count=f"{more:,}")] if more > 0 else []
    return [f"- {label} ({extent_of(value)}{how}):", "", *(f"  {line}" for line in lines), *rest]


def fold(line: str) -> list[str]:
    """Return `line` in pieces of at most FOLD_COLUMNS. The form hides what is further right, which could be part of a command."""
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
    """Return the texts that the plan writes next to references to secrets. Values that were filled in are not among them."""
    templates = [*validated.parameters.values(), *(call.parameters for call in validated.rollbacks.values())]
    texts = [parts for template in templates if template.secrets for parts in template.texts.values()]
    with_secrets = [parts for parts in texts if any(not isinstance(part, str) and part.secrets for part in parts)]
    return frozenset(part for parts in with_secrets for part in parts if isinstance(part, str))


def _strings_in(value: JsonValue) -> list[str]:
    if isinstance(value, dict | list):
        return [text for member in (value.values() if isinstance(value, dict) else value) for text in _strings_in(member)]
    return [value] if isinstance(value, str) else []


HEIGHT = 386
"""The height of the first screen in pixels, in whichever UI shows less."""

MIN_CALL_HEIGHT = 100
"""The pixels reserved for the calls, whatever else is shown."""

STEP_LINES = 2
"""The lines for each step if there are many."""

DESCRIPTION_COLUMNS, CUT_COLUMNS = 90, 70
"""The columns of the description: two lines, uncut, or cut with a note that it continues."""

# How Prefect's newer UI lays out a form's text, in columns per line and pixels, as measured. The older UI scrolls the text separately.
_COLUMNS, _LINE, _CODE_LINE = 54, 23, 20
_LIST_MARGIN, _BLOCK_MARGINS = 18, 52
_PARAGRAPH = (60, 16)
_PARAGRAPH_HEIGHT = _LINE + _PARAGRAPH[1]
QUOTE_COLUMNS = 56
_LINE_LAYOUTS = {"#": (40, 25), ">": (QUOTE_COLUMNS, 18), "-": (_COLUMNS, 5)}
"""The columns per line and the margin of a line, by its first character."""


def heading_lines(heading: str, description: str) -> list[str]:
    """Return the heading and the description, cut to two lines."""
    return [f"## {heading}", "", *quoted_description(heading, description)]


def quoted_description(heading: str, description: str) -> list[str]:
    """Return the description as a quote of at most two lines, or nothing if the heading says the same."""
    shown, is_whole = short_description(description)
    return [f"> {words(shown)}{'' if is_whole else tr(' … (continues below)')}", ""] if shown and words(shown) not in heading else []


def short_description(description: str) -> tuple[str, bool]:
    """Return the start of a description in one line, and whether that is all of it."""
    text = one_line(description)
    return (text, True) if columns_of(text) <= DESCRIPTION_COLUMNS else (_truncated(text, CUT_COLUMNS), False)


def height_of(lines: Sequence[str]) -> int:
    """Return about how many pixels these lines of Markdown take in a form."""
    height = _LIST_MARGIN * any(line.startswith("- ") for line in lines)
    for line in filter(str.strip, lines):
        if line.startswith("  "):
            height += _BLOCK_MARGINS // 2 if line.strip().startswith("```") else _CODE_LINE
        else:
            columns, margin = _LINE_LAYOUTS.get(line[0], _PARAGRAPH)
            height += margin + _LINE * -(-columns_of(line.replace("**", "")) // columns)
    return height


def asks_again(step: Step, gates: Collection[str]) -> bool:
    """Return whether `step`, its group or the step that runs its plan asks again before it runs."""
    return any(step_id in gates for step_id in (step.id, step.group, step.within.id if step.within is not None else None))


def first_calls(preview: Preview, gates: Collection[str], mask: ValueMask, *, height: int) -> tuple[list[str], list[str]]:
    """Return the calls that fit into `height` pixels, by risk, and phrases that count the calls that are not among them.

    Calls that cannot be undone come first, those that ask again (`gates`) after the others, and if not all fit, the first names of the
    rest. Then come writes that can be undone, if all
    fit. Reads are only shown if nothing writes.
    """
    calls = [(number, step) for number, step in enumerate(preview.steps, start=1) if not step.step.inner and step.step.ask is None]
    final = [(number, step) for number, step in calls if step.effect != "read" and step.rollback is None]
    final.sort(key=lambda call: asks_again(call[1].step, gates))
    undoable = [(number, step) for number, step in calls if step.effect != "read" and step.rollback is not None]
    reads = [(number, step) for number, step in calls if step.effect == "read"]
    lines, counts = list[str](), list[str]()
    if final:
        lines = [tr("**Cannot be undone:**"), "", *_call_rows(final, mask, height=height - _PARAGRAPH_HEIGHT, gates=gates), ""]
    if undoable:
        title = tr("**Can be undone:**") if final else tr("**Every write can be undone:**")
        rows = _call_rows(undoable, mask, height=height - _PARAGRAPH_HEIGHT - height_of(lines), needs_all=bool(final))
        lines += [title, "", *rows, ""] if rows else []
        counts += [] if rows else [tr("{writes} that can be undone", writes=counted(len(undoable), "write"))]
    if reads and (final or undoable):
        counts.append(counted(len(reads), "read"))
    elif reads:
        lines = [tr("It only reads:"), "", *_call_rows(reads, mask, height=height - _PARAGRAPH_HEIGHT), ""]
    return lines, counts


def _call_rows(
    calls: Sequence[tuple[int, StepPreview]], mask: ValueMask, *, height: int, needs_all: bool = False, gates: Collection[str] = ()
) -> list[str]:
    """Return the rows of the first calls that fit into `height` pixels, then a row with names of the rest.

    With `gates`, the steps that ask again, the rows of all others say that nobody is asked again. With `needs_all`, return no rows if not
    all fit. Otherwise at least one call has a row.
    """
    first, most = calls[: height // _LINE + 1], max(STEP_LINES, height // _LINE // len(calls))
    for lines in range(most, 0, -1) if len(first) == len(calls) else ():  # each on one line rather than some not at all
        rows = [_call_row(number, step, mask, columns=lines * _COLUMNS, gates=gates) for number, step in calls]
        if height_of(rows) <= height:
            return rows
    if needs_all:
        return []
    shown, left = list[str](), height - height_of([_more_calls([step for _, step in calls], gates)])
    for number, step in first:
        row = _call_row(number, step, mask, columns=STEP_LINES * _COLUMNS, gates=gates)
        left -= height_of([row]) - _LIST_MARGIN
        if left < 0 and shown:
            break
        shown.append(row)
    return [*shown, _more_calls([step for _, step in calls[len(shown) :]], gates)] if len(shown) < len(calls) else shown


def _more_calls(hidden: Sequence[StepPreview], gates: Collection[str]) -> str:
    """Return the row that stands for calls without a row: how many they are, and the names that fit into its two lines.

    It says so if each of them asks again (`gates`).
    """
    names = list[str]()
    for step in hidden:
        if columns_of(", ".join([*names, step.step.id])) > _COLUMNS:
            break
        names.append(step.step.id)
    ask_again = all(asks_again(step.step, gates) for step in hidden)
    more = tr("**and {count} more, asked again**", count=len(hidden)) if ask_again else tr("**and {count} more**", count=len(hidden))
    if not names:
        return f"- {more}: {tr('all below')}"
    return f"- {more}: {', '.join(map(code, names))}" + ("" if len(names) == len(hidden) else f", … {tr('all below')}")


def first_values(parameters: Sequence[tuple[str, JsonValue]], *, height: int) -> tuple[list[str], bool]:
    """Return the parameters of a call that fit into `height` pixels, and whether they are complete."""
    shown, is_whole = list[str](), True
    for index, (name, value) in enumerate(parameters):
        others = len(parameters) - index - 1
        text = inline_text(value)
        part = [f"- {code(name)}: {code(text)}"] if text is not None else value_block(code(name), value)
        if height_of(part) + others * _LINE > height:
            if index and height < (3 if others else 2) * _LINE:
                return [*shown, f"- **{tr('and {values}', values=counted(others + 1, 'more value'))}**: {tr('all below')}"], False
            if text is None:
                is_whole = False
                part = _truncated_block(name, value, height=height - others * _LINE)
        shown += part
        height -= height_of(part) - _LIST_MARGIN * bool(index)
    return shown, is_whole


def _truncated_block(name: str, value: JsonValue, *, height: int) -> list[str]:
    """Return as many lines of a value as fit into `height` pixels, or a single line if only a few would."""
    for lines in range(height // _CODE_LINE, STEP_LINES, -1):
        cut = value_block(code(name), value, most_lines=lines)
        if height_of(cut) <= height:
            return cut
    return [f"- {code(name)}: {_inline_code(value, STEP_LINES * _COLUMNS)}"]


def _call_row(number: int, preview: StepPreview, mask: ValueMask, *, columns: int, gates: Collection[str]) -> str:
    step = preview.step
    notes = [_items_text(preview, columns=columns // 2)] if preview.is_repeated else []
    notes += [tr("can be repeated")] if preview.effect == "idempotent_write" else []
    notes += [tr("not asked again")] if gates and not asks_again(step, gates) else []
    notes += [tr("always at the end")] if preview.is_finally_step else []
    about = f" ({', '.join(notes)})" if notes else ""
    row = f"- **{number}. {words(step.id)}**{about}: {'; '.join(preview.facts) or code(step.called)}"
    given = mask.redact_parameters(step.tool_name or "", preview.parameters)
    given = sorted(given, key=lambda parameter: _is_of_item(parameter[1]))  # the names of the items tell what these are
    return row + call_values(given, columns=columns - columns_of(row.replace("**", "")))


def call_values(parameters: Sequence[tuple[str, JsonValue]], *, columns: int) -> str:
    """Return the parameters of a call, each after a space, as far as they fit into `columns`. A single one goes without its name."""
    row = ""
    for index, (name, value) in enumerate(parameters):
        shown = "" if len(parameters) == 1 else f"{words(name)} "
        left = columns - columns_of(row) - columns_of(shown) - 3
        if left < 8 and index:
            return f"{row} {tr('and {values}', values=counted(len(parameters) - index, 'more value'))}"
        row += f" {shown}{_inline_code(_as_command(value), max(left, 8))}"
    return row


def _as_command(value: JsonValue) -> JsonValue:
    """Return a list of texts, such as the words of a command, as a shell would read it, and any other value unchanged."""
    is_command = isinstance(value, list) and value and all(isinstance(word, str) for word in value)
    words_of_command = cast("list[str]", value) if is_command else []
    return " ".join(word if has_expression(word) else shlex.quote(word) for word in words_of_command) or value


def _items_text(preview: StepPreview, *, columns: int) -> str:
    """Return for which items a step is called, by name if the names fit, else by the first and the last name."""
    if preview.items is None:
        return tr("each item")
    names, count = [*map(words, preview.item_names)], counted(preview.items, "item")
    if names and columns_of(all_names := ", ".join(names)) <= columns:
        return tr("for {names}", names=all_names)
    ends = f"{count}: {names[0]} … {names[-1]}" if len(names) > 2 else count
    return ends if columns_of(ends) <= columns else count


def _is_of_item(value: JsonValue) -> bool:
    """Return whether a value is nothing but a part of the item that a step is called for."""
    return isinstance(value, str) and re.fullmatch(r"\$\{\{ *item(?:\.\w+)* *\}\}", value) is not None


def _inline_code(value: JsonValue, columns: int) -> str:
    """Return a value as inline code, marked if there is more of it."""
    text = as_text(value)
    if fits_line(text, columns):
        return code(text)
    return f"{code(_truncated(' '.join(' '.join(fold(word)) for word in text.split()), columns))}**…**"


def _truncated(text: str, columns: int) -> str:
    """Return the longest prefix of `text` that is at most `columns` wide."""
    width = 0
    for index, character in enumerate(text):
        width += columns_of(character)
        if width > columns:
            return text[:index].rstrip()
    return text


TITLE_CHARACTERS = 100
"""How much of a plan's name its heading shows. The digests cover all of it."""

NOTICE_CHARACTERS = 300
"""How much of a notice is shown, because an answer's note may be long."""

ORDER, DIGESTS = later("Order"), later("Digests")
"""The titles of the sections that some displays leave out."""


def gate_document(first: Iterable[str], rest: Iterable[str]) -> str:
    """Return the whole text: the first screen, which has no sections, and the sections."""
    return "\n".join([*first, *rest]).rstrip() + "\n"


def split_text(text: str) -> tuple[str, str]:
    """Return the first screen of a gate's text, and its sections."""
    first, start, rest = text.partition("\n### ")
    return f"{first.rstrip()}\n", f"{start}{rest}".lstrip("\n")


def first_screen_lines(text: str) -> list[str]:
    """Return the first screen of a gate's text as lines of plain text, for places that render no Markdown."""
    lines = [line.strip() for line in plain(split_text(text)[0]).splitlines()]
    return [line for line in lines if line]


def without_picture(text: str) -> str:
    """Return a gate's text without its picture, for displays that cannot draw it."""
    # Only at the start of a line, where no text of a plan can be. Otherwise a plan could hide what follows.
    order, digests = _section_start(text, ORDER), _section_start(text, DIGESTS)
    return text if order is None or digests is None or digests < order else text[:order] + text[digests:]


def without_digests(text: str) -> str:
    """Return a gate's text without the section with the digests, its last one. Empty if it has none."""
    digests = _section_start(text, DIGESTS)
    return "" if digests is None else text[:digests]


def _section_start(text: str, title: str) -> int | None:
    """Return where the last section with this title starts, in whichever language it was written, or None if there is none."""
    starts = [text.rfind(f"\n### {said}\n") for said in in_all_languages(title)]
    return max(starts) if max(starts) >= 0 else None


def plan_title(plan: ExecutionPlan) -> str:
    """Return a plan's name for a heading."""
    return words(plan.name if len(plan.name) <= TITLE_CHARACTERS else plan.name[:TITLE_CHARACTERS] + "…")


def notice_lines(notices: Sequence[str]) -> list[str]:
    """Return the notices to show before everything else, each cut to a few lines."""
    return [line for notice in notices for line in (f"**⚠️ {words(_shortened_notice(one_line(notice)))}**", "")]


def _shortened_notice(notice: str) -> str:
    more = len(notice) - NOTICE_CHARACTERS
    if more <= 0:
        return notice
    return tr("{start}… {count} more characters: `plan show` has all", start=notice[:NOTICE_CHARACTERS], count=f"{more:,}")


def quote_lines(text: str) -> list[str]:
    """Return a text of the plan as a quote, line by line."""
    more = f"{len(text) - SHOWN_CHARACTERS:,}"
    shown = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + tr(" … {count} more characters", count=more)
    lines = [words(line) for line in shown.splitlines() if line.strip()]
    return [*"\n>\n".join(f"> {line}" for line in lines).split("\n"), ""] if lines else []


def description_section(text: str, *, is_shown: bool = True) -> list[str]:
    """Return the section with the whole description, or nothing if the first screen shows all of it, as far as it has one."""
    return [] if is_shown and short_description(text)[1] else [f"### {tr('Description')}", "", *quote_lines(text)]


def redaction_note(mask: ValueMask) -> list[str]:
    """Return the note that values were masked, or nothing if none were."""
    return [tr("`***` stands for a secret. The call gets the real value."), ""] if mask.has_redacted else []


def digests_section(plan_digest: str, *, approval_digest: str | None = None) -> list[str]:
    """Return the section with the digests that the answer binds to. `approval_digest` is None if the answer approves nothing."""
    approval = [tr("approval digest"), approval_digest] if approval_digest is not None else []
    # In a fence, whose letters are small enough to fit a whole digest into a form.
    return [f"### {tr(DIGESTS)}", "", "```", *approval, tr("plan digest"), plan_digest, "```"]
