"""One run between two of its processes: its exported record against its world."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from plan_adapter import ExecutionPlan, PlanRun
from plan_adapter.approvals import StandingApproval
from plan_adapter.options import Input, Question
from plan_adapter.plan import Step
from plan_adapter.readable import call_name
from plan_adapter.tools.registry import ToolRegistry
from tests.faults.goals import ModelCall
from tests.faults.world import Line, Unit

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Violation:
    """A promise that was broken."""

    kind: str
    words: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}"


@dataclass(frozen=True)
class Evidence:
    """One run between two of its processes: its exported record, how it is shown, and its world."""

    document: Row
    run: PlanRun
    plan: ExecutionPlan
    tools: ToolRegistry
    lines: Sequence[Line]
    standing: Sequence[StandingApproval] = ()
    secret: str = ""
    is_over: bool = False  # nobody will resume it
    leaks: Sequence[str] = ()  # the files in which the secret stands
    model_calls: Sequence[ModelCall] = ()

    @cached_property
    def attempts(self) -> dict[tuple[Unit, int], Row]:
        """The intents by unit and number."""
        return {(unit_of(row), row["number"]): row for row in self.document["attempts"]}

    @cached_property
    def done(self) -> dict[Unit, Row]:
        """The succeeded receipts."""
        return {unit_of(row): row for row in self.document["receipts"] if row["outcome"] == "succeeded"}

    @cached_property
    def by_unit(self) -> dict[Unit, list[Line]]:
        """The effects of each unit."""
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
        """Return the recorded answer of a model in a round of a goal: a decision, or a check of one."""
        row = self.done.get((f"{kind} {step_id}", item))
        return None if row is None else json.loads(row["result"])

    def is_of_goal(self, row: Row) -> bool:
        """Return whether a row of the record is about a goal."""
        return row["step_id"] in self.goals

    def called(self, unit: Unit) -> Step | None:
        """Return the step that a call is approved as: for a call of a goal, one with what the model decided. None for the goal's end."""
        goal, item = self.goals.get(unit[0]), unit[1]
        if goal is None:
            return self.steps.get(unit[0])
        return None if item is None else decided(self, goal, item)

    @cached_property
    def finals(self) -> frozenset[str]:
        """The ids of the `finally` steps, which run again after anything else has run."""
        return frozenset(step.id for step in self.plan.finally_)

    @cached_property
    def rounds(self) -> dict[tuple[Unit, int], int]:
        """For each attempt of a `finally` step: how many entries of the audit are about attempts of anything else before it."""
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
        """The epoch in which each attempt began, by the order of the audit."""
        found, epoch = dict[tuple[Unit, int], int](), 0
        for entry in self.document["audit"]:
            if entry["kind"] == "run_started":
                epoch = int(entry["row_id"])
            elif entry["kind"] == "attempt_started":
                found[unit_of(entry), entry["attempt"]] = epoch
        return found


def decided(evidence: Evidence, goal: Step, item: int) -> Step | None:
    """Return the call that the model decided on in a round of a goal, as a step; None if it decided on none."""
    answer, check = evidence.answer("decision", goal.id, item), evidence.answer("check", goal.id, item)
    decision = None if answer is None else answer["decision"]
    if decision is None:
        return None
    none: dict[str, Any] = {"goal": None, "tools": [], "max_rounds": None, "done_when": None, "max_retries": 0}
    if (call := decision["tool_call"]) is not None:
        tool, always = evidence.tools.get(call["name"]), evidence.plan.approval.always_execute if evidence.plan.approval else ()
        asks = goal.requires_approval or (tool.effect != "read" and tool.name not in always)
        of = {
            "tool_name": tool.name,
            "effect": tool.effect,
            "parameters": call["arguments"],
            "description": f"A model asks for this call: {decision['reason']}",
        }
        return goal.model_copy(update={**none, **of, "requires_approval": asks})
    if decision["action"] == "ask_user":
        question = Question(question=decision["speak"], fields={"answer": Input(type="string", title="Answer")})
    elif check is not None and check["verdict"] == "cannot_tell":
        words = f"Is this met: {goal.done_when}\n\nThe model that judges it cannot tell: {check['evidence']['reason']}\n\nWhat was done:"
        asked = next((row for (unit, _), row in evidence.attempts.items() if unit == (goal.id, item)), None)
        if asked is not None and (whole := json.loads(asked["parameters"])["question"]).startswith(words):
            words = whole  # the evidence follows
        question = Question(question=words, fields={"met": Input(type="boolean", title="Is it met?")})
    else:
        return None
    return goal.model_copy(update={**none, "ask": question})


def unit_of(row: Row) -> Unit:
    """Return the call that a row of the record is about."""
    kind = row["call_kind"] if "call_kind" in row else row.get("kind", "step")  # an entry of the audit has a kind of its own
    return call_name(row["step_id"], None, kind=kind), None if row["item"] == -1 else row["item"]
