"""`plan versions`."""

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.records import saved_json
from plan_adapter.cli.sources import STORED, open_store
from plan_adapter.problems import did_you_mean
from plan_adapter.readable import moment
from plan_adapter.settings import Settings


async def versions(name: str | None = None, /, *, json: bool = False) -> int:
    """List the versions of a stored plan, newest first; without a name, the newest version of every stored plan.

    Args:
        name: The name of the plan.
        json: Print one JSON object per version.
    """
    async with open_store(Settings()) as store:
        names = await store.names()
        if name is None:
            found = [(await store.versions(one))[0] for one in names]
        else:
            found = await store.versions(name.removeprefix(STORED))
    if name is not None and not found:
        raise UsageError(f"no plan is stored as `{name}`; {did_you_mean(name, names) or '`plan save FILE` stores one'}")
    if json:
        for one in found:
            output.json_line({**(saved_json(one) or {}), "created_at": one.created_at})
    elif found:
        rows = [(f"{one.name}@{one.version}", one.digest[:12], one.author, moment(one.created_at)) for one in found]
        output.table(("VERSION", "DIGEST", "SAVED BY", "SAVED"), rows)
    else:
        output.note("no plan is stored yet; `plan save FILE` stores one")
    return ExitCode.DONE
