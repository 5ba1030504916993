"""`plan runs`."""

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.records import run_json
from plan_adapter.cli.sources import open_store
from plan_adapter.cli.waiting import statuses_of
from plan_adapter.plan import PlanStatus
from plan_adapter.problems import did_you_mean
from plan_adapter.readable import duration, moment
from plan_adapter.record import PlanRun
from plan_adapter.settings import Settings


async def runs(*, limit: int = 20, status: str | None = None, name: str | None = None, json: bool = False) -> int:
    """List runs, the newest first.

    Args:
        limit: How many at most; 20 if it is not given.
        status: Only those of this status: pending_approval, approved, executing, completed, failed, cancelled or partial.
        name: Only those of plans of this name.
        json: Print one JSON object per run.
    """
    if limit < 1:
        raise UsageError("--limit is at least 1")
    async with open_store(Settings()) as store:
        found = await store.runs(limit=limit, status=_status(status), name=name)
        statuses = {} if json else await statuses_of(found, store)
    if json:
        for run in found:
            output.json_line(run_json(run, steps=False))
    elif found:
        output.table(("RUN", "PLAN", "STATUS", "STEPS", "CREATED", "TOOK"), [_row(run, statuses[run.id]) for run in found])
        if any(run.status is PlanStatus.PENDING_APPROVAL for run in found):
            output.note("`plan gates` lists what waits for an answer, `plan show RUN` tells what to do")
    else:
        output.note("no run is recorded" + (" that fits" if status or name else "; `plan run plan.yaml` makes the first one"))
    return ExitCode.DONE


def _status(word: str | None) -> PlanStatus | None:
    try:
        return None if word is None else PlanStatus(word)
    except ValueError:
        raise UsageError(f"no run is `{word}`; {did_you_mean(word or '', list(PlanStatus))}") from None


def _row(run: PlanRun, status: str) -> tuple[str, ...]:
    summary = run.summary()
    took = duration(run.total_duration_ms) if run.completed_at is not None and run.started_at is not None else "-"
    return (run.id, run.name, status, f"{summary.completed}/{summary.total_steps}", moment(run.created_at), took)
