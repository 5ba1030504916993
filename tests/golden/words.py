"""The words that are stored, digested, printed as JSON, or known to Prefect and to other programs."""

from enum import EnumMeta
from typing import Any, get_args

from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.engine import deployments, gate_forms
from plan_adapter.gates import approval
from plan_adapter.local import secrets, settings
from plan_adapter.model import approvals, goals, hooks, options, problems, status
from plan_adapter.runbooks import deploy
from plan_adapter.store.database.tables import metadata
from plan_adapter.store.proof import digests, entries, tombstones
from plan_adapter.tools import registry
from tests.golden import FOLDER

FILE = FOLDER / "words.json"

SOURCES: dict[str, Any] = {
    "status of a run": status.PlanStatus,
    "status of a step": status.StepStatus,
    "why a run ended": status.RunReason,
    "outcome": status.Outcome,
    "decision": approvals.Decision,
    "decision of an agreement": [approvals.AGREE],
    "resolution": approvals.Resolution,
    "operator request": approvals.OperatorRequestKind,
    "kind of gate": approvals.GateKind,
    "end of a gate": approvals.GateEnd,
    "kind of call": options.CallKind,
    "effect": options.Effect,
    "proof of identity": options.KnownBy,
    "type of an input": options.InputType,
    "operation": approval.Operation,
    "event": hooks.EventKind,
    "entry of the audit log": entries.AuditKind,
    "tombstone": tombstones.TombstoneKind,
    "action of a goal": goals.GoalAction,
    "source of evidence": goals.EvidenceSource,
    "verdict": goals.VerdictWord,
    "code of a problem": sorted(problems.CATALOGUE),
    "exit code": ExitCode,
    "setting": sorted(settings.Settings.model_fields),
    "entry point group": [registry.ENTRY_POINT_GROUP, secrets.ENTRY_POINT_GROUP],
    "label in Prefect": [deployments.PLAN_LABEL, deployments.TOOL_LABEL, gate_forms.LABEL_PREFIX, deploy.ENTRYPOINT],
    "table": {table.name: [column.name for column in table.columns] for table in metadata.sorted_tables},
    "erasable text": {table: sorted(columns) for table, columns in digests.ERASABLE.items()},
    "bookkeeping": {table: sorted(columns) for table, columns in digests.BOOKKEEPING.items()},
    "built-in tool": {tool.name: tool.definition() for tool in registry.ToolRegistry.with_builtins()},
}
"""Where the code has each kind of word. This may be moved and renamed; what it holds may only grow."""


def stored_words() -> dict[str, Any]:
    """Return the words by kind."""
    return {kind: _words_of(source) for kind, source in SOURCES.items()}


def _words_of(source: Any) -> Any:
    if isinstance(source, EnumMeta):
        return [member.value for member in source]  # type: ignore[var-annotated]
    if isinstance(source, (list, dict)):
        return source
    return _literals(source)


def _literals(alias: Any) -> list[str]:
    """Return the words of a Literal, or of a union of some."""
    return [word for member in get_args(alias) for word in ([member] if isinstance(member, str) else _literals(member))]


def merged(frozen: Any, found: Any) -> Any:
    """Return the `frozen` words with those of `found` that are new. Frozen words stay as they are, even if they are gone."""
    if isinstance(frozen, dict) and isinstance(found, dict):
        return frozen | {name: merged(frozen[name], words) if name in frozen else words for name, words in found.items()}
    if isinstance(frozen, list) and isinstance(found, list):
        return [*frozen, *(word for word in found if word not in frozen)]
    return frozen
