"""Tests of database failures: one StoreError says where, what happened and what to do, and shows no password."""

import asyncio
import contextlib
import importlib.util
import os
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from plan_adapter.model.errors import StoreError
from plan_adapter.store.database import postgresql
from plan_adapter.store.store import PlanStore
from tests.postgres import PASSWORD, PostgresServer
from tests.sql import Sql
from tests.store.builders import a_plan, an_attempt, begun

NOBODY = 65534


async def error_message(url: str) -> str:
    """Return the message of the StoreError that using the store raises."""
    with pytest.raises(StoreError) as raised:
        async with PlanStore(url) as store:
            await store.save(a_plan(), author="ana")
    return str(raised.value)


@contextlib.contextmanager
def a_full_disk(pages: int) -> Iterator[None]:
    """Limit every SQLite file to `pages` pages."""

    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"PRAGMA max_page_count={pages}")

    event.listen(Engine, "connect", limit)
    try:
        yield
    finally:
        event.remove(Engine, "connect", limit)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextlib.contextmanager
def without_root_rights() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_locked_file_is_named(tmp_path: Path):
    path = tmp_path / "plans.db"
    async with PlanStore(f"sqlite:///{path}") as store:
        await store.now()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        message = await error_message(f"sqlite:///{path}?timeout=0.05")
    assert message == f"the store {path} is locked by another process (waited 0.05 s); wait for that process or end it, then try again"


async def test_the_store_waits_for_a_briefly_locked_file(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    async with PlanStore(url) as store:
        await store.now()
        with contextlib.closing(sqlite3.connect(tmp_path / "plans.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            saving = asyncio.ensure_future(store.save(a_plan(), author="ana"))
            await asyncio.sleep(0)
            other.execute("COMMIT")
            assert (await saving).version == 1


async def test_a_read_only_file_is_named(shared_folder: Path):
    path = shared_folder / "plans.db"
    async with PlanStore(f"sqlite:///{path}") as store:
        await store.now()
    path.chmod(0o444)
    shared_folder.chmod(0o755 if os.geteuid() == 0 else 0o555)
    with without_root_rights():
        message = await error_message(f"sqlite:///{path}")
    shared_folder.chmod(0o755)
    assert message.startswith(f"the store {path} ")
    assert "read-only" in message


async def test_a_read_only_folder_is_named(shared_folder: Path):
    shared_folder.chmod(0o755 if os.geteuid() == 0 else 0o555)
    with without_root_rights():
        message = await error_message(f"sqlite:///{shared_folder / 'plans.db'}")
        below = await error_message(f"sqlite:///{shared_folder / 'deep' / 'plans.db'}")
    shared_folder.chmod(0o755)
    assert "cannot be created: Permission denied; name another with PLAN_ADAPTER_DATABASE_URL" in message
    assert "cannot be created: Permission denied" in below
    assert list(shared_folder.iterdir()) == []


async def test_a_full_disk_is_named_and_changes_nothing(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    async with PlanStore(url) as store:
        run = await begun(store)
    with a_full_disk(pages=1):
        async with PlanStore(url) as store:
            recorder = await store.ledger.recorder(run)
            with pytest.raises(StoreError, match="cannot grow: the disk is full; free some space"):
                await recorder.intent(an_attempt(run, at=recorder.now(), parameters={"text": "x" * 500_000}))
            with pytest.raises(StoreError, match="the disk is full"):
                await store.save(a_plan("x" * 500_000), author="ana")
    async with PlanStore(url) as store:
        assert await store.attempts(run.id) == []
        assert await store.names() == []


async def test_a_disk_that_is_full_before_the_tables_exist_is_named(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    with a_full_disk(pages=3):
        assert "the disk is full" in await error_message(url)
    async with PlanStore(url) as store:
        assert await store.runs() == []


async def test_a_full_file_system_is_named(shared_folder: Path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(shared_folder)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a small file system")
    try:
        url = f"sqlite:///{shared_folder / 'plans.db'}"
        async with PlanStore(url) as store:
            await store.save(a_plan(), author="ana")
            with pytest.raises(StoreError, match="full"):
                for number in range(100):
                    await store.save(a_plan(f"{number}" + "x" * 20_000), author="ana")
            kept = await store.versions("site")
        async with PlanStore(url) as store:
            assert await store.versions("site") == kept
    finally:
        subprocess.run(["umount", "-l", str(shared_folder)], check=True)


async def test_a_file_that_is_not_a_database_is_named(tmp_path: Path):
    (tmp_path / "text").write_text("not a database, " * 100)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    assert "is not a SQLite database" in await error_message(f"sqlite:///{tmp_path / 'text'}")
    assert "is not a file" in await error_message(f"sqlite:///{tmp_path / 'folder'}")
    assert "cannot be" in await error_message(f"sqlite:///{tmp_path / 'file' / 'plans.db'}")
    assert "is not a file" in await error_message("sqlite:////dev/null")
    assert (tmp_path / "text").read_text() == "not a database, " * 100


async def test_a_damaged_file_is_named(tmp_path: Path):
    path = tmp_path / "plans.db"
    async with PlanStore(f"sqlite:///{path}") as store:
        for number in range(30):
            await store.save(a_plan(f"{number}" + "x" * 3000), author="ana")
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    assert "is damaged: restore a backup" in await error_message(f"sqlite:///{path}")


async def test_an_empty_file_becomes_a_store(tmp_path: Path):
    (tmp_path / "plans.db").touch()
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        assert await store.runs() == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("plans.db", "cannot be understood: write sqlite:///plans.db"),
        ("postgresql://ana:s3cret@host:notaport/db", "cannot be understood"),
        ("mysql://ana:s3cret@host/db", "`mysql` is not supported as a store"),
        ("postgresql+pg8000://ana:s3cret@host/db", "`postgresql+pg8000` is not supported as a store"),
        ("sqlite://", "is kept in a file"),
        ("sqlite:///:memory:", "is kept in a file"),
        ("sqlite:///file:plans.db?uri=true", "is kept in a file"),
        ("sqlite:///plans.db?timeout=soon", "timeout 'soon'"),
        ("sqlite:///plans.db?mode=ro", "unknown parameters: mode; known: timeout"),
        ("postgresql://host/db?user=ana&password=s3cret", "unknown parameters: password, user; known: host,"),
    ],
)
def test_an_invalid_store_url_is_refused(url: str, message: str):
    with pytest.raises(StoreError) as raised:
        PlanStore(url)
    assert message in str(raised.value)
    assert "s3cret" not in str(raised.value)


async def test_a_server_that_is_down_is_named():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        message = await error_message(f"postgresql://ana:s3cret@127.0.0.1:{port}/plans")
    assert message.startswith(f"the store on PostgreSQL (127.0.0.1:{port}, database plans, user ana) cannot be reached")
    assert "s3cret" not in message


async def test_a_caller_can_stop_waiting_for_a_silent_server():
    reached = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        store = PlanStore(f"postgresql://plans@127.0.0.1:{port}/plans?timeout=3600")
        reading = asyncio.ensure_future(store.runs())
        await reached.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await store.close()


async def test_a_server_that_times_out_is_named():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        async with PlanStore(f"postgresql://plans@127.0.0.1:{silent.getsockname()[1]}/plans?timeout=0.2") as store:
            with pytest.raises(StoreError, match=r"the store on PostgreSQL .* did not answer in time"):
                await store.runs()


@pytest.mark.parametrize("timeout", ["", "?timeout=3600"])
async def test_a_reader_reports_a_silent_server_before_a_writer_gives_up(timeout: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgresql, "CONNECT_TO_READ_SECONDS", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        async with PlanStore(f"postgresql://plans@127.0.0.1:{silent.getsockname()[1]}/plans{timeout}") as store:
            reading, writing = asyncio.ensure_future(store.runs()), asyncio.ensure_future(store.save(a_plan(), author="ana"))
            done, _ = await asyncio.wait({reading, writing}, timeout=0.5 if timeout else None, return_when=asyncio.FIRST_COMPLETED)
            silent.close()  # ends the waiting call
            ends = await asyncio.gather(reading, writing, return_exceptions=True)
    assert done == (set() if timeout else {reading})
    assert ("did not answer in time" in str(ends[0]), "did not answer in time" in str(ends[1])) == (not timeout, False)
    assert all(isinstance(end, StoreError) for end in ends)


async def test_a_wrong_password_is_named_but_not_shown(postgres_server: PostgresServer, postgres_database: str):
    message = await error_message(postgres_server.url(postgres_database.rpartition("/")[2], password="s3cret-and-wrong"))
    assert message.endswith("refuses the password of this user")
    assert "s3cret" not in message


async def test_a_database_that_does_not_exist_is_named(postgres_server: PostgresServer):
    assert "has no database of this name" in await error_message(postgres_server.url("nowhere"))


async def test_a_database_user_without_rights_gets_a_clear_error(postgres_server: PostgresServer, postgres_database: str):
    name = postgres_database.rpartition("/")[2]
    async with PlanStore(postgres_database) as store:
        await store.upgrade()
        postgres = await asyncio.to_thread(postgres_server.execute, f"CREATE ROLE guest_{name} LOGIN PASSWORD 'guest'")
        assert postgres is None
    try:
        assert "does not let this user do that" in await error_message(postgres_server.url(name, user=f"guest_{name}", password="guest"))
    finally:
        await asyncio.to_thread(postgres_server.execute, f"DROP ROLE guest_{name}")


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg", "postgresql+psycopg2"])
async def test_a_server_accepts_every_usual_url_scheme(postgres_database: str, scheme: str):
    url = postgres_database.replace("postgresql", scheme, 1) + "?sslmode=prefer"
    async with PlanStore(url) as store:
        await store.upgrade()
        assert await store.runs() == []
        assert PASSWORD not in repr(store)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("plan_adapter.store.store.find_spec", lambda name: None if name == "asyncpg" else find(name))
    with pytest.raises(StoreError, match="needs the driver asyncpg: pip install asyncpg"):
        PlanStore("postgresql://host/db")


async def test_the_store_reconnects_when_the_server_closed_an_idle_connection(postgres_server: PostgresServer, postgres_database: str):
    async with PlanStore(postgres_database) as store:
        await store.upgrade()
        await _end_connections(postgres_server)
        assert await store.runs() == []


async def test_a_connection_closed_in_a_transaction_is_a_store_error_and_rolls_back(
    postgres_server: PostgresServer, postgres_database: str
):
    async with PlanStore(postgres_database) as store:
        await store.upgrade()

        ended = list[str]()

        def end(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("INSERT INTO plans"):
                ended.append(statement)
                connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")

        event.listen(Engine, "after_cursor_execute", end)
        try:
            with pytest.raises(StoreError, match=r"shut down|ended the connection"):
                await store.save(a_plan(), author="ana")
        finally:
            event.remove(Engine, "after_cursor_execute", end)
        assert len(ended) == 1
        assert await store.names() == []
        assert await Sql(postgres_database).rows("SELECT * FROM plans") == []


async def _end_connections(server: PostgresServer) -> None:
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    await asyncio.to_thread(server.execute, others)
