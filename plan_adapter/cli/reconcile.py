"""`plan reconcile`."""

from contextlib import nullcontext
from dataclasses import asdict

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode
from plan_adapter.cli.servers import answering_server
from plan_adapter.cli.sources import open_store
from plan_adapter.settings import Settings


async def reconcile(*, offline: bool = False, json: bool = False) -> int:
    """Find what processes that ended have left behind; mend what needs nobody's word, and say what a person may do about the rest.

    Gates whose time is over are ended, and runs that somebody cancelled in Prefect where no process saw it; Prefect is told
    how runs really stand, and runs whose process is gone are named. Nothing is executed and nothing is approved by it. The deployment
    `reconcile` does it every minute.

    Args:
        offline: Do not tell Prefect anything.
        json: Print one JSON object per finding.
    """
    from plan_adapter.runs.reconciling import reconcile as reconcile_runs

    settings = Settings()
    server = None if offline else answering_server(settings)
    if server is not None:
        from plan_adapter.engine.connection import use_server

        context = use_server(server)
    else:
        context = nullcontext()
    with context:
        async with open_store(settings) as store:
            found = await reconcile_runs(store, with_prefect=server is not None)
    if json:
        for finding in found:
            output.json_line(asdict(finding))
        return ExitCode.DONE
    if not found:
        output.note("everything is as it should be")
        return ExitCode.DONE
    rows = [(finding.run_id, finding.name, finding.message, "mended" if finding.is_mended else finding.command or "-") for finding in found]
    output.table(("RUN", "PLAN", "WHAT", "NOW"), rows)
    return ExitCode.DONE
