"""`report_html`: everything about a run as one HTML file that needs no network, no script and no other file, and prints."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from plan_adapter.model.language import tr
from plan_adapter.model.readable import as_text, counted, moment, plain
from plan_adapter.model.record import StepRun
from plan_adapter.model.rounds import RoundRecord
from plan_adapter.text import html_parts as html
from plan_adapter.text.drawing import STYLE as PICTURE_STYLE
from plan_adapter.text.formatting import StepCallRecord
from plan_adapter.text.run_facts import NOTHING_LEFT, SHAPES, Mark, RunAccount, StepFacts, mark_of, started_text
from plan_adapter.text.run_markdown import SHOWN_CALLS

MAX_CHARACTERS = 4000
"""How much of a value is in the report. The store keeps all of it."""
MAX_CALLS = 100
"""How many calls of a step are in the report."""


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


def report_html(report: RunReport, *, above: Sequence[str] = ()) -> str:
    """Return the report as an HTML document. Values are cut at 4,000 characters. `above` are lines of HTML before the report."""
    account, facts = report.account, report.account.facts
    made = tr("made {when} from the store by {command}", when=moment(account.now), command=f"plan report {facts.id}")
    body = [
        *above,
        *_head(account),
        *_table(tr("Inputs"), facts.inputs),
        *_table(tr("Outputs"), facts.outputs),
        *html.section(tr("Steps as a picture"), [f'<div class="wide">{report.picture}</div>']),
        *(html.section(tr("Timeline"), [_legend(), f'<div class="wide">{report.timeline}</div>']) if report.timeline else ()),
        *html.section(tr("Approvals and answers"), html.bullets(account.approvals or [tr("nobody was asked")])),
        *html.section(tr("Steps"), _steps(report)),
        *(html.section(tr("Notes"), html.bullets(account.notes)) if account.notes else ()),
        *html.section(tr("Record"), [f"<p>{html.text(report.record)}</p>", f"<p>{html.text(tr('plan {plan}', plan=report.digest))}</p>"]),
        f'<p class="dim">{html.text(made)}</p>',
    ]
    return html.page(f"{account.state}: {facts.name}", body, style=PICTURE_STYLE)


def _legend() -> str:
    legend = tr("hatched: waiting for an answer; purple: rollback; ✗: a failed attempt; bold: what the end of the run waited for")
    return f'<p class="dim">{html.text(legend)}</p>'


def _head(account: RunAccount) -> Iterator[str]:
    facts = account.facts
    yield f'<header class="m-{facts.mark}"><h1>{SHAPES[facts.mark]} {html.text(account.state)}: {html.text(facts.full_name)}</h1>'
    for text in [*([facts.cause] if facts.cause else []), *account.asked]:
        yield f"<p>{html.prose(text)}</p>"
    for left in facts.left_behind:
        yield f'<p class="left">{html.text(left.text(SHOWN_CALLS))}</p>'
    if facts.is_undone:
        yield f"<p>{html.text(tr(NOTHING_LEFT))}</p>"
    if account.next_text:
        yield f"<p><b>{html.prose(tr('next: {what}', what=account.next_text))}</b></p>"
    about = [tr("run {id}", id=facts.id), started_text(facts)]
    about += [tr("ended {when}", when=moment(facts.ended_at))] if facts.ended_at is not None else []
    yield f'<p class="dim">{html.text("; ".join([*about, facts.progress]))}</p></header>'


def _table(title: str, values: Mapping[str, str]) -> Iterator[str]:
    if values:
        yield from html.section(title, [html.rows([*values.items()])])


def _steps(report: RunReport) -> Iterator[str]:
    facts = {step.id: step for step in report.account.facts.steps}
    for step in report.steps:
        yield from _step(step, facts.get(step.id), report)


def _step(step: StepRun, facts: StepFacts | None, report: RunReport) -> Iterator[str]:
    mark = SHAPES[facts.mark if facts is not None else mark_of(step)]
    detail = facts.detail if facts is not None else tr("in the group {group}", group=step.group)
    is_open = " open" if facts is not None and facts.mark in (Mark.FAILED, Mark.UNKNOWN) else ""
    yield f"<details{is_open}><summary>{mark} <b>{html.text(step.id)}</b> {html.text(detail)}</summary>"
    if step.description:
        yield f"<p>{html.text(step.description)}</p>"
    if step.id in report.places:
        yield f'<p class="dim">{html.text(tr("in the plan at {place}", place=report.places[step.id]))}</p>'
    if facts is not None and facts.items:
        rows = [
            f"<tr><td>{SHAPES[item.mark]} {html.text(item.label)}</td>"
            f"<td>{html.text('  '.join(f'{SHAPES[call.mark]} {call.step_id}' for call in item.calls))}</td>"
            f"<td>{html.text(item.detail)}</td></tr>"
            for item in facts.items
        ]
        yield f"<table>{''.join(rows)}</table>"
    calls = report.calls.get(step.id, ())
    for call in calls[:MAX_CALLS]:
        item = "" if call.item is None else f"{call.label or call.item + 1}: "
        by = ""
        if call.by is not None:
            by = tr(", `{answer}` recorded by {who} ({proof})", answer=call.resolution, who=call.by, proof=call.known_by)
        yield f"<p>{html.text(f'{item}{step.tool_name}, {call}{by}')}</p><pre>{_value(call.parameters)}</pre>"
    if len(calls) > MAX_CALLS:
        command = f"plan show {report.account.facts.id} --json"
        more = tr("{calls}: {command}", calls=counted(len(calls) - MAX_CALLS, "more call"), command=command)
        yield f"<p>{html.text(more)}</p>"
    if step.error:
        yield f"<p>{tr('error')}</p><pre>{_value(step.error)}</pre>"
    if step.result is not None and not (facts is not None and facts.items):  # the calls have the results of items
        yield f"<p>{tr('result')}</p><pre>{_value(step.result)}</pre>"
    if rounds := report.rounds.get(step.id, ()):
        headings = (tr("round"), tr("the model decided"), tr("evidence"), tr("checked and answered"))
        yield f'<div class="wide">{html.rows(map(_round_cells, rounds), headings=headings)}</div>'
    yield "</details>"


def _round_cells(record: RoundRecord) -> tuple[str, str, str, str]:
    """Return one round of a goal: the decision, what the call showed, and what checks and people said of it."""
    return str(record.round), plain(record.decision), plain(record.evidence), "\n".join(map(plain, record.judgements))


def _value(value: object) -> str:
    text = as_text(value)
    return html.text(text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…")
