"""`plan runs`."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.approval_state import age, states_of
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.records import run_json
from plan_adapter.cli.sources import names_of_runbook, open_store, parse_status
from plan_adapter.local.settings import Settings
from plan_adapter.model.language import tr
from plan_adapter.model.readable import duration, moment
from plan_adapter.model.record import PlanRun, short_ids
from plan_adapter.model.status import PlanStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plan_adapter.store.store import PlanStore


async def runs(
    *,
    limit: int = 20,
    status: str | None = None,
    runbook: Annotated[str | None, Parameter(name=("--runbook", "--name"))] = None,
    tag: list[str] | None = None,
    wide: bool = False,
    json: bool = False,
) -> int:
    """List runs: those that wait for a person first, then the newest.

    Every command that takes a run also takes the end of its id, as the list shows it.

    Args:
        limit: Show at most this many; default: 20.
        status: Show only runs with this status: pending_approval, approved, executing, completed, failed, cancelled or partial.
        runbook: Show only runs of plans with this name, also as Prefect shows it.
        tag: Show only runs of plans with this tag; may be repeated, and then a plan needs all of them.
        wide: Show whole ids, the progress in words, and when a run was created and how long it took.
        json: Print one JSON object per run, newest first.
    """
    if limit < 1:
        raise UsageError("--limit must be at least 1")
    from plan_adapter.runs.plan_approval import end_expired  # imports SQLAlchemy

    settings = Settings()
    async with open_store(settings) as store:
        await end_expired(store)
        names = None if runbook is None else await names_of_runbook(runbook, store)
        found = await store.runs(limit=limit, status=parse_status(status), names=names, tags=tag or ())
        if found and json:
            for run_ in found:
                output.json_line("run", run_json(run_, steps=False))
        elif found:
            await _print_runs(found, store, settings, wide=wide)
        else:
            output.note(tr("no runs match") if status or runbook or tag else tr("no runs yet; `plan run plan.yaml` starts one"))
    return ExitCode.DONE


async def _print_runs(found: "Sequence[PlanRun]", store: "PlanStore", settings: Settings, *, wide: bool) -> None:
    from plan_adapter.text.preview import name_of_run  # only for lists

    states, now, ids = await states_of(found, store, settings), await store.now(), short_ids([run.id for run in found])
    named = {run.id: name_of_run(await store.get(run.digest), run.inputs) or "" for run in found}
    has_names = any(named.values())
    columns = [tr("RUN"), tr("RUNBOOK"), *([tr("NAME")] if has_names else []), tr("STATE"), tr("DONE")]
    columns += [tr("CREATED"), tr("TOOK")] if wide else [tr("AGE")]
    rows = list[list[str]]()
    for run in sorted(found, key=lambda run: not states[run.id].is_waiting):
        summary = run.summary()
        done = summary.text if wide else f"{summary.completed}/{summary.total_steps}"
        took = duration(run.total_duration_ms) if run.completed_at is not None and run.started_at is not None else "-"
        when = [moment(run.created_at), took] if wide else [age(now, run.created_at)]
        name = [named[run.id]] if has_names else []
        rows.append([run.id if wide else ids[run.id], run.name, *name, states[run.id].text, done, *when])
    output.table(columns, rows)
    if any(run.status is PlanStatus.PENDING_APPROVAL for run in found):
        output.note(tr("`plan gates` lists what waits for an answer, `plan show RUN` shows what to type"))
