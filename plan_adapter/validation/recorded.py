"""`recall`: a recorded plan whose tools are as they were, without checking again what was checked when its run was made."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from pydantic import JsonValue

from plan_adapter.canonical import approval_digest
from plan_adapter.graph import topological_order, transitive_reduction
from plan_adapter.record import RunFolder
from plan_adapter.stored_plan import StepDocument, StoredPlan, dependencies_in
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation.calls import Call, declarations, recorded_call
from plan_adapter.validation.findings import Findings
from plan_adapter.validation.validated import BoundPlan, ValidatedPlan, compiled_outputs, refuse

T = TypeVar("T")


def recall(
    plan: StoredPlan, inputs: dict[str, JsonValue], tools: ToolRegistry, *, digest: str, approved: str, folder: RunFolder | None = None
) -> BoundPlan | None:
    """Return the plan of a run with its inputs as they were bound when the digest of what is `approved` was made.

    `folder` is the one that the run was moved to, if it was.

    None where it is not the digest of the plan, the inputs and the tools as they are now, or where what its steps wait for is not known.
    Else all that was checked would be found to be so again: a step, and its expressions, are made when somebody asks for them, which of
    most steps of a long run nobody does.
    """
    stored, shape = plan.stored, plan.shape
    documents = stored.documents
    having = _those_having(("when", "for_each", "label", "done_when", "rollback"), documents)
    names = {document["tool_name"] for document in documents}
    names |= {document["rollback"]["tool_name"] for document in having["rollback"].values()}
    called = {name: tools.get(name) for name in names}
    used = {name: tool for name, tool in sorted(called.items()) if tool is not None}
    definitions = tuple(tool.definition() for tool in used.values())
    if shape is None or len(used) < len(called):
        return None
    if approval_digest(digest, inputs, definitions, None if folder is None else folder.content) != approved:
        return None
    dependencies = dependencies_in(documents, shape.implied)
    order = list(dependencies) if shape.is_in_order else topological_order(dependencies)
    calls, findings = _Calls(plan, tools), Findings()
    outputs = compiled_outputs(plan, stored, findings)
    refuse(findings.sorted(plan))
    validated = ValidatedPlan(
        plan=plan,
        digest=digest,
        order=tuple(order),
        dependencies=MappingProxyType(dependencies),
        reduced=MappingProxyType(dependencies if shape.is_reduced else transitive_reduction(dependencies, order)),
        tools=_Made(dependencies, lambda step_id: used[stored.document(step_id)["tool_name"]]),
        parameters=_Made(dependencies, lambda step_id: calls[step_id].parameters),
        when=_Made(having["when"], lambda step_id: _there(calls[step_id].when)),
        for_each=_Made(having["for_each"], lambda step_id: _there(calls[step_id].for_each)),
        labels=_Made(having["label"], lambda step_id: _there(calls[step_id].label)),
        done_when=_Made(having["done_when"], lambda step_id: _there(calls[step_id].done_when)),
        rollbacks=_Made(having["rollback"], lambda step_id: _there(calls[step_id].rollback)),
        outputs=MappingProxyType(outputs),
        definitions=definitions,
        secrets=calls.secrets() if plan.may_have_secrets else frozenset(),
        steps=stored,
    )
    return BoundPlan(validated, inputs, approved, folder)


class _Calls(dict[str, Call]):
    """The compiled steps of a plan, by id, each made when it is asked for; raises InvalidPlanError for one that cannot be compiled."""

    def __init__(self, plan: StoredPlan, tools: ToolRegistry) -> None:
        super().__init__()
        self._plan, self._stored = plan, plan.stored
        self._made = partial(recorded_call, declared=declarations(plan.stored, plan.inputs), tools=tools)

    def __missing__(self, step_id: str) -> Call:
        findings, step = Findings(), self._stored[step_id]
        call = self._made(step, f"steps[{step.index}]", findings=findings)
        refuse(findings.sorted(self._plan))
        self[step_id] = call
        return call

    def secrets(self) -> frozenset[str]:
        """Return the names of the secrets that the plan uses."""
        using = [self[document["id"]] for document in self._stored.documents if "secrets" in str(document)]
        return frozenset(name for call in using for template in (call.parameters, call.undo) if template for name in template.secrets)


class _Made(Mapping[str, T]):
    """What `make` makes of each key when it is asked for: for most steps of a long run nobody asks."""

    def __init__(self, keys: Mapping[str, object], make: Callable[[str], T]) -> None:
        self._keys, self._make = keys, make

    def __getitem__(self, key: str) -> T:
        if key not in self._keys:
            raise KeyError(key)
        return self._make(key)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def _those_having(fields: Sequence[str], documents: Iterable[StepDocument]) -> dict[str, dict[str, StepDocument]]:
    """Return by field the steps that write it, by id."""
    found: dict[str, dict[str, StepDocument]] = {field: {} for field in fields}
    for document in documents:
        if not document.keys().isdisjoint(fields):
            for field in document.keys() & fields:
                found[field][document["id"]] = document
    return found


def _there(found: T | None) -> T:
    """Return what the document of a step has, and its call therefore, too."""
    if found is None:
        raise KeyError("a step was compiled without what its document says")
    return found
