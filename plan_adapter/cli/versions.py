"""The list of `plan show --versions`."""

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.records import version_json
from plan_adapter.cli.sources import STORE_PREFIX, open_store
from plan_adapter.local.settings import Settings
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import moment


async def list_versions(name: str | None, *, as_json: bool) -> int:
    """Print the versions of a stored plan, newest first; without a name, the newest version of every stored plan."""
    async with open_store(Settings()) as store:
        names = await store.names()
        if name is None:
            found = [(await store.versions(plan_name))[0] for plan_name in names]
        else:
            found = await store.versions(name.removeprefix(STORE_PREFIX))
    if name is not None and not found:
        raise UsageError(f"no plan is stored as `{name}`; {did_you_mean(name, names) or '`plan save FILE` stores one'}")
    if found and as_json:
        for version in found:
            output.json_line("version", {**(version_json(version) or {}), "created_at": version.created_at})
    elif found:
        rows = [(f"{version.name}@{version.version}", version.digest[:12], version.author, moment(version.created_at)) for version in found]
        output.table(("VERSION", "DIGEST", "SAVED BY", "SAVED"), rows)
    else:
        output.note("no plan is stored yet; `plan save FILE` stores one")
    return ExitCode.DONE
