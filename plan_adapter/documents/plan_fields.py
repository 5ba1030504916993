"""The fields of a document: their accepted spellings, unknown fields, and execution data in documents of the original implementations."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from pydantic import BaseModel, JsonValue
from pydantic.alias_generators import to_camel, to_pascal, to_snake

from plan_adapter.documents.nodes import Node
from plan_adapter.model.options import ApprovalPolicy, Concurrency, ExecutionOptions, Input, Question, RunWindow
from plan_adapter.model.plan import ExecutionPlan, Rollback, Step
from plan_adapter.model.problems import Problem, did_you_mean
from plan_adapter.model.values import join

_NESTED_MODELS: Mapping[type[BaseModel], Mapping[str, type[BaseModel]]] = {
    ExecutionPlan: {
        "inputs": Input,
        "options": ExecutionOptions,
        "steps": Step,
        "finally": Step,
        "concurrency": Concurrency,
        "approval": ApprovalPolicy,
    },
    ExecutionOptions: {"run_window": RunWindow},
    Step: {"ask": Question, "rollback": Rollback, "steps": Step, "pinned": ExecutionPlan},
    Question: {"fields": Input},
}
"""The fields with models of their own. The content of any other field is the author's."""

_COLLECTION_FIELDS = frozenset({"inputs", "fields", "steps", "finally"})
"""The fields that hold a list or mapping of such models."""

_MODEL_NAMES: Mapping[type[BaseModel], str] = {ExecutionPlan: "a plan", Step: "a step", Input: "an input", Question: "a question"}

_TIMES = ("started_at", "completed_at")
_EXECUTION_FIELDS: Mapping[type[BaseModel], tuple[str, ...]] = {
    ExecutionPlan: (
        *("task_id", "agent_id", "org_id", "tenant_id", "status", "current_step", "total_duration_ms", "created_at", "updated_at", *_TIMES),
        *("user_approved", "approved_at", "approved_by", "rejection_note"),
    ),
    Step: ("index", "status", "result", "error", "duration_ms", "retry_count", *_TIMES),
}
"""Execution data that the original ExecutionPlan implementations keep in a plan. Here it is history only and never trusted."""

_MAX_HINTS = 100
"""The most problems that get a hint: finding the nearest name takes time, and nobody reads thousands."""

_GO_ZERO_TIME = "0001-01-01T00:00:00Z"
"""How Go writes a time that was never set."""


@dataclass(slots=True)
class Fields:
    """Renames the fields of a document's tree to the model's spelling, in place. Collects problems and history."""

    problems: list[Problem] = field(default_factory=list[Problem])
    history: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    step_histories: dict[int, dict[str, JsonValue]] = field(default_factory=dict[int, dict[str, JsonValue]])

    def rename(self, root: Node) -> None:
        """Rename the fields of the plan at `root`."""
        self.history.update(self._rename(root, ExecutionPlan, ""))

    def _rename(self, node: Node, model: type[BaseModel], at: str) -> dict[str, JsonValue]:
        """Rename the fields of `node`, remove those that the model lacks, and return the ones that are history."""
        if not isinstance(node.value, dict):
            return {}
        history: dict[str, JsonValue] = {}
        renamed: dict[str, Node] = {}
        spelled: dict[str, str] = {}
        for key, entry in node.value.items():
            name = _spellings(model).get(key)
            if name is None:
                self._report_unknown(key, entry, model, at)
            elif name in spelled:
                message = f"`{spelled[name]}` and `{key}` are the same field"
                self._report("duplicate-key", entry, join(at, key), message, "remove one of them")
            else:
                spelled[name] = key
                if name in _EXECUTION_FIELDS.get(model, ()):
                    history.update(_history_entry(name, entry))
                elif not _is_absent(model, name, entry):
                    renamed[name] = entry
        node.value = renamed
        for name, part in _NESTED_MODELS.get(model, {}).items():
            if name in renamed:
                self._rename_nested(renamed[name], name, part, join(at, name))
        return history

    def _rename_nested(self, node: Node, name: str, model: type[BaseModel], at: str) -> None:
        if name not in _COLLECTION_FIELDS:
            self._rename(node, model, at)
            return
        for key, part in _members(node):
            history = self._rename(part, model, join(at, key))
            if history and at == "steps" and isinstance(key, int):
                self.step_histories[key] = history

    def _report_unknown(self, key: str, entry: Node, model: type[BaseModel], at: str) -> None:
        if key == "$schema" and model is ExecutionPlan:  # for editors
            return
        known = {name for name in _spellings(model).values() if name not in _EXECUTION_FIELDS.get(model, ())}
        owner = _MODEL_NAMES.get(model) or f"`{at}`"
        hint = did_you_mean(to_snake(key[:60]), known) if len(self.problems) < _MAX_HINTS else ""
        self._report("unknown-field", entry, join(at, key), f"{owner} has no field `{key[:60]}`", hint)

    def _report(self, code: str, entry: Node, at: str, message: str, hint: str) -> None:
        self.problems.append(Problem(code, at=at, line=entry.line, column=entry.column, message=message, hint=hint))


def _members(node: Node) -> Iterator[tuple[str | int, Node]]:
    if isinstance(node.value, dict):
        yield from node.value.items()
    elif isinstance(node.value, list):
        yield from enumerate(node.value)


def _history_entry(name: str, entry: Node) -> dict[str, JsonValue]:
    value = entry.plain()
    return {} if value in (None, "", _GO_ZERO_TIME) else {name: value}


def _is_absent(model: type[BaseModel], name: str, entry: Node) -> bool:
    """Return whether the entry counts as absent: null for a list, mapping or model (Go's nil), or an empty id."""
    if entry.value is None:
        return name in _container_fields(model)
    return name == "id" and entry.value == ""


@cache
def _container_fields(model: type[BaseModel]) -> frozenset[str]:
    fields = model.model_fields.items()
    return frozenset(info.alias or name for name, info in fields if info.default_factory in (dict, list, ExecutionOptions))


@cache
def _spellings(model: type[BaseModel]) -> dict[str, str]:
    """Map every accepted spelling of every field to its name: `tool_name`, `toolName`, `ToolName`; `ID` as in Go."""
    names = [*(info.alias or name for name, info in model.model_fields.items()), *_EXECUTION_FIELDS.get(model, ())]
    return {spelling: name for name in names for spelling in _spellings_of_name(name)}


def _spellings_of_name(name: str) -> Iterator[str]:
    for spelling in (name, to_camel(name), to_pascal(name)):
        yield spelling
        yield re.sub("Id$", "ID", spelling)
