"""`plan down`."""

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.engine.local_server import stop_server
from plan_adapter.local.settings import Settings


def down(*, json: bool = False) -> int:
    """Stop the local Prefect server. A server named in Prefect's settings is never stopped.

    Args:
        json: Print one JSON object.
    """
    stopped = stop_server(Settings())
    if json:
        output.json_line("local_server", {"stopped": stopped})
    else:
        output.line("the local Prefect server is stopped" if stopped else "no local Prefect server was running")
    return ExitCode.DONE
