"""`goal`: the tool behind the goal of a plan. Plans cannot name it."""

from functools import cache
from typing import Any

from plan_adapter.plan import GOAL
from plan_adapter.tools.tool import Tool


async def pursue(goal: str, done_when: str = "") -> None:
    """Do nothing. A goal's step records its own end as a call of this tool, after its last round."""


@cache
def goal_tool() -> Tool[..., Any]:
    """Return the tool that the step of a goal calls at the end of its last round."""
    return Tool(pursue, effect="read", name=GOAL)
