"""`plan undeploy`."""

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.daemon_thread import in_daemon_thread
from plan_adapter.cli.servers import answering_server
from plan_adapter.engine.connection import use_server
from plan_adapter.settings import Settings


async def undeploy(name: str, /, *, json: bool = False) -> int:
    """Delete the deployment of a runbook, with its schedule. Its runs and the versions of its plan stay.

    Args:
        name: The name of the runbook.
        json: Print one JSON object.
    """
    settings = Settings()
    server = await in_daemon_thread(lambda: answering_server(settings))
    if server is None:
        raise UsageError("there is no Prefect server: Prefect's settings name no API URL, and no local server is running")
    from plan_adapter.engine.deployments import deployer  # imports Prefect

    with use_server(server):
        async with deployer() as on_server:
            full_name = await on_server.undeploy(name)
    if json:
        output.json_line({"deployment": full_name, "action": "deleted"})
    else:
        output.line(f"{full_name}: deleted")
    return ExitCode.DONE
