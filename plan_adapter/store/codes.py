"""`OneTimeCodes`: each code is accepted once, and too many wrong ones lock a name for a while.

Rows are only added. The table of used codes holds each code's name and counter. It also holds the numbered tries, and which of them were
right, under names that no Secret block can have.
"""

from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from plan_adapter.gates.identity import identity_of_account
from plan_adapter.gates.policy import effective_policy
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError, RunConflictError
from plan_adapter.model.readable import one_line
from plan_adapter.model.record import RunContext
from plan_adapter.store.database.columns import database_now, insert_into, now_of
from plan_adapter.store.database.database import StorePart, reads, writes
from plan_adapter.store.database.rows import HasContext, context_columns
from plan_adapter.store.database.tables import totp_history, used_codes
from plan_adapter.store.policies import newest

MAX_WRONG_TRIES = 5
WRONG_TRIES_WINDOW = timedelta(minutes=5)


class OneTimeCodes(StorePart):
    """The one-time codes of people: their encrypted seeds, the tries and the used codes. Implements `gates.totp.CodeStore`."""

    @reads
    def seed(self, connection: Connection, person: str) -> str | None:
        """Return the encrypted seed of a person's one-time codes, or None."""
        return _seed_of(connection, person)

    @reads
    def refuse_enrolling(self, connection: Connection, person: str, *, by: str) -> None:
        """Raise NotApprovedError if `by` is not allowed to enroll `person`. The error says who is.

        Everybody can enroll themselves. Only operators of the store's policy can enroll others. If the policy names no operators, anybody
        can enroll a person who has no seed yet.
        """
        _refuse_enrolling(connection, person, by=by)

    @writes
    def enroll(self, connection: Connection, person: str, seed: str, *, by: str, replaces: bool) -> None:
        """Add an encrypted seed. Earlier seeds stay in the store but are no longer valid.

        It is recorded as added by `by`, unverified unless that is the account of this process.

        Raises NotApprovedError like `refuse_enrolling`. Raises RunConflictError if the person has a seed, unless it `replaces` that.
        """
        _refuse_enrolling(connection, person, by=by)
        last = connection.scalar(select(func.max(totp_history.c.number)).where(totp_history.c.name == person)) or 0
        if last and not replaces:
            raise RunConflictError(
                f"{one_line(person)} has one-time codes already: `plan enroll {one_line(person)}` asks before it replaces them"
            )
        row = {**context_columns(RunContext()), "name": person, "number": last + 1, "seed": seed}
        row |= {"by": by, "known_by": identity_of_account(by).known_by, "at": now_of(connection)}
        added = connection.execute(insert_into(totp_history, connection.dialect.name).values(row).on_conflict_do_nothing())
        if added.rowcount != 1:
            raise RunConflictError(f"somebody else enrolled {one_line(person)} at the same moment")

    @writes
    def count_try(self, connection: Connection, name: str) -> float:
        """Count a try of a one-time code of `name` and return 0.0. The try counts as wrong unless `use` follows.

        After 5 wrong tries within 5 minutes, in any process, nothing is counted. Then returns the seconds until the next try.
        """
        while True:  # another process may take the number, and the last try, in between; so the number is read first
            last = connection.scalar(select(func.max(used_codes.c.counter)).where(used_codes.c.name == _tries_key(name)))
            now = now_of(connection)
            wrong = list(_wrong_tries(connection, name, since=now - WRONG_TRIES_WINDOW).values())
            if len(wrong) >= MAX_WRONG_TRIES:
                return max(0.001, (wrong[-MAX_WRONG_TRIES] + WRONG_TRIES_WINDOW - now).total_seconds())
            if _insert_code(connection, _tries_key(name), (last or 0) + 1, self._with_tenant()):
                return 0.0

    @writes
    def use(self, connection: Connection, name: str, counter: int) -> bool:
        """Return True for the first use of this name and counter, which also marks the try as right, and False afterwards."""
        context = self._with_tenant()
        if not _insert_code(connection, name, counter, context):
            return False
        while wrong := _wrong_tries(connection, name, since=now_of(connection) - WRONG_TRIES_WINDOW):
            if _insert_code(connection, _right_tries_key(name), max(wrong), context):
                break
        return True


def _wrong_tries(connection: Connection, name: str, *, since: datetime) -> dict[int, datetime]:
    """Return the wrong tries after `since` as number -> time, oldest first."""
    right = used_codes.alias()
    was_right = select(right.c.counter).where(right.c.name == _right_tries_key(name), right.c.counter == used_codes.c.counter).exists()
    tries = select(used_codes.c.counter, used_codes.c.used_at).where(used_codes.c.name == _tries_key(name), used_codes.c.used_at > since)
    found = connection.execute(tries.where(~was_right).order_by(used_codes.c.counter))
    return {row.counter: row.used_at for row in found}


def _insert_code(connection: Connection, name: str, counter: int, context: HasContext) -> bool:
    row = {**context_columns(context), "name": name, "counter": counter, "used_at": database_now()}
    return connection.execute(insert_into(used_codes, connection.dialect.name).values(row).on_conflict_do_nothing()).rowcount == 1


def _tries_key(name: str) -> str:
    return f"tries of {name}"


def _right_tries_key(name: str) -> str:
    return f"right tries of {name}"


def _seed_of(connection: Connection, person: str) -> str | None:
    """Return the newest encrypted seed of a person's one-time codes, or None."""
    seeds = select(totp_history.c.seed).where(totp_history.c.name == person).order_by(totp_history.c.number.desc())
    return connection.scalar(seeds.limit(1))


def _refuse_enrolling(connection: Connection, person: str, *, by: str) -> None:
    if by == person:
        return
    version = newest(connection)
    operators = None if version is None else effective_policy(Settings.model_construct(), version.policy).operators
    if by in operators if operators is not None else _seed_of(connection, person) is None:
        return
    also = "" if operators is None else f", or an operator of the policy: {', '.join(map(one_line, operators)) or 'nobody'}"
    raise NotApprovedError(f"{one_line(by)} may not enroll {one_line(person)}; allowed: {one_line(person)}{also}")
