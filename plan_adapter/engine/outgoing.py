"""The one exit for text to Prefect: every name, message, log line, label, event, description and artifact passes through here.

Text of plans, tools, models and people is untrusted. Prefect's pages show some of it as it is and render the rest as Markdown. In neither
may it hide or move what stands around it, or make links, pictures or HTML. Values, such as the parameters of a flow run, are no text.

`log_writer`, `emit_gate_event` and `publish_text` send log lines, the events of gates and artifacts.

The fields of forms are described in `validation/inputs.py` (`form_schema`), the text of gates in `text/`.
"""

import hashlib
import logging
import re
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast
from uuid import NAMESPACE_OID, UUID, uuid5

from prefect.artifacts import acreate_markdown_artifact
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.logging.loggers import flow_run_logger
from pydantic import JsonValue

from plan_adapter.gates.gate import GateEventKind
from plan_adapter.model.approvals import Approval, Gate
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.readable import MAX_NAME_CHARACTERS, call_name, cut, item_number, one_line, prose, safe_name, visible
from plan_adapter.model.record import PlanRun
from plan_adapter.text.commands import answer_command
from plan_adapter.text.gate_text import first_screen_lines
from plan_adapter.text.run_facts import RunFacts

log = logging.getLogger(__name__)

MAX_MESSAGE_CHARACTERS = 2000
MAX_LABEL_CHARACTERS = 1000
MAX_ARTIFACT_CHARACTERS = 1_000_000
MAX_NOTE_CHARACTERS = 500
MAX_TITLE_CHARACTERS = 200


def state_message(text: str) -> str:
    """Return the message of a state, shown as it is: visible, and cut at 2,000 characters."""
    shown = visible(text)
    return shown if len(shown) <= MAX_MESSAGE_CHARACTERS else cut(shown, MAX_MESSAGE_CHARACTERS - 1) + "…"


def log_line(text: str) -> str:
    """Return a line of a log."""
    return visible(text)


def log_text(record: logging.LogRecord) -> str:
    """Return the message of `record`, followed by its traceback if it has one."""
    error = record.exc_info[1] if record.exc_info else None
    return visible("\n".join([record.getMessage(), *([] if error is None else ["".join(traceback.format_exception(error)).rstrip()])]))


def label(text: str) -> str:
    """Return the value of a label."""
    return cut(one_line(text), MAX_LABEL_CHARACTERS)


def run_name(text: str) -> str:
    """Return the name of a flow run or task run, on one line."""
    return cut(one_line(text), MAX_NAME_CHARACTERS)


def paragraphs(text: str) -> str:
    """Return `text` as the Markdown paragraphs of a description."""
    return "\n\n".join(prose(paragraph) for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip())


def markdown(text: str) -> str:
    """Return a Markdown document for an artifact, whose writer has escaped the texts in it: visible, and cut if it is too long."""
    shown = visible(text)
    if len(shown) <= MAX_ARTIFACT_CHARACTERS:
        return shown
    return cut(shown, MAX_ARTIFACT_CHARACTERS) + "\n\n… cut here; `plan show` has all of it."


def event_payload(value: Any) -> Any:
    """Return the payload or a resource of an event, with every text in it visible."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(name): event_payload(member) for name, member in cast("dict[str, Any]", value).items()}
    return [event_payload(member) for member in cast("list[Any]", value)] if isinstance(value, list | tuple) else value


MAX_KEY_CHARACTERS = 200


def artifact_key(name: str) -> str:
    """Return `name` as a Prefect key: lowercase letters, digits and dashes, plus a digest of `name` if that loses anything."""
    key = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if key == name and len(key) <= MAX_KEY_CHARACTERS:
        return key
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{key[: MAX_KEY_CHARACTERS - 13].rstrip('-')}-{digest}".lstrip("-")


LogWriter: TypeAlias = Callable[[str], None]
"""Writes a line to the log of a flow run."""


def log_writer(flow: FlowRunContext) -> LogWriter:
    """Return a function that writes to the log of this flow run from any context."""
    logger = flow_run_logger(flow_run=flow.flow_run, flow=flow.flow)
    return lambda message: logger.info("%s", log_line(message))


def emit_gate_event(
    kind: GateEventKind, gate: Gate, run: PlanRun, *, link: str | None, message: str | None = None, approval: Approval | None = None
) -> None:
    """Send the event `plan.gate.<kind>` to Prefect. Never blocks or raises. `approval` is the answer, if there is one.

    A gate escalates once, so that event has the same id wherever it comes from, and Prefect keeps one.
    """
    try:
        related = [{"prefect.resource.id": f"plan.run.{run.id}", "prefect.resource.role": "plan-run"}]
        if flow_run_id := gate.flow_run_id or run.flow_run_id:
            related.append({"prefect.resource.id": f"prefect.flow-run.{flow_run_id}", "prefect.resource.role": "flow-run"})
        emit_event(
            f"plan.gate.{kind}",
            resource=event_payload({"prefect.resource.id": f"plan.gate.{gate.id}", "prefect.resource.name": _gate_title(gate)}),
            related=related,
            id=uuid5(NAMESPACE_OID, f"plan.gate.{gate.id}/{kind}") if kind == "escalated" else None,
            payload=event_payload(
                {
                    "link": link,
                    "plan": one_line(gate.name),
                    "asks": gate.kind,
                    "requested_by": None if run.requested_by is None else one_line(run.requested_by),
                    "first_screen": [] if kind == "answered" else first_screen_lines(gate.text)[:MAX_SCREEN_LINES],
                    "step": gate.step_id,
                    "call_kind": gate.call_kind,
                    "item": item_number(gate.item),
                    "label": gate.label,
                    "run_id": run.id,
                    "age_seconds": round(max(0.0, ((gate.closed_at or datetime.now(UTC)) - gate.opened_at).total_seconds())),
                    "digest": gate.approval_digest,
                    "command": answer_command(gate) if gate.closed_at is None else None,
                    "expires_at": None if gate.expires_at is None else gate.expires_at.isoformat(),
                    "message": None if message is None else one_line(message)[:MAX_NOTE_CHARACTERS],
                    "decision": None if approval is None else approval.decision,
                    "by": None if approval is None else one_line(" and ".join(approval.people)),
                    "known_by": None if approval is None else approval.known_by,
                    "note": None if approval is None else one_line(approval.note)[:MAX_NOTE_CHARACTERS],
                }
            ),
        )
    except Exception as error:
        log.warning("the event plan.gate.%s of gate %s was not sent: %s", kind, gate.id, error)


MAX_CALLS = 5
"""How many calls an event names for each kind of what a run left behind."""


def emit_run_event(run: PlanRun, facts: RunFacts, *, link: str | None) -> None:
    """Send the event `plan.run.<outcome>` to Prefect, such as `plan.run.failed` or `plan.run.unknown_outcome`. Never blocks or raises."""
    if run.outcome is None:
        return
    try:
        emit_event(
            f"plan.run.{run.outcome.name.lower()}",
            resource=event_payload({"prefect.resource.id": f"plan.run.{run.id}", "prefect.resource.name": one_line(run.name)}),
            related=[{"prefect.resource.id": f"prefect.flow-run.{run.flow_run_id}", "prefect.resource.role": "flow-run"}],
            payload=event_payload(
                {
                    "link": link,
                    "plan": one_line(run.name),
                    "run_id": run.id,
                    "outcome": run.outcome_text,
                    "cause": None if facts.cause is None else facts.cause[:MAX_NOTE_CHARACTERS],
                    "left_behind": [left.text(MAX_CALLS) for left in facts.left_behind],
                    "requested_by": run.requested_by,
                    "duration_ms": run.total_duration_ms,
                    "command": f"plan show {run.id}",
                }
            ),
        )
    except Exception as error:
        log.warning("the event about the end of run %s was not sent: %s", run.id, error)


def emit_trigger_refused(plan: ExecutionPlan, number: int | None, event: Mapping[str, JsonValue], reason: str, *, flow_run_id: str) -> None:
    """Send the event `plan.trigger.refused` to Prefect: an event started no run, for this reason. Never blocks or raises."""
    try:
        emit_event(
            "plan.trigger.refused",
            resource=event_payload(
                {"prefect.resource.id": f"plan.trigger.{safe_name(plan.name)}", "prefect.resource.name": one_line(plan.name)}
            ),
            related=[{"prefect.resource.id": f"prefect.flow-run.{flow_run_id}", "prefect.resource.role": "flow-run"}],
            payload=event_payload(
                {
                    "plan": one_line(plan.name),
                    "trigger": number,
                    "event": event.get("name"),
                    "event_id": event.get("id"),
                    "reason": cut(reason, MAX_MESSAGE_CHARACTERS),
                }
            ),
        )
    except Exception as error:
        log.warning("the event about a refused trigger of %s was not sent: %s", one_line(plan.name), error)


MAX_SCREEN_LINES = 20
"""How many lines of a gate an event has."""


async def publish_text(text: str, *, key: str, description: str) -> UUID | None:
    """Publish Markdown `text`, with a plain `description`, as an artifact of the current flow run. Return its id.

    If that fails, log a warning and return None.
    """
    try:
        return await acreate_markdown_artifact(markdown(text), key=artifact_key(key), description=paragraphs(description))
    except Exception as error:
        log.warning("the artifact %s was not written: %s", artifact_key(key), error)
        return None


def _gate_title(gate: Gate) -> str:
    call = f": {call_name(gate.step_id, gate.item, gate.label, kind=gate.call_kind)}" if gate.step_id is not None else ""
    return f"{one_line(gate.name)}{call}"[:MAX_TITLE_CHARACTERS]
