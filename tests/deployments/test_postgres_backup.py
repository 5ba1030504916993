"""Tests of the runbook postgres-backup on a real PostgreSQL."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from sqlalchemy import make_url

from plan_adapter.store import PlanStatus
from tests.deployments.conftest import RunRunbook, require_programs, served
from tests.postgres import PASSWORD, USER, PostgresServer

SHOP = """
CREATE TABLE countries (code text PRIMARY KEY);
CREATE TABLE "Bestellungen 订单" (id int PRIMARY KEY, country text REFERENCES countries);
INSERT INTO countries VALUES ('de'), ('cn');
INSERT INTO "Bestellungen 订单" SELECT n, 'cn' FROM generate_series(1, 300) AS n;
"""
UNRESTORABLE = """
CREATE FUNCTION is_known(text) RETURNS boolean LANGUAGE sql AS 'SELECT EXISTS (SELECT FROM countries WHERE code = $1)';
CREATE TABLE addresses (country text CHECK (is_known(country)));
INSERT INTO addresses VALUES ('de');
"""
"""A restore has an empty search path, so the check cannot find its table. Only a restore shows this mistake."""


class Chat(BaseHTTPRequestHandler):
    """A chat that records posted messages."""

    messages: list[str]

    def do_POST(self) -> None:
        self.messages.append(json.loads(self.rfile.read(int(self.headers["content-length"])))["text"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def webhook() -> Iterator[str]:
    Chat.messages = []
    with served(Chat) as url:
        yield url


@pytest.fixture
def database(postgres_server: PostgresServer, postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a database with two tables, and set the password of its user as a secret."""
    monkeypatch.setenv("PATH", f"{postgres_server.bin}:{os.environ['PATH']}")
    require_programs("psql", "pg_dump", "pg_restore", "createdb", "dropdb")
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_POSTGRES_PASSWORD", PASSWORD)
    name = make_url(postgres_database).database or ""
    postgres_server.execute(SHOP, database=name)
    return name


def databases(server: PostgresServer) -> list[str]:
    return psql(server, "postgres", "SELECT datname FROM pg_database WHERE datname LIKE 'restore_check_%'")


def psql(server: PostgresServer, database: str, query: str) -> list[str]:
    """Return the rows of a query."""
    command = ["psql", "--no-psqlrc", "--no-align", "--tuples-only", "--command", query, server.url(database)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


async def test_a_dump_that_can_be_restored_is_kept(
    run_runbook: RunRunbook, postgres_server: PostgresServer, database: str, webhook: str, tmp_path: Path
) -> None:
    folder = tmp_path / "备份 dumps"
    folder.mkdir()

    run = await run_runbook("postgres-backup", port=postgres_server.port, user=USER, database=database, folder=str(folder), webhook=webhook)

    assert run.status is PlanStatus.COMPLETED, [(step.id, step.error) for step in run.steps]
    [kept] = folder.iterdir()
    assert run.outputs["file"] == str(kept)
    assert json.loads(str(run.outputs["rows"])) == {"public.countries": 2, 'public."Bestellungen 订单"': 300}
    listed = subprocess.run(["pg_restore", "--list", str(kept)], check=True, capture_output=True, text=True).stdout
    assert "Bestellungen 订单" in listed
    assert (databases(postgres_server), Chat.messages) == ([], [f"Backup of {database}: {kept}"])
    assert PASSWORD not in repr(run)


async def test_a_dump_that_cannot_be_restored_is_not_kept(
    run_runbook: RunRunbook, postgres_server: PostgresServer, database: str, webhook: str, tmp_path: Path
) -> None:
    await asyncio.to_thread(postgres_server.execute, UNRESTORABLE, database=database)
    folder = tmp_path / "dumps"
    folder.mkdir()

    run = await run_runbook("postgres-backup", port=postgres_server.port, user=USER, database=database, folder=str(folder), webhook=webhook)

    assert run.status is PlanStatus.PARTIAL
    assert 'relation "countries" does not exist' in (run.step("restore").error or "")
    assert (list(folder.iterdir()), databases(postgres_server)) == ([], [])
    assert Chat.messages == [f"Backup of {database}: failed at restore"]
