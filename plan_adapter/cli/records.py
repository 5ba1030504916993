"""Runs, gates, events and differences between plans, as JSON objects and as lines of text."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from plan_adapter.model.approvals import TAKE_BACK, Delegation, Gate, GateKind, delegations_in_force
from plan_adapter.model.hooks import Event
from plan_adapter.model.language import later, tr
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.readable import call_name, counted, duration, item_number, one_line, plain
from plan_adapter.model.record import PlanRun, PlanVersion
from plan_adapter.text import changes
from plan_adapter.text.commands import answer_command
from plan_adapter.text.run_facts import outcome_in_words

SHOWN_CHARACTERS = 400
"""How many characters of a run's message its status line shows; the lines of its steps show all of it."""


def run_json(run: PlanRun, *, steps: bool) -> dict[str, Any]:
    """Return every field of `run`, its counts, progress and the step that runs or is next; with `steps` also each step run."""
    fields = asdict(run)
    step_runs = fields.pop("steps")
    fields["summary"] = {name: value for name, value in asdict(run.summary()).items() if name not in ("id", "description", "status")}
    fields["plan_digest"] = run.digest
    fields["outcome"] = run.outcome
    current = None if run.status.has_ended else run.current_step
    fields["current_step"] = None if current is None else current.id
    return {**fields, "steps": step_runs} if steps else fields


def event_json(event: Event) -> dict[str, Any]:
    """Return `event` as one object; its `step` is the step run as it was at that time."""
    fields: dict[str, Any] = {"event": event.kind, "run_id": event.run.id}
    if event.kind == "run_started":
        fields |= {"name": event.run.name, "digest": event.run.digest, "plan_digest": event.run.digest}
        fields["flow_run_id"] = event.run.flow_run_id
    if event.step is not None:
        fields["step"] = event.step.id if event.kind in ("log", "spoken", "call_started", "call_ended") else asdict(event.step)
    if event.name is not None and event.step is not None and event.name != event.step.id:
        fields["call"] = event.name
    if event.gate is not None:
        fields["gate"] = gate_json(event.gate)
    if event.message is not None:
        fields["message"] = event.message
    if event.delay_ms is not None:
        fields["delay_ms"] = event.delay_ms
    return fields


def gate_json(gate: Gate) -> dict[str, Any]:
    """Return a gate as `--json` prints it, without its text, which `plan approve RUN --show` prints.

    An unknown outcome that no gate asks about has no id.
    """
    gate_policy = gate.gate_policy
    return {
        "id": gate.id or None,
        "asks": gate.kind,
        "run_id": gate.run_id,
        "step": gate.step_id,
        "call_kind": gate.call_kind,
        "item": item_number(gate.item),
        "label": gate.label,
        "name": gate.name,
        "description": gate.description,
        "approval_digest": gate.approval_digest,
        "digest": gate.approval_digest,
        "command": answer_command(gate) if gate.end is None else None,
        "opened_at": gate.opened_at,
        "expires_at": gate.expires_at,
        "end": gate.end,
        "approvers": gate_policy.approvers,
        "known_by": gate_policy.known_by,
        "quorum": gate_policy.quorum,
        "approved_by": [{"by": row.by, "known_by": row.known_by, "at": row.at} for row in gate.agreements],
        "self_approval": gate_policy.self_approval,
        "may_not_approve": [*gate_policy.may_not_approve],
        "escalates_at": gate.opened_at + timedelta(milliseconds=gate_policy.escalate_after_ms) if gate_policy.escalate_after_ms else None,
        "escalates_to": [*gate_policy.escalate_to],
        "is_escalated": gate_policy.is_escalated,
        "delegated": _delegations_json(delegations_in_force(gate_policy.delegations)),
        "taken_back": _delegations_json(row for row in gate_policy.delegations if row.decision == TAKE_BACK),
        "requested_by": gate_policy.requested_by,
        "revised_by": gate_policy.revised_by,
        "fields": {name: field.model_dump(mode="json", exclude_defaults=True) for name, field in gate.fields.items()},
        "flow_run_id": gate.flow_run_id,
        "attended": gate.attended,
        "has_form": gate.has_form,
    }


def _delegations_json(delegations: Iterable[Delegation]) -> list[dict[str, Any]]:
    return [{"by": row.by, "to": row.to, "known_by": row.known_by, "at": row.at} for row in delegations]


FIND_LIMIT = 1_000_000
"""More gates than are ever open."""

NO_FORM = "Prefect does not keep the form of this gate"
"""What a list of gates says of a gate that cannot be answered in Prefect's UI."""

QUESTION_SUFFIXES: dict[GateKind, str] = {
    "approval": "",
    "question": later(": a question"),
    "outcome": later(": did it take effect?"),
}
"""What a list of gates adds to the step of a gate, by what the gate asks for."""


def gate_place(gate: Gate) -> str:
    """Return where `gate` is: the plan, or a step and its item."""
    return "plan" if gate.step_id is None else call_name(gate.step_id, gate.item, gate.label, kind=gate.call_kind)


def run_status_line(run: PlanRun) -> str:
    """Return the status of `run` and its message in one line."""
    return "; ".join(part for part in (run_status(run), run_message(run)) if part is not None)


def run_status(run: PlanRun) -> str:
    """Return the outcome of `run`, its duration and how many of its steps are done."""
    took = ""
    if run.completed_at is not None and run.started_at is not None:
        took = tr(" in {time}", time=duration(run.total_duration_ms))
    return f"{run.name}: {outcome_in_words(run)}{took}: {run.summary().text}"


def run_message(run: PlanRun) -> str | None:
    """Return the message of `run` on one line, cut if it is long, or None if it has none."""
    if not run.message:
        return None
    return f"{one_line(run.message[:SHOWN_CHARACTERS])}{'…' if len(run.message) > SHOWN_CHARACTERS else ''}"


def version_json(version: PlanVersion | None) -> dict[str, Any] | None:
    """Return a stored version as `--json` prints it; None if nothing was stored."""
    if version is None:
        return None
    digests = {"plan_digest": version.digest, "digest": version.digest}
    return {"name": version.name, "version": version.version, **digests, "author": version.author}


def difference_lines(old: ExecutionPlan, new: ExecutionPlan) -> list[str]:
    """Return the differences from `old` to `new`, most important first, as a gate shows them; empty if there are none."""
    return [plain(line) for line in changes.difference_lines(old, new)]


def difference_title(lines: list[str]) -> str:
    """Return the line above the differences."""
    return f"what the new version changes ({counted(len(lines), 'place')}):"
