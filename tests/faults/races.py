"""Races of two processes for one interrupted run: both resume it at the same time, one holds the lease while the other tries to resume, or
one takes over while the other sleeps."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from plan_adapter.execution.rollback_units import is_rolled_back
from plan_adapter.store import PlanStatus, leases
from tests.faults.child import STOPPED, Fault, Report
from tests.faults.evidence import Violation
from tests.faults.harness import CALL_POINTS, GOAL_TARGETS, TARGETS, Target, Trial, may_reach, open_trial
from tests.faults.plans import has_commands, scenario_of
from tests.faults.processes import NO_REPORT, Child, start

LEASE = (0.3, 0.1)
"""The seconds of a lease that expires, and of its grace period."""

SLEEP_TARGETS: tuple[Target, ...] = (
    ("claimed", None),
    ("before-intent", None),
    ("after-intent", "read"),
    ("after-intent", "idempotent_write"),
    ("after-effect", None),
    ("before-end", None),
)
"""Where a process sleeps. Not between the intent and the effect of a write: it would write after waking up, and nothing could detect that.

This also excludes the time after a receipt, which is committed together with the next intent.
"""

LOCKED = "StoreError"
"""The error of a process that cannot lock the database."""

Race = Callable[[Trial, Sequence[Target]], Awaitable[bool]]


async def both_at_once(trial: Trial, _sleep_at: Sequence[Target]) -> bool:
    """Resume the run in two processes at once. Return whether one was refused while the other executed the run."""
    before = await _count_starts(trial)
    pair = [start(trial.order("resume", fault=None)) for _ in range(2)]
    reports = [await process.final_report() for process in pair]
    trial.events.append(f"both at once: {reports}")
    after = await _count_starts(trial)
    if wrong := [report for report in reports if report.error not in (None, "RunConflictError")]:
        trial.violations.append(Violation("two runners", f"a process neither succeeded nor was refused: {wrong}"))
    if after > before + 1 and not await _ended_before_newest_start(trial, after):
        trial.violations.append(Violation("two runners", f"both processes executed the run: {reports}"))
    if after == before and all(report.error for report in reports) and not await _rollback_waits_for_an_outcome(trial):
        trial.violations.append(Violation("two runners", f"no process executed the run: {reports}"))
    return any(report.error == "RunConflictError" for report in reports)


async def one_is_held(trial: Trial, sleep_at: Sequence[Target]) -> bool:
    """Stop a process while it holds the lease, and check that a second one is refused. Return whether the race happened."""
    sleeper = await _put_to_sleep(trial, sleep_at, lease=None)
    if sleeper is None:
        return False
    report = await start(trial.order("resume", fault=None)).final_report()
    trial.events.append(f"the second: {report}")
    if report.error != "RunConflictError":
        trial.violations.append(Violation("two runners", f"the second process was not refused while the first held the lease: {report}"))
    first = await _wake(sleeper)
    trial.events.append(f"the first, woken: {first}")
    if not trial.violations and first.error is not None:
        trial.violations.append(Violation("broken", f"the process that held the lease did not continue: {first}"))
    return True


async def one_takes_over(trial: Trial, sleep_at: Sequence[Target]) -> bool:
    """Stop a process until its lease expires, let another one end the run, and wake the first. Return whether the race happened."""
    sleeper = await _put_to_sleep(trial, sleep_at, lease=LEASE)
    if sleeper is None:
        return False
    leases.GRACE_SECONDS, grace = LEASE[1], leases.GRACE_SECONDS
    try:
        while await trial.store.ledger.owner(trial.run_id or "") is not None:
            await asyncio.sleep(0.02)
        trial.lease = LEASE
        if (order := await trial.next_order()) is not None and await trial.run_once(order) == LOCKED:
            trial.violations.clear()  # the sleeper holds a database lock, so no process can take over
            await _wake(sleeper)
            return False
        await trial.run_to_end()
        before = await trial.store.export(trial.run_id or "")
        first = await _wake(sleeper)
        trial.events.append(f"the first, woken: {first}")
        if not trial.violations and await trial.store.export(trial.run_id or "") != before:
            trial.violations.append(Violation("fence", f"the first process changed the record after the second took over: {first}"))
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
    sleep_at: Sequence[Target] = SLEEP_TARGETS,
) -> tuple[Trial, bool]:
    """Interrupt the run of `seed`, race for it, and run it to its end. Return the trial, and whether the race happened.

    `sleep_at`: the targets at which the sleeping process may stop.
    """
    while has_commands(scenario_of(seed).plan) or (kind is one_takes_over and scenario_of(seed).plan.options.parallel_limit > 1):
        # A command runs on while its process sleeps; with parallel steps another call may be just before its effect then.
        seed += 1_000_000
    async with open_trial(seed, folder, store_url, fault_during_execution) as trial:
        happened = False
        while not trial.violations and not await _is_interrupted(trial) and (order := await trial.next_order()) is not None:
            await trial.run_once(order)
        trial.choose, trial.variant = (lambda _: None), variant
        if not trial.violations and await _is_interrupted(trial):
            happened = await kind(trial, sleep_at)
        if not trial.violations:
            await trial.run_to_end()
    return trial, happened


def fault_during_execution(trial: Trial) -> Fault | None:
    """Return a fault that ends the next process while it executes the run."""
    targets: list[Target] = [("claimed", None)]
    targets += [target for target in (*TARGETS, *GOAL_TARGETS) if target[0] in CALL_POINTS and may_reach(trial, *target)]
    return Fault(*trial.chance.choice(targets))


async def _is_interrupted(trial: Trial) -> bool:
    return trial.run_id is not None and (await trial.store.run(trial.run_id)).status is PlanStatus.EXECUTING


async def _rollback_waits_for_an_outcome(trial: Trial) -> bool:
    """Return whether the run was rolled back and has an unknown outcome. Every resume is refused until somebody resolves it."""
    run = await trial.store.run(trial.run_id or "")
    plan, history = await trial.store.get(run.digest), await trial.store.ledger.history(run.id)
    return is_rolled_back(plan, history, run.rollback) and bool(await trial.store.outcomes.unknown(run.id))


async def _put_to_sleep(trial: Trial, sleep_at: Sequence[Target], *, lease: tuple[float, float] | None) -> Child | None:
    """Return a process that sleeps at one of the targets, or None if it ended earlier."""
    point, detail = trial.chance.choice([target for target in sleep_at if target[1] is None or may_reach(trial, *target)])
    order = trial.order("resume", fault=Fault(point, detail, stops=True))
    sleeper = start(replace(order, lease=lease))
    report = await sleeper.first_report()
    trial.events.append(f"one sleeps at {order.fault}: {report}")
    if report != STOPPED:
        if (end := await sleeper.final_report()).error == NO_REPORT:
            trial.violations.append(Violation("broken", f"the process that should sleep at {order.fault}: {end.message}"))
        return None
    while _process_state(sleeper.process.pid or 0) != "T":
        await asyncio.sleep(0.005)
    return sleeper


async def _wake(sleeper: Child) -> Report:
    """Wake a process and return its final report."""
    os.kill(sleeper.process.pid or 0, signal.SIGCONT)
    return await sleeper.final_report()


def _process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def _count_starts(trial: Trial) -> int:
    return sum(entry.kind == "run_started" for entry in await trial.store.audit(trial.run_id or ""))


async def _ended_before_newest_start(trial: Trial, starts: int) -> bool:
    """Return whether the run had ended before its newest start."""
    kinds = [entry.kind for entry in await trial.store.audit(trial.run_id or "") if entry.kind in ("run_started", "run_ended")]
    newest = max(index for index, kind in enumerate(kinds) if kind == "run_started")
    return starts > 1 and kinds[newest - 1] == "run_ended"
