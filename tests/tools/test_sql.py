import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.model.errors import ToolError
from plan_adapter.tools.sql import sql_execute, sql_query


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = tmp_path / "a b.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT UNIQUE, age REAL, born DATE)")
        connection.executemany("INSERT INTO users VALUES (?, ?, ?, ?)", [(1, "张三", 3.5, "2020-01-02"), (2, "Ana", None, None)])
    connection.close()
    return f"sqlite:///{path}"


async def test_a_query_returns_rows_as_objects(url: str) -> None:
    assert await sql_query(url, "SELECT * FROM users ORDER BY id") == {
        "rows": [{"id": 1, "name": "张三", "age": 3.5, "born": "2020-01-02"}, {"id": 2, "name": "Ana", "age": None, "born": None}]
    }


@pytest.mark.parametrize(
    ("statement", "parameters", "expected"),
    [
        ("SELECT id FROM users WHERE name = :name", {"name": "张三"}, [{"id": 1}]),
        ("SELECT id FROM users WHERE name = :name", {"name": "x' OR '1'='1"}, []),
        ("SELECT id FROM users WHERE id IN :ids ORDER BY id", {"ids": [1, 2, 5]}, [{"id": 1}, {"id": 2}]),
        ("SELECT id FROM users WHERE id IN :ids", {"ids": []}, []),
        ("SELECT :a AS a, :b AS b", {"a": None, "b": {"k": "中"}}, [{"a": None, "b": '{"k": "中"}'}]),
    ],
)
async def test_values_are_bound_and_never_written_into_the_statement(
    url: str, statement: str, parameters: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    assert await sql_query(url, statement, parameters) == {"rows": expected}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("-- who\n/* is it */ SELECT id FROM users WHERE id = 1;", [{"id": 1}]),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3) SELECT max(i) AS m FROM n", [{"m": 3}]),
        ("values (1)", [{"column1": 1}]),
        ("SELECT name FROM pragma_table_info('users') WHERE cid = 0", [{"name": "id"}]),
        ("SELECT value FROM json_each('[7]')", [{"value": 7}]),
    ],
)
async def test_statements_that_only_read_are_queries(url: str, statement: str, expected: list[dict[str, Any]]) -> None:
    assert await sql_query(url, statement) == {"rows": expected}


async def test_explain_query_plan_is_a_query_on_sqlite(url: str) -> None:
    assert "SCAN users" in str(await sql_query(url, "EXPLAIN QUERY PLAN SELECT age FROM users"))


async def test_full_text_search_is_a_query(url: str) -> None:
    make = ["CREATE VIRTUAL TABLE notes USING fts5(body)", "INSERT INTO notes VALUES ('the quick fox'), ('a slow dog')"]
    await sql_execute(url, make)
    assert await sql_query(url, "SELECT body FROM notes WHERE notes MATCH 'quick'") == {"rows": [{"body": "the quick fox"}]}


async def test_a_sqlite_file_can_be_opened_by_uri(url: str) -> None:
    uri = url.replace("sqlite:///", "sqlite:///file:").replace(" ", "%20")
    for options in ("?uri=true", "?mode=ro&uri=true", ""):
        assert await sql_query(f"{uri}{options}", "SELECT count(*) AS n FROM users") == {"rows": [{"n": 2}]}


async def test_execute_writes_in_one_transaction_and_returns_the_row_count(url: str) -> None:
    rows = [{"id": 3, "name": "c"}, {"id": 4, "name": "d"}]
    assert await sql_execute(url, "INSERT INTO users (id, name) VALUES (:id, :name)", rows) == {"rowcount": 2}  # type: ignore[arg-type]
    assert await sql_execute(url, "UPDATE users SET age = :age WHERE id > :id", {"age": 1, "id": 2}) == {"rowcount": 2}
    assert await sql_execute(url, "CREATE TABLE other (id INTEGER)") == {"rowcount": 0}
    with pytest.raises(ToolError, match=r"sqlite: UNIQUE constraint failed: users\.name"):
        await sql_execute(url, "INSERT INTO users (name) VALUES (:name)", [{"name": "e"}, {"name": "d"}])
    assert await sql_query(url, "SELECT count(*) AS n FROM users") == {"rows": [{"n": 4}]}


async def test_several_statements_run_in_one_transaction(url: str) -> None:
    rename = ["ALTER TABLE users RENAME TO people", "UPDATE people SET age = :age"]
    assert await sql_execute(url, rename, {"age": 7}) == {"rowcount": 2}
    with pytest.raises(ToolError, match="sqlite: no such table: nowhere"):
        await sql_execute(url, ["DROP TABLE people", "DELETE FROM nowhere"])
    assert await sql_query(url, "SELECT min(age) AS age FROM people") == {"rows": [{"age": 7.0}]}


async def test_a_cancelled_write_changes_nothing(url: str) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) INSERT INTO users (age) SELECT max(i) FROM n"
    running = asyncio.ensure_future(sql_execute(url, ["DELETE FROM users", endless]))
    await asyncio.sleep(0.3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await sql_query(url, "SELECT count(*) AS n FROM users") == {"rows": [{"n": 2}]}


async def test_execute_creates_a_missing_database_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    await sql_execute(url, "CREATE TABLE t (a INTEGER)")
    assert await sql_query(url, "SELECT a FROM t") == {"rows": []}


@pytest.mark.parametrize(
    ("statement", "parameters", "message"),
    [
        ("DELETE FROM users", {}, "a statement that starts with DELETE is not a query: sql_query runs SELECT, WITH, .*; use sql_execute"),
        ("/* SELECT */ create TABLE x (a INTEGER)", {}, "a statement that starts with CREATE is not a query"),
        ("-- nothing", {}, "this is not a query"),
        ("WITH x AS (SELECT 1) DELETE FROM users", {}, "attempt to write a readonly database"),
        ("SELECT * FROM pragma_user_version", {}, "sqlite: refused: sql_query only reads"),
        ("PRAGMA query_only = OFF", {}, "a statement that starts with PRAGMA is not a query"),
        ("EXPLAIN PRAGMA query_only", {}, "this EXPLAIN is refused: sql_query explains SELECT"),
        ("SELECT 1; DELETE FROM users", {}, "one statement at a time"),
        ("SELEC 1", {}, "a statement that starts with SELEC is not a query"),
        ("SELECT FROM WHERE", {}, 'near "FROM": syntax error'),
        ("SELECT * FROM users WHERE id = :id", {}, "A value is required for bind parameter 'id'"),
        ("SELECT 1 AS a", {"b": [1]}, "no statement uses `:b`"),
        ("SELECT 1 AS a, 2 AS a", {}, "several columns are called a; name them with AS"),
        ("SELECT id FROM users", {"max": 1}, ""),
    ],
)
async def test_an_invalid_query_fails_with_the_cause_and_changes_nothing(
    url: str, statement: str, parameters: dict[str, Any], message: str
) -> None:
    limit = parameters.pop("max", 10)
    with pytest.raises(ToolError, match=message or "more than 1 rows; add a LIMIT"):
        await sql_query(url, statement, parameters, max_rows=limit)
    assert await sql_query(url, "SELECT count(*) AS n FROM users") == {"rows": [{"n": 2}]}


async def test_a_blob_that_is_not_text_gives_a_clear_error(url: str) -> None:
    with pytest.raises(ToolError, match="the result is not JSON"):
        await sql_query(url, "SELECT x'ff' AS a")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////no/such/folder/x.db", "the database file /no/such/folder/x.db does not exist"),
        ("not a url s3cret", "not a database URL: write sqlite:///file.db or postgresql://"),
        ("nosuchdb://ana:s3cret@host/x", "nosuchdb"),
        ("mysql://ana:s3cret@host/x", "sql_query reads SQLite and PostgreSQL, and cannot make mysql read-only"),
        ("sqlite:///file:x.db?mode=rwc&uri=true", "opens a database only for reading: set `mode=ro` in the url, or leave `mode` out"),
        ("postgresql://ana:s3cret@127.0.0.1:1/s3cret", "postgresql: "),
        ("postgres://ana:s3cret@127.0.0.1:1/x", "postgresql: "),
        ("postgresql://ana:s3cret@[/x", "no database URL|postgresql: "),
    ],
)
async def test_the_error_for_a_database_that_cannot_be_opened_hides_the_password(url: str, message: str) -> None:
    with pytest.raises(ToolError, match=message) as error:
        await sql_query(url, "SELECT 1 AS a")
    assert "s3cret" not in str(error.value)


async def test_errors_do_not_show_parameters(url: str) -> None:
    with pytest.raises(ToolError) as error:
        await sql_execute(url, "INSERT INTO nowhere VALUES (:token)", {"token": "s3cret"})
    assert str(error.value) == "sqlite: no such table: nowhere"


async def test_a_cancelled_query_ends(url: str) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) AS m FROM n"
    running = asyncio.ensure_future(sql_query(url, endless))
    await asyncio.sleep(0.3)  # the query never ends, and SQLite does not report that it has started
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await sql_execute(url, "DELETE FROM users") == {"rowcount": 2}, "nothing holds the database any more"


async def test_postgresql_can_be_written_and_read(postgres_database: str) -> None:
    url = postgres_database
    columns = "id bigint PRIMARY KEY, name text, at timestamp, day date, span interval, amount numeric, doc jsonb, key uuid, ok boolean"
    await sql_execute(url, f"CREATE TABLE t ({columns})")
    insert = "INSERT INTO t VALUES (:id, :name, :at, :day, :span, :amount, :doc, :key, :ok)"
    names = [column.split()[0] for column in columns.split(", ")]
    key = "01890a5d-ac96-774b-bcce-b302099a8057"
    row = [2**40, "张三", "2024-01-02T03:04:05", "2024-02-29", "01:00:00", 1.50, {"a": [1]}, key, True]
    full: dict[str, Any] = dict(zip(names, row, strict=True))
    empty: dict[str, Any] = dict.fromkeys(names) | {"id": 1}
    assert await sql_execute(url, insert, [full, empty]) == {"rowcount": 2}
    found = await sql_query(url, "SELECT * FROM t WHERE id IN :ids AND name = :name", {"ids": [1, 2**40], "name": "张三"})
    assert found == {"rows": [{**full, "amount": "1.5"}]}
    moment = "SELECT CAST('2024-01-02 03:04:05+00' AS timestamptz) AT TIME ZONE 'UTC' AS a, CAST('infinity' AS timestamp) AS b"
    assert await sql_query(url, moment) == {"rows": [{"a": "2024-01-02T03:04:05", "b": "infinity"}]}


@pytest.mark.parametrize(
    ("statement", "parameters", "expected"),
    [
        ("/* /* nested */ */ -- and\rSELECT :a AS a;", {"a": "中"}, [{"a": "中"}]),
        ("(SELECT 1 AS a) UNION ALL SELECT 2 ORDER BY a DESC", {}, [{"a": 2}, {"a": 1}]),
        ("WITH x AS (SELECT i FROM generate_series(1, 3) AS i WHERE i IN :ids) SELECT sum(i) AS s FROM x", {"ids": [1, 3]}, [{"s": 4}]),
        ("VALUES (1)", {}, [{"column1": 1}]),
        ("SHOW transaction_read_only", {}, [{"transaction_read_only": "on"}]),
        ("EXPLAIN (COSTS off) SELECT 1", {}, [{"QUERY PLAN": "Result"}]),
        ("explain (ANALYZE, COSTS off, TIMING off, SUMMARY off) (VALUES (1))", {}, [{"QUERY PLAN": "Result (actual rows=1 loops=1)"}]),
    ],
)
async def test_statements_that_only_read_are_queries_on_postgresql(
    postgres_database: str, statement: str, parameters: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    assert await sql_query(postgres_database, statement, parameters) == {"rows": expected}


async def test_a_query_cannot_write_to_postgresql(postgres_database: str) -> None:
    with pytest.raises(ToolError, match="a statement that starts with CREATE is not a query"):
        await sql_query(postgres_database, "CREATE TABLE t (id int)")


async def test_a_cancelled_query_ends_on_postgresql(postgres_database: str) -> None:
    running = asyncio.ensure_future(sql_query(postgres_database, "SELECT pg_sleep(1000)"))
    active = "SELECT count(*) AS n FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(1000)' AND state = 'active'"
    while (await sql_query(postgres_database, active))["rows"] != [{"n": 1}]:
        await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    while (await sql_query(postgres_database, active))["rows"] != [{"n": 0}]:
        await asyncio.sleep(0.02)


async def test_errors_do_not_show_the_postgresql_password(postgres_database: str) -> None:
    wrong = postgres_database.replace("a-pass", "s3cret")
    with pytest.raises(ToolError, match="postgresql: password authentication failed") as error:
        await sql_query(wrong, "SELECT 1 AS a")
    assert "s3cret" not in str(error.value)


SCRIPT = """
-- a table; and its rows
CREATE TABLE parts (id bigint PRIMARY KEY, name text);
INSERT INTO parts VALUES (1, 'a;b'), (2, 'it''s; 中文'); /* done; */
UPDATE parts SET name = :name WHERE id IN :ids;
"""
BROKEN = "INSERT INTO parts VALUES (3, 'c'); CREATE TABLE more (id int); DELETE FROM parts; INSERT INTO nowhere VALUES (1)"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'new.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_database")


@pytest.mark.parametrize("form", [str, lambda text: text.split(";\nINSERT"), lambda text: [text]], ids=["script", "two scripts", "list"])
async def test_a_script_runs_in_one_transaction(database: str, form: Any) -> None:
    written = form(SCRIPT)
    if isinstance(written, list) and len(written) == 2:
        written = [written[0], f"INSERT{written[1]}"]
    assert await sql_execute(database, written, {"name": "x", "ids": [2]}) == {"rowcount": 3}
    with pytest.raises(ToolError, match="nowhere"):
        await sql_execute(database, BROKEN)
    with pytest.raises(ToolError, match="nowhere"):
        await sql_execute(database, BROKEN.split("; "))
    found = await sql_query(database, "SELECT name FROM parts ORDER BY id")
    assert found == {"rows": [{"name": "a;b"}, {"name": "x"}]}
    assert await sql_execute(database, "CREATE TABLE more (id int)") == {"rowcount": 0}, "the table of the failed script does not exist"


async def test_a_script_runs_once_for_each_of_the_parameters_all_or_none(database: str) -> None:
    await sql_execute(database, "CREATE TABLE parts (id bigint PRIMARY KEY, name text); CREATE TABLE log (id bigint)")
    script = "INSERT INTO parts VALUES (:id, :name); INSERT INTO log VALUES (:id)"
    assert await sql_execute(database, script, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]) == {"rowcount": 4}
    with pytest.raises(ToolError, match=r"UNIQUE|unique"):
        await sql_execute(database, script, [{"id": 3, "name": "c"}, {"id": 2, "name": "b"}])
    assert (await sql_query(database, "SELECT count(*) AS n FROM log"))["rows"] == [{"n": 2}]


@pytest.mark.parametrize("ending", ["COMMIT", "begin", "END TRANSACTION", "/* now */ ROLLBACK", "START TRANSACTION", "ABORT"])
async def test_several_statements_cannot_end_their_transaction(database: str, ending: str) -> None:
    await sql_execute(database, "CREATE TABLE parts (id bigint)")
    for form in (f"INSERT INTO parts VALUES (1); {ending}; INSERT INTO nowhere VALUES (1)", ["INSERT INTO parts VALUES (1)", ending]):
        with pytest.raises(ToolError, match="all statements of a call run in one transaction"):
            await sql_execute(database, form)
    assert (await sql_query(database, "SELECT count(*) AS n FROM parts"))["rows"] == [{"n": 0}]


async def test_a_savepoint_in_a_script_is_allowed(database: str) -> None:
    await sql_execute(database, "CREATE TABLE parts (id bigint)")
    script = "SAVEPOINT s; INSERT INTO parts VALUES (1); ROLLBACK TO SAVEPOINT s; INSERT INTO parts VALUES (2); RELEASE SAVEPOINT s"
    await sql_execute(database, script)
    assert (await sql_query(database, "SELECT id FROM parts"))["rows"] == [{"id": 2}]


async def test_the_body_of_a_trigger_is_one_statement(url: str) -> None:
    body = "UPDATE users SET age = CASE WHEN age IS NULL THEN 0 ELSE age END WHERE id = new.id; DELETE FROM users WHERE name = 'Ana;';"
    script = f"CREATE TABLE seen (id int); CREATE TEMP TRIGGER t AFTER INSERT ON users BEGIN {body} END; INSERT INTO users (id) VALUES (9);"
    assert await sql_execute(url, script) == {"rowcount": 1}
    assert await sql_query(url, "SELECT age FROM users WHERE id = 9") == {"rows": [{"age": 0.0}]}


async def test_the_body_of_a_function_is_one_statement(postgres_database: str) -> None:
    dollars = "CREATE FUNCTION one() RETURNS int LANGUAGE plpgsql AS $f$ BEGIN PERFORM 1; RETURN 1; END $f$"
    atomic = "CREATE FUNCTION two() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 2 END; END"
    text = r"CREATE TABLE t AS SELECT E'it\'s; one' AS a, U&'x;' AS b, $$;$$ AS c /* /* ; */ ; */"
    await sql_execute(postgres_database, f"{dollars}; {atomic}; {text}; SELECT one(), two();")
    assert (await sql_query(postgres_database, "SELECT one() + two() AS n, a, b, c FROM t"))["rows"] == [
        {"n": 3, "a": "it's; one", "b": "x;", "c": ";"}
    ]


async def test_text_without_a_statement_is_refused(database: str) -> None:
    for text in ("", " ; -- nothing\n;", "/* ; */"):
        with pytest.raises(ToolError, match="there is no statement"):
            await sql_execute(database, text)


async def test_a_script_is_no_query(database: str) -> None:
    await sql_execute(database, "CREATE TABLE parts (id bigint)")
    with pytest.raises(ToolError):
        await sql_query(database, "SELECT 1 AS a; INSERT INTO parts VALUES (1)")
    assert (await sql_query(database, "SELECT count(*) AS n FROM parts"))["rows"] == [{"n": 0}]


def test_the_statement_must_be_literal() -> None:
    assert sql_query.literal_parameters == sql_execute.literal_parameters == {"statement"}
