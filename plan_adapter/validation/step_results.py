"""`StepResults`: what is known of the results of steps before the run, from their tools, questions, groups and sub-plans."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import JsonValue

from plan_adapter.expressions import Declarations, Template, compile_template
from plan_adapter.expressions.expression import Expression
from plan_adapter.expressions.shape import ANYTHING, Shape, list_of, shape_of_kind, shape_of_schema, shape_of_type
from plan_adapter.model.goals import Evidence
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool

_TEXT = Shape("string")
_KEPT_IN_FILE = frozenset({"path", "size", "digest"})
"""The fields in place of a result that is too large for a receipt."""


class StepResults(Mapping[str, Shape]):
    """What is known of the results of a plan's steps, by step id. Steps of sub-plans are left out. A result is examined when it is used."""

    def __init__(self, plan: ExecutionPlan, tools: ToolRegistry) -> None:
        """Know nothing yet of the results in `plan`."""
        steps = [*plan.steps, *(inner for step in plan.steps for inner in step.steps), *plan.finally_]
        self._steps: dict[str, Step] = {step.id: step for step in reversed(steps)}
        self._tools = tools
        self._known: dict[str, Shape] = {}

    def __getitem__(self, step_id: str) -> Shape:
        """Return what expressions see as the result of a step: with a `for_each`, a list."""
        if step_id not in self._known:
            step = self._steps[step_id]
            self._known[step_id] = ANYTHING  # of a step that a mistaken document makes part of itself
            of_call = self.of_call(step)
            self._known[step_id] = of_call if step.for_each is None or step.steps else list_of(of_call)
        return self._known[step_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def of_call(self, step: Step) -> Shape:
        """Return what is known of the result of one call of `step`, which `done_when` and `rollback` call `result`."""
        if step.goal is not None:
            results = {name: _shape_of_tool(self._tools.get(name)) for name in step.tools}
            return _mapping(summary=_TEXT, rounds=Shape("int"), evidence=list_of(_shape_of_evidence()), results=Shape("map", results))
        if step.ask is not None:
            return Shape("map", {name: shape_of_type(field.type, field.items) for name, field in step.ask.fields.items()})
        if step.pinned is not None:
            return Shape("map", _shapes_of_outputs(step.pinned, self._tools))
        if step.steps:
            results = {inner.id: self[inner.id] if inner.id in self._steps else ANYTHING for inner in step.steps}
            return list_of(_mapping(label=_TEXT, status=_TEXT, results=Shape("map", results)))
        return _shape_of_tool(self._tools.get(step.tool_name or ""))


def shape_of_value(value: JsonValue, template: Template) -> Shape:
    """Return what is known of `value`, which is part of what `template` compiled."""
    if isinstance(value, str):
        parts = template.texts.get(value, ())
        return parts[0].shape if len(parts) == 1 and isinstance(parts[0], Expression) else _TEXT
    if isinstance(value, dict):
        return Shape("map", {name: shape_of_value(member, template) for name, member in value.items()})
    if isinstance(value, list):
        return list_of(shape_of_value(value[0], template) if len(value) == 1 else ANYTHING)
    kinds: dict[type, str] = {bool: "bool", int: "int", float: "double"}
    return shape_of_kind(kinds.get(type(value), "dyn"))


def _shapes_of_outputs(plan: ExecutionPlan, tools: ToolRegistry) -> dict[str, Shape]:
    declared = Declarations(frozenset(step.id for step in plan.steps), plan.inputs, results=StepResults(plan, tools), hosts=plan.inventory)
    shapes = dict[str, Shape]()
    for name, value in plan.outputs.items():
        template, problems = compile_template(value, declared, at=name)
        shapes[name] = ANYTHING if problems else shape_of_value(value, template)
    return shapes


def _shape_of_tool(tool: Tool[..., Any] | None) -> Shape:
    if tool is None:
        return ANYTHING
    shape = shape_of_schema(tool.result_schema)
    return Shape(shape.type, shape.fields, shape.rest, shape.items, shape.is_optional, _KEPT_IN_FILE)


@cache
def _shape_of_evidence() -> Shape:
    return shape_of_schema(Evidence.model_json_schema(mode="serialization"))


def _mapping(**fields: Shape) -> Shape:
    return Shape("map", fields)
