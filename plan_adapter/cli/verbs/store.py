"""`plan store`."""

from importlib.resources import files
from typing import TYPE_CHECKING, Literal

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.cli.sources import open_store
from plan_adapter.local.settings import Settings

if TYPE_CHECKING:
    pass


async def store(action: Literal["status", "upgrade", "grants"] = "status", /, *, json: bool = False) -> int:
    """Show the database of plans and runs, or upgrade it to the schema of this version. `plan verify` checks its records.

    A SQLite file is created and upgraded automatically; a PostgreSQL database only by `plan store upgrade`.

    Args:
        action: `status` (the default) shows where it is and whether it can be used; `upgrade` upgrades its schema; `grants` prints the SQL
            that creates the roles plan_runner, plan_operator, plan_keeper and plan_auditor on PostgreSQL, and what each may do.
        json: Print one JSON object.
    """
    from plan_adapter.store.database.tables import REVISION  # imports SQLAlchemy

    if action == "grants":
        grants = files("plan_adapter.store.database").joinpath("grants.sql").read_text(encoding="utf-8")
        if json:
            output.json_line("grants", {"grants": grants})
        else:
            for text in grants.splitlines():
                output.line(text)
        return ExitCode.DONE
    async with open_store(Settings()) as plan_store:
        revision = await plan_store.upgrade() if action == "upgrade" else REVISION
        newest = await plan_store.runs(limit=1)
        names = await plan_store.names()
        location = plan_store.label
    if json:
        output.json_line(
            "store", {"store": location, "revision": revision, "plans": len(names), "newest_run": newest[0].id if newest else None}
        )
        return ExitCode.DONE
    output.line(f"{location}: " + ("upgraded to" if action == "upgrade" else "ready,") + f" revision {revision}")
    output.line(f"{len(names)} named plans; newest run: {newest[0].id if newest else 'none yet'}")
    return ExitCode.DONE
