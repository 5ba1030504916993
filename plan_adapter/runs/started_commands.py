"""Commands that outlive the process of their run: a resume that would repeat one is refused, and `plan resolve --end` ends one."""

import asyncio
from collections.abc import Collection, Sequence

from plan_adapter.commands import resolve_command
from plan_adapter.errors import RunConflictError
from plan_adapter.execution.history import RunHistory
from plan_adapter.options import CallKind
from plan_adapter.record import PlanRun, StartedCommand
from plan_adapter.store.store import PlanStore


def refuse_running_commands(
    run: PlanRun,
    history: RunHistory,
    started: Sequence[StartedCommand],
    *,
    kinds: Collection[CallKind] = ("step", "rollback"),
    skipped: Collection[str] = (),
) -> None:
    """Raise RunConflictError if a call would be repeated while a command of it still runs on this host.

    A write with an unknown outcome is not repeated: a person is asked about it. Steps in `skipped` are not called.
    """
    for command in started:
        attempt, calls = command.attempt, history.calls(command.attempt.kind)
        unit = (attempt.step_id, attempt.item)
        receipt = calls.receipts.get(unit)
        is_repeated = unit in calls.repeatable or unit in calls.interrupted_reads or (receipt is not None and receipt.resolution == "again")
        if attempt.kind in kinds and attempt.step_id not in skipped and is_repeated and command.state == "running":
            again = resolve_command(run.id, unit, "again", label=attempt.label, kind=attempt.kind)
            raise RunConflictError(
                f"run {run.id} would call `{command.call}` a second time, but its command {command.in_words}: wait until it has ended, or "
                f"`{again} --end` ends it first"
            )


async def end_command(run: PlanRun, step_id: str, store: PlanStore, *, item: int | None, kind: CallKind) -> str | None:
    """End the processes of the commands of a call that still run on this host. Return what was done, or None if none was running.

    Raises RunConflictError, and ends nothing, while a process executes the run, and for a command of another host. Raises it as well if a
    process does not end.
    """
    if (owner := await store.ledger.owner(run.id)) is not None and not any(
        (gate.step_id, gate.item, gate.call_kind, gate.kind) == (step_id, item, kind, "outcome")
        for gate in await store.gates.find(run_id=run.id)
    ):
        raise RunConflictError(f"run {run.id} is executed by {owner}, which ends its commands itself: `plan cancel {run.id}` cancels it")
    started = await store.outcomes.commands(run.id)
    mine = [command for command in started if (command.attempt.step_id, command.attempt.kind) == (step_id, kind)]
    mine = [command for command in mine if item is None or command.attempt.item == item]
    if (elsewhere := next((command for command in mine if command.state == "elsewhere"), None)) is not None:
        raise RunConflictError(f"the command of `{elsewhere.call}` in run {run.id} {elsewhere.in_words}: end it there")
    running = [command for command in mine if command.state == "running"]
    for command in running:
        if left := await asyncio.to_thread(command.process.end_session, command.attempt.id):
            names = ", ".join(map(str, left))
            raise RunConflictError(f"the command of `{command.call}` in run {run.id} does not end: end these processes yourself: {names}")
    return "; ".join(f"ended its command, pid {command.process.pid}" for command in running) or None
