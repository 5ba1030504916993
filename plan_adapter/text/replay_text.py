"""The text of a replay: each difference with its place, how many runs have it, and what it adds up to."""

import json
from collections.abc import Mapping
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pydantic import JsonValue

from plan_adapter.model.language import tr
from plan_adapter.model.readable import as_text, counted, cut, redacted
from plan_adapter.model.replayed import Difference, DifferenceKind, FailOn, Replay, ReplayedRun, ReplayFinding
from plan_adapter.model.values import Unknown

VALUE_CHARACTERS = 60
"""How much of a value is in a line."""

COLUMNS = ("PLACE", "RUNS", "WHAT WOULD GO DIFFERENTLY")

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

RULES: Mapping[DifferenceKind, str] = {
    "new_call": "A call that the run did not make.",
    "gone_call": "A call that is no longer made.",
    "other_values": "A call with other parameters.",
    "other_order": "A step that no longer waits for another one.",
    "new_gate": "A gate that did not open.",
    "gone_gate": "A gate that no longer opens.",
    "other_output": "Another output.",
    "other_end": "Another end of the run.",
    "no_start": "Inputs of the run that do not fit any more.",
    "no_answer": "An answer in the run that does not fit any more.",
}
"""The kinds of differences, as SARIF lists them."""


def replay_rows(found: Replay) -> list[tuple[str, str, str]]:
    """Return a row for each finding: its place, how many of the runs have it, and what differs in the newest of them."""
    return [(_place(finding), _share(finding, found), difference_text(finding.first)) for finding in found.findings]


def _place(finding: ReplayFinding) -> str:
    if finding.line is None:
        return finding.at or tr("the plan")
    return f"{finding.file or finding.at}:{finding.line}"


def _share(finding: ReplayFinding, found: Replay) -> str:
    return tr("{part} of {all}", part=len(finding.runs), all=len(found.runs))


def difference_text(found: Difference) -> str:
    """Describe a difference in one line."""
    step, subject = found.step_id or "", found.subject
    match found.kind:
        case "new_call" if found.repeats is not None:
            return tr(
                "{step}: calls {tool} once more, as {other} does: {values}",
                step=step,
                tool=subject,
                other=found.repeats,
                values=_values(found.after),
            )
        case "new_call":
            return tr("{step}: calls {tool} newly: {values}", step=step, tool=subject, values=_values(found.after))
        case "gone_call":
            return tr("{step}: no longer calls {tool}: {values}", step=step, tool=subject, values=_values(found.before))
        case "other_values":
            return tr(
                "{step}: another {name}: {before} -> {after}",
                step=step,
                name=subject,
                before=_value(found.before),
                after=_value(found.after),
            )
        case "other_order" if found.after == "before":
            return tr("{step}: comes before {other}", step=step, other=subject)
        case "other_order":
            return tr("{step}: no longer waits for {other}", step=step, other=subject)
        case "new_gate":
            return tr("{step}: waits for an approval", step=step or tr("the plan"))
        case "gone_gate":
            return tr("{step}: no longer waits for an approval", step=step or tr("the plan"))
        case "other_output":
            return tr("output {name}: {before} -> {after}", name=subject, before=_value(found.before), after=_value(found.after))
        case "no_start":
            return tr("does not start: {problem}", problem=found.after)
        case "no_answer":
            return tr("{step}: does not take the answer of the run: {problem}", step=step, problem=found.after)
        case "other_end" if found.after is None:
            return tr("it is not known how it ends; it ended as {before}", before=found.before)
        case "other_end":
            return tr("ends as {after}, not as {before}", after=found.after, before=found.before)


def _values(parameters: JsonValue) -> str:
    shown = parameters if isinstance(parameters, dict) else {}
    return ", ".join(f"{name}={_value(value)}" for name, value in shown.items()) or tr("no parameters")


def _value(value: JsonValue) -> str:
    text = as_text(redacted(value))
    if isinstance(value, Unknown):
        return tr("not known ({expression})", expression=text)
    return text if len(text) <= VALUE_CHARACTERS else f"{cut(text, VALUE_CHARACTERS)}…"


def replay_lines(found: Replay) -> list[str]:
    """Return the lines below the rows: which runs were replayed, and what it adds up to."""
    lines = [tr("{same} of {runs} would go as they went", same=found.same, runs=counted(len(found.runs), "run"))]
    if found.left_out:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(found.left_out.items()))
        lines.append(tr("left out, because the record does not say what came next: {reasons}", reasons=reasons))
    if unknown := sum(not run.has_order for run in found.runs):
        runs = counted(unknown, "run")
        lines.append(
            tr("the order of steps was not compared in {runs}: the plan of that time uses a tool that is gone or has changed", runs=runs)
        )
    return [*lines, tr("effects of this replay: {count}", count=found.effects)]


def run_json(run: ReplayedRun) -> dict[str, JsonValue]:
    """Return the object that `plan replay --json` prints for a run."""
    return {
        "run_id": run.run.id,
        "status": run.run.status.value,
        "created_at": run.run.created_at.isoformat(),
        "effects": run.effects,
        "differences": [_difference_json(difference) for difference in run.differences],
    }


def replay_json(found: Replay) -> dict[str, JsonValue]:
    """Return the last object that `plan replay --json` prints."""
    return {
        "name": found.name,
        "runs": len(found.runs),
        "same": found.same,
        "left_out": dict[str, JsonValue](found.left_out),
        "effects": found.effects,
        "findings": [
            {
                **_difference_json(finding.first),
                "message": difference_text(finding.first),
                "runs": [*finding.runs],
                "at": finding.at,
                "line": finding.line,
                "column": finding.column,
                "file": finding.file,
            }
            for finding in found.findings
        ],
    }


def _difference_json(found: Difference) -> dict[str, JsonValue]:
    return {
        "kind": found.kind,
        "step": found.step_id,
        "subject": found.subject or None,
        "writes": found.writes,
        "before": found.before,
        "after": found.after,
        "repeats": found.repeats,
    }


def _message(finding: ReplayFinding, found: Replay) -> str:
    return f"{difference_text(finding.first)} ({_share(finding, found)})"


def _level(finding: ReplayFinding) -> str:
    return "error" if finding.first.writes else "warning"


def replay_github(found: Replay) -> list[str]:
    """Return the findings as annotations of a GitHub workflow."""
    lines = list[str]()
    for finding in found.findings:
        file = (_file(finding) or "").translate(_IN_COMMAND | {ord(":"): "%3A", ord(","): "%2C"})
        place = f"file={file},line={finding.line},col={finding.column}," if file else ""
        lines.append(f"::{_level(finding)} {place}title=plan replay::{_message(finding, found).translate(_IN_COMMAND)}")
    return lines


_IN_COMMAND = {ord("%"): "%25", ord("\r"): "%0D", ord("\n"): "%0A"}
"""What a command of a GitHub workflow escapes; in its properties also colons and commas."""


def _file(finding: ReplayFinding) -> str | None:
    """Return the file of a finding, unless the document comes from somewhere else, such as `<stdin>`."""
    return None if finding.line is None or (finding.file or "<").startswith("<") else finding.file


def replay_sarif(found: Replay) -> str:
    """Return the findings as a SARIF 2.1.0 log, which code scanning shows at the lines of a pull request."""
    results = list[JsonValue]()
    for finding in found.findings:
        result: dict[str, JsonValue] = {
            "ruleId": finding.first.kind,
            "level": _level(finding),
            "message": {"text": _message(finding, found)},
        }
        if (file := _file(finding)) is not None:
            region: dict[str, JsonValue] = {"startLine": finding.line, "startColumn": finding.column or 1}
            result["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": file}, "region": region}}]
        results.append(result)
    rules: list[JsonValue] = [{"id": kind, "shortDescription": {"text": text}} for kind, text in RULES.items()]
    driver: dict[str, JsonValue] = {"name": "plan replay", "rules": rules}
    log: dict[str, JsonValue] = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(log, ensure_ascii=False, indent=2)


def replay_junit(found: Replay, fail_on: FailOn) -> str:
    """Return the runs as test cases of JUnit. A run with a difference that counts is a failure; its other ones are its output."""
    failed = sum(any(difference.counts(fail_on) for difference in run.differences) for run in found.runs)
    suite = Element("testsuite", name=found.name, tests=str(len(found.runs)), failures=str(failed), errors="0")
    for run in found.runs:
        case = SubElement(suite, "testcase", classname=found.name, name=f"{run.run.id} {run.run.created_at:%Y-%m-%d %H:%M}")
        if texts := [difference_text(difference) for difference in run.differences if difference.counts(fail_on)]:
            SubElement(case, "failure", message=texts[0]).text = "\n".join(texts)
        if others := [difference_text(difference) for difference in run.differences if not difference.counts(fail_on)]:
            SubElement(case, "system-out").text = "\n".join(others)
    indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suite, encoding="unicode")
