"""Checks the goals of a plan: the tools that a model may use, and the fields of a step that a goal does not have."""

from typing import Any

from plan_adapter.plan import Step
from plan_adapter.settings import Settings
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool
from plan_adapter.validation.findings import Findings

_NOT_IN_GOALS = {
    "tool_name": "a goal calls its `tools`",
    "parameters": "the model chooses the arguments",
    "input": "the model chooses the arguments",
    "for_each": "a goal is pursued once",
    "steps": "a goal has no steps",
    "effect": "its effect is that of its `tools`",
    "runner": "its tools are called in the process of the run",
    "rollback": "what the model writes is not undone",
}


_SENDING_TOOLS = ("http_get",)
"""Built-in tools that only read, but can still send text from their caller to any address."""


def check_goal(step: Step, at: str, tools: ToolRegistry, findings: Findings) -> tuple[Tool[..., Any], ...]:
    """Add the problems of a step with a goal, and return the tools that its model may use."""
    for field, why in _NOT_IN_GOALS.items():
        if getattr(step, field) != Step.model_fields[field].get_default(call_default_factory=True):
            findings.add("bad-goal", f"{at}.{field}", f"a goal has no `{field}`: {why}", "remove it, or `goal`")
    if step.group is not None:
        findings.add("not-yet", f"{at}.goal", "a step of a group cannot have a goal yet", "move it out of the group")
    if not (step.goal or "").strip():
        findings.add("bad-goal", f"{at}.goal", "the goal is empty", "describe in words what the model should achieve")
    if not step.tools:
        findings.add("bad-goal", f"{at}.tools", "the goal has no tools, so nothing could be done", "name at least one tool")
    if not Settings().model:
        message = "no model is configured here, so the goal would not be pursued"
        findings.warn("no-model", f"{at}.goal", message, "set PLAN_ADAPTER_MODEL where the plan runs")
    for index, name in enumerate(step.tools):
        if name in step.tools[:index]:
            findings.warn("duplicate-entry", f"{at}.tools[{index}]", f"`{name}` is written twice", "remove one of them")
        elif name in _SENDING_TOOLS and name in tools and not step.requires_approval:
            message = f"with `{name}` the model can send what it knows to any address, and nobody is asked"
            hint = "name a tool of your own for the addresses that it needs, or write `requires_approval: true`"
            findings.warn("open-read", f"{at}.tools[{index}]", message, hint)
    return tuple(tool for name in dict.fromkeys(step.tools) if (tool := tools.get(name)) is not None)


def check_no_goal(step: Step, at: str, findings: Findings) -> None:
    """Add the problems of a step without a goal that has a field only a goal has."""
    for field in ("tools", "max_rounds"):
        if getattr(step, field):
            findings.add("bad-goal", f"{at}.{field}", f"`{field}` belongs to a goal, and the step has no `goal`", "remove it")
