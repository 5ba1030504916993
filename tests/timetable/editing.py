"""Tools that edit the week in a working copy. The edits become visible with `save_week`, which a person approves.

The copy is in a folder of the run beside the timetable, so that a resumed run finds it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deployments.timetable import week
from deployments.timetable.week import Row
from plan_adapter import ToolRegistry, tool
from plan_adapter.tools import OrderGuard, ToolContext, WorkingCopy


def _copy(context: ToolContext) -> WorkingCopy:
    original = Path(os.environ["TIMETABLE"])
    return WorkingCopy.open(original, at=original.parent / "work" / context.run_id)


@contextmanager
def _editing(context: ToolContext) -> Iterator[WorkingCopy]:
    copy = _copy(context)
    with week.at(copy.path):
        yield copy


@tool(effect="idempotent_write")
def open_week(context: ToolContext) -> list[str]:
    """Make the working copy of the week, and return the order of its tasks."""
    with _editing(context):
        return week.get_order()


@tool(effect="read")
def find_slot(day: int, context: ToolContext) -> list[Row]:
    """List the free slots of a day in the working copy."""
    with _editing(context):
        return week.find_free(day)


def show_week(context: ToolContext) -> str:
    """Show the working copy."""
    with _editing(context):
        placed = sorted(week.list_tasks("placed"), key=lambda row: (row["day"], row["slot"]))
    return "\n".join(["| day | slot | task |", "|---|---|---|", *(f"| {row['day']} | {row['slot']} | {row['name']} |" for row in placed)])


def keeps_order(context: ToolContext) -> str | None:
    """Return an error that names the moved tasks, or None if none moved or the plan allows reordering."""
    before = week.get_order()
    with _editing(context):
        moved = OrderGuard(before).check(week.get_order())
    return f"out of order: {'、'.join(moved)}" if moved and week.ALLOW_REORDER not in context.permissions else None


@tool(effect="write", preview=show_week, guard=keeps_order)
def put(task: int, day: int, slot: int, context: ToolContext) -> Row:
    """Place or move a task to a free slot in the working copy."""
    with _editing(context):
        has_place = week.get_task_info(task)["day"] is not None
        return week.move(task, day, slot) if has_place else week.place(task, day, slot)


@tool(effect="read")
def compare_order(baseline: list[str], context: ToolContext) -> Row:
    """Compare the order of the tasks in the working copy with an earlier one.

    Args:
        baseline: What `open_week` returned.
    """
    with _editing(context):
        moved = OrderGuard(baseline).check(week.get_order())
    return {"kept": not moved, "moved": moved}


@tool(effect="idempotent_write")
def save_week(context: ToolContext) -> bool:
    """Save the working copy as the week, unless somebody else has changed the week since."""
    with _editing(context) as copy:
        week.items()  # makes SQLite roll back an interrupted edit
        return copy.save()


TOOLS = ToolRegistry([open_week, find_slot, put, compare_order, save_week])
