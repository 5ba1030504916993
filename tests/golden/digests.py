"""The golden plans: the digests that are computed from a plan document."""

import json
from typing import Any

from plan_adapter import documents
from plan_adapter.model.canonical import approval_digest, arguments_digest, call_digest, runbook_digest
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import validate
from tests.golden import FOLDER, tools

FILE = FOLDER / "plans.jsonl"
FOLDER_OF_RUN = {"path": "/srv/a", "commit": "c" * 40}
PARAMETERS: dict[str, Any] = {"text": "文本\n", "n": 1.5, "list": [None, True, {"深": -0.0}]}


def golden_plans() -> list[dict[str, Any]]:
    """Return the lines of `plans.jsonl`: a name, a document and its digests."""
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def digests_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return every digest that is computed from a plan, and the plan as it is written."""
    plan, problems = documents.read_document(json.dumps(document))
    assert plan is not None
    assert not problems
    validated = validate(plan, ToolRegistry.with_builtins(tools.registry))
    inputs = dict.fromkeys(plan.inputs, "值")
    calls = {
        step_id: call_digest(validated.steps[step_id], item, PARAMETERS, tool.definition(), FOLDER_OF_RUN if item % 2 else None)
        for item, (step_id, tool) in enumerate(sorted(validated.tools.items()))
    }
    return {
        "plan": validated.digest,
        "approval": approval_digest(validated.digest, inputs, validated.definitions),
        "approval in a folder": approval_digest(validated.digest, inputs, validated.definitions, FOLDER_OF_RUN),
        "approval with permissions": approval_digest(validated.digest, inputs, validated.definitions, permissions={"": ["b"], "a.b": []}),
        "runbook": runbook_digest(validated.digest, validated.definitions),
        "calls": calls,
        "arguments": arguments_digest("do", PARAMETERS),
        "document": plan.to_document(),
    }
