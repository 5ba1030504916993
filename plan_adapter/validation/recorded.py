"""`recall`: a recorded plan whose tools are as they were, without checking again what was checked when its run was made."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from pydantic import JsonValue

from plan_adapter.canonical import approval_digest
from plan_adapter.expressions import Template
from plan_adapter.plan import ExecutionPlan
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation.calls import referring_calls
from plan_adapter.validation.dependencies import dependencies_of
from plan_adapter.validation.findings import Findings
from plan_adapter.validation.validated import BoundPlan, Examined, compiled_outputs, proven, refuse

T = TypeVar("T")


def recall(plan: ExecutionPlan, inputs: dict[str, JsonValue], tools: ToolRegistry, *, digest: str, approved: str) -> BoundPlan | None:
    """Return the plan of a run with its inputs, fresh from the store, as they were bound when the digest of what is `approved` was made.

    None where it is not the digest of the plan, the inputs and the tools as they are now. Else all that was checked would be found to be
    so again, and only what has expressions is compiled; raises InvalidPlanError for those that this version of the package refuses.
    """
    called = {name: tools.get(name) for step in plan.steps for name in (step.tool_name, step.rollback and step.rollback.tool_name) if name}
    used = {name: tool for name, tool in sorted(called.items()) if tool is not None}
    definitions = tuple(tool.definition() for tool in used.values())
    if len(used) < len(called) or approval_digest(digest, inputs, definitions) != approved:
        return None
    findings, steps = Findings(), plan.steps
    place = {step.id: index for index, step in enumerate(steps)}
    calls = referring_calls(plan, tools, findings)
    dependencies = {
        step.id: dependencies_of(calls[index], f"steps[{index}]", place, findings) if index in calls else _each_once(step.depends_on)
        for index, step in enumerate(steps)
    }
    outputs = compiled_outputs(plan, findings)
    refuse(findings.sorted(plan))

    def parameters_of(step_id: str) -> Template:
        index = place[step_id]
        return calls[index].parameters if index in calls else Template(steps[index].parameters)

    examined = Examined(plan, list(calls.values()), dependencies, outputs)
    tool_of = {step.id: used[step.tool_name] for step in steps if step.tool_name}
    return BoundPlan(proven(examined, digest, tool_of, _Made(place, parameters_of), definitions), inputs, approved)


def _each_once(names: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names)) if len(names) > 1 else tuple(names)


class _Made(Mapping[str, T]):
    """What `make` makes of each key when it is asked for: for most steps of a long run nobody asks."""

    def __init__(self, keys: Iterable[str], make: Callable[[str], T]) -> None:
        self._keys, self._make = dict.fromkeys(keys), make

    def __getitem__(self, key: str) -> T:
        return self._make(key)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
