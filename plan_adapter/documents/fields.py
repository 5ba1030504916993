"""The fields of a document: their accepted spellings, unknown fields, and execution data in documents of the original implementations."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from pydantic import BaseModel, JsonValue
from pydantic.alias_generators import to_camel, to_pascal, to_snake

from plan_adapter.documents.nodes import Node
from plan_adapter.options import ApprovalPolicy, Concurrency, ExecutionOptions, Input, Question, RunWindow
from plan_adapter.plan import ExecutionPlan, Rollback, Step
from plan_adapter.problems import Problem, did_you_mean
from plan_adapter.values import join

_PARTS: Mapping[type[BaseModel], Mapping[str, type[BaseModel]]] = {
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

_SEVERAL = frozenset({"inputs", "fields", "steps", "finally"})
"""The fields that hold a list or mapping of such models."""

_NAMES: Mapping[type[BaseModel], str] = {ExecutionPlan: "a plan", Step: "a step", Input: "an input", Question: "a question"}

_TIMES = ("started_at", "completed_at")
_RUNTIME: Mapping[type[BaseModel], tuple[str, ...]] = {
    ExecutionPlan: (
        *("task_id", "agent_id", "org_id", "tenant_id", "status", "current_step", "total_duration_ms", "created_at", "updated_at", *_TIMES),
        *("user_approved", "approved_at", "approved_by", "rejection_note"),
    ),
    Step: ("index", "status", "result", "error", "duration_ms", "retry_count", *_TIMES),
}
"""Execution data that the original ExecutionPlan implementations keep in a plan. Here it is history only and never trusted."""

_HINTED = 100
"""The most problems that get a hint: finding the nearest name takes time, and nobody reads thousands."""

_NO_TIME = "0001-01-01T00:00:00Z"
"""How Go writes a time that was never set."""


@dataclass(slots=True)
class Fields:
    """Renames the fields of a document's tree to the model's spelling, in place. Collects problems and history."""

    problems: list[Problem] = field(default_factory=list[Problem])
    history: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    step_histories: dict[int, dict[str, JsonValue]] = field(default_factory=dict[int, dict[str, JsonValue]])

    def settle(self, root: Node) -> None:
        """Rename the fields of the plan at `root`."""
        self.history.update(self._settle(root, ExecutionPlan, ""))

    def _settle(self, node: Node, model: type[BaseModel], at: str) -> dict[str, JsonValue]:
        """Rename the fields of `node`, remove those that the model lacks, and return the ones that are history."""
        if not isinstance(node.value, dict):
            return {}
        history: dict[str, JsonValue] = {}
        settled: dict[str, Node] = {}
        spelled: dict[str, str] = {}
        for key, entry in node.value.items():
            name = _spellings(model).get(key)
            if name is None:
                self._unknown(key, entry, model, at)
            elif name in spelled:
                message = f"`{spelled[name]}` and `{key}` are the same field"
                self._report("duplicate-key", entry, join(at, key), message, "remove one of them")
            else:
                spelled[name] = key
                if name in _RUNTIME.get(model, ()):
                    history.update(_said(name, entry))
                elif not _is_left_out(model, name, entry):
                    settled[name] = entry
        node.value = settled
        for name, part in _PARTS.get(model, {}).items():
            if name in settled:
                self._settle_parts(settled[name], name, part, join(at, name))
        return history

    def _settle_parts(self, node: Node, name: str, model: type[BaseModel], at: str) -> None:
        if name not in _SEVERAL:
            self._settle(node, model, at)
            return
        for key, part in _members(node):
            history = self._settle(part, model, join(at, key))
            if history and at == "steps" and isinstance(key, int):
                self.step_histories[key] = history

    def _unknown(self, key: str, entry: Node, model: type[BaseModel], at: str) -> None:
        if key == "$schema" and model is ExecutionPlan:  # for editors
            return
        known = {name for name in _spellings(model).values() if name not in _RUNTIME.get(model, ())}
        owner = _NAMES.get(model) or f"`{at}`"
        hint = did_you_mean(to_snake(key[:60]), known) if len(self.problems) < _HINTED else ""
        self._report("unknown-field", entry, join(at, key), f"{owner} has no field `{key[:60]}`", hint)

    def _report(self, code: str, entry: Node, at: str, message: str, hint: str) -> None:
        self.problems.append(Problem(code, at=at, line=entry.line, column=entry.column, message=message, hint=hint))


def _members(node: Node) -> Iterator[tuple[str | int, Node]]:
    if isinstance(node.value, dict):
        yield from node.value.items()
    elif isinstance(node.value, list):
        yield from enumerate(node.value)


def _said(name: str, entry: Node) -> dict[str, JsonValue]:
    value = entry.plain()
    return {} if value in (None, "", _NO_TIME) else {name: value}


def _is_left_out(model: type[BaseModel], name: str, entry: Node) -> bool:
    """Return whether the entry counts as absent: null for a list, mapping or model (Go's nil), or an empty id."""
    if entry.value is None:
        return name in _containers(model)
    return name == "id" and entry.value == ""


@cache
def _containers(model: type[BaseModel]) -> frozenset[str]:
    fields = model.model_fields.items()
    return frozenset(info.alias or name for name, info in fields if info.default_factory in (dict, list, ExecutionOptions))


@cache
def _spellings(model: type[BaseModel]) -> dict[str, str]:
    """Map every accepted spelling of every field to its name: `tool_name`, `toolName`, `ToolName`; `ID` as in Go."""
    names = [*(info.alias or name for name, info in model.model_fields.items()), *_RUNTIME.get(model, ())]
    return {spelling: name for name in names for spelling in _spell(name)}


def _spell(name: str) -> Iterator[str]:
    for spelling in (name, to_camel(name), to_pascal(name)):
        yield spelling
        yield re.sub("Id$", "ID", spelling)
