"""The differences between two versions of a plan, as lines of text."""

from plan_adapter.canonical import Change, diff_plans
from plan_adapter.plan import ExecutionPlan
from plan_adapter.readable import counted, is_secret_name, one_line


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
    old, new = change.shown(is_secret=any(is_secret_name(name) for name in change.at.split(".")))
    return f"{old or '(not written)'} → {new or '(not written)'}"


def _tool_suffix(plan: ExecutionPlan, name: str) -> str:
    step = next((step for step in plan.all_steps if step.id == name.removeprefix("finally.")), None)
    if step is None:
        return ""
    description = f": {one_line(step.description)}" if step.description else ""
    return f" ({step.called}{description})"
