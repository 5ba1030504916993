"""A week's timetable in SQLite, as tools: six slots a day, events that stay, and tasks to be placed.

Tools identify a task by its number (`state_id`), and the planners of whole weeks by a name (`logic_id`). The environment variable TIMETABLE
names the file of the database, so that every process of a run finds it. Inside `at`, the tools use another file.

`TIMETABLE=week.db python -m deployments.timetable.week` creates an example week.
"""

import os
import sqlite3
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from plan_adapter import ToolRegistry, tool
from plan_adapter.errors import ToolError
from plan_adapter.tools import OrderGuard

DAYS, SLOTS = 7, 6
ALLOW_REORDER = "allow_reorder"

Row = dict[str, Any]

EVENTS = (("体育课", 1, 1), ("班会", 3, 2))
TASKS = (("高数作业", "数学"), ("英语阅读", "英语"), ("高数复习", "数学"), ("物理实验", "物理"), ("英语听力", "英语"))
"""The events and the tasks of the example."""


class Item(NamedTuple):
    """A task in its place, as the planners know it."""

    logic_id: str
    subject: str
    day: int
    slot: int


class Move(BaseModel):
    """A task and its new place."""

    task: int
    day: int
    slot: int


def create(path: Path, *, events: Iterable[tuple[str, int, int]], tasks: Iterable[tuple[str, str]]) -> None:
    """Create a timetable with fixed `events` (name, day, slot) and `tasks` (name, subject) that have no place yet."""
    with sqlite3.connect(path) as db:
        db.execute(
            "CREATE TABLE item (state_id INTEGER PRIMARY KEY, logic_id TEXT UNIQUE, name TEXT, subject TEXT, fixed INTEGER,"
            " day INTEGER, slot INTEGER, UNIQUE (day, slot), CHECK (day BETWEEN 1 AND 7 AND slot BETWEEN 1 AND 6))"
        )
        rows = [(name, "event", 1, day, slot) for name, day, slot in events] + [(name, subject, 0, None, None) for name, subject in tasks]
        for number, row in enumerate(rows, 1):
            logic_id = f"{'event' if row[2] else 'task_item'}:{100 + number}"
            db.execute("INSERT INTO item VALUES (?, ?, ?, ?, ?, ?, ?)", (number, logic_id, *row))
    db.close()


_FILE: ContextVar[Path | None] = ContextVar("timetable", default=None)


@contextmanager
def at(path: Path) -> Generator[None]:
    """Let the tools use the timetable at `path` in this block."""
    token = _FILE.set(path)
    try:
        yield
    finally:
        _FILE.reset(token)


@contextmanager
def _database() -> Generator[sqlite3.Connection]:
    """Open the timetable. The block is one transaction."""
    db = sqlite3.connect(_FILE.get() or os.environ["TIMETABLE"], isolation_level="IMMEDIATE")
    db.row_factory = sqlite3.Row
    try:
        with db:
            yield db
    finally:
        db.close()


def items() -> list[Row]:
    """Return everything in the timetable, by number."""
    with _database() as db:
        return [dict(row) for row in db.execute("SELECT * FROM item ORDER BY state_id")]


def _item(db: sqlite3.Connection, task: int) -> Row:
    row = db.execute("SELECT * FROM item WHERE state_id = ?", (task,)).fetchone()
    if row is None:
        raise ToolError(f"there is no task {task}: `list_tasks` shows them")
    return dict(row)


def _movable(db: sqlite3.Connection, task: int, *, placed: bool) -> Row:
    row = _item(db, task)
    if row["fixed"]:
        raise ToolError(f"{row['name']} is an event and stays where it is")
    if (row["day"] is not None) != placed:
        raise ToolError(f"{row['name']} has no place yet: use `place`" if placed else f"{row['name']} already has a place: use `move`")
    return row


def _put(db: sqlite3.Connection, moves: Sequence[Move]) -> list[Row]:
    """Move all tasks of `moves` at once, so that tasks can swap places."""
    for move in moves:
        if not (1 <= move.day <= DAYS and 1 <= move.slot <= SLOTS):
            raise ToolError(f"day {move.day}, slot {move.slot} does not exist: days are 1 to {DAYS}, slots 1 to {SLOTS}")
        db.execute("UPDATE item SET day = NULL, slot = NULL WHERE state_id = ?", (move.task,))
    for move in moves:
        taken = db.execute("SELECT name FROM item WHERE day = ? AND slot = ?", (move.day, move.slot)).fetchone()
        if taken is not None:
            raise ToolError(f"day {move.day}, slot {move.slot} is taken by {taken['name']}: `find_free` shows free slots")
        db.execute("UPDATE item SET day = ?, slot = ? WHERE state_id = ?", (move.day, move.slot, move.task))
    return [_item(db, move.task) for move in moves]


@tool(effect="read")
def get_overview() -> Row:
    """Count the free slots of each day, the tasks that have a place, and those that have none."""
    rows = items()
    free = {str(day): SLOTS - sum(row["day"] == day for row in rows) for day in range(1, DAYS + 1)}
    tasks = [row for row in rows if not row["fixed"]]
    pending = sum(row["day"] is None for row in tasks)
    return {"free": free, "placed": len(tasks) - pending, "pending": pending}


@tool(effect="read")
def query_range(day: int, first: int = 1, last: int = SLOTS) -> list[Row]:
    """Show what is in the slots of a day."""
    found = [row for row in items() if row["day"] == day and first <= row["slot"] <= last]
    return sorted(found, key=lambda row: row["slot"])


@tool(effect="read")
def find_free(day: int | None = None) -> list[Row]:
    """List the free slots of a day, or of the week."""
    taken = {(row["day"], row["slot"]) for row in items()}
    days = range(1, DAYS + 1) if day is None else (day,)
    return [{"day": one, "slot": slot} for one in days for slot in range(1, SLOTS + 1) if (one, slot) not in taken]


@tool(effect="read")
def list_tasks(status: Literal["all", "placed", "pending"] = "all") -> list[Row]:
    """List the tasks, which are no events."""
    wanted = {"all": (True, False), "placed": (True,), "pending": (False,)}[status]
    return [row for row in items() if not row["fixed"] and (row["day"] is not None) in wanted]


@tool(effect="read")
def get_task_info(task: int) -> Row:
    """Show one task or event."""
    with _database() as db:
        return _item(db, task)


@tool(effect="write")
def place(task: int, day: int, slot: int) -> Row:
    """Give a task that has no place a free slot."""
    with _database() as db:
        _movable(db, task, placed=False)
        return _put(db, [Move(task=task, day=day, slot=slot)])[0]


@tool(effect="write")
def move(task: int, day: int, slot: int) -> Row:
    """Move a task to a free slot."""
    with _database() as db:
        _movable(db, task, placed=True)
        return _put(db, [Move(task=task, day=day, slot=slot)])[0]


@tool(effect="write")
def swap(one: int, other: int) -> list[Row]:
    """Let two tasks change places."""
    with _database() as db:
        first, second = _movable(db, one, placed=True), _movable(db, other, placed=True)
        moves = [(one, second), (other, first)]
        return _put(db, [Move(task=task, day=to["day"], slot=to["slot"]) for task, to in moves])


@tool(effect="write")
def batch_move(moves: list[Move]) -> list[Row]:
    """Move several tasks: all of them, or none if one cannot be moved."""
    with _database() as db:
        for one in moves:
            _movable(db, one.task, placed=True)
        return _put(db, moves)


@tool(effect="write")
def unplace(task: int) -> Row:
    """Take a task out of the timetable."""
    with _database() as db:
        row = _movable(db, task, placed=True)
        db.execute("UPDATE item SET day = NULL, slot = NULL WHERE state_id = ?", (task,))
        return row | {"day": None, "slot": None}


@tool(effect="write", permissions=[ALLOW_REORDER])
def min_context_switch() -> list[Row]:
    """Reorder the tasks so that those of one subject follow each other. The slots in use stay the same."""
    return _replan(planned_min_context_switch)


@tool(effect="write", permissions=[ALLOW_REORDER])
def spread_even() -> list[Row]:
    """Spread the tasks evenly over the days, by free slots."""
    return _replan(planned_spread_even)


def _replan(planner: Any) -> list[Row]:
    """Let `planner` move all tasks that have a place. It knows them by `logic_id`, the database by `state_id`."""
    with _database() as db:
        rows = [dict(row) for row in db.execute("SELECT * FROM item WHERE day IS NOT NULL ORDER BY day, slot")]
        state_ids = {row["logic_id"]: row["state_id"] for row in rows}
        fixed = {(row["day"], row["slot"]) for row in rows if row["fixed"]}
        planned = planner([Item(row["logic_id"], row["subject"], row["day"], row["slot"]) for row in rows if not row["fixed"]], fixed)
        return _put(db, [Move(task=state_ids[item.logic_id], day=item.day, slot=item.slot) for item in planned])


def planned_min_context_switch(tasks: Sequence[Item], fixed: set[tuple[int, int]]) -> list[Item]:
    """Return the tasks grouped by subject, in the slots already in use. Subjects keep the order of their first tasks."""
    del fixed
    subjects = list(dict.fromkeys(task.subject for task in tasks))
    grouped = sorted(tasks, key=lambda task: subjects.index(task.subject))
    return [task._replace(day=at.day, slot=at.slot) for task, at in zip(grouped, tasks, strict=True)]


def planned_spread_even(tasks: Sequence[Item], fixed: set[tuple[int, int]]) -> list[Item]:
    """Return the tasks in their order, spread as evenly over the days as events allow."""
    free = [[slot for slot in range(1, SLOTS + 1) if (day, slot) not in fixed] for day in range(1, DAYS + 1)]
    counts = [0] * DAYS
    for _ in tasks:
        day = min((day for day in range(DAYS) if counts[day] < len(free[day])), key=lambda day: counts[day])
        counts[day] += 1
    places = [(day + 1, slot) for day in range(DAYS) for slot in free[day][: counts[day]]]
    return [task._replace(day=day, slot=slot) for task, (day, slot) in zip(tasks, places, strict=True)]


@tool(effect="read")
def get_order() -> list[str]:
    """Return the names of the tasks in the order in which they come."""
    return [row["name"] for row in sorted(list_tasks("placed"), key=lambda row: (row["day"], row["slot"]))]


@tool(effect="read")
def check_order(baseline: list[str]) -> Row:
    """Compare the order of the tasks with an earlier one. Only tasks that are in both count.

    Args:
        baseline: What `get_order` returned at the start.
    """
    moved = OrderGuard(baseline).check(get_order())
    return {"kept": not moved, "moved": moved}


@tool(effect="write")
def restore_order(baseline: list[str]) -> Row:
    """Put the tasks back into an earlier order, in the slots that are in use. Tasks that were not there then stay where they are.

    Args:
        baseline: What `get_order` returned at the start.
    """
    with _database() as db:
        rows = [dict(row) for row in db.execute("SELECT * FROM item WHERE day IS NOT NULL AND NOT fixed ORDER BY day, slot")]
        tasks = {row["name"]: row["state_id"] for row in rows}
        restored = OrderGuard(baseline).restored(list(tasks))
        _put(db, [Move(task=tasks[name], day=at["day"], slot=at["slot"]) for name, at in zip(restored, rows, strict=True)])
    return check_order(baseline)


def switches() -> int:
    """Return how often the subject changes between two tasks that follow each other on a day."""
    rows = sorted(list_tasks("placed"), key=lambda row: (row["day"], row["slot"]))
    return sum(len(list(groupby(row["subject"] for row in day))) - 1 for _, day in groupby(rows, key=lambda row: row["day"]))


TOOLS = ToolRegistry(
    [
        *(get_overview, query_range, find_free, list_tasks, get_task_info, get_order, check_order),
        *(place, move, swap, batch_move, unplace, min_context_switch, spread_even, restore_order),
    ]
)


if __name__ == "__main__":
    create(Path(os.environ["TIMETABLE"]), events=EVENTS, tasks=TASKS)
