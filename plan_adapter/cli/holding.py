"""Waiting until no other process has a run."""

from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.execution.standing import answer_command
from plan_adapter.plan import PlanStatus

if TYPE_CHECKING:
    from plan_adapter.record import PlanRun
    from plan_adapter.store.store import PlanStore

LOOK_SECONDS = 1.0
"""How long at most until it is looked again: that a process died, or that its lease is over, nobody tells."""


async def held(run_id: str, store: "PlanStore") -> str | None:
    """Return in words which process executes the run, or waits at its gate; None where none is known to."""
    if (holder := await store.holder(run_id)) is not None:
        return f"run {run_id} is executed by {holder}"
    if (gate := next((gate for gate in await store.gates(run_id=run_id) if gate.attended), None)) is not None:
        return f"a process on this host waits for an approval of run {run_id}, `{answer_command(gate)}` answers there"
    return None


async def until_free(run: "PlanRun", store: "PlanStore") -> "PlanRun":
    """Return the run once no process has it any more: it has ended, or its lease is free. Says who has it."""
    said = None
    while (who := await held(run.id, store)) is not None:
        if who != said:
            output.note(f"{who}; waiting until it has ended (Ctrl-C ends the wait, not the run)")
            said = who
        await store.changed(LOOK_SECONDS)
    return run if said is None else await store.run(run.id)


def has_nothing_left(before: "PlanRun", now: "PlanRun") -> bool:
    """Return whether the run has completed since `before` was read."""
    return now.status is PlanStatus.COMPLETED and before.status is not PlanStatus.COMPLETED
