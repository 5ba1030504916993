"""`timeline_of`: when each step, item and rollback of a run was tried, and when the run waited for answers; `timeline_svg` draws it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Literal

from plan_adapter.model.approvals import Gate
from plan_adapter.model.language import later, tr
from plan_adapter.model.readable import call_name, duration, visible
from plan_adapter.model.record import Attempt, PlanRun, Receipt, StepRun
from plan_adapter.model.status import Outcome
from plan_adapter.text.gate_text import in_columns
from plan_adapter.text.run_facts import SHAPES, Mark

MAX_ROWS = 1200
LABEL, WIDTH, ROW = 230, 760, 20  # pixels: the column of labels, the time axis, the height of a row
LABEL_COLUMNS = 30
MIN_BAR = 2.0

STYLE = """\
.w{fill:url(#hatch);stroke:#b07a10}.r{fill:#7b3fa0}.a-done{fill:#1e7e34}.a-failed{fill:#b3261e}.a-unknown{fill:#e0a020}.a-running{fill:#0b7394}
.c{font-weight:700}.g{stroke:#8884}
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A span of time: one attempt, one attempt of a rollback, or the wait at a gate."""

    start: datetime
    end: datetime
    kind: Literal["attempt", "rollback", "wait"]
    mark: Mark
    title: str


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """What happened to one step or item. `is_critical`: the run could not have ended earlier without it."""

    label: str
    is_critical: bool
    bars: tuple[Bar, ...]


def timeline_of(
    run: PlanRun, attempts: Sequence[Attempt], receipts: Sequence[Receipt], gates: Sequence[Gate], now: datetime
) -> list[TimelineRow]:
    """Return the rows in the order in which they began. What has not ended ends at `now`."""
    ends = {receipt.attempt_id: receipt for receipt in receipts}
    bars, critical = dict[str, list[Bar]](), _critical_steps(run)
    steps = dict[str, str]()  # the step of each row
    for attempt in attempts:
        label = call_name(attempt.step_id, attempt.item, attempt.label)
        end = ends.get(attempt.id)
        mark = Mark.RUNNING if end is None else Mark.DONE if end.outcome is Outcome.SUCCEEDED else Mark.FAILED
        if end is None and run.completed_at is not None:
            mark = Mark.UNKNOWN
        kind = "rollback" if attempt.kind == "rollback" else "attempt"
        ended_at = end.ended_at if end is not None and end.by is None else run.completed_at or now
        name = tr("rollback of {call}", call=label) if kind == "rollback" else label
        took = duration((ended_at - attempt.started_at).total_seconds() * 1000)
        title = tr("{call}, attempt {number}: {end}, {time}", call=name, number=attempt.number, end=tr(_ENDS[mark]), time=took)
        bars.setdefault(label, []).append(Bar(attempt.started_at, max(ended_at, attempt.started_at), kind, mark, title))
        steps[label] = attempt.step_id
    for gate in gates:
        label = tr("the plan") if gate.step_id is None else call_name(gate.step_id, gate.item, gate.label)
        ended_at = gate.closed_at or run.completed_at or now
        took = duration((ended_at - gate.opened_at).total_seconds() * 1000)
        title = tr("{call} waited for an approval: {time}", call=label, time=took)
        if gate.kind == "question":
            title = tr("{call} waited for an answer: {time}", call=label, time=took)
        bars.setdefault(label, []).append(Bar(gate.opened_at, max(ended_at, gate.opened_at), "wait", Mark.WAITING, title))
    rows = [TimelineRow(label, steps.get(label) in critical, tuple(found)) for label, found in bars.items()]
    return sorted(rows, key=lambda row: min(bar.start for bar in row.bars))


_ENDS = {
    Mark.RUNNING: later("running"),
    Mark.DONE: later("done"),
    Mark.FAILED: later("failed"),
    Mark.UNKNOWN: later("unknown"),
}


def _critical_steps(run: PlanRun) -> set[str]:
    """Return the steps that the end of the run waited for: the last one to end, what it waited for last, and so on."""
    ended: Mapping[str, StepRun] = {step.id: step for step in run.steps if step.completed_at is not None and step.started_at is not None}
    found = set[str]()
    step = max(ended.values(), key=_end_of, default=None)
    while step is not None and step.id not in found:
        found.add(step.id)
        step = max((ended[name] for name in step.depends_on if name in ended), key=_end_of, default=None)
    return found | {step.id for step in run.steps if step.group in found}


def _end_of(step: StepRun) -> datetime:
    if step.completed_at is None:
        raise ValueError(step.id)
    return step.completed_at


def timeline_svg(rows: Sequence[TimelineRow]) -> str:
    """Return the rows as one SVG element, or "" if nothing was called. Waits are hatched, rollbacks purple, the critical path bold."""
    shown = rows[:MAX_ROWS]
    if not shown:
        return ""
    begin = min(bar.start for row in shown for bar in row.bars)
    end = max(bar.end for row in shown for bar in row.bars)
    scale = WIDTH / max((end - begin).total_seconds(), 0.001)
    height = (len(shown) + 1) * ROW + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="timeline" viewBox="0 0 {LABEL + WIDTH + 20} {height}" '
        f'width="{LABEL + WIDTH + 20}" height="{height}">',
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="3" height="6" fill="#e0b040"/></pattern></defs>',
        f"<style>{STYLE}</style>",
    ]
    for part in range(5):
        x = LABEL + WIDTH * part / 4
        at = duration((end - begin).total_seconds() * 1000 * part / 4)
        anchor = "end" if part == 4 else "start"
        lines.append(f'<line class="g" x1="{x:.0f}" x2="{x:.0f}" y1="{ROW}" y2="{height}"/>')
        lines.append(f'<text class="s" x="{x:.0f}" y="14" text-anchor="{anchor}">{at}</text>')
    for number, row in enumerate(shown, start=1):
        y = number * ROW + 4
        kind = "t c" if row.is_critical else "t"
        lines.append(f'<text class="{kind}" x="0" y="{y + 13}">{escape(in_columns(visible(row.label), LABEL_COLUMNS))}</text>')
        for bar in row.bars:
            x = LABEL + (bar.start - begin).total_seconds() * scale
            width = max((bar.end - bar.start).total_seconds() * scale, MIN_BAR)
            style = {"wait": "w", "rollback": "r"}.get(bar.kind, f"a-{bar.mark}")
            lines.append(
                f'<rect class="{style}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 6}" rx="2">'
                f"<title>{escape(visible(bar.title))}</title></rect>"
            )
            if bar.mark in (Mark.FAILED, Mark.UNKNOWN) and bar.kind != "wait":
                lines.append(f'<text class="t" x="{x + width + 2:.1f}" y="{y + 12}">{SHAPES[bar.mark]}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
