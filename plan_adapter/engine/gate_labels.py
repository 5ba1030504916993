"""The labels by which Prefect's API alone tells what a paused flow run asks."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plan_adapter.readable import one_line
from plan_adapter.record import ApprovalRequest, GateKind

PREFIX = "plan_adapter."
MAX_LABEL_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class GateLabels:
    """What the labels of a flow run say of the gate whose form it shows; written by whoever may use Prefect's API: untrusted."""

    gate_id: str
    run_id: str
    step_id: str | None
    item: int | None
    name: str  # of the plan
    approval_digest: str
    opened_at: datetime | None
    expires_at: datetime | None
    known_by: tuple[str, ...] | None  # None: in any way
    keyset: str
    refused: str | None  # why the answer before was not taken
    kind: GateKind
    label: str | None  # what the item is called, where not by its number


def labels_of(request: ApprovalRequest, keyset: str, refused: str | None) -> dict[str, str | int | float | bool]:
    """Return the labels of a flow run that shows the form of `request` under `keyset`; an empty text stands for None."""
    labels = {
        "gate": request.gate_id,
        "run": request.run_id,
        "step": request.step_id,
        "item": None if request.item is None else str(request.item),
        "name": request.name,
        "digest": request.approval_digest,
        "opened_at": _iso(request.opened_at),
        "expires_at": _iso(request.expires_at),
        "known_by": None if request.rules.known_by is None else ",".join(request.rules.known_by),
        "keyset": keyset,
        "refused": refused,
        "kind": request.kind,
        "label": request.label,
    }
    # Prefect merges labels: what does not hold any more must be written over.
    return {PREFIX + name: (value or "")[:MAX_LABEL_CHARACTERS] for name, value in labels.items()}


def read_labels(labels: Mapping[str, Any]) -> GateLabels | None:
    """Return what `labels` say of a gate, None if they are not such labels."""
    texts = {name.removeprefix(PREFIX): str(value) for name, value in labels.items() if name.startswith(PREFIX)}
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
            opened_at=_moment(texts.get("opened_at")),
            expires_at=_moment(texts.get("expires_at")),
            known_by=tuple(texts["known_by"].split(",")) if texts.get("known_by") else None,
            keyset=texts["keyset"],
            refused=texts.get("refused") or None,
            kind="outcome" if texts.get("kind") == "outcome" else "approval",
            label=one_line(texts["label"]) if texts.get("label") else None,
        )
    except ValueError:
        return None


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
