"""Leases: at most one process executes a run, its owner. Functions of a connection.

A lease has an epoch, which every process that takes the run increments. A process states its epoch when it writes about the run, and the
transaction compares it. So a stalled process whose run was taken over writes nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, insert, select, update

from plan_adapter.model.errors import LeaseLostError, RunConflictError
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.readable import moment
from plan_adapter.store.database.columns import Clock, clock_of, now_of
from plan_adapter.store.database.rows import Row
from plan_adapter.store.database.tables import leases

GRACE_SECONDS = 15.0
"""How long after the end of a lease the run stays reserved. A slow owner may still renew in this time."""


class Claim(NamedTuple):
    """A lease that this process has taken: its epoch, and the clock by which it began."""

    epoch: int
    clock: Clock


def is_free(lease: Row | None, now: datetime) -> bool:
    """Return whether nobody can be executing the run of `lease` at `now`, the database's time.

    The run of a dead process of this host is free at once. For any other owner the lease decides. An owner that does not renew it in time
    has stalled, and its later writes are refused.
    """
    if lease is None or lease["owner"] is None:
        return True
    return HostProcess.parse(lease["owner"]).has_died or lease["until"] + timedelta(seconds=GRACE_SECONDS) < now


def owner_name(lease: Row) -> str:
    """Return a description of the owner of `lease`: its process id and host."""
    owner = HostProcess.parse(lease["owner"])
    return f"process {owner.pid} on this host" if owner.is_here else f"process {owner.pid} on {owner.host}"


def of_run(connection: Connection, run_id: str, *, lock: bool = False) -> Row | None:
    """Return the lease of the run, or None if no process ever took it."""
    query = select(leases).where(leases.c.run_id == run_id)
    return connection.execute(query.with_for_update() if lock else query).mappings().first()


def of_runs(connection: Connection, run_ids: Collection[str]) -> Sequence[Row]:
    """Return the leases of these runs."""
    return connection.execute(select(leases).where(leases.c.run_id.in_(run_ids))).mappings().all()


def take(connection: Connection, run_id: str, owner: HostProcess, *, context_columns: Mapping[str, str | None], seconds: float) -> Claim:
    """Make `owner` the process that executes the run.

    The caller has locked the run. Raises RunConflictError if another process may be executing it.
    """
    lease, clock = of_run(connection, run_id, lock=True), clock_of(connection)
    now = clock.database_time
    if lease is not None and not is_free(lease, now):
        until = lease["until"] + timedelta(seconds=GRACE_SECONDS)
        raise RunConflictError(
            f"run {run_id} is executed by {owner_name(lease)}; wait for it to end, or cancel it (without a sign of life, "
            f"the run becomes free at {moment(until)})"
        )
    epoch: int = 1 if lease is None else lease["epoch"] + 1
    values = {"owner": str(owner), "until": now + timedelta(seconds=seconds), "epoch": epoch}
    if lease is None:
        connection.execute(insert(leases).values(run_id=run_id, **context_columns, **values))
    else:
        connection.execute(update(leases).where(leases.c.run_id == run_id).values(**values))
    return Claim(epoch, clock)


def renew(connection: Connection, run_id: str, epoch: int, *, seconds: float) -> None:
    """Extend the lease to `seconds` from now. Raises LeaseLostError if another process has taken the run."""
    mine = (leases.c.run_id == run_id, leases.c.epoch == epoch, leases.c.owner.is_not(None))
    until = now_of(connection) + timedelta(seconds=seconds)
    if connection.execute(update(leases).where(*mine).values(until=until)).rowcount != 1:
        raise _lost_error(run_id)


def require(connection: Connection, run_id: str, epoch: int) -> None:
    """Raise LeaseLostError unless `epoch` is the lease's. Nobody can take the run until the transaction ends."""
    if connection.scalar(_EPOCH, {"run": run_id}) != epoch:
        raise _lost_error(run_id)


# Built once, because every commit of a run executes it.
_EPOCH = select(leases.c.epoch).where(leases.c.run_id == bindparam("run")).with_for_update(read=True)


def release_lease(connection: Connection, run_id: str, epoch: int | None = None) -> bool:
    """Free the run, with `epoch` only if the lease still has that epoch. Return whether anything was released."""
    mine = (leases.c.run_id == run_id, *(() if epoch is None else (leases.c.epoch == epoch,)))
    return connection.execute(update(leases).where(*mine).values(owner=None)).rowcount == 1


def _lost_error(run_id: str) -> LeaseLostError:
    return LeaseLostError(f"run {run_id} was taken over by another process: this process records nothing more about it")
