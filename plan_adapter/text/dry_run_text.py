"""The text of a dry run: each call with what is known of it, then gates, outputs and what it adds up to."""

from collections import Counter
from collections.abc import Sequence

from pydantic import JsonValue

from plan_adapter.model.dry_run import DryRun, DryRunCall
from plan_adapter.model.language import tr
from plan_adapter.model.readable import as_text, code, counted, cut, duration, listed, plain, redacted
from plan_adapter.model.status import StepStatus
from plan_adapter.text.gate_text import call_values

CALL_COLUMNS = 60
"""How much of a call is in its row."""

RESULT_CHARACTERS = 60
"""How much of a result is in a row."""

MAX_GATES = 12
"""How many gates are named."""

COLUMNS = ("STEP", "EFFECT", "CALL", "RESULT")


def dry_run_rows(found: DryRun) -> list[tuple[str, str, str, str]]:
    """Return a row for each call: its name, effect, tool with parameters, and result."""
    return [(call.name, call.effect.replace("_", " "), _call_text(call), _result_text(call)) for call in found.calls]


def _call_text(call: DryRunCall) -> str:
    given = redacted(call.parameters)
    shown = [*given.items()] if isinstance(given, dict) else []
    return plain(code(call.tool_name) + call_values(shown, columns=CALL_COLUMNS)).replace("`", "").strip()


def _result_text(call: DryRunCall) -> str:
    match call.how:
        case "failed":
            return call.why
        case "unknown":
            return tr("unknown: {why}", why=call.why)
        case _:
            text = as_text(redacted(call.result))
            return text if len(text) <= RESULT_CHARACTERS else f"{cut(text, RESULT_CHARACTERS)}…"


def dry_run_lines(found: DryRun) -> list[str]:
    """Return the lines below the rows: conditions, what simulations show, gates, outputs and the sum."""
    lines = [tr("{name}: only if {condition}", name=call.name, condition=call.condition) for call in found.calls if call.condition]
    for call in found.calls:
        if call.how == "simulated" or "\n" in call.shows:  # one line is in the row
            lines += [f"{call.name}:", *(f"    {line}" for line in call.shows.splitlines())]
    skipped = [step for step in found.run.steps if step.status is StepStatus.SKIPPED and step.reason]
    lines += [tr("{name}: skipped: {reason}", name=step.id, reason=step.reason) for step in skipped]
    lines += [tr("problem: {problem}", problem=problem) for problem in found.problems]
    gates = [gate.name for gate in found.gates if gate.kind == "approval"]
    questions = [gate.name for gate in found.gates if gate.kind == "question"]
    lines += [tr("gates: {names}", names=listed(gates, MAX_GATES))] if gates else []
    lines += [tr("questions: {names}", names=listed(questions, MAX_GATES))] if questions else []
    lines += [tr("output {name}: {value}", name=name, value=as_text(redacted(value))) for name, value in found.run.outputs.items()]
    longest = tr("no limit") if found.worst_case_ms is None else duration(found.worst_case_ms)
    return [*lines, tr("worst case: {time}", time=longest), _sum_text(found.calls), tr("effects: {count}", count=found.effects)]


def _sum_text(calls: Sequence[DryRunCall]) -> str:
    counts = Counter((call.how, call.effect == "read") for call in calls)
    writes = sum(count for (how, is_read), count in counts.items() if not is_read and how != "failed")
    reads, failed = counts["unknown", True] + counts["simulated", True], counts["failed", True] + counts["failed", False]
    parts = [tr("{reads} called", reads=counted(counts["called", True] + counts["failed", True], "read"))]
    parts += [tr("{calls} not called, {known} with a known result", calls=counted(writes, "write"), known=counts["simulated", False])]
    parts += [tr("{calls} not called", calls=counted(reads, "read"))] if reads else []
    parts += [tr("{count} failed", count=failed)] if failed else []
    return "; ".join(parts)


def dry_run_json(found: DryRun) -> dict[str, JsonValue]:
    """Return the object that `plan run --dry-run --json` prints."""
    return {
        "name": found.run.name,
        "is_complete": found.is_complete,
        "effects": found.effects,
        "worst_case_ms": None if found.worst_case_ms is None else round(found.worst_case_ms),
        "calls": [
            {
                "name": call.name,
                "step": call.step_id,
                "kind": call.kind,
                "item": None if call.item is None else call.item + 1,
                "tool_name": call.tool_name,
                "effect": call.effect,
                "how": call.how,
                "parameters": call.parameters,
                "result": call.result,
                "shows": call.shows or None,
                "reason": call.why or None,
                "condition": call.condition or None,
            }
            for call in found.calls
        ],
        "gates": [{"name": gate.name, "kind": gate.kind, "answer": gate.answer} for gate in found.gates],
        "outputs": found.run.outputs,
        "problems": [*found.problems],
    }
