"""Tests of the runbook schema-migration on a real PostgreSQL."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import make_url

from plan_adapter.gates import ApprovalRequest
from plan_adapter.store import PlanStatus
from tests.deployments.conftest import RunRunbook, require_programs
from tests.postgres import PASSWORD, USER, PostgresServer

SHOP = """
CREATE TABLE users (id int PRIMARY KEY, name text NOT NULL);
INSERT INTO users VALUES (1, 'Ana Silva'), (2, '王小明');
"""
MIGRATE = """
ALTER TABLE users ADD COLUMN family_name text;
UPDATE users SET family_name = split_part(name, ' ', 2);
"""
REVERT = "ALTER TABLE users DROP COLUMN family_name;"
CHECK = "SELECT id, name FROM users WHERE family_name = '';"


@pytest.fixture
def database(postgres_server: PostgresServer, postgres_database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Return a database with two users. The files of a migration are in the current folder."""
    monkeypatch.setenv("PATH", f"{postgres_server.bin}:{os.environ['PATH']}")
    require_programs("psql", "pg_dump", "pg_restore")
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_POSTGRES_PASSWORD", PASSWORD)
    monkeypatch.chdir(tmp_path)
    for name, text in (("migrate.sql", MIGRATE), ("revert.sql", REVERT), ("check.sql", CHECK)):
        (tmp_path / name).write_text(text)
    name = make_url(postgres_database).database or ""
    postgres_server.execute(SHOP, database=name)
    return name


def inputs(server: PostgresServer, database: str) -> dict[str, object]:
    files = {"migrate": "migrate.sql", "revert": "revert.sql", "check": "check.sql", "backup": "before.dump"}
    return {"port": server.port, "user": USER, "database": database, **files}


def dump(server: PostgresServer, database: str) -> str:
    """Return the whole database as SQL, without the line with a random key."""
    lines = subprocess.run(["pg_dump", server.url(database)], check=True, capture_output=True, text=True).stdout.splitlines()
    return "\n".join(line for line in lines if not line.startswith(("\\restrict", "\\unrestrict")))


async def test_a_migration_that_passes_its_check_is_kept(
    run_runbook: RunRunbook, postgres_server: PostgresServer, database: str, tmp_path: Path, opened: list[ApprovalRequest]
) -> None:
    await asyncio.to_thread(postgres_server.execute, "DELETE FROM users WHERE id = 2", database=database)
    before = dump(postgres_server, database)

    run = await run_runbook("schema-migration", **inputs(postgres_server, database))

    assert run.status is PlanStatus.COMPLETED, [(step.id, step.error) for step in run.steps]
    assert "Ana Silva\tSilva" in dump(postgres_server, database)
    assert MIGRATE.strip().splitlines()[0] in opened[-1].text  # the approver sees the statements
    restored = await asyncio.to_thread(postgres_server.make_database)
    restore = ["pg_restore", "--exit-on-error", f"--dbname={postgres_server.url(restored)}", str(tmp_path / "before.dump")]
    subprocess.run(restore, check=True)
    assert dump(postgres_server, restored) == before
    await asyncio.to_thread(postgres_server.drop_database, restored)


async def test_a_migration_that_fails_its_check_is_reverted(
    run_runbook: RunRunbook, postgres_server: PostgresServer, database: str
) -> None:
    before = dump(postgres_server, database)

    run = await run_runbook("schema-migration", **inputs(postgres_server, database))

    assert run.status is PlanStatus.PARTIAL
    assert "王小明" in (run.step("check").error or "")
    assert dump(postgres_server, database) == before


async def test_a_migration_that_fails_in_the_middle_changes_nothing(
    run_runbook: RunRunbook, postgres_server: PostgresServer, database: str, tmp_path: Path
) -> None:
    (tmp_path / "migrate.sql").write_text(f"{MIGRATE}\nALTER TABLE orders ADD COLUMN note text;")
    before = dump(postgres_server, database)

    run = await run_runbook("schema-migration", **inputs(postgres_server, database))

    assert run.status is PlanStatus.PARTIAL
    assert 'relation "orders" does not exist' in (run.step("migrate").error or "")
    assert dump(postgres_server, database) == before
