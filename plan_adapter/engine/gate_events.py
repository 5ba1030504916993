"""What happens at gates as Prefect events, for its automations, and what is asked as a Markdown artifact."""

import hashlib
import logging
import re
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from prefect.artifacts import acreate_markdown_artifact
from prefect.events import emit_event

from plan_adapter.execution.standing import answer_command
from plan_adapter.readable import call_name, one_line
from plan_adapter.record import Approval, Gate, PlanRun

log = logging.getLogger(__name__)

GateEvent: TypeAlias = Literal["opened", "answered", "expired", "reminder"]

MAX_NOTE_CHARACTERS = 500
MAX_KEY_CHARACTERS = 200
MAX_ARTIFACT_CHARACTERS = 1_000_000


def emit(
    kind: GateEvent, gate: Gate, run: PlanRun, *, link: str | None, message: str | None = None, approval: Approval | None = None
) -> None:
    """Send the event `plan.gate.<kind>` to Prefect; never blocks or raises. `approval` is the answer, where there is one."""
    try:
        related = [{"prefect.resource.id": f"plan.run.{run.id}", "prefect.resource.role": "plan-run"}]
        if flow_run_id := gate.flow_run_id or run.flow_run_id:
            related.append({"prefect.resource.id": f"prefect.flow-run.{flow_run_id}", "prefect.resource.role": "flow-run"})
        emit_event(
            f"plan.gate.{kind}",
            resource={"prefect.resource.id": f"plan.gate.{gate.id}", "prefect.resource.name": _title(gate)},
            related=related,
            payload={
                "link": link,
                "plan": one_line(gate.name),
                "asks": gate.kind,
                "step": gate.step_id,
                "item": gate.item,
                "label": gate.label,
                "run_id": run.id,
                "age_seconds": round(max(0.0, ((gate.closed_at or datetime.now(UTC)) - gate.opened_at).total_seconds())),
                "digest": gate.approval_digest,
                "command": answer_command(gate) if gate.closed_at is None else None,
                "expires_at": None if gate.expires_at is None else gate.expires_at.isoformat(),
                "message": None if message is None else one_line(message)[:MAX_NOTE_CHARACTERS],
                "decision": None if approval is None else approval.decision,
                "by": None if approval is None else one_line(approval.by),
                "known_by": None if approval is None else approval.known_by,
                "note": None if approval is None else one_line(approval.note)[:MAX_NOTE_CHARACTERS],
            },
        )
    except Exception as error:
        log.warning("the event plan.gate.%s of gate %s was not sent: %s", kind, gate.id, error)


async def publish_text(text: str, *, key: str, description: str) -> None:
    """Keep `text`, Markdown, as an artifact of the current flow run; a server that does not take it is only logged."""
    if len(text) > MAX_ARTIFACT_CHARACTERS:
        text = text[:MAX_ARTIFACT_CHARACTERS] + "\n\n… cut here; `plan show` has all of it."
    try:
        await acreate_markdown_artifact(text, key=key_of(key), description=description)
    except Exception as error:
        log.warning("the artifact %s was not written: %s", key_of(key), error)


def key_of(name: str) -> str:
    """Return `name` as Prefect wants keys: lower-case letters, digits, dashes; with a digest of it where that loses anything."""
    key = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if key == name and len(key) <= MAX_KEY_CHARACTERS:
        return key
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{key[: MAX_KEY_CHARACTERS - 13].rstrip('-')}-{digest}".lstrip("-")


def _title(gate: Gate) -> str:
    call = f": {call_name(gate.step_id, gate.item, gate.label)}" if gate.step_id is not None else ""
    return f"{one_line(gate.name)}{call}"[:MAX_KEY_CHARACTERS]
