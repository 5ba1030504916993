"""A goal with three tools, and completed rounds of it."""

import json
from dataclasses import replace
from typing import Any

from plan_adapter import ToolRegistry, tool
from plan_adapter.agent.answer_text import read_answer
from plan_adapter.agent.goal_model import read_goal_decision
from plan_adapter.model.goals import AbortIntent, Evidence, ExecuteDecision, Goal, Round, RoundAnswer, ToolCallIntent


@tool(effect="read")
def look(host: str, labels: dict[str, str] | None = None, lines: int = 10) -> str:
    """Look at a host.

    Args:
        host: Its name.
        labels: Labels that it must have.
        lines: How many lines to show.
    """
    return f"{host} {labels} {lines}"


@tool(effect="idempotent_write")
def label(host: str, name: str) -> str:
    """Label a host."""
    return f"{host} {name}"


@tool(effect="write")
def restart(host: str) -> str:
    """Restart a host."""
    return host


TOOLS = ToolRegistry([look, label, restart])


def a_goal(*rounds: Round, **fields: Any) -> Goal:
    goal = Goal(
        step_id="heal",
        step_index=1,
        goal="让 web-1 恢复正常",
        done_when="web-1 answers again",
        tools=tuple(TOOLS.definitions()),
        effects={tool.name: tool.effect for tool in TOOLS},
        plan=("check: completed", "heal: running"),
        rounds=rounds,
    )
    return replace(goal, **fields)


def model_answer(action: str, **fields: Any) -> dict[str, Any]:
    return {"action": action, "speak": "好", "reason": "", **fields}


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def read(answer: object, goal: Goal | None = None) -> tuple[ExecuteDecision | None, tuple[str, ...]]:
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return read_goal_decision(read_answer(text), goal or a_goal(), TOOLS)


def looked(number: int, result: Any = "it is up", *, success: bool = True, host: str = "web-1") -> Round:
    """Return a round that called `look`. Its evidence has the number of the round."""
    decision = ExecuteDecision(action="continue", speak="I look.", tool_call=ToolCallIntent(name="look", arguments={"host": host}))
    evidence = Evidence(
        id=f"E{number}",
        step="heal",
        step_index=1,
        round=number,
        source="tool_observation",
        name="look",
        arguments_digest=f"digest-{host}",
        success=success,
        summary=json.dumps(result, ensure_ascii=False)[:1000],
    )
    return Round(number, RoundAnswer(decision=decision, text="{}"), observation=result, evidence=evidence)


def corrected(number: int, text: str = "nonsense", fault: str = "the answer is not JSON") -> Round:
    return Round(number, RoundAnswer(faults=(fault,), text=text))


def refused(number: int, why: str = "not during business hours") -> Round:
    intent = ToolCallIntent(name="restart", arguments={"host": "web-1"})
    return Round(number, RoundAnswer(decision=ExecuteDecision(action="confirm", speak="Restart?", tool_call=intent)), refusal=why)


ABORT = AbortIntent(code="no_access", user_message="打不开", internal_reason="403")
