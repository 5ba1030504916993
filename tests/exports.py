"""Exported runs in tests."""

import json
from typing import Any

from plan_adapter.store.proof import audit, entries
from plan_adapter.store.proof.export import FORMAT, LISTS


def document_of(text: str) -> dict[str, Any]:
    """Return the document in the lines that `plan export` wrote, as `PlanStore.export` returns it."""
    header, *rows = map(json.loads, text.removesuffix("\n").split("\n"))
    document: dict[str, Any] = {**header, "format": FORMAT, **{table: [] for table in LISTS}}
    for row in rows:
        document[row["table"]].append(row["row"])
    return document


def rebuild_audit_log(document: dict[str, Any]) -> None:
    """Rebuild the audit log after a change of the first approval, as someone with write access to everything could."""
    approval = document["approvals"][0]
    before = audit.genesis_digest(document["run"])
    for entry in document["audit"]:
        if entry["row_id"] == approval["id"]:
            rebuilt = entries.of_use(approval) if entry["kind"] == "approval_used" else entries.of_approval(approval)
            entry |= {name: getattr(rebuilt, name) for name in ("kind", "by", "known_by", "message", "row_digest")}
        entry["digest"] = before = audit.entry_digest(entry, before)
    document["head"] = before
