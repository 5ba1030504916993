"""Two processes and one interrupted run: both go on with it at once, one comes while the other stands still, one takes over and the
other wakes up."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from plan_adapter import PlanStatus
from plan_adapter.store import leases
from tests.faults.child import STOPPED, Fault, Told
from tests.faults.evidence import Violation
from tests.faults.harness import GOAL_TARGETS, OF_A_CALL, TARGETS, Target, Trial, may_reach, opened
from tests.faults.plans import scenario_of
from tests.faults.processes import SILENT, Child, start

LEASE = (0.3, 0.1)
"""Seconds of a lease, and of the grace after it, where one is to run out."""

ASLEEP: tuple[Target, ...] = (
    ("claimed", None),
    ("before-intent", None),
    ("after-intent", "read"),
    ("after-intent", "idempotent_write"),
    ("after-effect", None),
    ("before-end", None),
)
"""Where a process falls asleep. Not between the intent and the effect of a write: who wakes up there writes, and nobody can know.

That may also be after a receipt, whose commit the next intent shares.
"""

LOCKED = "StoreError"
"""What a process raises that waits for the database in vain."""

Race = Callable[[Trial, Sequence[Target]], Awaitable[bool]]


async def both_at_once(trial: Trial, _asleep: Sequence[Target]) -> bool:
    """Let two processes go on at once; return whether one was refused while the other executed the run."""
    before = await _starts(trial)
    pair = [start(trial.order("resume", fault=None)) for _ in range(2)]
    told = [await process.ended() for process in pair]
    trial.told.append(f"both at once: {told}")
    after = await _starts(trial)
    if wrong := [one for one in told if one.error not in (None, "RunConflictError")]:
        trial.found.append(Violation("two runners", f"one was neither done nor refused: {wrong}"))
    if after > before + 1 and not await _has_end_between(trial, after):
        trial.found.append(Violation("two runners", f"both executed the run: {told}"))
    if after == before and all(one.error for one in told):
        trial.found.append(Violation("two runners", f"none executed the run: {told}"))
    return any(one.error == "RunConflictError" for one in told)


async def one_is_held(trial: Trial, asleep: Sequence[Target]) -> bool:
    """Let a process stand still within its lease and another one come: it is refused; return whether it came to that."""
    sleeper = await _fallen_asleep(trial, asleep, lease=None)
    if sleeper is None:
        return False
    told = await start(trial.order("resume", fault=None)).ended()
    trial.told.append(f"the second: {told}")
    if told.error != "RunConflictError":
        trial.found.append(Violation("two runners", f"a second process was not refused, while the first one holds the lease: {told}"))
    first = await _woken(sleeper)
    trial.told.append(f"the first, woken: {first}")
    if not trial.found and first.error is not None:
        trial.found.append(Violation("broken", f"the process that held the run did not go on: {first}"))
    return True


async def one_takes_over(trial: Trial, asleep: Sequence[Target]) -> bool:
    """Let a process sleep until its lease is over and another one end the run; return whether the first then woke up."""
    sleeper = await _fallen_asleep(trial, asleep, lease=LEASE)
    if sleeper is None:
        return False
    leases.GRACE_SECONDS, grace = LEASE[1], leases.GRACE_SECONDS
    try:
        while await trial.store.ledger.owner(trial.run_id or "") is not None:
            await asyncio.sleep(0.02)
        trial.lease = LEASE
        if (order := await trial.next()) is not None and await trial.go_on_once(order) == LOCKED:
            trial.found.clear()  # the sleeper holds a lock of the database: nobody can take over
            await _woken(sleeper)
            return False
        await trial.execute_resume()
        before = await trial.store.export(trial.run_id or "")
        first = await _woken(sleeper)
        trial.told.append(f"the first, woken: {first}")
        if not trial.found and await trial.store.export(trial.run_id or "") != before:
            trial.found.append(Violation("fence", f"a process wrote into the record after another one had taken the run over: {first}"))
    finally:
        leases.GRACE_SECONDS = grace
    return True


RACES: tuple[Race, ...] = (both_at_once, one_is_held, one_takes_over)


async def race(
    kind: Race,
    seed: int,
    folder: Path,
    store_url: str | None = None,
    *,
    variant: str | None = None,
    asleep: Sequence[Target] = ASLEEP,
) -> tuple[Trial, bool]:
    """Interrupt the run of `seed`, have the race, bring the run to its end, and return what happened, and whether the race did.

    `asleep`: where the process sleeps, of the races in which one does.
    """
    while kind is one_takes_over and scenario_of(seed).plan.options.parallel_limit > 1:
        seed += 1_000_000  # there another call might be just before its effect while the process sleeps
    async with opened(seed, folder, store_url, interrupting) as trial:
        happened = False
        while not trial.found and not await _is_interrupted(trial) and (order := await trial.next()) is not None:
            await trial.go_on_once(order)
        trial.choose, trial.variant = (lambda _: None), variant
        if not trial.found and await _is_interrupted(trial):
            happened = await kind(trial, asleep)
        if not trial.found:
            await trial.execute_resume()
    return trial, happened


def interrupting(trial: Trial) -> Fault | None:
    """Let the next process end while it executes the run."""
    places = [(point, detail) for point, detail in (*TARGETS, *GOAL_TARGETS) if point in OF_A_CALL and may_reach(trial, point, detail)]
    return Fault(*trial.chance.choice([("claimed", None), *places]))


async def _is_interrupted(trial: Trial) -> bool:
    return trial.run_id is not None and (await trial.store.run(trial.run_id)).status is PlanStatus.EXECUTING


async def _fallen_asleep(trial: Trial, asleep: Sequence[Target], *, lease: tuple[float, float] | None) -> Child | None:
    """Return a process that sleeps at a place of the run; None where it ended before."""
    point, detail = trial.chance.choice([place for place in asleep if place[1] is None or may_reach(trial, *place)])
    order = trial.order("resume", fault=Fault(point, detail, stops=True))
    sleeper = start(replace(order, lease=lease))
    told = await sleeper.said()
    trial.told.append(f"one sleeps at {order.fault}: {told}")
    if told != STOPPED:
        if (end := await sleeper.ended()).error == SILENT:
            trial.found.append(Violation("broken", f"the process that was to sleep at {order.fault}: {end.words}"))
        return None
    while _state_of(sleeper.process.pid or 0) != "T":
        await asyncio.sleep(0.005)
    return sleeper


async def _woken(sleeper: Child) -> Told:
    """Wake a process, and return what it tells at its end."""
    os.kill(sleeper.process.pid or 0, signal.SIGCONT)
    return await sleeper.ended()


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def _starts(trial: Trial) -> int:
    return sum(entry.kind == "run_started" for entry in await trial.store.audit(trial.run_id or ""))


async def _has_end_between(trial: Trial, starts: int) -> bool:
    """Return whether the run had ended before its newest start."""
    kinds = [entry.kind for entry in await trial.store.audit(trial.run_id or "") if entry.kind in ("run_started", "run_ended")]
    newest = max(place for place, kind in enumerate(kinds) if kind == "run_started")
    return starts > 1 and kinds[newest - 1] == "run_ended"
