"""`plan undeploy`."""

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.cli.servers import running_server
from plan_adapter.cli.sources import open_store
from plan_adapter.local.settings import Settings


async def undeploy(name: str, /, *, json: bool = False) -> int:
    """Delete the deployment of a runbook, with its schedule. Its runs, the versions of its plan and its standing approvals stay.

    Args:
        name: The name of the runbook.
        json: Print one JSON object.
    """
    settings = Settings()
    async with running_server(settings):
        from plan_adapter.engine.deployments import deployer  # imports Prefect

        async with deployer() as on_server:
            full_name = await on_server.undeploy(name)
    async with open_store(settings) as store:
        standing = [one for one in await store.standing.find() if full_name in one.schedules]
    if json:
        output.json_line("deployment", {"deployment": full_name, "action": "deleted", "standing": [one.id for one in standing]})
    else:
        output.line(f"{full_name}: deleted")
    for one in standing:
        message = f"standing approval {one.id} by {one.by} stays, and covers a new deployment of this name"
        output.note(f"{message}: `plan standing revoke {one.id}` revokes it")
    return ExitCode.DONE
