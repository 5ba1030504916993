"""`plan reconcile`."""

from contextlib import nullcontext
from dataclasses import asdict

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.cli.servers import available_server
from plan_adapter.cli.sources import open_store
from plan_adapter.engine.connection import use_server
from plan_adapter.local.settings import Settings


async def reconcile(*, offline: bool = False, json: bool = False) -> int:
    """Find runs whose process died and correct their state in Prefect; say what to type about the rest.

    It closes gates that have expired, ends runs that were cancelled in Prefect while no process was running them, corrects the state that
    Prefect shows, and lists runs whose process is gone or whose form was answered while no process waited. It runs and approves nothing.
    The deployment `reconcile` does this every minute.

    Args:
        offline: Do not contact Prefect.
        json: Print one JSON object per finding.
    """
    from plan_adapter.runs.reconcile import reconcile as reconcile_runs  # imports SQLAlchemy

    settings = Settings()
    server = None if offline else available_server(settings)
    with use_server(server) if server is not None else nullcontext():
        async with open_store(settings) as store:
            found = await reconcile_runs(store, with_prefect=server is not None)
    if not found:
        output.note("nothing to correct")
        return ExitCode.DONE
    if json:
        for finding in found:
            output.json_line("finding", asdict(finding))
        return ExitCode.DONE
    rows = [
        (finding.run_id, finding.name, finding.message, "corrected" if finding.is_corrected else finding.command or "-")
        for finding in found
    ]
    output.table(("RUN", "PLAN", "FINDING", "NEXT"), rows)
    return ExitCode.DONE
