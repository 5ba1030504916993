"""`plan store`: its actions."""

from importlib.resources import files

from plan_adapter.cli import output
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.cli.sources import open_store
from plan_adapter.local.settings import Settings


async def store_status(*, json: bool = False) -> int:
    """Show where the database of plans and runs is, and whether it can be used. `plan verify` checks its records.

    Args:
        json: Print one JSON object.
    """
    return await _open_database(upgrade=False, as_json=json)


async def store_upgrade(*, json: bool = False) -> int:
    """Upgrade the database of plans and runs to the schema of this version.

    A SQLite file is created and upgraded by any command that needs it. A PostgreSQL database is upgraded only by this one.

    Args:
        json: Print one JSON object.
    """
    return await _open_database(upgrade=True, as_json=json)


def store_grants(*, json: bool = False) -> int:
    """Print the SQL that creates the roles plan_runner, plan_operator, plan_keeper and plan_auditor on PostgreSQL.

    The comment at its beginning says what each role may do.

    Args:
        json: Print one JSON object.
    """
    grants = files("plan_adapter.store.database").joinpath("grants.sql").read_text(encoding="utf-8")
    if json:
        output.json_line("grants", {"grants": grants})
    else:
        for text in grants.splitlines():
            output.line(text)
    return ExitCode.DONE


async def _open_database(*, upgrade: bool, as_json: bool) -> int:
    from plan_adapter.store.database.tables import REVISION  # imports SQLAlchemy

    async with open_store(Settings()) as store:
        revision = await store.upgrade() if upgrade else REVISION
        newest = await store.runs(limit=1)
        names = await store.names()
        location = store.label
    if as_json:
        output.json_line(
            "store", {"store": location, "revision": revision, "plans": len(names), "newest_run": newest[0].id if newest else None}
        )
        return ExitCode.DONE
    output.line(f"{location}: " + ("upgraded to" if upgrade else "ready,") + f" revision {revision}")
    output.line(f"{len(names)} named plans; newest run: {newest[0].id if newest else 'none yet'}")
    return ExitCode.DONE
