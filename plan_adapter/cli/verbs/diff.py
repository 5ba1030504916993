"""`plan diff`."""

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.cli.records import difference_lines
from plan_adapter.cli.sources import open_store, plan_of
from plan_adapter.local.settings import Settings


async def diff(old: str, new: str, /, *, json: bool = False) -> int:
    """Show what differs between two versions of a plan, step by step. Formatting and comments do not count.

    Args:
        old: A plan document, `-` for stdin, `git:REVISION:FILE`, or a stored plan: its name, `name@version` or digest.
        new: The same, for the version to compare with.
        json: Print one JSON object.
    """
    async with open_store(Settings()) as store:
        lines = difference_lines(await plan_of(old, store), await plan_of(new, store))
    if json:
        output.json_line("difference", {"old": old, "new": new, "differences": lines})
        return ExitCode.DONE
    for line in lines:
        output.line(line)
    if not lines:
        output.note("no differences")
    return ExitCode.DONE
