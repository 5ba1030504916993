"""`report_html`: everything about a run as one HTML file that needs no network, no script and no other file, and prints."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from plan_adapter.model.language import spoken, tr
from plan_adapter.model.readable import as_text, counted, moment, plain, visible
from plan_adapter.model.record import StepRun
from plan_adapter.model.rounds import RoundRecord
from plan_adapter.text.drawing import STYLE as PICTURE_STYLE
from plan_adapter.text.formatting import StepCallRecord
from plan_adapter.text.run_facts import NOTHING_LEFT, SHAPES, Mark, RunAccount, StepFacts, mark_of, started_text

MAX_CHARACTERS = 4000
"""How much of a value is in the report. The store keeps all of it."""
MAX_CALLS = 100
"""How many calls of a step are in the report."""

STYLE = """\
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif,'Noto Sans CJK SC';max-width:1080px;margin:0 auto;padding:16px;color:#222;background:#fff;
overflow-wrap:anywhere}
h1{font-size:22px;margin:0 0 4px}h2{font-size:17px;margin:28px 0 8px;border-bottom:1px solid #8884}
header{border-left:8px solid #888;padding:6px 14px;background:#8881}
.m-done{border-color:#1e7e34}.m-failed{border-color:#b3261e}.m-undone{border-color:#7b3fa0}.m-unknown,.m-waiting{border-color:#b07a10}
.m-running{border-color:#0b7394}
.left{color:#8a5a00;font-weight:600}.dim{color:#666}code,pre{font:13px ui-monospace,Menlo,Consolas,'Noto Sans Mono CJK SC',monospace}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:8px;margin:4px 0;border-radius:4px}
table{border-collapse:collapse}td,th{white-space:pre-line;text-align:left;vertical-align:top;padding:2px 12px 2px 0;overflow-wrap:anywhere}
details{border-bottom:1px solid #8883;padding:3px 0}summary{cursor:pointer}.wide{overflow-x:auto}
@media(prefers-color-scheme:dark){body{color:#e8e8e8;background:#161616}.dim{color:#aaa}.left{color:#e8b84a}}
@media print{body{max-width:none}details>summary{list-style:none}.wide{overflow:visible}svg{max-width:100%;height:auto}}
"""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What the report of a run shows."""

    account: RunAccount
    record: str  # whether the record is unaltered
    digest: str  # of the plan
    steps: Sequence[StepRun]
    places: Mapping[str, str]  # of the steps in the plan document, by id: `steps[0]`
    calls: Mapping[str, Sequence[StepCallRecord]]
    rounds: Mapping[str, Sequence[RoundRecord]]
    picture: str  # SVG
    timeline: str  # SVG, or "" if nothing was called


def report_html(report: RunReport) -> str:
    """Return the report as an HTML document. Values are cut at 4,000 characters."""
    account, facts = report.account, report.account.facts
    made = tr("made {when} from the store by {command}", when=moment(account.now), command=f"plan report {facts.id}")
    parts = [
        f'<!doctype html>\n<html lang="{spoken()}"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{_text(f'{account.state}: {facts.name}')}</title><style>{STYLE}{PICTURE_STYLE}</style></head><body>",
        *_head(account),
        *_table(tr("Inputs"), facts.inputs),
        *_table(tr("Outputs"), facts.outputs),
        *_section(tr("Steps as a picture"), [f'<div class="wide">{report.picture}</div>']),
        *(_section(tr("Timeline"), [_legend(), f'<div class="wide">{report.timeline}</div>']) if report.timeline else ()),
        *_section(tr("Approvals and answers"), _list(account.approvals or [tr("nobody was asked")])),
        *_section(tr("Steps"), _steps(report)),
        *(_section(tr("Notes"), _list(account.notes)) if account.notes else ()),
        *_section(tr("Record"), [f"<p>{_text(report.record)}</p>", f"<p>{_text(tr('plan {plan}', plan=report.digest))}</p>"]),
        f'<p class="dim">{_text(made)}</p>',
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _legend() -> str:
    legend = tr("hatched: waiting for an answer; purple: rollback; ✗: a failed attempt; bold: what the end of the run waited for")
    return f'<p class="dim">{_text(legend)}</p>'


def _head(account: RunAccount) -> Iterator[str]:
    facts = account.facts
    yield f'<header class="m-{facts.mark}"><h1>{SHAPES[facts.mark]} {_text(account.state)}: {_text(facts.full_name)}</h1>'
    for text in [*([facts.cause] if facts.cause else []), *account.asked]:
        yield f"<p>{_prose(text)}</p>"
    for left in facts.left_behind:
        yield f'<p class="left">{_text(left.text(len(left.calls)))}</p>'
    if facts.is_undone:
        yield f"<p>{_text(tr(NOTHING_LEFT))}</p>"
    if account.next_text:
        yield f"<p><b>{_prose(tr('next: {what}', what=account.next_text))}</b></p>"
    about = [tr("run {id}", id=facts.id), started_text(facts)]
    about += [tr("ended {when}", when=moment(facts.ended_at))] if facts.ended_at is not None else []
    yield f'<p class="dim">{_text("; ".join([*about, facts.progress]))}</p></header>'


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"<section><h2>{title}</h2>"
    yield from lines
    yield "</section>"


def _table(title: str, values: Mapping[str, str]) -> Iterator[str]:
    if values:
        rows = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in values.items())
        yield from _section(title, [f"<table>{rows}</table>"])


def _list(texts: Iterable[str]) -> list[str]:
    return ["<ul>", *(f"<li>{_text(text)}</li>" for text in texts), "</ul>"]


def _steps(report: RunReport) -> Iterator[str]:
    facts = {step.id: step for step in report.account.facts.steps}
    for step in report.steps:
        yield from _step(step, facts.get(step.id), report)


def _step(step: StepRun, facts: StepFacts | None, report: RunReport) -> Iterator[str]:
    mark = SHAPES[facts.mark if facts is not None else mark_of(step)]
    detail = facts.detail if facts is not None else tr("in the group {group}", group=step.group)
    is_open = " open" if facts is not None and facts.mark in (Mark.FAILED, Mark.UNKNOWN) else ""
    yield f"<details{is_open}><summary>{mark} <b>{_text(step.id)}</b> {_text(detail)}</summary>"
    if step.description:
        yield f"<p>{_text(step.description)}</p>"
    if step.id in report.places:
        yield f'<p class="dim">{_text(tr("in the plan at {place}", place=report.places[step.id]))}</p>'
    if facts is not None and facts.items:
        rows = [
            f"<tr><td>{SHAPES[item.mark]} {_text(item.label)}</td>"
            f"<td>{_text('  '.join(f'{SHAPES[call.mark]} {call.step_id}' for call in item.calls))}</td><td>{_text(item.detail)}</td></tr>"
            for item in facts.items
        ]
        yield f"<table>{''.join(rows)}</table>"
    calls = report.calls.get(step.id, ())
    for call in calls[:MAX_CALLS]:
        item = "" if call.item is None else f"{call.label or call.item + 1}: "
        by = ""
        if call.by is not None:
            by = tr(", `{answer}` recorded by {who} ({proof})", answer=call.resolution, who=call.by, proof=call.known_by)
        yield f"<p>{_text(item)}{_text(step.tool_name)}, {_text(str(call))}{_text(by)}</p><pre>{_value(call.parameters)}</pre>"
    if len(calls) > MAX_CALLS:
        command = f"plan show {report.account.facts.id} --json"
        more = tr("{calls}: {command}", calls=counted(len(calls) - MAX_CALLS, "more call"), command=command)
        yield f"<p>{_text(more)}</p>"
    if step.error:
        yield f"<p>{tr('error')}</p><pre>{_value(step.error)}</pre>"
    if step.result is not None and not (facts is not None and facts.items):  # the calls have the results of items
        yield f"<p>{tr('result')}</p><pre>{_value(step.result)}</pre>"
    if rounds := report.rounds.get(step.id, ()):
        yield f'<div class="wide"><table>{_round_headings()}{"".join(map(_round_row, rounds))}</table></div>'
    yield "</details>"


def _round_headings() -> str:
    names = (tr("round"), tr("the model decided"), tr("evidence"), tr("checked and answered"))
    return f"<tr>{''.join(f'<th>{_text(name)}</th>' for name in names)}</tr>"


def _round_row(record: RoundRecord) -> str:
    """Return the row of one round of a goal: the decision, what the call showed, and what checks and people said of it."""
    cells = (str(record.round), plain(record.decision), plain(record.evidence), "\n".join(map(plain, record.judgements)))
    return f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>"


def _prose(text: str) -> str:
    """Return a text of ours, with its commands and names as code."""
    return _CODE.sub(r"<code>\1</code>", _text(text))


_CODE = re.compile("`([^`]+)`")


def _value(value: object) -> str:
    text = as_text(value)
    return _text(text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…")


def _text(text: str) -> str:
    return escape("\n".join(visible(line) for line in text.split("\n")))
