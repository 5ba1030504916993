"""The evidence about a run between two of its processes: its exported record and its world."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from plan_adapter import ExecutionPlan, PlanRun
from plan_adapter.model.approvals import StandingApproval
from plan_adapter.model.options import Input, Question
from plan_adapter.model.plan import Step
from plan_adapter.model.readable import call_name
from plan_adapter.tools.registry import ToolRegistry
from tests.faults.goals import ModelCall
from tests.faults.world import Line, Unit

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Violation:
    """A broken guarantee."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True)
class Evidence:
    """A run between two of its processes: its exported record, its displayed state, and its world."""

    document: Row
    run: PlanRun
    plan: ExecutionPlan
    tools: ToolRegistry
    lines: Sequence[Line]
    standing: Sequence[StandingApproval] = ()
    secret: str = ""
    is_over: bool = False  # it will not be resumed
    leaks: Sequence[str] = ()  # the files that contain the secret
    model_calls: Sequence[ModelCall] = ()

    @cached_property
    def attempts(self) -> dict[tuple[Unit, int], Row]:
        """The intents, by unit and number."""
        return {(unit_of(row), row["number"]): row for row in self.document["attempts"]}

    @cached_property
    def done(self) -> dict[Unit, Row]:
        """The last succeeded receipt of each unit."""
        receipts = sorted(self.document["receipts"], key=lambda row: row["number"])
        return {unit_of(row): row for row in receipts if row["outcome"] == "succeeded"}

    @cached_property
    def complete(self) -> dict[Unit, Row]:
        """The succeeded receipts of units whose last attempt succeeded. A `finally` step may be called again after it succeeded."""
        last = dict[Unit, int]()
        for unit, number in self.attempts:
            last[unit] = max(number, last.get(unit, 0))
        return {unit: row for unit, row in self.done.items() if row["number"] == last[unit]}

    @cached_property
    def by_unit(self) -> dict[Unit, list[Line]]:
        """The effects, by unit."""
        found = defaultdict[Unit, list[Line]](list)
        for line in self.lines:
            found[line.unit].append(line)
        return dict(found)

    @cached_property
    def steps(self) -> dict[str, Step]:
        """The steps of the plan."""
        return {step.id: step for step in self.plan.all_steps}

    @cached_property
    def goals(self) -> dict[str, Step]:
        """The goals of the plan."""
        return {step_id: step for step_id, step in self.steps.items() if step.goal is not None}

    def answer(self, kind: str, step_id: str, item: int | None) -> Row | None:
        """Return the recorded model answer of kind `decision` or `check` in a round of a goal, or None."""
        row = self.done.get((f"{kind} {step_id}", item))
        return None if row is None else json.loads(row["result"])

    def is_goal_row(self, row: Row) -> bool:
        """Return whether a row of the record belongs to a goal."""
        return row["step_id"] in self.goals

    def step_of(self, unit: Unit) -> Step | None:
        """Return the step that is approved for a call. For a goal, it has the model's decision; None for the end of the goal."""
        goal, item = self.goals.get(unit[0]), unit[1]
        if goal is None:
            return self.steps.get(unit[0])
        return None if item is None else decided_call(self, goal, item)

    @cached_property
    def finals(self) -> frozenset[str]:
        """The ids of the `finally` steps, which run again whenever other steps have run."""
        return frozenset(step.id for step in self.plan.finally_)

    @cached_property
    def rounds(self) -> dict[tuple[Unit, int], int]:
        """The number of audit entries about other steps' attempts before each attempt of a `finally` step."""
        found, others = dict[tuple[Unit, int], int](), 0
        for entry in self.document["audit"]:
            if not entry["kind"].startswith("attempt_"):
                continue
            if unit_of(entry)[0] not in self.finals:
                others += 1
            elif entry["kind"] == "attempt_started":
                found[unit_of(entry), entry["attempt"]] = others
        return found

    @cached_property
    def started_in(self) -> dict[tuple[Unit, int], int]:
        """The epoch in which each attempt started, by the order of the audit log."""
        found, epoch = dict[tuple[Unit, int], int](), 0
        for entry in self.document["audit"]:
            if entry["kind"] == "run_started":
                epoch = int(entry["row_id"])
            elif entry["kind"] == "attempt_started":
                found[unit_of(entry), entry["attempt"]] = epoch
        return found


def decided_call(evidence: Evidence, goal: Step, item: int) -> Step | None:
    """Return the call that the model decided on in a round of a goal as a step, or None."""
    answer, check = evidence.answer("decision", goal.id, item), evidence.answer("check", goal.id, item)
    decision = None if answer is None else answer["decision"]
    if decision is None:
        return None
    none: dict[str, Any] = {"goal": None, "tools": [], "max_rounds": None, "done_when": None, "max_retries": 0}
    if (call := decision["tool_call"]) is not None:
        tool, always = evidence.tools.get(call["name"]), evidence.plan.approval.always_execute if evidence.plan.approval else ()
        assert tool is not None
        asks = goal.requires_approval or (tool.effect != "read" and tool.name not in always)
        fields = {
            "tool_name": tool.name,
            "effect": tool.effect,
            "parameters": tool.normalized(call["arguments"], with_defaults=True),
            "description": f"A model asks for this call: {decision['reason']}",
        }
        return goal.model_copy(update={**none, **fields, "requires_approval": asks})
    if decision["action"] == "ask_user":
        question = Question(question=decision["speak"], fields={"answer": Input(type="string", title="Answer")})
    elif check is not None and check["verdict"] == "cannot_tell":
        text = f"Is this met: {goal.done_when}\n\nThe model that judges it cannot tell: {check['evidence']['reason']}\n\nWhat was done:"
        asked = next((row for (unit, _), row in evidence.attempts.items() if unit == (goal.id, item)), None)
        if asked is not None and (asked_text := json.loads(asked["parameters"])["question"]).startswith(text):
            text = asked_text  # it also contains the evidence
        question = Question(question=text, fields={"met": Input(type="boolean", title="Is it met?")})
    else:
        return None
    return goal.model_copy(update={**none, "ask": question})


def unit_of(row: Row) -> Unit:
    """Return the call of a row of the record."""
    kind = row["call_kind"] if "call_kind" in row else row.get("kind", "step")  # in an audit entry, `kind` is the kind of the entry
    return call_name(row["step_id"], None, kind=kind), None if row["item"] == -1 else row["item"]
