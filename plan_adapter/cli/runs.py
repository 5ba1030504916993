"""`plan runs`."""

from typing import Literal

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.records import run_json
from plan_adapter.cli.sources import open_store
from plan_adapter.cli.verifying import verify_run
from plan_adapter.cli.waiting import statuses_of
from plan_adapter.plan import PlanStatus
from plan_adapter.problems import did_you_mean
from plan_adapter.readable import duration, moment
from plan_adapter.record import PlanRun
from plan_adapter.settings import Settings


async def runs(
    action: Literal["list", "verify"] = "list",
    run: str | None = None,
    /,
    *,
    limit: int = 20,
    status: str | None = None,
    name: str | None = None,
    json: bool = False,
) -> int:
    """List runs, the newest first; or, with `verify RUN`, say whether the record of one is as it was written.

    `plan runs verify` names the first row that was altered, inserted or deleted behind the back of the audit, and ends with 1 then. A run
    without audit entries is not verifiable, which ends with 1, too.
    Keep the digest that it prints elsewhere: who can write the whole database can write a whole new audit, but not one of that digest.

    Args:
        action: `list`, or `verify`.
        run: With `verify`: the id of a run, its beginning, or a file of `plan export`, which needs no store.
        limit: How many at most; 20 if it is not given.
        status: Only those of this status: pending_approval, approved, executing, completed, failed, cancelled or partial.
        name: Only those of plans of this name.
        json: Print one JSON object per run.
    """
    if action == "verify":
        if run is None:
            raise UsageError("verify what? `plan runs verify RUN`, with the id of a run or a file of `plan export`")
        return await verify_run(run, as_json=json)
    if run is not None:
        raise UsageError(f"`plan runs list` takes no run; `plan show {run}` shows one, `plan runs verify {run}` verifies it")
    if limit < 1:
        raise UsageError("--limit is at least 1")
    async with open_store(Settings()) as store:
        found = await store.runs(limit=limit, status=_status(status), name=name)
        statuses = {} if json else await statuses_of(found, store)
    if json:
        for one in found:
            output.json_line(run_json(one, steps=False))
    elif found:
        output.table(("RUN", "PLAN", "STATUS", "STEPS", "CREATED", "TOOK"), [_row(one, statuses[one.id]) for one in found])
        if any(one.status is PlanStatus.PENDING_APPROVAL for one in found):
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
