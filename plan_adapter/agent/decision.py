"""Read one answer of a planning model: its action and, with `plan_done`, the plan and all of its problems."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.agent.answer_schemas import ACTIONS, COMPLEXITIES, from_strict_form
from plan_adapter.agent.remaining_plan import RemainingPlan, referred_steps
from plan_adapter.documents import read_document
from plan_adapter.model.graph import reachable
from plan_adapter.model.options import EFFECTS
from plan_adapter.model.plan import ExecutionPlan, step_fields
from plan_adapter.model.problems import Problem
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import lint

Action: TypeAlias = Literal["continue", "ask_user", "plan_done"]

_DECISION_FIELDS = frozenset(
    ("action", "speak", "reason", "complexity", "need_thinking", "description", "steps", "plan_steps", "constraints")
)

_ADVICE = frozenset(("unused-input", "retried-write", "duplicate-dependency", "many-gates", "no-model", "open-read"))
"""Warnings that are shown to a person but not sent back to the model."""

Edges: TypeAlias = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ConstraintStatement:
    """The model's statement of how a plan keeps a constraint: the `before` steps may only start after `steps`."""

    number: int
    steps: tuple[str, ...]
    before: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DraftDecision:
    """A model's decision. `plan` is set with `plan_done` and only then; it is usable only if `problems` is empty."""

    action: Action
    speak: str = ""
    reason: str = ""
    complexity: str | None = None
    need_thinking: bool = False
    plan: ExecutionPlan | None = None
    problems: tuple[Problem, ...] = ()
    statements: tuple[ConstraintStatement, ...] = ()
    left_out: tuple[str, ...] = ()  # fields of the answer that a model may not decide

    @property
    def edges(self) -> Edges:
        """Every dependency that the plan writes, as (before, after)."""
        steps = self.plan.steps if self.plan is not None else []
        return frozenset((before, step.id) for step in steps for before in step.depends_on)


def read_decision(
    value: Mapping[str, JsonValue],
    tools: ToolRegistry,
    *,
    task: str,
    max_steps: int | None,
    permissions: Sequence[str] = (),
    constraints: int = 0,
    remaining: RemainingPlan | None = None,
) -> DraftDecision:
    """Return the decision in `value`, with every problem of it and of its plan. Never raises for what a model wrote.

    `permissions` are those of the plan, which no model can give. `constraints` is how many the request has.

    With `remaining`, the model's steps replace the steps of a run's plan that have not run. The returned plan is the whole plan: first the
    model's steps, then the kept ones.
    """
    reader = _DecisionReader(value, tools, remaining)
    action = reader.action()
    fields: dict[str, Any] = {
        "speak": reader.text("speak"),
        "reason": reader.text("reason"),
        "complexity": reader.complexity(),
        "need_thinking": value.get("need_thinking") is True,
        "left_out": tuple(sorted(key for key in value if key not in _DECISION_FIELDS)),
    }
    if action == "ask_user" and not fields["speak"].strip():
        reader.add("missing-field", "speak", "`ask_user` without a question", "write the question in `speak`")
    plan = None
    if action == "plan_done":
        plan = reader.plan(task, max_steps, permissions)
    elif reader.steps is not None:
        reader.add("bad-value", "steps", f"steps with `{action}`", "send steps with `plan_done`, and only then")
    statements = reader.statements(plan, constraints)
    return DraftDecision(action, plan=plan, problems=tuple(reader.problems), statements=statements, **fields)


@dataclass(slots=True)
class _DecisionReader:
    value: Mapping[str, JsonValue]
    tools: ToolRegistry
    remaining: RemainingPlan | None = None
    problems: list[Problem] = field(default_factory=list[Problem])
    ids: list[str] = field(default_factory=list[str])

    def add(self, code: str, at: str, message: str, hint: str) -> None:
        self.problems.append(Problem(code, at=at, message=message, hint=hint))

    @property
    def steps(self) -> JsonValue:
        return self.value.get("steps") or self.value.get("plan_steps") or None

    def text(self, name: str) -> str:
        found = self.value.get(name)
        return found if isinstance(found, str) else ""

    def action(self) -> Action:
        action = self.value.get("action")
        action = action.strip() if isinstance(action, str) else action
        if action in ACTIONS:
            return action
        if action is None and self.steps is not None:
            return "plan_done"
        message = "the action is missing" if action is None else f"{json.dumps(action, ensure_ascii=False)[:60]} is not an action"
        self.add("bad-value", "action", message, f"write one of {', '.join(ACTIONS)}")
        return "plan_done" if self.steps is not None else "continue"

    def complexity(self) -> str | None:
        complexity = self.value.get("complexity")
        return complexity.strip() if isinstance(complexity, str) and complexity.strip() in COMPLEXITIES else None

    def plan(self, task: str, max_steps: int | None, permissions: Sequence[str]) -> ExecutionPlan | None:
        """Return the plan as written, with whatever problems it has, or None if there is no list of steps or no plan can be read."""
        written = self.steps
        if not isinstance(written, list):
            self.add("no-steps", "steps", "`plan_done` needs a list of steps", "write at least one step")
            return None
        if max_steps is not None and len(written) > max_steps:
            self.add("too-many-steps", "steps", f"the plan has {len(written)} steps; the limit is {max_steps}", "use fewer steps")
        self.ids = _assign_ids(written, frozenset() if self.remaining is None else self.remaining.taken)
        description = self.text("description").strip() or self.text("speak").strip() or task.strip()
        steps = [self._read_step(step, at) for at, step in enumerate(written)]
        self._order_goals(steps)
        document = {"description": description, "steps": steps}
        plan, found = read_document(json.dumps(document))
        self.problems += [Problem(p.code, p.severity, p.at, message=p.message, hint=p.hint) for p in found]
        if plan is not None:
            plan.permissions = [*permissions]
        if plan is not None and self.remaining is not None:
            self.problems += self.remaining.find_taken_ids(plan.steps)
            plan = self._join_kept_steps(plan, self.remaining)
        if plan is not None:
            known = {(problem.code, problem.at) for problem in self.problems}
            reported = [problem for problem in lint(plan, self.tools) if problem.severity == "error" or self._may_repair(problem)]
            self.problems += [
                Problem(p.code, p.severity, p.at, message=p.message, hint=p.hint) for p in reported if (p.code, p.at) not in known
            ]
        return plan

    def _join_kept_steps(self, plan: ExecutionPlan, remaining: RemainingPlan) -> ExecutionPlan:
        joined_plan = remaining.join(plan.steps)
        joined_plan._problems = plan._problems  # pyright: ignore[reportPrivateUsage]  # their consequences are not reported
        return joined_plan

    def _may_repair(self, warning: Problem) -> bool:
        """Return whether the model is asked to fix a warning. Warnings about steps it did not write are not sent."""
        own = tuple(f"steps[{place}]" for place in range(len(self.ids)))
        return warning.code not in _ADVICE and (self.remaining is None or warning.at.startswith(own))

    def _read_step(self, written: JsonValue, number: int) -> JsonValue:
        if not isinstance(written, dict):
            return written  # the document's reader reports the problem
        at = f"steps[{number}]"
        step: dict[str, JsonValue] = {}
        for key, value in written.items():
            if key not in _written_fields():
                self.add("unknown-field", f"{at}.{key[:60]}", f"a model's step has no field `{key[:60]}`", "leave it out")
            elif value is not None:
                step["goal" if key == "content" else key] = value
        step["id"] = self.ids[number]
        if "goal" in step and "tools" not in step:
            step["tools"] = [*self.tools.names()]
        if "depends_on" in step:
            step["depends_on"] = self._dependency_ids(step["depends_on"], at)
        if self.remaining is not None and step.get("tool_name") in self.remaining.gated:
            step["requires_approval"] = True  # the replaced step had a gate, so this one keeps it
        self._parse_parameters(step)
        if isinstance(rollback := step.get("rollback"), dict):
            self._parse_parameters(rollback)
        self._refuse_lowered_effect(step, at)
        return step

    def _order_goals(self, steps: list[JsonValue]) -> None:
        """Let each goal whose dependencies are not written depend on the step before it, whose result its model then sees."""
        waits = {name: referred_steps(step) | _written_dependencies(step) for name, step in zip(self.ids, steps, strict=True)}
        before = None if self.remaining is None else self.remaining.last_kept
        for name, written in zip(self.ids, steps, strict=True):
            step = written if isinstance(written, dict) else {}
            is_open = "goal" in step and "depends_on" not in step
            if is_open and before is not None and name not in reachable(waits, [before]):
                step["depends_on"] = [before]
                waits[name].add(before)
            before = name

    def _parse_parameters(self, call: dict[str, JsonValue]) -> None:
        name, parameters = call.get("tool_name"), call.get("parameters")
        tool = self.tools.get(name) if isinstance(name, str) else None
        if tool is not None and isinstance(parameters, dict):
            call["parameters"] = from_strict_form(parameters, tool.parameters_schema)

    def _refuse_lowered_effect(self, step: Mapping[str, JsonValue], at: str) -> None:
        name, effect = step.get("tool_name"), step.get("effect")
        tool = self.tools.get(name) if isinstance(name, str) else None
        if tool is not None and effect in EFFECTS and EFFECTS.index(effect) < EFFECTS.index(tool.effect):
            message = f"`{tool.name}` is a {tool.effect}, and a model cannot make it a {effect}"
            self.add("lowered-effect", f"{at}.effect", message, "leave the effect out, or raise it")

    def _dependency_ids(self, written: JsonValue, at: str) -> JsonValue:
        """Return dependencies as step ids. An index that does not exist is a problem, and stays in the list as text."""
        if not isinstance(written, list):
            written = [written]
        found: list[JsonValue] = []
        for number, name in enumerate(written):
            index = _step_index(name, self.ids)
            if index is None:
                found.append(name)
            elif 0 <= index < len(self.ids):
                found.append(self.ids[index])
            else:
                found.append(str(index))  # a name that no step has; otherwise the reader would drop the whole list
                message = f"there is no step {index}: the steps are 0 to {len(self.ids) - 1}"
                self.add("unknown-step", f"{at}.depends_on[{number}]", message, "name an existing step")
        return found

    def statements(self, plan: ExecutionPlan | None, constraints: int) -> tuple[ConstraintStatement, ...]:
        """Return the model's statements about the constraints of the request. `constraints` is how many there are."""
        written = self.value.get("constraints")
        if plan is None or not constraints or written is None:
            return ()
        found = [self._read_statement(each, at) for at, each in enumerate(written if isinstance(written, list) else [written])]
        return tuple(statement for statement in found if statement is not None)

    def _read_statement(self, written: JsonValue, at: int) -> ConstraintStatement | None:
        fields = written if isinstance(written, dict) else {}
        number, steps, before = (
            _whole_number(fields.get("number")),
            self._step_ids(fields.get("steps")),
            self._step_ids(fields.get("before")),
        )
        if number is None or steps is None or (before is None and fields.get("before") is not None):
            shown = json.dumps(written, ensure_ascii=False)[:80]
            hint = 'write {"number", "steps", "before"}: the number of the constraint, the steps that ensure it, and those that come after'
            self.add("bad-value", f"constraints[{at}]", f"{shown} does not say how a constraint is kept", hint)
            return None
        return ConstraintStatement(number, steps, before or ())

    def _step_ids(self, written: JsonValue) -> tuple[str, ...] | None:
        """Return the ids of named steps, or None if `written` names none."""
        names = [written] if isinstance(written, (str, int)) else written
        if not isinstance(names, list) or any(isinstance(name, bool) or not isinstance(name, (str, int, float)) for name in names):
            return None
        places = [(name, _step_index(name, self.ids)) for name in names]
        return tuple(self.ids[p] if p is not None and 0 <= p < len(self.ids) else str(name) for name, p in places)


@cache
def _written_fields() -> frozenset[str]:
    """Return the fields of a step that a model may write. `content` is its name for `goal`."""
    return frozenset(("content", *(name for name, field in step_fields().items() if field.for_models is not None)))


def _whole_number(written: JsonValue) -> int | None:
    if isinstance(written, str) and written.strip().isascii() and written.strip().isdigit() and len(written) < 8:
        return int(written)
    if isinstance(written, bool) or not isinstance(written, (int, float)):
        return None
    return int(written) if isinstance(written, int) or written.is_integer() else None


def _written_dependencies(step: JsonValue) -> set[str]:
    written = step.get("depends_on") if isinstance(step, dict) else None
    return {name for name in written if isinstance(name, str)} if isinstance(written, list) else set()


def _step_index(name: JsonValue, ids: list[str]) -> int | None:
    """Return the index if `name` refers to a step by index, or None if it refers to it by id."""
    return None if isinstance(name, str) and name in ids else _whole_number(name)


def _assign_ids(steps: list[JsonValue], others: frozenset[str]) -> list[str]:
    """Return the steps' ids. Missing ids are generated, and generated ids never collide with `others`."""
    written = [cast("dict[str, JsonValue]", step).get("id") if isinstance(step, dict) else None for step in steps]
    taken, found = {*others, *(name for name in written if isinstance(name, str))}, list[str]()
    for number, name in enumerate(written):
        free = name if isinstance(name, str) and name else f"step_{number + 1}"
        while free != name and free in taken:
            free += "_"
        taken.add(free)
        found.append(free)
    return found
