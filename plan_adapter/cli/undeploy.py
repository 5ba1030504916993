"""`plan undeploy`."""

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode
from plan_adapter.cli.servers import running_server
from plan_adapter.settings import Settings


async def undeploy(name: str, /, *, json: bool = False) -> int:
    """Delete the deployment of a runbook, with its schedule. Its runs and the versions of its plan stay.

    Args:
        name: The name of the runbook.
        json: Print one JSON object.
    """
    async with running_server(Settings()):
        from plan_adapter.engine.deployments import deployer  # imports Prefect

        async with deployer() as on_server:
            full_name = await on_server.undeploy(name)
    if json:
        output.json_line({"deployment": full_name, "action": "deleted"})
    else:
        output.line(f"{full_name}: deleted")
    return ExitCode.DONE
