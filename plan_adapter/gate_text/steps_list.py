"""Every step of a plan in order: what each calls with which values, how often and how long, and what undoes it.

A list and no table: Prefect's forms show the columns of a table that fit, and hide the rest without a scroll bar.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import JsonValue

from plan_adapter.gate_text.phrases import EFFECTS_SHOWN, retries
from plan_adapter.gate_text.values import Values, block, extent_of, line_of
from plan_adapter.preview import Preview, StepPreview
from plan_adapter.readable import code, counted, duration, words

DESCRIPTION_CHARACTERS = 300
"""How much of a step's description is shown."""


@dataclass(frozen=True, slots=True)
class _StepLines:
    item: str  # of the list
    blocks: list[str]  # its long values

    @property
    def size(self) -> int:
        """Bytes, with line ends."""
        return size_of((self.item, *self.blocks))


def size_of(lines: Iterable[str]) -> int:
    """Return how many bytes these lines take, with their ends."""
    return sum(len(line.encode(errors="replace")) + 1 for line in lines)


def steps_list(preview: Preview, gates: frozenset[str], values: Values, *, limit_bytes: int) -> list[str]:
    """Return the list, and below it the values that are too long for it; what is over `limit_bytes` is left out, and that is said."""
    shown: list[_StepLines] = []
    for number, step in enumerate(preview.steps, start=1):
        lines = _step_lines(step, number, values, gate=step.step.id in gates)
        limit_bytes -= lines.size
        if limit_bytes < 0:
            break
        shown.append(lines)
    items = [*(lines.item for lines in shown), ""]
    if missing := len(preview.steps) - len(shown):
        items += [f"**{counted(missing, 'more step')} not shown here:** `plan show RUN` and `plan preview` show all.", ""]
    blocks = [line for lines in shown for line in lines.blocks]
    return [*items, *(["### Long values", "", *blocks, ""] if blocks else [])]


def _step_lines(preview: StepPreview, number: int, values: Values, *, gate: bool) -> _StepLines:
    step, blocks, parts = preview.step, list[str](), [code(preview.step.tool_name or "")]
    conditions = {"when": step.when, "for each": step.for_each, "label": step.label, "done when": step.done_when, "on error": step.on_error}
    parameters = [(code(name), value) for name, value in values.parameters(step.tool_name or "", preview.parameters)]
    _add_parts(step.id, [*((label, text) for label, text in conditions.items() if text is not None), *parameters], parts, blocks)
    if (undo := preview.rollback) is not None:
        failed = ", also where it failed" if step.rollback_failed else ""
        parts.append(f"**undone by** {code(undo.tool_name)} ({EFFECTS_SHOWN[undo.effect]}){failed}")
        told = [(f"undone with {code(name)}", value) for name, value in values.parameters(undo.tool_name, undo.parameters)]
        _add_parts(step.id, told, parts, blocks)
    effect = EFFECTS_SHOWN[preview.effect] + (" · **asks again**" if gate else "")
    return _StepLines(f"- {_what(preview, number)} · {effect} · {' · '.join(parts)} · {_at_most(preview)}", blocks)


def _add_parts(step_id: str, facts: Iterable[tuple[str, JsonValue]], parts: list[str], blocks: list[str]) -> None:
    """Add what is told of a step to the parts of its line, and long values to the blocks below."""
    for label, value in facts:
        text = line_of(value)
        if text is not None:
            parts.append(f"{label} {code(text)}")
        else:
            parts.append(f"{label} ({extent_of(value)}, below)")
            blocks += block(f"{code(step_id)} {label}", value)


def _what(preview: StepPreview, number: int) -> str:
    step, items = preview.step, ""
    if step.for_each is not None:
        items = f" × {counted(preview.items, 'item')}" if preview.items is not None else " × each item"
    description = step.description[:DESCRIPTION_CHARACTERS] + ("…" if len(step.description) > DESCRIPTION_CHARACTERS else "")
    return f"**{number}. {words(step.id)}**{items}" + (f": {words(description)}" if description else "")


def _at_most(preview: StepPreview) -> str:
    if not preview.timeout_ms:
        longest = "no time limit"
    else:
        longest = "time limit per item" if preview.worst_case_ms is None else f"at most {duration(preview.worst_case_ms)}"
    return f"{longest}, {retries(preview.step)}" if preview.step.max_retries else longest
