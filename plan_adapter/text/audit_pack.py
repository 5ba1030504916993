"""The auditor's pack of a period: its two CSV files, its HTML page, and its counts.

It is always in English: an auditor compares packs of different periods and machines, and its words are values of columns.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, lru_cache
from io import StringIO

from pydantic import JsonValue

from plan_adapter.model.approvals import Approval
from plan_adapter.model.audited import ApprovedBy, AuditedRuns, ChangeEvent, ChangeRecord, PlanChange, PopulationRun
from plan_adapter.model.language import speaking
from plan_adapter.model.readable import call_name, counted, one_line
from plan_adapter.model.record import Attempt, PlanVersion, Receipt
from plan_adapter.model.status import RunReason, StepStatus
from plan_adapter.text import html_parts as html

NOT_RECORDED = "not recorded"
"""What a cell says where the store does not know."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
"""How text begins that a spreadsheet may take for a formula. Such a cell gets an apostrophe in front."""

APPROVED_BY: Mapping[ApprovedBy, str] = {
    "another_person": "another person",
    "requester_or_author": "the requester or an author",
    "author_not_recorded": "not the requester; author not recorded",
    "not_required": "nobody: the plan requires no approval",
    "nobody": "nobody",
}
"""Who approved, as the pack says it."""

COLUMNS: Mapping[str, str] = {
    "run": "Run",
    "plan": "Plan",
    "version": "Version of the plan",
    "plan_digest": "Digest of the plan",
    "requested_by": "Requested by",
    "requester_known_by": "How the requester is known",
    "requested_at": "Requested (UTC)",
    "author": "Author of the plan",
    "author_known_by": "How the author is known",
    "approved_by": "Approved by",
    "approvals": "Approvals and rejections",
    "separate_approver": "Separate approver",
    "tested": "Tested",
    "earlier_completed_runs": "Earlier runs of the same content that completed",
    "steps": "Steps",
    "calls": "Calls",
    "writing_calls": "Calls that write",
    "writing_tools": "Tools that wrote",
    "began_at": "Began (UTC)",
    "ended_at": "Ended (UTC)",
    "status": "Status",
    "reason": "Reason",
    "record": "Record",
    "record_digest": "Digest of the record",
    "deviations": "Deviations",
}
"""The columns of `runs.csv`, with their names on the page."""

POPULATION_COLUMNS = ("run", "plan", "version", "plan_digest", "status", "requested_at", "began_at", "in_sample")

OVERVIEW_COLUMNS = ("run", "plan", "requested_by", "approved_by", "separate_approver", "began_at", "status", "deviations")
"""The columns of the page's table. Each run has all of them below it."""


STYLE = """\
.wide tr{border-bottom:1px solid #8883}.wide td,.wide th{overflow-wrap:break-word}
@page{size:landscape}
"""


@dataclass(frozen=True, slots=True)
class PackRow:
    """A run of the sample as the pack says it."""

    record: ChangeRecord
    approvals: Sequence[str]  # each answer at a gate
    deviations: Sequence[str]
    cells: Mapping[str, str]  # by column


@dataclass(frozen=True)
class AuditPack:
    """The runs of a period, and how the sample was drawn from them."""

    runs: AuditedRuns
    seed: int | None  # None: the sample is the whole population
    plan: str | None  # only runs of this plan
    store: str  # where the runs were read, without a password
    made_at: datetime
    zone: str  # the time zone in which the period was given

    @cached_property
    def rows(self) -> Sequence[PackRow]:
        """The runs of the sample, by id."""
        with speaking("en"):
            return [_row(record) for record in self.runs.sample]

    @property
    def approvals(self) -> Counter[ApprovedBy]:
        """How many runs of the sample were approved by whom."""
        return Counter(row.record.approved_by for row in self.rows)

    @property
    def deviating(self) -> int:
        """How many runs of the sample have a deviation."""
        return sum(bool(row.deviations) for row in self.rows)

    @property
    def checks(self) -> Counter[str]:
        """How many records of the sample have which verdict."""
        return Counter("not_checked" if record.check is None else record.check.verdict for record in self.runs.sample)


def deviations(record: ChangeRecord) -> list[str]:
    """Return the deviations from an approved change that completes in one go, each as a short phrase."""
    return [*_record_problems(record), *_approval_deviations(record), *_content_deviations(record), *_course_deviations(record)]


def _record_problems(record: ChangeRecord) -> Iterator[str]:
    if record.check is not None and record.check.verdict != "intact":
        is_altered = record.check.verdict == "altered"
        yield f"record altered: {record.check.problem}" if is_altered else "record not verifiable: it has no audit log"


def _approval_deviations(record: ChangeRecord) -> Iterator[str]:
    if record.writes and record.approved_by in ("not_required", "nobody"):
        yield "wrote without an approval"
    for given in record.used_approvals:
        what = "the plan" if given.step_id is None else f"step {call_name(given.step_id, given.item)}"
        if record.run.requested_by in given.people:
            yield f"{what} approved by the requester"
        elif not set(record.authors).isdisjoint(given.people):
            yield f"{what} approved by an author of the plan"
        if given.standing_id is not None:
            yield f"standing approval of {given.by} used for {what}"
        for person in (*given.agreements, given):
            if person.known_by == "unverified":
                yield f"identity of {person.by} not verified at the approval of {what}"
    yield from _counted(_event_text(event) for event in record.events)


def _event_text(event: ChangeEvent) -> str:
    who = f"{event.by} ({event.known_by or 'identity ' + NOT_RECORDED})"
    why = f": {event.message}" if event.message else ""
    at = f" of step {event.step_id}" if event.step_id else ""
    match event.kind:
        case "always_executed":
            return f"call of step {event.step_id} made without confirmation, as the plan allows"
        case "refused":
            return f"refused to {who}{why}"
        case "erased":
            return f"values erased by {who}{why}"
        case "skip_requested":
            return f"skip{at} requested by {who}{why}"
        case "run_from_requested":
            return f"run{at} after all requested by {who}{why}"
        case "override_requested":
            return f"override of a change freeze requested by {who}{why}"
        case _:
            return f"rollback requested by {who}{why}"


def _content_deviations(record: ChangeRecord) -> Iterator[str]:
    for change in record.plan_changes:
        yield _change_text(change)
    for name in record.tools_with_other_code:
        yield f"code of tool {name} changed during the run"


def _change_text(change: PlanChange) -> str:
    what = "plan revised during the run" if change.changes_plan else "tools or folder changed during the run"
    return f"{what}, by {change.by}" + (f": {change.note}" if change.note else "")


def _course_deviations(record: ChangeRecord) -> Iterator[str]:
    run = record.run
    if not run.has_ended:
        yield "interrupted" if run.reason is RunReason.INTERRUPTED else f"not ended: {run.status.value}"
    elif run.reason not in (None, RunReason.STEP_FAILED, RunReason.UNKNOWN):
        how, message = run.reason.value.replace("_", " "), run.message or ""
        yield message if message.startswith(how) else f"{how}: {message}" if message else how
    for step_id in record.failed_steps:
        yield f"step {step_id} failed"
    for attempt in record.unknown:
        yield f"outcome of {_call(attempt)} unknown"
    for attempt, end in record.resolved:
        yield _resolution_text(attempt, end)
    for step in run.steps:
        if step.retry_count:
            yield f"step {step.id} retried {_times(step.retry_count)}"
    if record.is_rolled_back:
        left = "" if run.rollback is None or not run.rollback.can_continue else ", not completely"
        yield f"rolled back{left}"


def _call(attempt: Attempt) -> str:
    return call_name(attempt.step_id, attempt.item, attempt.label, kind=attempt.kind)


def _resolution_text(attempt: Attempt, end: Receipt) -> str:
    outcome = {"done": "done", "again": "not done, to be called again", "abort": "not known, run ended"}[end.resolution or "again"]
    why = f": {end.note}" if end.note else ""
    return f"outcome of {_call(attempt)} was unknown; {end.by} ({end.known_by}) recorded it as {outcome}{why}"


def _counted(texts: Iterable[str]) -> Iterator[str]:
    """Yield each text once, with how often it occurs if that is more than once."""
    for text, count in Counter(texts).items():
        yield text if count == 1 else f"{text} ({_times(count)})"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# The cells


def _row(record: ChangeRecord) -> PackRow:
    approvals, deviating = approval_texts(record), deviations(record)
    return PackRow(record, approvals, deviating, _cells(record, approvals, deviating))


def _cells(record: ChangeRecord, approvals: Sequence[str], deviating: Sequence[str]) -> dict[str, str]:
    run, check = record.run, record.check
    tools = Counter(attempt.tool_name for attempt in record.writes)
    return {
        "run": run.id,
        "plan": run.name,
        "version": _versions(record.versions),
        "plan_digest": run.digest,
        "requested_by": run.requested_by or NOT_RECORDED,
        "requester_known_by": NOT_RECORDED,
        "requested_at": _instant(run.created_at),
        "author": ", ".join(record.authors) or NOT_RECORDED,
        "author_known_by": NOT_RECORDED,
        "approved_by": APPROVED_BY[record.approved_by],
        "approvals": "; ".join(approvals) or "none",
        "separate_approver": record.separate_approver,
        "tested": NOT_RECORDED,
        "earlier_completed_runs": str(record.earlier_completed),
        "steps": _steps(record),
        "calls": str(len(record.attempts)),
        "writing_calls": str(len(record.writes)),
        "writing_tools": ", ".join(f"{name} x{count}" for name, count in sorted(tools.items())) or "none",
        "began_at": _instant(run.started_at) or "never",
        "ended_at": _instant(run.completed_at) or "not ended",
        "status": run.status.value,
        "reason": "" if run.reason is None else run.reason.value,
        "record": "not checked" if check is None else check.verdict.replace("_", " "),
        "record_digest": "" if check is None else check.digest or "",
        "deviations": "; ".join(deviating) or "none",
    }


def _instant(at: datetime | None) -> str:
    return "" if at is None else f"{at.isoformat(timespec='seconds').removesuffix('+00:00')}Z"


def _versions(versions: Sequence[PlanVersion]) -> str:
    return ", ".join(f"{version.name}@{version.version}" for version in versions) or "not saved as a version"


def _steps(record: ChangeRecord) -> str:
    counts = Counter(step.status for step in record.run.steps)
    shown = [f"{counts[status]} {status.value}" for status in StepStatus if counts[status]]
    return f"{len(record.run.steps)}: {', '.join(shown)}" if shown else "0"


def approval_texts(record: ChangeRecord) -> list[str]:
    """Return a line for each answer at a gate of the run: decision, person, proof of identity, time, digest and note.

    Of several approvals at a gate, each has its own line.
    """
    return [
        _approval_text(one)
        for given in record.approvals
        for one in (
            *(replace(row.as_approval, step_id=given.step_id, item=given.item, used_at=given.used_at) for row in given.agreements),
            replace(given, agreements=()),
        )
    ]


def _approval_text(given: Approval) -> str:
    what = "plan" if given.step_id is None else f"step {call_name(given.step_id, given.item)}"
    answers = {"approve": "approved", "reject": "rejected", "request_changes": "changes requested"}
    answer = "answered" if given.decision == "approve" and given.result is not None else answers[given.decision]
    who = "its author in advance: no approval required" if given.known_by == "not_required" else given.givers
    standing = f", standing approval {given.standing_id}" if given.standing_id is not None else ""
    used = "" if given.used_at is not None or given.decision != "approve" else ", not used"
    note = f", note: {given.note}" if given.note else ""
    return f"{what}: {answer} by {who} at {_instant(given.at)}, digest {given.approval_digest}{standing}{used}{note}"


# The files


def runs_csv(pack: AuditPack) -> str:
    """Return `runs.csv`: a row for each run of the sample."""
    return _csv(COLUMNS, (row.cells.values() for row in pack.rows))


def population_csv(pack: AuditPack) -> str:
    """Return `population.csv`: a row for each run of the period, and one for each that was pruned."""
    sample = {record.run.id for record in pack.runs.sample}
    rows = [(*_population_cells(run), "yes" if run.id in sample else "no") for run in pack.runs.population]
    pruned = [
        (run.id, run.name, "", run.digest, f"{run.status}, record pruned {_instant(run.pruned_at)} by {run.pruned_by}", "", "", "no")
        for run in pack.runs.pruned
    ]
    return _csv(POPULATION_COLUMNS, [*rows, *pruned])


def _population_cells(run: PopulationRun) -> tuple[str, ...]:
    return (
        run.id,
        run.name,
        _versions(run.versions),
        run.digest,
        run.status,
        _instant(run.requested_at),
        _instant(run.started_at) or "never",
    )


def _csv(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([*map(_cell, row)] for row in rows)
    return file.getvalue()


@lru_cache(maxsize=1000)  # the runs of a plan repeat most of their cells
def _cell(text: str) -> str:
    """Return `text` on one line, and so that no spreadsheet takes it for a formula."""
    is_formula = text.startswith(FORMULA_STARTS)
    shown = one_line(text)
    return f"'{shown}" if is_formula or shown.startswith(FORMULA_STARTS) else shown


def pack_html(pack: AuditPack) -> str:
    """Return `index.html`: how the sample was drawn, a table of its runs, and every column of each run."""
    with speaking("en"):
        period = " to ".join(map(_instant, pack.runs.period))
        headings = [COLUMNS[name] for name in OVERVIEW_COLUMNS]
        overview = html.rows(([row.cells[name] for name in OVERVIEW_COLUMNS] for row in pack.rows), headings=headings)
        body = [
            f"<header><h1>{html.text(f'Changes from {period}')}</h1>",
            *(f"<p>{html.text(line)}</p>" for line in summary_lines(pack)),
            "</header>",
            *html.section("How the sample was drawn", [html.rows(_drawing(pack))]),
            *html.section("Runs", [f'<div class="wide">{overview}</div>']),
            *html.section("Each run", [line for row in pack.rows for line in _details(row)]),
            f'<p class="dim">{html.text(f"made {_instant(pack.made_at)} by `plan audit` from {pack.store}")}</p>',
        ]
        return html.page(f"Changes from {period}", body, style=STYLE)


def _details(row: PackRow) -> Iterator[str]:
    """Yield the section of a run. It is open, so that it is printed."""
    lists = {"approvals": row.approvals, "deviations": row.deviations}
    yield f"<details open><summary><b>{html.text(row.cells['run'])}</b> {html.text(row.cells['plan'])}</summary>"
    yield html.rows([(title, "\n".join(lists.get(name, ())) or row.cells[name] or "-") for name, title in COLUMNS.items()])
    yield "</details>"


def _drawing(pack: AuditPack) -> list[tuple[str, str]]:
    """Return how the sample was drawn, by name."""
    found = pack.runs
    rows = {
        "Period (UTC)": f"{_instant(found.period.since)} to {_instant(found.period.until)}, both included",
        "Time zone of the period": pack.zone,
        "Plan": pack.plan or "every plan",
        "Population": f"{counted(len(found.population), 'run')} requested in the period, listed in population.csv",
        "Sample": counted(len(found.sample), "run"),
    }
    if pack.seed is not None:
        again = f"random.Random({pack.seed}).sample(sorted(runs), {len(found.sample)})"
        rows["Seed"] = f"{pack.seed}. In Python, {again} draws the sample again; `runs` are those of population.csv that are not pruned."
    if found.pruned:
        count = counted(len(found.pruned), "run")
        rows["Pruned"] = f"{count} that ended in the period. Only tombstones are left, so none is in the population or the sample."
    return [*rows.items(), ("Store", pack.store)]


def summary_lines(pack: AuditPack) -> list[str]:
    """Return the lines that `plan audit` prints, and that begin the page."""
    found, by = pack.runs, pack.approvals
    drawn = "the whole population" if pack.seed is None else f"drawn with the seed {pack.seed}"
    lines = [
        f"{counted(len(found.population), 'run')} in the period; sample: {len(found.sample)}, {drawn}",
        f"approved by another person {by['another_person']}, by the requester or an author {by['requester_or_author']}, "
        f"author not recorded {by['author_not_recorded']}, no approval required {by['not_required']}, not approved {by['nobody']}",
        f"runs with deviations: {pack.deviating}",
        "records: " + (", ".join(f"{count} {verdict.replace('_', ' ')}" for verdict, count in sorted(pack.checks.items())) or "none"),
    ]
    if found.pruned:
        lines.append(f"not in the population: {counted(len(found.pruned), 'run')} that ended in the period and whose records were pruned")
    return lines


def pack_json(pack: AuditPack) -> dict[str, JsonValue]:
    """Return the object that `plan audit --json` prints, without the path."""
    found, by = pack.runs, pack.approvals
    return {
        "since": found.period.since.isoformat(),
        "until": found.period.until.isoformat(),
        "time_zone": pack.zone,
        "plan": pack.plan,
        "population": len(found.population),
        "pruned": len(found.pruned),
        "sample": len(found.sample),
        "seed": pack.seed,
        "approvals": {name: by[name] for name in APPROVED_BY},
        "deviating": pack.deviating,
        "records": dict[str, JsonValue](pack.checks),
        "runs": [
            {
                "run_id": row.record.run.id,
                "approved_by": row.record.approved_by,
                "separate_approver": row.record.separate_approver,
                "deviations": [*row.deviations],
                "record": None if row.record.check is None else row.record.check.verdict,
            }
            for row in pack.rows
        ],
    }
