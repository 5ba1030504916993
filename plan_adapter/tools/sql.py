"""`sql_query` and `sql_execute`: SQL as a step."""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from pydantic import Field, JsonValue

from plan_adapter.errors import ToolError
from plan_adapter.tools.tool import as_json, tool

if TYPE_CHECKING:
    from sqlalchemy import URL, BindParameter, Executable
    from sqlalchemy.ext.asyncio import AsyncConnection

ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}

PASSED_AS_TEXT = ("date", "time", "timetz", "timestamp", "timestamptz", "interval", "numeric", "uuid")
"""Types of PostgreSQL that JSON has only as text; asyncpg would want Python objects where a statement is given JSON values."""

T = TypeVar("T")

Parameters: TypeAlias = dict[str, JsonValue]
Statements: TypeAlias = Annotated[list[str], Field(min_length=1)]


@tool(effect="read", literal_parameters=("statement",))
async def sql_query(
    url: str, statement: str, parameters: Parameters | None = None, max_rows: Annotated[int, Field(ge=1)] = 10_000
) -> dict[str, JsonValue]:
    """Return the rows of a SELECT as {rows}, each an object by column.

    The database is opened for reading only: a statement that writes fails.

    Args:
        url: A SQLAlchemy URL, `sqlite:///file.db` or `postgresql://user@host/database`.
        statement: One statement; values go through `parameters` as `:name`.
        parameters: Values of the statement. A list fits `IN :name`; an object is passed as JSON text.
        max_rows: More rows than this fail the step.
    """
    async with _connection(url, is_reading=True) as connection:
        result = await _to_its_end(connection, connection.execute(_bound(statement, parameters or {}), _values(parameters or {})))
        if not result.returns_rows:
            raise ToolError("the statement returns no rows; use sql_execute for one that writes")
        columns = list(result.keys())
        if twice := sorted({column for column in columns if columns.count(column) > 1}):
            raise ToolError(f"several columns are called {', '.join(twice)}; name them with AS")
        rows = result.fetchmany(max_rows + 1)
    if len(rows) > max_rows:
        raise ToolError(f"the statement gives more than {max_rows} rows; add a LIMIT or raise max_rows")
    return {"rows": as_json([dict(zip(columns, row, strict=True)) for row in rows])}


@tool(effect="write", literal_parameters=("statement",))
async def sql_execute(
    url: str, statement: str | Statements, parameters: Parameters | list[Parameters] | None = None
) -> dict[str, JsonValue]:
    """Run what writes, in one transaction, and return {rowcount}.

    Args:
        url: A SQLAlchemy URL, `sqlite:///file.db` or `postgresql://user@host/database`.
        statement: One statement, or a list of them: all or none. Values go through `parameters` as `:name`.
        parameters: Values of the statements; with a list of objects they are run once for each, all or none.
    """
    statements = [statement] if isinstance(statement, str) else statement
    each = parameters if isinstance(parameters, list) else [parameters or {}]
    async with _connection(url, is_reading=False) as connection:
        return {"rowcount": await _to_its_end(connection, _written(connection, statements, each))}


async def _written(connection: "AsyncConnection", statements: list[str], each: list[Parameters]) -> int:
    """Run all statements in one transaction, for each of the parameters, and return how many rows they changed."""
    if len(statements) > 1 and connection.dialect.name == "sqlite":
        await connection.exec_driver_sql("BEGIN IMMEDIATE")  # sqlite3 by itself begins none before CREATE, DROP and the like
    rowcount = 0
    for values in each:
        for statement in statements:
            result = await connection.execute(_bound(statement, values), _values(values))
            rowcount += max(0, result.rowcount)  # -1 where the database counts nothing
    await connection.commit()
    return rowcount


@asynccontextmanager
async def _connection(url: str, *, is_reading: bool) -> "AsyncGenerator[AsyncConnection]":
    """Open the database for one step. Whatever it raises becomes a ToolError that shows neither the password nor any parameter."""
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    target = _target(url, is_reading=is_reading)
    options: dict[str, Any] = {"postgresql_readonly": True} if is_reading and target.get_backend_name() == "postgresql" else {}
    try:
        engine = create_async_engine(target, poolclass=NullPool, hide_parameters=True, execution_options=options)
        async with engine.connect() as connection:
            if is_reading and target.get_backend_name() == "sqlite":
                await connection.exec_driver_sql("PRAGMA query_only = ON")
            if target.drivername == "postgresql+asyncpg":
                await _pass_as_text(connection)
            yield connection
    except (SQLAlchemyError, OSError, ImportError, ValueError) as error:
        raise ToolError(_said(error, target)) from error
    except Exception as error:
        # SQLAlchemy 2.0 passes on as it is what asyncpg raises while it connects.
        if not hasattr(error, "sqlstate"):
            raise
        raise ToolError(_said(error, target)) from error


async def _pass_as_text(connection: "AsyncConnection") -> None:
    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    for name in PASSED_AS_TEXT:
        decoder = _iso if name.startswith("timestamp") else str
        await driver.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=decoder, format="text")


def _iso(text: str) -> str:
    try:
        return datetime.fromisoformat(text).isoformat()
    except ValueError:  # infinity, or a year that Python does not know
        return text


async def _to_its_end(connection: "AsyncConnection", work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns. Cancelled, it ends what the database does: SQLite's thread would go on, and closing would wait for it."""
    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if connection.dialect.name != "sqlite":
            task.cancel()  # the driver sends a cancel request
        while not task.done():
            if connection.dialect.name == "sqlite":
                await driver.interrupt()  # without effect on a statement that has not yet begun, hence again
            await asyncio.wait((task,), timeout=0.05)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it
        raise


def _target(url: str, *, is_reading: bool) -> "URL":
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        target = make_url(url)
    except (ArgumentError, ValueError):  # its text may hold the password
        raise ToolError("the url is no database URL: write sqlite:///file.db or postgresql://user@host/database") from None
    driver = ASYNC_DRIVERS.get(target.drivername)
    if driver is not None:
        target = target.set(drivername=driver)
    if target.drivername == "sqlite+aiosqlite" and is_reading and _is_missing(target.database):
        raise ToolError(f"there is no database file {target.database}")
    return target


def _is_missing(database: str | None) -> bool:
    return bool(database) and database != ":memory:" and not str(database).startswith("file:") and not Path(str(database)).exists()


def _bound(statement: str, parameters: Mapping[str, JsonValue]) -> "Executable":
    from sqlalchemy import bindparam, text

    lists: list[BindParameter[Any]] = [bindparam(name, expanding=True) for name, value in parameters.items() if isinstance(value, list)]
    return text(statement).bindparams(*lists)


def _values(parameters: Mapping[str, JsonValue]) -> dict[str, Any]:
    return {name: json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value for name, value in parameters.items()}


def _said(error: Exception, target: "URL") -> str:
    """Return the database's own words, in one line."""
    cause: object = getattr(error, "orig", None) or error
    # asyncpg's dialect wraps the server's message once more: "<class '…'>: message".
    words = " ".join(str(cause).split()).rpartition("'>: ")[2] or type(cause).__name__
    if target.password:
        words = words.replace(str(target.password), "***")
    return f"{target.get_backend_name()}: {words}"
