"""What Prefect shows about gates besides their forms: labels, log lines, events and artifacts."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, get_args

from prefect.artifacts import acreate_markdown_artifact
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.logging.loggers import flow_run_logger

from plan_adapter.engine.outgoing import artifact_key, event_payload, label, log_line, markdown, paragraphs
from plan_adapter.model.approvals import Approval, ApprovalRequest, Gate, GateKind
from plan_adapter.model.options import CallKind
from plan_adapter.model.readable import call_name, item_number, one_line
from plan_adapter.model.record import PlanRun
from plan_adapter.text.commands import answer_command

MAX_REASON_CHARACTERS = 500

LogWriter: TypeAlias = Callable[[str], None]
"""Writes a line to the log of a flow run."""


def log_writer(flow: FlowRunContext) -> LogWriter:
    """Return a function that writes to the log of this flow run from any context."""
    logger = flow_run_logger(flow_run=flow.flow_run, flow=flow.flow)
    return lambda message: logger.info("%s", log_line(message))


def called_step(request: ApprovalRequest) -> str:
    """Return the name of the step, and of its item, that the request is about."""
    return call_name(str(request.step_id), request.item, request.label, kind=request.call_kind)


_UI_INSTRUCTION = "answer with the button Resume (in Prefect's newer UI: in the menu ⋮)"
"""Where each of Prefect's UIs has the button on the flow run's page."""


def waiting_message(request: ApprovalRequest) -> str:
    """Return a sentence that says that the gate of `request` is open and how to answer it."""
    command = answer_command(request)
    if request.kind == "outcome":
        return f"asks how {called_step(request)} ended; its outcome is unknown: {_UI_INSTRUCTION}, or with `{command}`"
    until = "" if request.expires_at is None else f", until {request.expires_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    what = "an answer to a question" if request.kind == "question" else "an approval"
    return f"waits for {what}{until}: {_UI_INSTRUCTION}, or with `{command}`"


def lost_form_message(request: ApprovalRequest) -> str:
    """Return a sentence that says how to answer the gate of `request`, whose form Prefect does not keep."""
    return f"Prefect does not keep the form of this gate, so it cannot be answered on its page: `{answer_command(request)}` answers it"


LABEL_PREFIX = "plan_adapter."


@dataclass(frozen=True, slots=True)
class GateLabels:
    """The labels of a flow run that shows a gate's form. Anyone with access to Prefect's API can write them: untrusted."""

    gate_id: str
    run_id: str
    step_id: str | None
    item: int | None
    name: str  # of the plan
    approval_digest: str
    opened_at: datetime | None
    expires_at: datetime | None
    known_by: tuple[str, ...] | None  # None: any proof
    keyset: str
    refused: str | None  # why the last answer was refused
    kind: GateKind
    label: str | None  # the item's label, None if it is known by number
    call_kind: CallKind
    is_lost: bool  # Prefect does not keep the form


def form_labels(
    request: ApprovalRequest, keyset: str, refused: str | None, *, is_lost: bool = False
) -> dict[str, str | int | float | bool]:
    """Return the labels of a flow run that shows the form of `request` under `keyset`. An empty text means None or False."""
    labels = {
        "gate": request.gate_id,
        "run": request.run_id,
        "step": request.step_id,
        "item": None if request.item is None else str(request.item),
        "name": request.name,
        "digest": request.approval_digest,
        "opened_at": _format_time(request.opened_at),
        "expires_at": _format_time(request.expires_at),
        "known_by": None if request.gate_policy.known_by is None else ",".join(request.gate_policy.known_by),
        "keyset": keyset,
        "refused": refused,
        "kind": request.kind,
        "label": request.label,
        "call_kind": request.call_kind,
        "lost": "yes" if is_lost else None,
    }
    # Prefect merges labels, so outdated ones must be overwritten.
    return {LABEL_PREFIX + name: label(value or "") for name, value in labels.items()}


def read_labels(labels: Mapping[str, Any]) -> GateLabels | None:
    """Return the gate that `labels` describe, or None if they describe none."""
    texts = {name.removeprefix(LABEL_PREFIX): str(value) for name, value in labels.items() if name.startswith(LABEL_PREFIX)}
    if not (texts.get("gate") and texts.get("run") and texts.get("keyset")):
        return None
    try:
        return GateLabels(
            gate_id=texts["gate"],
            run_id=texts["run"],
            step_id=texts.get("step") or None,
            item=int(texts["item"]) if texts.get("item") else None,
            name=texts.get("name", ""),
            approval_digest=texts.get("digest", ""),
            opened_at=_parse_time(texts.get("opened_at")),
            expires_at=_parse_time(texts.get("expires_at")),
            known_by=tuple(texts["known_by"].split(",")) if texts.get("known_by") else None,
            keyset=texts["keyset"],
            refused=texts.get("refused") or None,
            kind=_KINDS.get(texts.get("kind", ""), "approval"),
            label=one_line(texts["label"]) if texts.get("label") else None,
            call_kind="rollback" if texts.get("call_kind") == "rollback" else "step",
            is_lost=bool(texts.get("lost")),
        )
    except ValueError:
        return None


_KINDS: dict[str, GateKind] = {kind: kind for kind in get_args(GateKind)}


def _format_time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


log = logging.getLogger(__name__)

GateEvent: TypeAlias = Literal["opened", "answered", "expired", "reminder"]

MAX_NOTE_CHARACTERS = 500
MAX_TITLE_CHARACTERS = 200


def emit_gate_event(
    kind: GateEvent, gate: Gate, run: PlanRun, *, link: str | None, message: str | None = None, approval: Approval | None = None
) -> None:
    """Send the event `plan.gate.<kind>` to Prefect. Never blocks or raises. `approval` is the answer, if there is one."""
    try:
        related = [{"prefect.resource.id": f"plan.run.{run.id}", "prefect.resource.role": "plan-run"}]
        if flow_run_id := gate.flow_run_id or run.flow_run_id:
            related.append({"prefect.resource.id": f"prefect.flow-run.{flow_run_id}", "prefect.resource.role": "flow-run"})
        emit_event(
            f"plan.gate.{kind}",
            resource=event_payload({"prefect.resource.id": f"plan.gate.{gate.id}", "prefect.resource.name": _gate_title(gate)}),
            related=related,
            payload=event_payload(
                {
                    "link": link,
                    "plan": one_line(gate.name),
                    "asks": gate.kind,
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
                    "by": None if approval is None else one_line(approval.by),
                    "known_by": None if approval is None else approval.known_by,
                    "note": None if approval is None else one_line(approval.note)[:MAX_NOTE_CHARACTERS],
                }
            ),
        )
    except Exception as error:
        log.warning("the event plan.gate.%s of gate %s was not sent: %s", kind, gate.id, error)


async def publish_text(text: str, *, key: str, description: str) -> None:
    """Publish Markdown `text`, with a plain `description`, as an artifact of the current flow run. If that fails, log a warning."""
    try:
        await acreate_markdown_artifact(markdown(text), key=artifact_key(key), description=paragraphs(description))
    except Exception as error:
        log.warning("the artifact %s was not written: %s", artifact_key(key), error)


def _gate_title(gate: Gate) -> str:
    call = f": {call_name(gate.step_id, gate.item, gate.label, kind=gate.call_kind)}" if gate.step_id is not None else ""
    return f"{one_line(gate.name)}{call}"[:MAX_TITLE_CHARACTERS]
