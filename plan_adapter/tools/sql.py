"""`sql_query` and `sql_execute`: SQL as a step."""

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, cast

from pydantic import Field, JsonValue
from typing_extensions import TypedDict

from plan_adapter.expressions import has_expression
from plan_adapter.model.errors import ToolError
from plan_adapter.model.readable import cut, one_line
from plan_adapter.tools.probing import Simulation
from plan_adapter.tools.tool import as_json, tool

if TYPE_CHECKING:
    from sqlalchemy import URL, BindParameter, CursorResult, Executable
    from sqlalchemy.ext.asyncio import AsyncConnection

_COMMON = r"--[^\r\n]*|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|[A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*|;|/\*"
_TOKENS = {
    "sqlite": re.compile(rf"`(?:[^`]|``)*`|\[[^\]]*\]|{_COMMON}"),
    "postgresql": re.compile(rf"(?<!\w)[eE]'(?:[^'\\]|\\[\s\S]|'')*'|(?<![\w$])(?P<tag>\$(?:[^\W\d]\w*)?\$)[\s\S]*?(?P=tag)|{_COMMON}"),
}
_TRANSACTION = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "PREPARE"})


def split_script(script: str, dialect: str) -> list[str]:
    """Return the statements of `script` without the `;` between them. Text without a statement, such as a comment alone, is left out.

    A `;` in quotes, in comments, and in the body of a SQLite trigger or of a PostgreSQL function ends no statement. The database refuses a
    part that it reads as several statements, so a wrong split cannot hide one.
    """
    return [statement for statement in _parts(script, dialect) if statement]


def ends_transaction(statement: str) -> bool:
    """Return whether `statement`, without leading comments, begins or ends a transaction."""
    words = [word.upper() for word in re.findall(r"[A-Za-z_]+", statement[:200])[:3]]
    if not words or words[0] not in _TRANSACTION:
        return False
    if words[0] == "ROLLBACK":
        return "TO" not in words[1:]  # of a savepoint
    return words[0] != "PREPARE" or words[1:2] == ["TRANSACTION"]


def _parts(script: str, dialect: str) -> Iterator[str]:
    start = position = depth = 0
    words = list[str]()  # of the statement so far, outside quotes and comments
    pattern = _TOKENS["sqlite" if dialect == "sqlite" else "postgresql"]
    while (token := pattern.search(script, position)) is not None:
        position, text = token.end(), token.group()
        if text == "/*":
            position = _end_of_comment(script, token.start(), nests=dialect != "sqlite")
        elif text == ";" and not depth:
            yield script[start : token.start()].strip() if words else ""
            start, words = position, []
        elif text == ";" or text.startswith("--"):
            continue
        else:
            words.append(text.upper())
            depth = max(0, depth + _change_of_depth(words, depth, dialect))
    yield script[start:].strip() if words else ""


def _change_of_depth(words: list[str], depth: int, dialect: str) -> int:
    """Return 1 if the last of `words` opens a body of statements or a block in one, and -1 if it closes one."""
    last = words[-1]
    if depth:
        return {"CASE": 1, "END": -1}.get(last, 0)
    if dialect == "sqlite":
        return int(last == "BEGIN" and words[0] == "CREATE" and "TRIGGER" in words[1:3])
    return int(words[-2:] == ["BEGIN", "ATOMIC"])


def _end_of_comment(script: str, start: int, *, nests: bool) -> int:
    depth = 0
    for mark in re.finditer(r"/\*|\*/", script[start:]):
        depth += 1 if mark[0] == "/*" and (nests or not depth) else -1 if mark[0] == "*/" else 0
        if not depth:
            return start + mark.end()
    return len(script)


ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}

PASSED_AS_TEXT = ("date", "time", "timetz", "timestamp", "timestamptz", "interval", "numeric", "uuid")
"""PostgreSQL types that JSON has only as text. asyncpg would expect Python objects where a statement receives JSON values."""

QUERIES = ("SELECT", "WITH", "VALUES", "TABLE", "SHOW", "EXPLAIN", "(")
"""The first words of a query."""

_BLANKS = " \t\r\n\f\v"
_EXPLAIN = re.compile(
    r"EXPLAIN(\s+(ANALYZE|ANALYSE|VERBOSE|QUERY\s+PLAN)\b|\s*\([^()']*\))*"
    r"(\s*(SELECT|WITH|VALUES|TABLE|INSERT|UPDATE|DELETE|MERGE)\b|\s*\([\s(]*(SELECT|WITH|VALUES|TABLE)\b)",
    re.IGNORECASE,
)
_COPY_PROGRAM = re.compile(r"COPY\b.*\b(TO|FROM)(\s|--[^\r\n]*[\r\n]|/\*.*?\*/)+PROGRAM\b", re.IGNORECASE | re.DOTALL)
_READING_PRAGMAS = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list", "data_version", "page_size"}
)
_VACUUM_INTO = re.compile(r"VACUUM\b.*\bINTO\b", re.IGNORECASE | re.DOTALL)
_ATTACH = re.compile(r"ATTACH\b", re.IGNORECASE)
_ATTACH_TO_READ = re.compile(r"ATTACH\b.*[?&]mode=ro'\s*AS\s+(?!vacuum_)\w+[\s;]*", re.IGNORECASE | re.DOTALL)
_CHANGES = frozenset(range(sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_DROP_VIEW + 1)) | {
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_ALTER_TABLE,
    sqlite3.SQLITE_CREATE_VTABLE,
    sqlite3.SQLITE_DROP_VTABLE,
}
_FUNCTIONS_WITH_EFFECTS = frozenset({"load_extension", "writefile", "edit", "fts3_tokenizer"})

T = TypeVar("T")

Parameters: TypeAlias = dict[str, JsonValue]
Statements: TypeAlias = Annotated[list[str], Field(min_length=1)]


class QueryResult(TypedDict):
    """The rows of a query, each by column name."""

    rows: list[dict[str, JsonValue]]


class ExecuteResult(TypedDict):
    """How many rows the statements changed."""

    rowcount: int


@tool(effect="read", literal_parameters=("statement",))
async def sql_query(
    url: str, statement: str, parameters: Parameters | None = None, max_rows: Annotated[int, Field(ge=1)] = 10_000
) -> QueryResult:
    """Run a query and return {rows}, each row as an object by column name.

    The query starts with SELECT, WITH, VALUES, TABLE, SHOW or EXPLAIN, and only reads: a statement that writes fails, as do COPY, CALL,
    DO, SET, PRAGMA and ATTACH. This does not stop functions whose effects are outside the transaction (on PostgreSQL
    `pg_terminate_backend`, `lo_export`, `dblink_exec`, `pg_reload_conf`): use a database role that may not call them.

    Args:
        url: A SQLAlchemy URL, `sqlite:///file.db` or `postgresql://user@host/database`.
        statement: One query. Pass values through `parameters`, as `:name`.
        parameters: The values for the statement. A list works with `IN :name`; an object is passed as JSON text.
        max_rows: The maximum number of rows. If there are more, the step fails.
    """
    query = _require_query(statement)
    _require_used([query], [parameters or {}])
    async with _connection(url, is_reading=True) as connection:
        result = await _run_interruptible(connection, _run_query(connection, query, parameters or {}))
        columns = list(result.keys())
        if duplicates := sorted({column for column in columns if columns.count(column) > 1}):
            raise ToolError(f"several columns are called {', '.join(duplicates)}; name them with AS")
        rows = result.fetchmany(max_rows + 1)
    if len(rows) > max_rows:
        raise ToolError(f"the statement returns more than {max_rows} rows; add a LIMIT or raise max_rows")
    return {"rows": cast("list[dict[str, JsonValue]]", as_json([dict(zip(columns, row, strict=True)) for row in rows]))}


async def simulate_execute(url: str, statement: str | Statements, parameters: Parameters | list[Parameters] | None = None) -> Simulation:
    """Run the statements in a transaction that is rolled back, and return what `sql_execute` would.

    A sequence of PostgreSQL still advances, and so do effects of functions outside the transaction. A URL that contains a secret is not
    known here.
    """
    if has_expression(url):
        return Simulation("the URL contains a secret, so the statements were not tried")
    if (file := _new_file(_parse_url(url, is_reading=False))) is not None:
        return Simulation(f"{file} does not exist yet, so the statements were not tried")
    return Simulation("in a transaction that was rolled back", {"rowcount": await _execute(url, statement, parameters, commits=False)})


@tool(effect="write", literal_parameters=("statement",), simulate=simulate_execute)
async def sql_execute(url: str, statement: str | Statements, parameters: Parameters | list[Parameters] | None = None) -> ExecuteResult:
    """Run statements that write, in one transaction, and return {rowcount}.

    If one fails, none has an effect. So several statements cannot contain BEGIN, COMMIT or ROLLBACK. These are refused as well:
    COPY to or from a PROGRAM, and on SQLite statements that write another file: VACUUM INTO, and ATTACH without
    `mode=ro`, as in `ATTACH 'file:' || :source || '?mode=ro' AS source`. Everything else depends on the rights of the database role.

    Args:
        url: A SQLAlchemy URL, `sqlite:///file.db` or `postgresql://user@host/database`.
        statement: A statement, a script with `;` between statements, or a list of these, which run all or none. Pass values through
            `parameters`, as `:name`.
        parameters: The values for the statements, each of which uses those that it names. With a list of objects, the statements run once
            for each, all or none.
    """
    return {"rowcount": await _execute(url, statement, parameters, commits=True)}


async def _execute(url: str, statement: str | list[str], parameters: Parameters | list[Parameters] | None, *, commits: bool) -> int:
    """Run statements in one transaction, which is committed or rolled back. Return how many rows they change."""
    dialect = _parse_url(url, is_reading=False).get_backend_name()
    scripts = [statement] if isinstance(statement, str) else statement
    statements = [text for script in scripts for text in split_script(script, dialect)]
    if not statements:
        raise ToolError("there is no statement, only comments or blanks")
    each = parameters if isinstance(parameters, list) else [parameters or {}]
    for text in statements:
        _refuse_outside_access(_without_comments(text))
        if (len(statements) > 1 or not commits) and ends_transaction(_without_comments(text)):
            message = "all statements of a call run in one transaction, which the tool itself begins and commits; remove this statement"
            raise ToolError(f"`{cut(one_line(text), 80)}`: {message}")
    _require_used(statements, each)
    async with _connection(url, is_reading=False) as connection:
        return await _run_interruptible(connection, _run_statements(connection, statements, each, commits=commits))


async def _run_query(connection: "AsyncConnection", query: str, parameters: Parameters) -> "CursorResult[Any]":
    """Return the rows of a query that only reads."""
    if connection.dialect.name == "postgresql" and _keyword(query) not in ("SHOW", "EXPLAIN"):
        # By PostgreSQL's grammar, a cursor's query only reads. The cursor itself is not read from.
        await connection.execute(*_bind(f"DECLARE sql_query NO SCROLL CURSOR FOR {query}", parameters))
        await connection.exec_driver_sql("CLOSE sql_query")
    result = await connection.execute(*_bind(query, parameters))
    if not result.returns_rows:
        raise ToolError("the statement returns no rows; use sql_execute for one that writes")
    return result


async def _run_statements(connection: "AsyncConnection", statements: list[str], each: list[Parameters], *, commits: bool) -> int:
    """Run all statements in one transaction, once for each of the parameters. Return how many rows changed."""
    if (len(statements) * len(each) > 1 or not commits) and connection.dialect.name == "sqlite":
        await connection.exec_driver_sql("BEGIN IMMEDIATE")  # sqlite3 itself begins none before CREATE, DROP and similar
    rowcount = 0
    for values in each:
        for statement in statements:
            result = await connection.execute(*_bind(statement, values))
            rowcount += max(0, result.rowcount)  # -1 if the database does not count rows
    await (connection.commit() if commits else connection.rollback())
    return rowcount


@asynccontextmanager
async def _connection(url: str, *, is_reading: bool) -> "AsyncGenerator[AsyncConnection]":
    """Open the database for one step. Every error becomes a ToolError that shows neither the password nor any parameter."""
    # SQLAlchemy is only for a call.
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    target = _parse_url(url, is_reading=is_reading)
    if is_reading:
        target = _read_only_url(target)
    options: dict[str, Any] = {"postgresql_readonly": True} if is_reading and target.get_backend_name() == "postgresql" else {}
    try:
        engine = create_async_engine(target, poolclass=NullPool, hide_parameters=True, execution_options=options)
        async with engine.connect() as connection:
            if target.drivername == "sqlite+aiosqlite":
                await _restrict(connection, is_reading=is_reading)
            if target.drivername == "postgresql+asyncpg":
                await _pass_as_text(connection)
            yield connection
    except (SQLAlchemyError, OSError, ImportError, ValueError) as error:
        raise ToolError(_error_text(error, target)) from error
    except Exception as error:
        # SQLAlchemy 2.0 does not wrap the errors that asyncpg raises while connecting.
        if not hasattr(error, "sqlstate"):
            raise
        raise ToolError(_error_text(error, target)) from error


async def _restrict(connection: "AsyncConnection", *, is_reading: bool) -> None:
    """Make SQLite refuse forbidden actions when it compiles a statement."""
    if is_reading:
        await connection.exec_driver_sql("PRAGMA query_only = ON")
    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    await driver.set_authorizer(_authorize_read if is_reading else _authorize_write)


def _authorize_read(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    """Refuse what `mode=ro` and `query_only` would allow.

    The allowed PRAGMAs are those that full-text search and `SELECT … FROM pragma_table_info(…)` use.
    """
    is_refused = action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT)
    is_refused |= action == sqlite3.SQLITE_PRAGMA and first not in _READING_PRAGMAS
    is_refused |= action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS_WITH_EFFECTS
    return sqlite3.SQLITE_DENY if is_refused else sqlite3.SQLITE_OK


def _authorize_write(action: int, first: str | None, second: str | None, database: str | None, _trigger: str | None) -> int:
    """Refuse writes to attached files, except to the one that VACUUM attaches itself."""
    changed = first if action == sqlite3.SQLITE_ALTER_TABLE else database
    is_refused = action in _CHANGES and changed not in ("main", "temp", None) and not changed.startswith("vacuum_")
    is_refused |= action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS_WITH_EFFECTS
    return sqlite3.SQLITE_DENY if is_refused else sqlite3.SQLITE_OK


async def _pass_as_text(connection: "AsyncConnection") -> None:
    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    for name in PASSED_AS_TEXT:
        decoder = _to_iso if name.startswith("timestamp") else str
        await driver.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=decoder, format="text")


def _to_iso(text: str) -> str:
    try:
        return datetime.fromisoformat(text).isoformat()
    except ValueError:  # infinity, or a year that Python does not support
        return text


async def _run_interruptible(connection: "AsyncConnection", coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of `coroutine`. On cancellation, first stop the database's work.

    SQLite's thread would otherwise continue, and closing would wait for it.
    """
    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    task = asyncio.ensure_future(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if connection.dialect.name != "sqlite":
            task.cancel()  # the driver sends a cancel request
        while not task.done():
            if connection.dialect.name == "sqlite":
                await driver.interrupt()  # has no effect before the statement begins, so it is repeated
            await asyncio.wait((task,), timeout=0.05)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it
        raise


def _parse_url(url: str, *, is_reading: bool) -> "URL":
    # SQLAlchemy is only for a call.
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        target = make_url(url)
    except (ArgumentError, ValueError):  # its message may contain the password
        raise ToolError("the url is not a database URL: write sqlite:///file.db or postgresql://user@host/database") from None
    driver = ASYNC_DRIVERS.get(target.drivername)
    if driver is not None:
        target = target.set(drivername=driver)
    if target.drivername == "sqlite+aiosqlite" and is_reading and _is_missing(target.database):
        raise ToolError(f"the database file {Path(target.database or '').absolute()} does not exist")
    return target


def _read_only_url(target: "URL") -> "URL":
    """Return `target` in a form that opens the database for reading. Raises ToolError if that is not possible."""
    if target.get_backend_name() == "postgresql":
        return target.set(drivername=ASYNC_DRIVERS["postgresql"])  # other drivers may accept more than one statement
    if target.get_backend_name() != "sqlite":
        raise ToolError(f"sql_query reads SQLite and PostgreSQL, and cannot make {target.get_backend_name()} read-only")
    name, query = target.database or ":memory:", dict(target.query)
    if name == ":memory:":
        return target
    if not name.startswith("file:"):
        return target.set(database=Path(name).absolute().as_uri(), query={**query, "mode": "ro", "uri": "true"})
    mode = query.setdefault("mode", "ro")
    if mode not in ("ro", "memory") or any("&" in f"{key}{value}" for key, value in query.items()):
        raise ToolError("sql_query opens a database only for reading: set `mode=ro` in the url, or leave `mode` out")
    return target.set(query={**query, "uri": "true"})


def _require_query(statement: str) -> str:
    """Return `statement` without leading comments. Raises ToolError if its first word is not that of a query."""
    query = _without_comments(statement)
    keyword = _keyword(query)
    if keyword not in QUERIES:
        what = f"a statement that starts with {one_line(keyword)}" if keyword else "this"
        raise ToolError(f"{what} is not a query: sql_query runs SELECT, WITH, VALUES, TABLE, SHOW and EXPLAIN; use sql_execute to write")
    if keyword == "EXPLAIN" and not _EXPLAIN.match(query):
        raise ToolError("this EXPLAIN is refused: sql_query explains SELECT, WITH, VALUES, TABLE, INSERT, UPDATE, DELETE and MERGE")
    return query


def _refuse_outside_access(statement: str) -> None:
    """Raise ToolError if a statement reaches outside the database, to a program on its host or to write another file."""
    if _COPY_PROGRAM.match(statement):
        raise ToolError("COPY to or from a PROGRAM is refused, because it runs a command on the database's host; use run_command")
    if _VACUUM_INTO.match(statement):
        raise ToolError("VACUUM INTO is refused, because it writes another file; copy the file with a command")
    if _ATTACH.match(statement) and not _ATTACH_TO_READ.fullmatch(statement):
        raise ToolError("this ATTACH is refused, because it may write another file; write ATTACH 'file:other.db?mode=ro' AS other")


def _keyword(query: str) -> str:
    found = re.match(r"\(|[A-Za-z_]+", query)
    return found[0].upper() if found else ""


def _without_comments(statement: str) -> str:
    """Return `statement` from its first word on, without leading comments."""
    rest = statement.lstrip(_BLANKS)
    while rest.startswith(("--", "/*")):
        if rest.startswith("--"):
            rest = re.sub(r"\A[^\r\n]*", "", rest)
        else:
            depth = end = 0
            for mark in re.finditer(r"/\*|\*/", rest):  # PostgreSQL's comments nest
                depth, end = depth + (1 if mark[0] == "/*" else -1), mark.end()
                if not depth:
                    break
            rest = "" if depth else rest[end:]
        rest = rest.lstrip(_BLANKS)
    return rest


def _is_missing(database: str | None) -> bool:
    return bool(database) and database != ":memory:" and not str(database).startswith("file:") and not Path(str(database)).exists()


def _new_file(target: "URL") -> str | None:
    """Return the SQLite file that a connection to `target` would create, or None."""
    file = (target.database or "").removeprefix("file:").partition("?")[0]
    return file if target.get_backend_name() == "sqlite" and file not in ("", ":memory:") and not Path(file).exists() else None


def _require_used(statements: list[str], each: list[Parameters]) -> None:
    """Raise ToolError if a parameter is named in none of the statements: it is misspelt, or the statement is."""
    from sqlalchemy import text  # only for a call

    named = {name for statement in statements for name in text(statement).compile().params}
    if unused := {name for parameters in each for name in parameters} - named:
        raise ToolError(f"no statement uses {', '.join(f'`:{name}`' for name in sorted(unused))}, which `parameters` gives a value")


def _bind(statement: str, parameters: Mapping[str, JsonValue]) -> "tuple[Executable, dict[str, Any]]":
    """Return `statement` ready for the database, with the values of those `parameters` that it names."""
    from sqlalchemy import bindparam, text  # only for a call

    plain = text(statement)
    names = plain.compile().params
    used = {name: value for name, value in parameters.items() if name in names}
    lists: list[BindParameter[Any]] = [bindparam(name, expanding=True) for name, value in used.items() if isinstance(value, list)]
    encoded = {name: json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value for name, value in used.items()}
    return plain.bindparams(*lists), encoded


def _error_text(error: Exception, target: "URL") -> str:
    """Return the database's message on one line."""
    cause: object = getattr(error, "orig", None) or error
    if str(cause) in ("not authorized", "authorization denied"):  # raised by `_restrict`
        return "sqlite: refused: sql_query only reads, and sql_execute does not write to attached files"
    # asyncpg's dialect wraps the server's message: "<class '…'>: message".
    words = " ".join(str(cause).split()).rpartition("'>: ")[2] or type(cause).__name__
    if target.password:
        words = words.replace(str(target.password), "***")
    return f"{target.get_backend_name()}: {words}"
