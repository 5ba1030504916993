"""Watching a SQLite file for the signals of any process."""

import os
import sqlite3
import time
from pathlib import Path

from plan_adapter.store.changes import Changes

POLL_SECONDS = 0.035

AWAKE_TURNS = 30
"""For how many turns after a write the file itself is looked at: what is written can be seen only once it is on the disk."""

IDLE_TURNS = 8
"""At every which turn it is looked at while nothing is written."""


def watch(path: Path, changes: Changes) -> None:
    """Tell `changes` of every signal in the file at `path`, and once at the beginning, until it need not go on; for a thread.

    A connection of its own looks at a number in the file's header. That takes locks; so, while nothing is written, mostly only the
    state of the file that every commit is appended to is looked at.
    """
    connection: sqlite3.Connection | None = None
    log, written, awake, seen = f"{path}-wal", _state(f"{path}-wal"), AWAKE_TURNS, -1
    turn = 0
    try:
        while changes.goes_on():
            turn += 1
            if (now := _state(log)) != written:
                written, awake = now, AWAKE_TURNS
            if awake or turn % IDLE_TURNS == 0:
                awake -= awake > 0
                try:
                    connection = connection or _connect(path)
                    found: int = connection.execute("PRAGMA user_version").fetchall()[0][0]
                except sqlite3.Error:  # it is not made yet, or locked while it is; who reads the store is told what is wrong
                    awake = AWAKE_TURNS
                else:
                    if found != seen:
                        seen = found
                        changes.tell()
            time.sleep(POLL_SECONDS)
    finally:
        if connection is not None:
            connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    # Never makes the file; `rw` and not `ro`, because a reader of a file in WAL mode must be able to make its shared memory.
    return sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=POLL_SECONDS)


def _state(log: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(log)  # noqa: PTH116  # called 30 times a second, and a Path takes three times as long
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
