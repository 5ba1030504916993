"""Tests of statements and URLs that would do more than the SQL tools allow."""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.model.errors import ToolError
from plan_adapter.tools.sql import sql_execute, sql_query
from tests.postgres import PostgresServer

TO_PROGRAM = "COPY (SELECT 1) TO PROGRAM 'cat >@MARK@'"  # COPY may fail if the program does not read its input

WRITES_ON_POSTGRESQL = {
    "copy to a program": TO_PROGRAM,
    "copy in small letters": TO_PROGRAM.replace("COPY", "copy"),
    "copy after a comment": f"-- SELECT\n{TO_PROGRAM}",
    "copy after a carriage return": f"--\r{TO_PROGRAM}",
    "copy after nested comments": f"/* /* SELECT */ SELECT */ {TO_PROGRAM}",
    "copy after half a comment": f"/* /* */ SELECT 1 -- */ \n */ {TO_PROGRAM}",
    "copy after a no-break space": f"\u00a0{TO_PROGRAM}",
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
    "leaving read-only mode": "SET TRANSACTION READ WRITE",
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
    """A database with two rows, and a file that an attack on its host would create."""

    url: str
    mark: Path

    async def state(self) -> Any:
        """Return the state that an attack would change."""
        counts = "SELECT (SELECT count(*) FROM t) AS rows, (SELECT last_value FROM s) AS s, to_regclass('taken')::text AS taken"
        return (await sql_query(self.url, counts))["rows"], self.mark.exists()


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    """A database for this module, whose user has all privileges."""
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


def test_the_postgresql_attack_works_outside_the_tool(database: Database, postgres_server: PostgresServer) -> None:
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
async def test_sql_execute_refuses_copy_to_or_from_a_program(database: Database, statement: str) -> None:
    with pytest.raises(ToolError, match="COPY to or from a PROGRAM is refused, because it runs a command on the database's host"):
        await sql_execute(database.url, ["SELECT 1", statement.replace("@MARK@", str(database.mark))])
    assert not database.mark.exists()


@pytest.mark.parametrize("driver", ["postgres", "postgresql+psycopg", "postgresql+psycopg2", "postgresql+pg8000"])
async def test_queries_use_a_driver_that_refuses_multiple_statements(database: Database, driver: str) -> None:
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
    "leaving read-only mode": "PRAGMA query_only = OFF",
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
async def test_url_options_cannot_make_a_query_open_a_file_for_writing(tmp_path: Path, options: str) -> None:
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
async def test_sql_execute_writes_to_no_other_sqlite_file(sqlite_file: Path, tmp_path: Path, statements: list[str]) -> None:
    mark, kept = tmp_path / "mark", tmp_path / "kept.db"
    shutil.copy(sqlite_file, kept)
    parameters: dict[str, Any] = {name: str(path) for name, path in (("name", mark), ("kept", kept)) if f":{name}" in str(statements)}
    url = f"sqlite:///file:{sqlite_file.as_uri()[7:]}?uri=true"
    with pytest.raises(ToolError, match="refused"):
        await sql_execute(url, [statement.replace("@MARK@", str(mark)) for statement in statements], parameters)
    assert not mark.exists()
    assert kept.read_bytes() == sqlite_file.read_bytes()


async def test_sql_execute_can_vacuum_and_read_an_attached_file(sqlite_file: Path, tmp_path: Path) -> None:
    shutil.copy(sqlite_file, tmp_path / "other.db")
    url = f"sqlite:///file:{sqlite_file.as_uri()[7:]}?uri=true"
    assert await sql_execute(url, "VACUUM") == {"rowcount": 0}
    both = ["ATTACH 'file:' || :other || '?mode=ro' AS other", "INSERT INTO t SELECT id + 2 FROM other.t"]
    assert await sql_execute(url, both, {"other": str(tmp_path / "other.db")}) == {"rowcount": 2}
