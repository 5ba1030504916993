"""Attacks through the built-in tools, and through the folder that a command is started in."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.errors import StoreError, ToolError
from plan_adapter.execution.results import ResultLimit
from plan_adapter.tools.files import read_file, write_file
from plan_adapter.tools.http import http_get, http_send
from plan_adapter.tools.sql import sql_execute, sql_query
from plan_adapter.tools.tool import ToolContext
from tests.postgres import PostgresServer
from tests.tools.conftest import context

__all__ = ["context"]

PLAN = Path(sys.executable).with_name("plan")

SHADOWED = (
    *("anyio", "cyclopts", "griffe", "httpx", "plan_adapter", "pydantic", "rich", "sqlalchemy", "yaml"),
    *("asyncio", "concurrent", "inspect", "json", "pickle", "random", "socket", "sqlite3", "subprocess", "typing", "uuid"),
)
"""Modules that a run imports, from installed packages and from the standard library."""

OWN_TOOLS = """\
from plan_adapter import tool

@tool(effect="read", isolation="process")
def fetch(url: str) -> int:
    import httpx
    return len(httpx.__version__)
"""

OWN_PLAN = """\
description: Fetch in a process of its own
options: {require_approval: false}
steps:
  - {id: own, tool_name: fetch, parameters: {url: "http://127.0.0.1:9"}, isolation: process}
  - {id: http, tool_name: http_get, parameters: {url: "http://127.0.0.1:9"}, on_error: continue, depends_on: [own]}
"""


def command(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `plan` as a real process in `folder`."""
    environment = {**os.environ, "PLAN_ADAPTER_HOME": str(folder / "home"), **variables}
    return subprocess.run([PLAN, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("way", ["option", pytest.param("setting", marks=pytest.mark.thorough)])
def test_a_file_of_the_current_folder_never_replaces_a_library(tmp_path: Path, way: str) -> None:
    for name in SHADOWED:
        mark = f"from pathlib import Path\nPath({str(tmp_path / 'hijacked')!r}).open('a').write({name!r} + ' ')\n"
        (tmp_path / f"{name}.py").write_text(mark, encoding="utf-8")
    (tmp_path / "own_tools.py").write_text(OWN_TOOLS, encoding="utf-8")
    (tmp_path / "plan.yaml").write_text(OWN_PLAN, encoding="utf-8")
    option = ("--tools", "own_tools:fetch") if way == "option" else ()
    variables = {} if way == "option" else {"PLAN_ADAPTER_TOOLS": "own_tools:fetch"}
    ran = command(tmp_path, "run", "plan.yaml", "--offline", *option, **variables)
    assert not (tmp_path / "hijacked").exists(), (tmp_path / "hijacked").read_text(encoding="utf-8")
    assert "own: completed" in ran.stderr, ran.stderr


# Redirects

SENT = {
    "authorization": "Bearer s3cret",
    "cookie": "session=s3cret",
    "proxy-authorization": "Basic s3cret",
    "x-api-key": "s3cret",
    "host": "internal.s3cret",
    "user-agent": "s3cret",
    "accept": "application/s3cret",
}


@dataclass
class Origin:
    """A server on a port of its own: where it redirects to by path, and what it was sent."""

    port: int = 0
    redirects: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    seen: list[str] = field(default_factory=list[str])

    def url(self, path: str, *, host: str = "127.0.0.1") -> str:
        """Return the URL of `path`."""
        return f"http://{host}:{self.port}{path}"

    @property
    def leaked(self) -> list[str]:
        """The requests that carried a secret of the step, or a cookie that another origin gave."""
        return [
            one
            for one in self.seen
            if "s3cret" in one or "YW5hOnMzY3JldA" in one or (f"given=by-{self.port}" not in one and "given=" in one)
        ]


def handler_of(origin: Origin) -> type[BaseHTTPRequestHandler]:
    """Return what answers the requests that `origin` gets."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            origin.seen.append(f"{self.command} {self.path}\n{self.headers}\n{body}")
            status, location = origin.redirects.get(self.path, (200, ""))
            self.send_response(status)
            if location:
                self.send_header("location", location)
                self.send_header("set-cookie", f"given=by-{origin.port}; path=/")
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


@contextmanager
def serving() -> Generator[Origin]:
    """Serve an origin for as long as the block lasts."""
    origin = Origin()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(origin))
    origin.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield origin
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def asked() -> Iterator[Origin]:
    """The origin that a step names."""
    with serving() as origin:
        yield origin


@pytest.fixture
def other() -> Iterator[Origin]:
    """An origin that only a redirect names."""
    with serving() as origin:
        yield origin


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("header", [*SENT, "userinfo"])
async def test_a_header_is_dropped_on_a_redirect_to_another_origin(
    asked: Origin, other: Origin, context: ToolContext, header: str, status: int
) -> None:
    asked.redirects["/"] = (status, other.url("/taken"))
    url = asked.url("/").replace("//", "//ana:s3cret@") if header == "userinfo" else asked.url("/")
    headers: dict[str, Any] = {name: value for name, value in SENT.items() if name == header}
    assert (await http_get(url, context, headers=headers))["status"] == 200
    assert asked.leaked, "the header reaches the origin that the step names"
    assert [request.partition("\n")[0] for request in other.seen] == ["GET /taken"]
    assert other.leaked == []


@pytest.mark.parametrize("way", ["another port", "another host", "another user", "by an extra hop", "there and back"])
async def test_headers_stay_dropped_however_the_redirect_leads_on(asked: Origin, other: Origin, context: ToolContext, way: str) -> None:
    first, last = asked.url("/first"), other
    match way:
        case "another port":
            asked.redirects["/first"] = (302, other.url("/last"))
        case "another host":  # the same address and port by another name
            asked.redirects["/first"], last = (302, asked.url("/last", host="localhost")), asked
        case "another user":
            asked.redirects["/first"] = (302, other.url("/last").replace("//", "//zoe:other@"))
        case "by an extra hop":
            asked.redirects |= {"/first": (302, "/second"), "/second": (307, other.url("/third"))}
            other.redirects["/third"] = (308, "/last")
        case _:
            asked.redirects["/first"], last = (302, other.url("/second")), asked
            other.redirects["/second"] = (302, asked.url("/last"))
    await http_get(first, context, headers=dict(SENT))
    assert last.seen[-1].startswith("GET /last\n")
    assert [request for request in [*asked.leaked, *other.leaked] if request.startswith(("GET /last", "GET /third"))] == []
    assert "zoe" not in last.seen[-1] and "authorization" not in last.seen[-1].lower()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_body_is_not_sent_again_to_another_origin(
    asked: Origin, other: Origin, context: ToolContext, method: Any, status: int
) -> None:
    asked.redirects["/"] = (status, other.url("/taken"))
    with pytest.raises(ToolError, match=rf"answered {status} .*: a redirect, and this tool does not follow redirects"):
        await http_send(asked.url("/"), context, method=method, body={"card": "s3cret"}, headers=dict(SENT))
    assert len(asked.leaked) == 1
    assert other.seen == []


# Folders that are exchanged for links

TRIES = 150

EXCHANGE = """
import ctypes, os, sys
exchange = ctypes.CDLL(None).renameat2
one, other = (os.fsencode(path) for path in sys.argv[1:])
print(exchange(-100, one, -100, other, 2), flush=True)
while True:
    exchange(-100, one, -100, other, 2)
"""
"""Exchanges two names all the time, each time in one system call, so that neither is ever missing."""


@contextmanager
def exchanging(one: Path, other: Path) -> Generator[None]:
    """Have another process exchange two names for as long as the block lasts."""
    process = subprocess.Popen([sys.executable, "-c", EXCHANGE, str(one), str(other)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"0\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of files, and beside it one with the same names and other contents."""
    for folder, text in ((tmp_path / "root" / "in", "inside"), (tmp_path / "outside", "s3cret")):
        (folder / "deep").mkdir(parents=True)
        for path in (folder / "a.txt", folder / "deep" / "a.txt"):
            path.write_text(text)
    monkeypatch.setenv("PLAN_ADAPTER_FILES_ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("path", "exchanged"),
    [
        ("in/a.txt", "in"),
        pytest.param("in/deep/a.txt", "in", marks=pytest.mark.thorough),
        pytest.param("in/deep/a.txt", "in/deep", marks=pytest.mark.thorough),
        pytest.param("in/deep/../a.txt", "in", marks=pytest.mark.thorough),
        ("./in/deep/../deep/a.txt", "in/deep"),
        ("in/a.txt", "in/a.txt"),
    ],
)
def test_a_read_never_leaves_the_root_while_a_link_is_exchanged_for_a_part_of_its_path(
    root: Path, tmp_path: Path, path: str, exchanged: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "outside" / exchanged.removeprefix("in").removeprefix("/"))
    found = Counter[str]()
    with exchanging(root / exchanged, tmp_path / "link"):
        for _ in range(TRIES):
            try:
                found[str(read_file(path)["text"])] += 1
            except ToolError:
                found["refused"] += 1
    assert set(found) == {"inside", "refused"}, "the race is real, and nothing from outside was read"


@pytest.mark.parametrize(
    ("path", "exchanged"),
    [
        ("in/deep/new.txt", "in"),
        ("in/deep/new.txt", "in/deep"),
        pytest.param("in/new.txt", "in", marks=pytest.mark.thorough),
        pytest.param("in/made/by/new.txt", "in", marks=pytest.mark.thorough),
    ],
)
def test_a_write_never_leaves_the_root_while_a_link_is_exchanged_for_a_folder(
    root: Path, tmp_path: Path, path: str, exchanged: str
) -> None:
    before = sorted((tmp_path / "outside").rglob("*"))
    (tmp_path / "link").symlink_to(tmp_path / "outside" / exchanged.removeprefix("in").removeprefix("/"))
    found = Counter[str]()
    with exchanging(root / exchanged, tmp_path / "link"):
        for number in range(TRIES):
            try:
                write_file(path, str(number))
                found["written"] += 1
            except ToolError:
                found["refused"] += 1
    assert set(found) == {"written", "refused"}, "the race is real"
    assert sorted((tmp_path / "outside").rglob("*")) == before


def test_a_large_result_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run").symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError, match=r"cannot be written to .*/results/run is a symbolic link"):
        ResultLimit(10, tmp_path / "results").keep("x" * 100, run_id="run", name="step-1")
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("name", ["step-1.json", "step-1.partial"])
def test_a_link_in_the_place_of_a_result_is_not_written_through(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "results" / "run").mkdir(parents=True)
    (tmp_path / "results" / "run" / name).symlink_to(tmp_path / "mine")
    ResultLimit(10, tmp_path / "results").keep("x" * 100, run_id="run", name="step-1")
    written = tmp_path / "results" / "run" / "step-1.json"
    assert (tmp_path / "mine").read_text() == "mine"
    assert not written.is_symlink() and written.stat().st_mode & 0o777 == 0o600


# Statements that do more than read

TO_PROGRAM = "COPY (SELECT 1) TO PROGRAM 'cat >@MARK@'"  # a program that does not read its input may fail the copy

WRITES_ON_POSTGRESQL = {
    "copy to a program": TO_PROGRAM,
    "copy in small letters": TO_PROGRAM.replace("COPY", "copy"),
    "copy after a comment": f"-- SELECT\n{TO_PROGRAM}",
    "copy after a carriage return": f"--\r{TO_PROGRAM}",
    "copy after nested comments": f"/* /* SELECT */ SELECT */ {TO_PROGRAM}",
    "copy after half a comment": f"/* /* */ SELECT 1 -- */ \n */ {TO_PROGRAM}",
    "copy after a blank that is none": f"\u00a0{TO_PROGRAM}",
    "copy after a semicolon": f";{TO_PROGRAM}",
    "copy after a query": f"SELECT 1; {TO_PROGRAM}",
    "copy after a cursor's query": f"SELECT 1; CLOSE sql_query; {TO_PROGRAM}",
    "copy after show": f"SHOW work_mem; {TO_PROGRAM}",
    "copy after explain": f"EXPLAIN SELECT 1; {TO_PROGRAM}",
    "copy after a commit": f"COMMIT; {TO_PROGRAM}",
    "copy from a program": "COPY t FROM PROGRAM 'touch @MARK@'",
    "copy to a file": "COPY (SELECT 1) TO '@MARK@'",
    "copy inside of a block": f"DO $$ BEGIN EXECUTE $x${TO_PROGRAM}$x$; END $$",
    "a block that writes": "DO $$ BEGIN DELETE FROM t; END $$",
    "a block that lifts the limit": "DO $$ BEGIN SET TRANSACTION READ WRITE; DELETE FROM t; END $$",
    "a procedure": "CALL wipe()",
    "delete": "DELETE FROM t RETURNING id",
    "insert": "INSERT INTO t VALUES (9) RETURNING id",
    "merge": "MERGE INTO t USING t AS u ON t.id = u.id WHEN MATCHED THEN DELETE",
    "truncate": "TRUNCATE t",
    "delete in a with": "WITH d AS (DELETE FROM t RETURNING id) SELECT * FROM d",
    "insert in a with": "WITH i AS (INSERT INTO t VALUES (9) RETURNING id) TABLE i",
    "delete in an inner with": "SELECT * FROM (WITH d AS (DELETE FROM t RETURNING id) SELECT * FROM d) AS x",
    "delete in a with in brackets": "(WITH d AS (DELETE FROM t RETURNING id) SELECT * FROM d)",
    "select into": "SELECT 1 AS a INTO taken",
    "select for update": "SELECT id FROM t FOR UPDATE",
    "a sequence": "SELECT nextval('s') AS a",
    "a sequence that is set": "SELECT setval('s', 9) AS a",
    "a function that deletes": "SELECT wiped() AS a",
    "a setting": "SET default_transaction_read_only = off",
    "a setting by a function": "SELECT set_config('transaction_read_only', 'off', false) AS a",
    "the end of the transaction": "COMMIT",
    "the end of reading": "SET TRANSACTION READ WRITE",
    "a lock": "LOCK TABLE t IN ACCESS EXCLUSIVE MODE",
    "a prepared statement": "PREPARE p AS DELETE FROM t",
    "explain analyze of a delete": "EXPLAIN ANALYZE DELETE FROM t",
    "explain with analyze of an insert": "EXPLAIN (ANALYZE, COSTS off) INSERT INTO t VALUES (9)",
    "explain analyze of a with": "EXPLAIN ANALYZE WITH d AS (DELETE FROM t RETURNING id) SELECT * FROM d",
    "explain analyze of a new table": "EXPLAIN ANALYZE CREATE TABLE taken AS SELECT 1 AS a",
    "explain with analyze of a new table": "EXPLAIN (ANALYZE) CREATE TABLE taken AS SELECT 1 AS a",
    "explain of a cursor": "EXPLAIN ANALYZE DECLARE c CURSOR FOR SELECT 1",
}


@dataclass(frozen=True)
class Database:
    """A database with two rows, and a file that a program on its host would make."""

    url: str
    mark: Path

    async def state(self) -> Any:
        """Return what an attack would change."""
        counts = "SELECT (SELECT count(*) FROM t) AS rows, (SELECT last_value FROM s) AS s, to_regclass('taken')::text AS taken"
        return (await sql_query(self.url, counts))["rows"], self.mark.exists()


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    """A database of this module, whose user may do everything."""
    name, folder = postgres_server.make_database(), Path(tempfile.mkdtemp(prefix="plan-attack-"))
    folder.chmod(0o777)
    delete = "LANGUAGE plpgsql AS 'BEGIN DELETE FROM t; END'"
    made = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2); CREATE SEQUENCE s"
    functions = f"CREATE PROCEDURE wipe() {delete}; CREATE FUNCTION wiped() RETURNS void {delete}"
    postgres_server.execute(f"{made}; {functions}", database=name)
    yield Database(postgres_server.url(name), folder / "mark")
    postgres_server.drop_database(name)
    shutil.rmtree(folder)


@pytest.mark.parametrize("attack", WRITES_ON_POSTGRESQL)
async def test_a_query_never_writes_to_postgresql(database: Database, attack: str) -> None:
    before = await database.state()
    with pytest.raises(ToolError):
        await sql_query(database.url, WRITES_ON_POSTGRESQL[attack].replace("@MARK@", str(database.mark)))
    assert await database.state() == before == ([{"rows": 2, "s": 1, "taken": None}], False)


def test_the_attacks_on_postgresql_would_do_harm(database: Database, postgres_server: PostgresServer) -> None:
    mark = database.mark.with_name("control")
    postgres_server.execute(TO_PROGRAM.replace("@MARK@", str(mark)), database=database.url.rpartition("/")[2])
    assert mark.exists()


@pytest.mark.parametrize(
    "statement",
    [
        TO_PROGRAM,
        TO_PROGRAM.lower().replace("@mark@", "@MARK@"),
        TO_PROGRAM.replace("TO PROGRAM", "TO\n--\n/* x */PROGRAM"),
        f"/* a comment */ {TO_PROGRAM}",
        "COPY t FROM PROGRAM 'touch @MARK@'",
    ],
)
async def test_sql_execute_runs_no_program_by_copy(database: Database, statement: str) -> None:
    with pytest.raises(ToolError, match="COPY to or from a PROGRAM is refused, because it runs a command on the database's host"):
        await sql_execute(database.url, ["SELECT 1", statement.replace("@MARK@", str(database.mark))])
    assert not database.mark.exists()


@pytest.mark.parametrize("driver", ["postgres", "postgresql+psycopg", "postgresql+psycopg2", "postgresql+pg8000"])
async def test_a_query_goes_through_the_driver_that_takes_one_statement_only(database: Database, driver: str) -> None:
    url = database.url.replace("postgresql", driver, 1)
    assert await sql_query(url, "SELECT count(*) AS n FROM t") == {"rows": [{"n": 2}]}
    with pytest.raises(ToolError, match="multiple commands"):
        await sql_query(url, "SELECT 1; DELETE FROM t")


WRITES_ON_SQLITE = {
    "delete": "DELETE FROM t",
    "delete with rows": "DELETE FROM t RETURNING id",
    "delete after a with": "WITH x AS (SELECT 1) DELETE FROM t",
    "insert after a with": "WITH x AS (SELECT 9) INSERT INTO t SELECT * FROM x RETURNING id",
    "after a query": "SELECT 1; DELETE FROM t",
    "the end of reading": "PRAGMA query_only = OFF",
    "a pragma that writes": "PRAGMA user_version = 9",
    "a pragma after a comment": "/* SELECT */ PRAGMA user_version = 9",
    "a pragma that gives rows": "PRAGMA journal_mode = DELETE",
    "a pragma in a select": "SELECT * FROM pragma_journal_mode",
    "another file": "ATTACH '@MARK@' AS other",
    "a copy": "VACUUM INTO '@MARK@'",
    "a temporary table": "CREATE TEMP TABLE taken (a)",
    "an extension": "SELECT load_extension('@MARK@')",
    "a transaction": "BEGIN IMMEDIATE",
    "analyze": "ANALYZE",
    "reindex": "REINDEX",
}


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    """A SQLite file with two rows."""
    path = tmp_path / "数据 a.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t (id INTEGER); INSERT INTO t VALUES (1), (2); PRAGMA user_version = 1")
    return path


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("attack", WRITES_ON_SQLITE)
async def test_a_query_never_writes_to_sqlite(sqlite_file: Path, tmp_path: Path, attack: str, journal: str) -> None:
    with closing(sqlite3.connect(sqlite_file)) as connection:
        connection.execute(f"PRAGMA journal_mode={journal}")
    before, mark = sqlite_file.read_bytes(), tmp_path / "mark"
    with pytest.raises(ToolError):
        await sql_query(f"sqlite:///{sqlite_file}", WRITES_ON_SQLITE[attack].replace("@MARK@", str(mark)))
    assert sqlite_file.read_bytes() == before
    assert not mark.exists()
    assert await sql_query(f"sqlite:///{sqlite_file}", "SELECT count(*) AS n FROM t") == {"rows": [{"n": 2}]}


@pytest.mark.parametrize(
    "options",
    [
        "mode=rwc&uri=true",
        "mode=rw&uri=true",
        "uri=true&mode=ro&mode=rwc",
        "uri=true&cache=private%26mode=rwc",
        "mode=rwc",
        "mode=RWC&uri=1",
    ],
)
async def test_a_query_opens_no_file_for_writing_whatever_its_url_says(tmp_path: Path, options: str) -> None:
    with pytest.raises(ToolError):
        await sql_query(f"sqlite:///file:{tmp_path}/new.db?{options}", "SELECT 1 AS a")
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    "statements",
    [
        ["ATTACH '@MARK@' AS other"],
        ["ATTACH DATABASE '@MARK@' AS other", "CREATE TABLE other.taken (a)"],
        ["attach :name AS other"],
        ["ATTACH 'file:@MARK@?mode=rwc' AS other"],
        ["ATTACH 'file:@MARK@' || '?mode=ro' || '' AS other"],
        ["/* x */ ATTACH 'file:@MARK@' AS \"?mode=ro' AS other\""],
        ["ATTACH 'file:@MARK@?mode=ro' AS vacuum_1"],
        ["VACUUM INTO '@MARK@'"],
        ["VACUUM main INTO :name"],
        ["ATTACH 'file:' || :kept || '?mode=rwc&x=?mode=ro' AS other", "CREATE TABLE other.taken (a)"],
        ["ATTACH 'file:' || :kept || '?mode=rwc&x=?mode=ro' AS other", "INSERT INTO other.t VALUES (9)"],
        ["ATTACH 'file:' || :kept || '?mode=rwc&x=?mode=ro' AS other", "ALTER TABLE other.t RENAME TO taken"],
        ["ATTACH 'file:' || :kept || '?mode=rwc&x=?mode=ro' AS other", "DROP TABLE other.t"],
        ["ATTACH 'file:' || :kept || '?mode=rwc&x=?mode=ro' AS other", "WITH x AS (SELECT 1) DELETE FROM other.t"],
        ["ATTACH 'file:' || :kept || '?mode=rwc&x=?mode=ro' AS other", "CREATE TRIGGER other.taken AFTER INSERT ON t BEGIN SELECT 1; END"],
    ],
)
async def test_sql_execute_writes_no_other_file_of_sqlite(sqlite_file: Path, tmp_path: Path, statements: list[str]) -> None:
    mark, kept = tmp_path / "mark", tmp_path / "kept.db"
    shutil.copy(sqlite_file, kept)
    parameters: dict[str, Any] = {name: str(path) for name, path in (("name", mark), ("kept", kept)) if f":{name}" in str(statements)}
    url = f"sqlite:///file:{sqlite_file.as_uri()[7:]}?uri=true"
    with pytest.raises(ToolError, match="refused"):
        await sql_execute(url, [statement.replace("@MARK@", str(mark)) for statement in statements], parameters)
    assert not mark.exists()
    assert kept.read_bytes() == sqlite_file.read_bytes()


async def test_sql_execute_still_compacts_a_file_and_reads_another_one(sqlite_file: Path, tmp_path: Path) -> None:
    shutil.copy(sqlite_file, tmp_path / "other.db")
    url = f"sqlite:///file:{sqlite_file.as_uri()[7:]}?uri=true"
    assert await sql_execute(url, "VACUUM") == {"rowcount": 0}
    both = ["ATTACH 'file:' || :other || '?mode=ro' AS other", "INSERT INTO t SELECT id + 2 FROM other.t"]
    assert await sql_execute(url, both, {"other": str(tmp_path / "other.db")}) == {"rowcount": 2}
