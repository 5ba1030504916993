"""A real PostgreSQL server for tests, started once per session on loopback. Tests are skipped if PostgreSQL is not installed.

tests/conftest.py imports these fixtures, so that each process of pytest-xdist starts one server for all folders.
"""

import asyncio
import contextlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from plan_adapter.model.host_process import HostProcess
from plan_adapter.store.database.tables import REVISION, REVISION_TABLE, metadata
from plan_adapter.store.store import PlanStore

PREFIX = "plan-pg-"
USER, PASSWORD = "plans", "a-pass/word:of@tests"


@dataclass(frozen=True)
class PostgresServer:
    """A running server, whose user may create databases."""

    bin: Path
    folder: Path
    port: int

    def url(self, database: str, *, user: str = USER, password: str = PASSWORD) -> str:
        """Return the URL of a database, as users write it."""
        from urllib.parse import quote

        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def execute(self, statements: str, *, database: str = "postgres") -> None:
        """Run statements. A single statement runs outside a transaction."""
        asyncio.run(self._execute(statements, database))

    def make_database(self) -> str:
        """Create an empty database and return its name."""
        name = f"test_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return name

    def empty(self, name: str) -> None:
        """Delete all rows of the store in a database. As a replica, this fires no triggers. TRUNCATE takes three times as long."""
        rows = "; ".join(f"DELETE FROM {table.name}" for table in metadata.sorted_tables)
        revision = f"UPDATE {REVISION_TABLE} SET version_num = '{REVISION}'"
        self.execute(f"SET lock_timeout = '20s'; SET session_replication_role = replica; {rows}; {revision}", database=name)

    def drop_database(self, name: str) -> None:
        """Drop a database and end all connections to it."""
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off -c autovacuum=off -c max_connections=60"
        self.control("start", "-l", str(self.folder / "log"), "-o", options)

    def stop(self) -> None:
        """Stop the server and end its connections."""
        self.control("stop", "-m", "immediate")

    def control(self, *arguments: str) -> None:
        """Run pg_ctl and wait until it is done."""
        as_server_user(self.bin / "pg_ctl", "-D", self.folder / "data", "-w", "-t", "60", *arguments)

    async def _execute(self, statements: str, database: str) -> None:
        connection = await asyncpg.connect(self.url(database))
        try:
            await connection.execute(statements)
        finally:
            await connection.close()


def is_installed() -> bool:
    """Return whether PostgreSQL is installed."""
    return _programs() is not None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The session's PostgreSQL server."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def migrated(postgres_server: PostgresServer) -> str:
    """The name of a database with the newest schema. Its users empty it afterwards."""
    name = postgres_server.make_database()

    async def migrate() -> None:
        async with PlanStore(postgres_server.url(name)) as store:
            await store.upgrade()

    asyncio.run(migrate())
    return name


@contextlib.contextmanager
def running_server() -> Iterator[PostgresServer]:
    """Yield a new server. Skip the test if there is no PostgreSQL."""
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL here: initdb is neither on PATH nor in /usr/lib/postgresql/*/bin")
    if os.geteuid() == 0 and _server_user() is None:
        pytest.skip("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
    _stop_orphans(programs)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))  # a short path: sockets allow 107 bytes
    (folder / "owner").write_text(str(HostProcess.this()))
    server = PostgresServer(programs, folder, free_port())
    try:
        _make_cluster(server)
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database for one test."""
    name = postgres_server.make_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


def as_server_user(*command: str | Path) -> None:
    """Run a program of PostgreSQL as a user other than root, which PostgreSQL refuses. Show its output if it fails."""
    user: dict[str, Any] = {}
    if os.geteuid() == 0 and (found := _server_user()) is not None:
        user = {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": ()}
    # Not a pipe, because the server would keep it open.
    with tempfile.TemporaryFile() as output:
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"}
        done = subprocess.run([str(word) for word in command], stdout=output, stderr=output, cwd="/", env=environment, check=False, **user)
        output.seek(0)
        assert done.returncode == 0, output.read().decode(errors="replace")


def _stop_orphans(programs: Path) -> None:
    """Stop the servers of killed test sessions."""
    for owner in Path("/tmp").glob(f"{PREFIX}*/owner"):
        with contextlib.suppress(OSError, ValueError):  # another session may do the same at this time
            if not HostProcess.parse(owner.read_text()).has_died:
                continue
            with contextlib.suppress(AssertionError):  # it has already stopped
                PostgresServer(programs, owner.parent, 0).stop()
            shutil.rmtree(owner.parent, ignore_errors=True)


def _make_cluster(server: PostgresServer) -> None:
    secret = server.folder / "password"
    secret.write_text(PASSWORD)
    if os.geteuid() == 0 and (found := _server_user()) is not None:
        for path in (server.folder, secret):
            os.chown(path, found.pw_uid, found.pw_gid)
    options = ("--username", USER, "--pwfile", secret, "--auth", "md5", "--encoding", "UTF8", "--no-locale", "--no-sync")
    as_server_user(server.bin / "initdb", "-D", server.folder / "data", *options)


def _programs() -> Path | None:
    candidates = [Path(found)] if (found := shutil.which("initdb")) else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: path.parent.parent.name, reverse=True)
    for candidate in candidates:
        # pg_ctl looks for the server in its own folder, so links are resolved.
        folder = candidate.resolve().parent
        if (folder / "pg_ctl").exists():
            return folder
    return None


def _server_user() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
