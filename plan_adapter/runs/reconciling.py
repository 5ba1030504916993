"""`reconcile`: what was left behind by processes that ended, mended where that is safe, and told where a person must decide."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from plan_adapter.plan import PlanStatus
from plan_adapter.record import PlanRun, RunReason
from plan_adapter.runs.approving import end_expired
from plan_adapter.store.store import PlanStore

MOST_RUNS = 1000
"""How many of the newest runs of a status are looked at."""

RECENT = timedelta(days=1)
"""How long after its end a run is compared with what Prefect shows."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was not as it should be.

    `expired`: a gate that nobody answered in time and no process waited at; `interrupted`: a run whose process ended, or gives no sign of
    life; `answered`: a run whose gate was answered while no process waited; `shown`: Prefect showed something else than the receipts say.
    """

    kind: Literal["expired", "interrupted", "answered", "shown"]
    run_id: str
    name: str
    message: str
    is_mended: bool
    command: str | None = None  # what a person may type now


async def reconcile(store: PlanStore, *, with_prefect: bool) -> list[Finding]:
    """Look for what was left behind, mend it where nobody needs to be asked, and return everything that was found, oldest first.

    Nothing is executed and nothing is approved. `with_prefect`: the server of Prefect's settings is told how runs stand. Raises
    NoServerError and StoreError; what was mended until then stays so.
    """
    found = [finding async for finding in _expired(store, with_prefect=with_prefect)]
    found += [finding async for finding in _interrupted(store, with_prefect=with_prefect)]
    found += [finding async for finding in _answered(store, with_prefect=with_prefect)]
    if with_prefect:
        found += [finding async for finding in _shown(store)]
    return found


async def _expired(store: PlanStore, *, with_prefect: bool) -> AsyncGenerator[Finding]:
    now = await store.now()
    over = [gate for gate in await store.gates() if gate.is_over(now)]
    if with_prefect:
        from plan_adapter.runs.door import end_released

        await end_released(store)
    await end_expired(store)
    for gate in over:
        place = "the plan" if gate.step_id is None else f"step `{gate.step_id}`"
        yield Finding("expired", gate.run_id, gate.name, f"nobody answered at the gate of {place} in time", is_mended=True)


async def _interrupted(store: PlanStore, *, with_prefect: bool) -> AsyncGenerator[Finding]:
    for run in reversed(await store.runs(limit=MOST_RUNS, status=PlanStatus.EXECUTING)):
        if run.reason is not RunReason.INTERRUPTED:
            continue
        unknown = await store.unknown(run.id)
        if unknown:
            names = ", ".join(dict.fromkeys(f"`{attempt.step_id}`" for attempt in unknown))
            message = f"its process is gone, and whether {names} was done is unknown"
            command = f"plan resolve {run.id} {unknown[0].step_id} done|again|abort"
        else:
            message, command = "its process is gone; nothing that it did is in doubt", f"plan resume {run.id}"
        is_told = with_prefect and await _mended(run, hint=f"{message}; `{command}`") is not None
        yield Finding("interrupted", run.id, run.name, message, is_mended=False, command=command)
        if is_told:
            yield Finding("shown", run.id, run.name, "Prefect shows it as Interrupted now", is_mended=True)


async def _answered(store: PlanStore, *, with_prefect: bool) -> AsyncGenerator[Finding]:
    for run in reversed(await store.runs(limit=MOST_RUNS, status=PlanStatus.PENDING_APPROVAL)):
        gates = await store.gates(run_id=run.id, open_only=False)
        if not gates or any(gate.end is None for gate in gates) or gates[-1].end != "answered":
            continue
        answer = await store.answer_to_gate(gates[-1].id)
        if answer is None or answer.decision != "approve" or answer.approval_digest != run.approval_digest:
            continue
        message = f"{answer.by} approved it while no process waited"
        if with_prefect and gates[-1].rules.release:
            from plan_adapter.engine.gate_forms import resume_released

            await resume_released(gates[-1], answer)
            yield Finding("answered", run.id, run.name, f"{message}: its deployment goes on with it", is_mended=True)
        else:
            yield Finding("answered", run.id, run.name, message, is_mended=False, command=f"plan resume {run.id}")


async def _shown(store: PlanStore) -> AsyncGenerator[Finding]:
    since = await store.now() - RECENT
    for run in reversed(await store.runs(limit=MOST_RUNS)):
        if run.completed_at is None or run.completed_at < since:
            continue
        if (shown := await _mended(run, hint="")) is not None:
            reason = f" ({run.reason})" if run.reason else ""
            yield Finding("shown", run.id, run.name, f"Prefect showed {shown}, and it is {run.status}{reason}", is_mended=True)


async def _mended(run: PlanRun, *, hint: str) -> str | None:
    from plan_adapter.engine.reconciling import mend_flow_run

    return await mend_flow_run(run, hint=hint)
