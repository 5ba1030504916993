"""What an agent is told about plans, runs and gates: no context, no secret, and no more than a model can read."""

import json
import os
from collections.abc import Collection
from datetime import datetime
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.approvals import Gate
from plan_adapter.cli.approval_state import ApprovalState
from plan_adapter.cli.foreground import next_command
from plan_adapter.cli.records import gate_place
from plan_adapter.commands import answer_command
from plan_adapter.credentials import credential_values
from plan_adapter.readable import redacted
from plan_adapter.record import PlanRun, StepRun
from plan_adapter.secrets import ENVIRONMENT_PREFIX
from plan_adapter.status import PlanStatus, RunReason

MAX_CHARACTERS = 40_000
"""The limit of one answer, as JSON."""

CUTS = ((20_000, 200), (4_000, 100), (1_000, 40), (250, 15), (80, 5))
"""Limits for the characters of a text and the members of a list or object. They are tried in order until an answer is short enough."""

CUT_NOTE = "Long values were cut; each place says by how much. `plan show RUN --json` shows a person all of it."


def model_output(answer: dict[str, Any], *, hidden: Collection[str] = ()) -> dict[str, JsonValue]:
    """Return `answer` for a model: without secrets, and cut to a length that it can read."""
    plain = cast("JsonValue", json.loads(json.dumps(answer, default=_json_default)))
    shown = redacted(plain, hidden=[*hidden, *_known_secrets()])
    return cut(cast("dict[str, JsonValue]", shown))


def _json_default(value: object) -> str:
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else str(value)


def cut(answer: dict[str, JsonValue], *, max_characters: int = MAX_CHARACTERS) -> dict[str, JsonValue]:
    """Return `answer`, cut as little as necessary. A cut answer has a note that says so."""
    if _size(answer) <= max_characters:
        return answer
    for text, members in CUTS:
        shown = cast("dict[str, JsonValue]", _cut_value(answer, text, members))
        if _size(shown) <= max_characters:
            return {**shown, "note": CUT_NOTE}
    return {"note": CUT_NOTE, "beginning": json.dumps(answer, ensure_ascii=False)[: max_characters // 2]}


def _size(answer: JsonValue) -> int:
    return len(json.dumps(answer, ensure_ascii=False))


def _cut_value(value: JsonValue, text: int, members: int) -> JsonValue:
    if isinstance(value, str):
        return value if len(value) <= text else f"{value[:text]}… ({len(value) - text} more characters)"
    if isinstance(value, list):
        rest: list[JsonValue] = [f"… ({len(value) - members} more)"] if len(value) > members else []
        return [*(_cut_value(member, text, members) for member in value[:members]), *rest]
    if isinstance(value, dict):
        left = {key: _cut_value(member, text, members) for key, member in list(value.items())[:members]}
        return left | ({"…": f"{len(value) - members} more"} if len(value) > members else {})
    return value


def _known_secrets() -> list[str]:
    named = [value for name, value in os.environ.items() if name.startswith(ENVIRONMENT_PREFIX)]
    return [*named, *credential_values(os.environ)]


def run_entry(run: PlanRun) -> dict[str, Any]:
    """Return a run as lists show it."""
    return {
        "run": run.id,
        "plan": run.name,
        "status": run.status,
        "reason": run.reason,
        "message": run.message,
        "progress": run.summary().progress,
        "done": run.summary().text,
        "created_at": run.created_at,
        "completed_at": run.completed_at,
    }


def run_output(state: ApprovalState, *, is_own: bool, is_running: bool, failure: str | None) -> dict[str, Any]:
    """Return a run for the agent: its steps, what it waits for, and what to do next."""
    run = state.run
    return {
        **run_entry(run),
        "inputs": run.inputs,
        "outputs": run.outputs,
        "steps": [_step_output(step) for step in run.steps],
        "gates": [gate_output(gate) for gate in state.gates],
        "next": _next_hint(state, is_own=is_own, is_running=is_running, failure=failure),
    }


def _step_output(step: StepRun) -> dict[str, Any]:
    fields = ("id", "tool_name", "status", "outcome", "result", "error", "reason", "attempts")
    return {name: value for name in fields if (value := getattr(step, name)) is not None}


def _next_hint(state: ApprovalState, *, is_own: bool, is_running: bool, failure: str | None) -> str:
    run = state.run
    if run.completed_at is not None:
        return state.hint() or next_command(run)
    if state.gates:
        then = "; once they have answered, resume_run also works" if is_own else ""
        return f"only a person can answer, tell them: {state.hint()}{then}"
    if is_running or (run.status is PlanStatus.EXECUTING and run.reason is not RunReason.INTERRUPTED):
        return "it is running: show_run shows its progress"
    if failure is not None:
        return f"its process has ended: {failure}"
    return (state.hint() or next_command(run)) + ("; resume_run resumes it" if is_own else "")


def gate_output(gate: Gate) -> dict[str, Any]:
    """Return a gate for the agent: what it asks about, who may answer, and with which command."""
    gate_policy = gate.gate_policy
    return {
        "run": gate.run_id,
        "plan": gate.name,
        "gate": gate_place(gate),
        "asks": {"approval": "for an approval", "question": "a question", "outcome": "for the outcome of a write"}[gate.kind],
        "description": gate.description,
        "approvers": "anyone who reaches the store" if gate_policy.approvers is None else [*gate_policy.approvers],
        "known_by": "in any way" if gate_policy.known_by is None else [*gate_policy.known_by],
        "digest": gate.approval_digest,
        "command": answer_command(gate),
        "opened_at": gate.opened_at,
        "expires_at": gate.expires_at,
    }
