"""`plan notify`."""

from typing import Annotated

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.servers import running_server
from plan_adapter.cli.spans import parse_span
from plan_adapter.local.settings import Settings


async def notify(*blocks: Annotated[str, Parameter(name="BLOCK")], after: str = "30m", json: bool = False) -> int:
    """Notify people through a block of the Prefect server: when a gate opens, still waits or is answered, and when a run does not complete.

    Each message has who asked, the first screen of the gate or the cause, a link to the page, and the command to type. It creates or
    updates five automations, by name. One that you switch off in Prefect's UI stays off.

    Args:
        blocks: Notification blocks, as in `slack-webhook/oncall`; create one in Prefect's UI under Blocks.
        after: How long a gate may be open before a reminder: `30m`; s, m, h, d and w are seconds, minutes, hours, days and weeks.
        json: Print one JSON object for each automation.
    """
    if not blocks:
        raise UsageError("notify whom? `plan notify slack-webhook/oncall` names a notification block of the server")
    delay = parse_span(after, option="--after")
    async with running_server(Settings()):
        from plan_adapter.engine.notifications import MIN_DELAY, apply_notifications  # imports Prefect

        if delay < MIN_DELAY:
            raise UsageError(f"--after {after}: Prefect's minimum is {MIN_DELAY.total_seconds():g} seconds")
        for applied in await apply_notifications(blocks, after=delay):
            if json:
                output.json_line("automation", {"automation": applied.name, "done": applied.done, "enabled": applied.is_enabled})
            else:
                off = "" if applied.is_enabled else " (it is disabled and stays disabled)"
                output.line(f"{applied.done} {applied.name}: {applied.description}{off}")
    return ExitCode.DONE
