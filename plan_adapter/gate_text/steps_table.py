"""The table of a plan's steps in order: what each calls with which values, how often and how long, and what undoes it."""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import JsonValue

from plan_adapter.gate_text.phrases import EFFECTS_SHOWN, retries
from plan_adapter.gate_text.values import Values, block, extent_of, line_of
from plan_adapter.preview import Preview, StepPreview
from plan_adapter.readable import code, code_cell, counted, duration, words

DESCRIPTION_CHARACTERS = 300
"""How much of a step's description stands in its row."""


@dataclass(frozen=True, slots=True)
class _StepLines:
    row: str  # of the table
    blocks: list[str]  # its long values

    @property
    def size(self) -> int:
        """Bytes, with line ends."""
        return size_of((self.row, *self.blocks))


def size_of(lines: Iterable[str]) -> int:
    """Return how many bytes these lines take, with their ends."""
    return sum(len(line.encode(errors="replace")) + 1 for line in lines)


def steps_table(preview: Preview, gates: frozenset[str], values: Values, *, limit_bytes: int) -> list[str]:
    """Return the table, and below it the values that are too long for it; what is over `limit_bytes` is left out, and that is said."""
    shown: list[_StepLines] = []
    for number, step in enumerate(preview.steps, start=1):
        lines = _step_lines(step, number, values, gate=step.step.id in gates)
        limit_bytes -= lines.size
        if limit_bytes < 0:
            break
        shown.append(lines)
    rows = ["| # | step | effect | call | at most |", "|--:|---|---|---|---|"]
    table = [*rows, *(lines.row for lines in shown), ""]
    if missing := len(preview.steps) - len(shown):
        table += [
            f"**{counted(missing, 'more step')} not shown here:** `plan show RUN`, `plan preview` and the artifact of the run have all.",
            "",
        ]
    blocks = [line for lines in shown for line in lines.blocks]
    return [*table, *(["### Long parameters", "", *blocks, ""] if blocks else [])]


def _step_lines(preview: StepPreview, number: int, values: Values, *, gate: bool) -> _StepLines:
    step, blocks, cells = preview.step, list[str](), [code_cell(preview.step.tool_name or "")]
    conditions = {"when": step.when, "for each": step.for_each, "done when": step.done_when, "on error": step.on_error}
    parameters = [(code_cell(name), value) for name, value in values.parameters(step.tool_name or "", preview.parameters)]
    _add_cells(step.id, [*((label, text) for label, text in conditions.items() if text is not None), *parameters], cells, blocks)
    if (undo := preview.rollback) is not None:
        cells.append(f"**undone by** {code_cell(undo.tool_name)} ({EFFECTS_SHOWN[undo.effect]})")
        told = [(f"undone with {code_cell(name)}", value) for name, value in values.parameters(undo.tool_name, undo.parameters)]
        _add_cells(step.id, told, cells, blocks)
    effect = EFFECTS_SHOWN[preview.effect] + (" · **asks again**" if gate else "")
    return _StepLines(f"| {number} | {_what(preview)} | {effect} | {' · '.join(cells)} | {_at_most(preview)} |", blocks)


def _add_cells(step_id: str, facts: Iterable[tuple[str, JsonValue]], cells: list[str], blocks: list[str]) -> None:
    """Add what is told of a step to the cells of its row, and long values to the blocks below."""
    for label, value in facts:
        text = line_of(value)
        if text is not None:
            cells.append(f"{label} {code_cell(text)}")
        else:
            cells.append(f"{label} ({extent_of(value)}, below)")
            blocks += block(f"{code(step_id)} {label}", value)


def _what(preview: StepPreview) -> str:
    step, items = preview.step, ""
    if step.for_each is not None:
        items = f" × {preview.items} items" if preview.items is not None else " × each item"
    description = step.description[:DESCRIPTION_CHARACTERS] + ("…" if len(step.description) > DESCRIPTION_CHARACTERS else "")
    return f"**{words(step.id, cell=True)}**{items}" + (f": {words(description, cell=True)}" if description else "")


def _at_most(preview: StepPreview) -> str:
    longest = "no limit" if not preview.timeout_ms else "by items" if preview.worst_case_ms is None else duration(preview.worst_case_ms)
    return f"{longest} · {retries(preview.step)}" if preview.step.max_retries else longest
