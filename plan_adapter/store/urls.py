"""Open the database that a store's URL names, and refuse URLs that are unsafe or unusable."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from plan_adapter.errors import StoreError
from plan_adapter.settings import Settings
from plan_adapter.store.database import Database

_FORMS = "write sqlite:///plans.db, sqlite:////var/lib/plans.db or postgresql://user:password@host/database"


def open_database(url: str, *, home: Path) -> Database:
    """Return the database that `url` names, not connected yet. A file inside `home` is protected from other users.

    Raises StoreError for a URL that names no supported store, and for a missing driver.
    """
    parsed = _parsed(url)
    backend, _, driver = parsed.drivername.partition("+")
    if backend == "sqlite" and driver in ("", "pysqlite", "aiosqlite"):
        from plan_adapter.store.sqlite import SqliteDatabase

        return SqliteDatabase(parsed, home=home)
    if backend in ("postgresql", "postgres") and driver in ("", "asyncpg", "psycopg", "psycopg2"):
        if find_spec("asyncpg") is None:
            raise StoreError("a store on PostgreSQL needs the driver asyncpg: pip install asyncpg")
        from plan_adapter.store.postgresql import PostgresDatabase

        return PostgresDatabase(parsed)
    raise StoreError(f"no store is kept in `{parsed.drivername}`: {_FORMS}")


def refuse_local_under_worker(url: str, settings: Settings, environ: Mapping[str, str]) -> None:
    """Raise StoreError if a Prefect worker started this process and `url` is a local path. Its receipts may be lost with the host.

    `settings.allow_local_store` permits it. A flow that its own process runs or serves may use a local path.
    """
    if settings.allow_local_store or not is_local(url) or not _is_under_worker(environ):
        return
    raise StoreError(
        "this run is under a Prefect worker, where a store on a local path may vanish with the worker's host, and its receipts with it: "
        "set PLAN_ADAPTER_DATABASE_URL to a PostgreSQL database, or PLAN_ADAPTER_ALLOW_LOCAL_STORE=true if the path outlives the worker"
    )


def is_local(url: str) -> bool:
    """Return whether the store at `url` is a file, which only this machine's processes can use. Raises StoreError for an invalid URL."""
    return _parsed(url).get_backend_name() == "sqlite"


def _is_under_worker(environ: Mapping[str, str]) -> bool:
    # Observed in prefect 3.8.8: workers (workers/base.py) and `serve` (runner/_starter_engine.py) both set the flow run id. `serve` also
    # sets its storage path, workers set their own name or id. A push work pool does neither.
    if "PREFECT__FLOW_RUN_ID" not in environ:
        return False
    return "PREFECT__WORKER_NAME" in environ or "PREFECT__WORKER_ID" in environ or "PREFECT__STORAGE_BASE_PATH" not in environ


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError(f"the store's URL cannot be understood: {_FORMS}") from None  # not shown: it may contain a password
