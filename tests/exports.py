"""Exported runs in tests."""

import json
from typing import Any

from plan_adapter.store.proof.export import FORMAT, LISTS


def document_of(text: str) -> dict[str, Any]:
    """Return the document in the lines that `plan export` wrote, as `PlanStore.export` returns it."""
    header, *rows = map(json.loads, text.removesuffix("\n").split("\n"))
    document: dict[str, Any] = {**header, "format": FORMAT, **{table: [] for table in LISTS}}
    for row in rows:
        document[row["table"]].append(row["row"])
    return document
