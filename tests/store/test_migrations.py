"""Tests of migrations: a file is created or migrated on first use, a server only on request; processes can do it concurrently."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, MetaData, Table, event, inspect

from plan_adapter.model.errors import StoreError
from plan_adapter.model.status import PlanStatus
from plan_adapter.store.database import schema_revision
from plan_adapter.store.database.tables import REVISION, REVISION_TABLE, metadata
from plan_adapter.store.store import PlanStore
from tests.golden import FOLDER
from tests.golden.session import restored
from tests.postgres import PostgresServer
from tests.processes import Program
from tests.sql import Sql
from tests.store.builders import a_plan, begun


@pytest.fixture(params=["sqlite", "postgresql"])
def first_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store as revision 0001 made it: on SQLite with runs, on PostgreSQL without."""
    if request.param == "sqlite":
        restored(tmp_path / "first.db")
        return f"sqlite:///{tmp_path / 'first.db'}"
    url = request.getfixturevalue("postgres_database")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    server.execute((FOLDER / "postgresql.sql").read_text(encoding="utf-8"), database=url.rpartition("/")[2])
    return url


async def test_an_upgraded_store_has_the_tables_of_a_new_one(first_url: str):
    def drop(connection: Connection) -> None:
        for table in (*reversed(metadata.sorted_tables), Table(REVISION_TABLE, MetaData())):
            table.drop(connection)

    sql, described = Sql(first_url), list[dict[Any, Any]]()
    for _ in range(2):
        async with PlanStore(first_url) as store:
            assert await store.upgrade() == REVISION
            described.append(await sql.run(_described))
            assert await sql.run(_differences) == []
            assert (await begun(store)).status is PlanStatus.EXECUTING
        await sql.run(drop)
    upgraded, new = described
    assert upgraded == new


UPGRADE_AND_WAIT = f"""
import asyncio, sys
from sqlalchemy import Engine, event
from plan_adapter.store.store import PlanStore

def wait(connection, cursor, statement, *_):
    if statement.startswith("UPDATE {REVISION_TABLE}"):
        print("migrated, but not committed", flush=True)
        sys.stdin.readline()

async def main():
    async with PlanStore(sys.argv[1]) as store:
        await store.upgrade()

event.listen(Engine, "after_cursor_execute", wait)
asyncio.run(main())
"""


async def test_a_store_whose_upgrade_was_killed_is_upgraded_again(first_url: str):
    process = Program(UPGRADE_AND_WAIT, first_url, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "migrated, but not committed\n"
    process.kill()
    process.wait()
    assert await Sql(first_url).run(schema_revision.read_revision) == "0001"
    async with PlanStore(first_url) as store:
        assert await store.upgrade() == REVISION
        for run in await store.runs():
            assert (await store.verify(run.id)).ok, run.id
        assert (await begun(store)).status is PlanStatus.EXECUTING


async def test_a_store_that_no_version_upgrades_says_so(first_url: str):
    await Sql(first_url).run(lambda connection: metadata.tables["commands"].drop(connection))
    async with PlanStore(first_url) as store:
        with pytest.raises(StoreError, match="a development version before 2026-11-26 made this store"):
            await store.upgrade()
    assert await Sql(first_url).run(schema_revision.read_revision) == "0001"


def _differences(connection: Connection) -> list[Any]:
    options = {"version_table": REVISION_TABLE, "compare_type": True}
    return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


def _described(connection) -> dict:
    """Everything the database reports about its tables; unordered lists are sorted."""
    inspector = inspect(connection)
    parts = ("columns", "pk_constraint", "indexes", "foreign_keys", "unique_constraints", "check_constraints")
    found = {
        (table, part): _sorted(getattr(inspector, f"get_{part}")(table)) for table in sorted(inspector.get_table_names()) for part in parts
    }
    if connection.dialect.name == "sqlite":
        statements = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE sql LIKE '%WITHOUT ROWID%' ORDER BY name")
        found["", "without row ids"] = str(statements.scalars().all())
        triggers = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name"
    else:
        triggers = (
            "SELECT pg_get_triggerdef(trigger.oid), prosrc FROM pg_trigger AS trigger JOIN pg_proc ON pg_proc.oid = tgfoid "
            "WHERE NOT tgisinternal ORDER BY tgname"
        )
    found["", "triggers"] = str(connection.exec_driver_sql(triggers).all())
    assert "audit" in found["", "triggers"]
    return found


def _sorted(found) -> str:
    if isinstance(found, dict):
        return str(sorted((key, _sorted(value)) for key, value in found.items()))
    return str(sorted(map(_sorted, found))) if isinstance(found, list) else str(found)


def test_the_required_revision_is_the_newest_migration():
    assert ScriptDirectory.from_config(schema_revision._config()).get_heads() == [REVISION]


def test_the_migrations_are_in_the_wheel():
    document = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert document["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["plan_adapter"]
    folder = Path(schema_revision.__file__).parent / "migrations"
    assert (folder / "env.py").is_file()
    assert len(list((folder / "versions").glob("[0-9]*.py"))) == int(REVISION)


async def test_a_new_file_and_its_folder_are_readable_by_the_owner_only(tmp_path: Path):
    path = tmp_path / "a folder" / "深" / "plans.db"
    async with PlanStore(f"sqlite:///{path}") as store:
        await store.save(a_plan(), author="ana")
        assert {found.name for found in path.parent.iterdir()} == {"plans.db", "plans.db-wal", "plans.db-shm"}
        for found in path.parent.iterdir():
            assert stat.S_IMODE(found.stat().st_mode) == 0o600, found
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [found.name for found in path.parent.iterdir()] == ["plans.db"]


async def test_the_file_survives_power_loss_and_enforces_foreign_keys(tmp_path: Path):
    names, seen = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout"), list[list[Any]]()

    def look(connection: Connection) -> None:
        seen.append([connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names])

    event.listen(Engine, "commit", look)
    try:
        async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
            await store.save(a_plan(), author="ana")
    finally:
        event.remove(Engine, "commit", look)
    assert len(seen) > 1
    assert seen == [["wal", 2, 1, 10_000]] * len(seen)


async def test_upgrading_a_file_returns_its_revision(tmp_path: Path):
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        assert await store.upgrade() == REVISION
        assert await store.upgrade() == REVISION


FIRST_USE = """
import asyncio, sys
from plan_adapter.store.store import PlanStore
from tests.store.builders import a_plan

async def main():
    async with PlanStore(sys.argv[1]) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        if sys.argv[2] == "upgrade":
            await store.upgrade()
        print((await store.save(a_plan(sys.argv[3]), author="ana")).version)

asyncio.run(main())
"""


def _use_at_once(url: str, how: str, processes: int) -> list[int]:
    started = [Program(FIRST_USE, url, how, f"plan {number}", stdin=subprocess.PIPE, stdout=subprocess.PIPE) for number in range(processes)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [int(process.communicate()[0]) for process in started]


@pytest.mark.thorough
def test_concurrent_processes_share_a_new_file(tmp_path: Path):
    versions = _use_at_once(f"sqlite:///{tmp_path / 'new' / 'plans.db'}", "use", 4)
    assert sorted(versions) == [1, 2, 3, 4]


@pytest.mark.thorough
def test_concurrent_upgrades_from_several_processes_are_serialized(postgres_database: str):
    assert sorted(_use_at_once(postgres_database, "upgrade", 3)) == [1, 2, 3]


async def test_concurrent_upgrades_from_one_process_are_serialized(postgres_database: str):
    stores = [PlanStore(postgres_database) for _ in range(3)]
    assert await asyncio.gather(*(store.upgrade() for store in [*stores, *stores])) == [REVISION] * 6
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_server_is_not_migrated_automatically(postgres_database: str):
    async with PlanStore(postgres_database) as store:
        with pytest.raises(StoreError, match=f"has no tables yet, revision {REVISION} is needed: run `plan store upgrade`"):
            await store.runs()
        assert await store.upgrade() == REVISION
        assert await store.runs() == []


async def test_a_server_with_an_old_schema_is_refused(postgres_database: str, monkeypatch: pytest.MonkeyPatch):
    async with PlanStore(postgres_database) as store:
        await store.upgrade()
        monkeypatch.setattr(schema_revision, "REVISION", "9998")
        with pytest.raises(StoreError, match=f"has revision {REVISION}, revision 9998 is needed: run `plan store upgrade`"):
            await store.runs()


async def test_a_store_with_a_newer_schema_is_refused(store_url: str, store: PlanStore):
    await store.now()
    await Sql(store_url).change(f"UPDATE {REVISION_TABLE} SET version_num = '9999'")
    async with PlanStore(store_url) as other:
        for use in (other.runs, other.upgrade):
            with pytest.raises(StoreError, match=f"has revision 9999, .*needs {REVISION}.*install a newer prefect-plan-adapter"):
                await use()


async def test_a_failed_migration_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "plans.db"

    def upgrade_and_fail(connection, store) -> str:
        schema_upgrade(connection, store)
        raise OSError(28, "No space left on device")

    schema_upgrade = schema_revision.upgrade
    monkeypatch.setattr(schema_revision, "upgrade", upgrade_and_fail)
    async with PlanStore(f"sqlite:///{path}") as store:
        with pytest.raises(StoreError, match="No space left"):
            await store.runs()
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    monkeypatch.undo()
    async with PlanStore(f"sqlite:///{path}") as store:
        assert await store.runs() == []


async def test_the_file_of_another_application_is_left_alone(tmp_path: Path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE flow_run (id TEXT)")
    async with PlanStore(f"sqlite:///{path}") as store:
        with pytest.raises(StoreError, match=r"another application \(tables: flow_run\)"):
            await store.runs()
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("flow_run",)]


async def test_a_server_database_can_be_shared_with_another_application(postgres_server: PostgresServer, postgres_database: str):
    import asyncpg

    connection = await asyncpg.connect(postgres_database)
    await connection.execute("CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('theirs')")
    async with PlanStore(postgres_database) as store:
        await store.upgrade()
        assert await store.runs() == []
    assert await connection.fetchval("SELECT version_num FROM alembic_version") == "theirs"
    await connection.close()


def test_opening_an_existing_store_does_not_import_alembic(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'plans.db'}"

    async def make() -> None:
        async with PlanStore(url) as store:
            await store.now()

    asyncio.run(make())
    code = (
        "import asyncio, sys\nfrom plan_adapter.store.store import PlanStore\n"
        "async def main():\n    async with PlanStore(sys.argv[1]) as store: await store.runs()\n"
        "asyncio.run(main())\nprint([name for name in ('alembic', 'asyncpg', 'prefect') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout.strip() == "[]"
