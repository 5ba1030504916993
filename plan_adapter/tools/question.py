"""`ask`: the tool behind a question of a plan. Plans cannot name it."""

from functools import cache
from typing import Any

from pydantic import JsonValue

from plan_adapter.plan import ASK
from plan_adapter.tools.tool import Tool, ToolContext


async def ask(question: str, context: ToolContext) -> JsonValue:  # the gate has shown the question
    """Return what a person answered at the gate of the step."""
    return context.answer


@cache
def question_tool() -> Tool[..., Any]:
    """Return the tool that the step of a question calls once somebody has answered."""
    return Tool(ask, effect="read", name=ASK)
