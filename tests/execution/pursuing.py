"""A scripted model for goals, scripted gates, and short builders for the model's answers."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from plan_adapter.execution.ports import GatedCall, GateRefusal
from plan_adapter.model.approvals import Approval
from plan_adapter.model.goals import AbortIntent, ExecuteDecision, Goal, GoalAction, RoundAnswer, ToolCallIntent, Verdict
from plan_adapter.model.plan import ExecutionPlan, Step, new_id
from plan_adapter.tools.tool import tool


@dataclass
class ScriptedModel:
    """Decides with `answers` in order, repeating the last one, and verifies with `verdicts`. Implements `goals.GoalModel`."""

    answers: list[RoundAnswer]
    verdicts: list[Verdict] = field(default_factory=list)
    seen: list[Goal] = field(default_factory=list)
    judged: list[Goal] = field(default_factory=list)
    name: str = "scripted"

    async def decide(self, goal: Goal) -> RoundAnswer:
        self.seen.append(goal)
        return self.answers[min(len(self.seen), len(self.answers)) - 1]

    async def verify(self, goal: Goal) -> Verdict:
        self.judged.append(goal)
        return self.verdicts[len(self.judged) - 1]


@dataclass
class ScriptedGates:
    """Answers each gate with the next of `answers`, and approves when there are no more. Implements `ports.StepGates`."""

    answers: list[GateRefusal | dict[str, Any] | None] = field(default_factory=list)
    asked: list[GatedCall] = field(default_factory=list)
    waits: bool = True

    def is_gated(self, step: Step) -> bool:
        return step.ask is not None or bool(step.requires_approval)

    async def ask(self, call: GatedCall) -> Approval | GateRefusal | None:
        self.asked.append(call)
        answer = self.answers.pop(0) if self.answers else {}
        if answer is None or isinstance(answer, GateRefusal):
            return answer
        of = (new_id(), call.approval_digest, "approve", "ana", "os_user", datetime.now(UTC))
        return Approval(*of, step_id=call.step.id, item=call.item, result=answer or None)


class Board:
    """A list of notes, with one tool that reads it and one that writes to it."""

    def __init__(self) -> None:
        self.notes: list[str] = []

        @tool(effect="read")
        def look(at: str = "all") -> list[str]:
            """Read the notes."""
            return [note for note in self.notes if at in ("all", note)]

        @tool(effect="write")
        def post(note: str) -> int:
            """Post a note."""
            self.notes.append(note)
            return len(self.notes)

        self.tools = [look, post]


def goal_plan(*, tools: tuple[str, ...] = ("look", "post"), **fields: Any) -> ExecutionPlan:
    """Return a plan with one goal, `report`."""
    plan = ExecutionPlan(description="Tell everybody")
    plan.steps.append(Step(id="report", goal="Post a note that says hello", tools=list(tools), **fields))
    plan.number_steps()
    return plan


def says(action: GoalAction, **fields: Any) -> RoundAnswer:
    return RoundAnswer(decision=ExecuteDecision(action=action, **{"speak": "好", "reason": "because", **fields}), tokens=100)


def reads(name: str = "look", **arguments: Any) -> RoundAnswer:
    return says("continue", tool_call=ToolCallIntent(name=name, arguments=arguments))


def writes(name: str = "post", **arguments: Any) -> RoundAnswer:
    return says("confirm", tool_call=ToolCallIntent(name=name, arguments=arguments))


def ends(goal_check: str = "E1 shows it", action: GoalAction = "done") -> RoundAnswer:
    return says(action, goal_check=goal_check)


def gives_up() -> RoundAnswer:
    return says("abort", abort=AbortIntent(code="no_access", user_message="打不开", internal_reason="403"))


BROKEN = RoundAnswer(faults=("the answer is not JSON",), text="{", tokens=100)
