"""The differences between two versions of a plan, as lines of text."""

from pydantic import JsonValue

from plan_adapter.canonical import Change, diff_plans
from plan_adapter.plan import ExecutionPlan
from plan_adapter.readable import as_text, counted, is_secret_name, one_line, redacted

SHOWN_CHARACTERS = 200
"""How much of a value is shown; `plan show` shows all of it."""


def difference_lines(old: ExecutionPlan, new: ExecutionPlan) -> list[str]:
    """Return the differences from `old` to `new`, most important first; empty if there are none."""
    found = diff_plans(old, new)
    raised = [change for change in found.changed if change.at in {f"{name}.effect" for name in found.raised}]
    return [
        *(f"! EFFECT RAISED: step {change.at.rpartition('.')[0]} {_change_text(change)}" for change in raised),
        *(f"+ step {name} is new{_tool_suffix(new, name)}" for name in found.added),
        *(f"- step {name} is gone{_tool_suffix(old, name)}" for name in found.removed),
        *(f"~ {change.at}: {_change_text(change)}" for change in found.changed if change not in raised),
        *([f"~ reordered: {', '.join(found.reordered)}"] if found.reordered else []),
    ]


def difference_title(lines: list[str]) -> str:
    """Return the line above the differences."""
    return f"what the new version changes ({counted(len(lines), 'place')}):"


def _change_text(change: Change) -> str:
    is_secret = any(is_secret_name(name) for name in change.at.split("."))
    return f"{_value_text(change.old, is_secret=is_secret)} → {_value_text(change.new, is_secret=is_secret)}"


def _value_text(value: JsonValue, *, is_secret: bool) -> str:
    if value is None:
        return "(not written)"
    value = "***" if is_secret else redacted(value)
    text = as_text(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _tool_suffix(plan: ExecutionPlan, name: str) -> str:
    step = next((step for step in plan.all_steps if step.id == name.removeprefix("finally.")), None)
    if step is None:
        return ""
    description = f": {one_line(step.description)}" if step.description else ""
    return f" ({step.called}{description})"
