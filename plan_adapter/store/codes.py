"""One-time codes: each is accepted once, and too many wrong ones lock a name for a while. Functions of a connection.

Rows are only added, all to one table. It holds the used codes with their counters. Under names that no Secret block can have, it also holds
the numbered tries and which of them were right.
"""

from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from plan_adapter.store.columns import database_now, insert_into, now_of
from plan_adapter.store.rows import HasContext, whose
from plan_adapter.store.tables import used_codes

MOST_WRONG = 5
WITHIN = timedelta(minutes=5)


def begin_try(connection: Connection, name: str, context: HasContext) -> float:
    """Count a try of a code of `name` and return 0.0. The try counts as wrong until `use` is called.

    After too many wrong tries nothing is counted. Then returns the seconds to wait before the next try.
    """
    while True:  # another process may take the number, and the last try, in between; so the number is read first
        last = connection.scalar(select(func.max(used_codes.c.counter)).where(used_codes.c.name == _tries(name)))
        now = now_of(connection)
        wrong = list(_wrong(connection, name, since=now - WITHIN).values())
        if len(wrong) >= MOST_WRONG:
            return max(0.001, (wrong[-MOST_WRONG] + WITHIN - now).total_seconds())
        if _add(connection, _tries(name), (last or 0) + 1, context):
            return 0.0


def use(connection: Connection, name: str, counter: int, context: HasContext) -> bool:
    """Return whether this is the first use of `name`'s code with this counter. Marks it used, and one of the wrong tries right."""
    if not _add(connection, name, counter, context):
        return False
    while wrong := _wrong(connection, name, since=now_of(connection) - WITHIN):
        if _add(connection, _right(name), max(wrong), context):
            break
    return True


def _wrong(connection: Connection, name: str, *, since: datetime) -> dict[int, datetime]:
    """Return the wrong tries after `since` as number -> time, oldest first."""
    right = used_codes.alias()
    was_right = select(right.c.counter).where(right.c.name == _right(name), right.c.counter == used_codes.c.counter).exists()
    tries = select(used_codes.c.counter, used_codes.c.used_at).where(used_codes.c.name == _tries(name), used_codes.c.used_at > since)
    found = connection.execute(tries.where(~was_right).order_by(used_codes.c.counter))
    return {row.counter: row.used_at for row in found}


def _add(connection: Connection, name: str, counter: int, context: HasContext) -> bool:
    row = {**whose(context), "name": name, "counter": counter, "used_at": database_now()}
    return connection.execute(insert_into(used_codes, connection.dialect.name).values(row).on_conflict_do_nothing()).rowcount == 1


def _tries(name: str) -> str:
    return f"tries of {name}"


def _right(name: str) -> str:
    return f"right tries of {name}"
