"""`plan serve`."""

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.daemon_thread import in_daemon_thread
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.foreground import begin_server
from plan_adapter.cli.sources import open_store, plan_of, tools_of
from plan_adapter.cli.verbs.deploy import (
    apply_runbooks,
    approval_notes,
    checked_runbooks,
    parse_schedule,
    plans_in,
    print_deployments,
    refuse_duplicate_names,
    shell_notes,
)
from plan_adapter.engine.connection import use_server
from plan_adapter.local.settings import Settings
from plan_adapter.model.readable import counted

if TYPE_CHECKING:
    from prefect.client.schemas.schedules import SCHEDULE_TYPES

    from plan_adapter.model.plan import ExecutionPlan


def serve(
    *sources: Annotated[str, Parameter(name="RUNBOOK")],
    cron: str | None = None,
    interval: str | None = None,
    rrule: str | None = None,
    time_zone: str | None = None,
    concurrency_limit: int | None = None,
    tools: list[str] | None = None,
    json: bool = False,
) -> int:
    """Deploy runbooks without a work pool, and start their runs from this process until Ctrl-C: from the form, the API and schedules.

    Each run is a process of its own, with the environment and the folder of this one. Ctrl-C ends the runs in progress; `plan resume`
    resumes them. Runs that are due while nothing serves the runbook start late, when it is served again.

    Args:
        sources: Plans, named as for `plan run`, and folders of plan documents.
        cron: Start runs of the runbook by this cron expression: `"0 3 * * *"`.
        interval: Start runs at this interval: `15m`, `6h`, `1d`, or a number of seconds.
        rrule: Start runs by this iCalendar rule.
        time_zone: The time zone of the schedule, such as `Europe/Berlin`; default: UTC.
        concurrency_limit: How many runs may run at once; default: no limit but that of Prefect's settings.
        tools: `package.module:name` of a tool or registry that the plans use; may be repeated.
        json: Print one JSON object per deployment.
    """
    if not sources:
        raise UsageError("serve what? `plan serve RUNBOOK`, with a plan document, a folder of them, or the name of a stored plan")
    if concurrency_limit is not None and concurrency_limit < 1:
        raise UsageError("--concurrency-limit must be at least 1")
    schedule = parse_schedule(cron, interval, rrule, time_zone)
    if schedule is not None and (len(sources) > 1 or any(Path(source).is_dir() for source in sources)):
        raise UsageError("a schedule is for one runbook: serve that runbook by its file or name, and the others by another command")
    plans_or_names = [plans_in(Path(source)) if Path(source).is_dir() else source for source in sources]
    return asyncio.run(_serve(plans_or_names, concurrency_limit, tools or [], schedule, as_json=json))


async def _serve(
    sources: "Sequence[str | list[ExecutionPlan]]", limit: int | None, tools: list[str], schedule: "SCHEDULE_TYPES | None", *, as_json: bool
) -> int:
    # These import Prefect.
    from plan_adapter.engine.deployments import DeploymentOptions, serve_deployments

    settings = Settings()
    async with open_store(settings) as store:
        plans = [plan for source in sources for plan in ([await plan_of(source, store)] if isinstance(source, str) else source)]
        pending = begin_server(settings, offline=False)
        assert pending is not None
        refuse_duplicate_names(plans)
        policy = await store.policy.effective(settings)
        runbooks = checked_runbooks(plans, tools_of(tools), policy, {}, DeploymentOptions(schedule=schedule, is_served=True))
        server = await in_daemon_thread(pending.wait)
        with use_server(server):
            done = await apply_runbooks(runbooks, store, is_dry=False, yes=False, as_json=as_json)
            plans_of_runs = [validated for validated, _ in runbooks]
            notes = [*await approval_notes(plans_of_runs, store, policy), *await shell_notes(done, plans_of_runs, settings)]
    print_deployments(done, server, is_dry=False, as_json=as_json, all_forms=True)
    output.flush()
    for note in notes:
        output.note(note)
    if tools:
        os.environ["PLAN_ADAPTER_TOOLS"] = ",".join([*settings.tools, *tools])  # for the processes of the runs
    served = {deployed.name: deployed.deployment_id for deployed in done if deployed.deployment_id is not None}
    with use_server(server):
        on_started = partial(output.note, f"serving {counted(len(done), 'runbook')}; Ctrl-C stops")
        await serve_deployments(served, limit=limit, on_started=on_started)
    return ExitCode.DONE
