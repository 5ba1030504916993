"""The tools behind a goal and a question. Plans cannot name them."""

from functools import cache
from typing import Any

from pydantic import JsonValue

from plan_adapter.model.plan import ASK, GOAL
from plan_adapter.tools.tool import Tool, ToolContext


async def pursue(goal: str, done_when: str = "") -> None:
    """Do nothing. A goal's step records its own end as a call of this tool, after its last round."""


@cache
def goal_tool() -> Tool[..., Any]:
    """Return the tool that the step of a goal calls at the end of its last round."""
    return Tool(pursue, effect="read", name=GOAL)


async def ask(question: str, context: ToolContext) -> JsonValue:  # the gate has shown the question
    """Return what a person answered at the gate of the step."""
    return context.answer


@cache
def question_tool() -> Tool[..., Any]:
    """Return the tool that the step of a question calls once somebody has answered."""
    return Tool(ask, effect="read", name=ASK)
