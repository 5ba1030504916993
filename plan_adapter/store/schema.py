"""The schema's revision, and how it gets to the newest one.

A new store is made at once; alembic is imported only where an older one is to be migrated.
"""

from types import ModuleType
from typing import TYPE_CHECKING

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, insert, inspect, text

from plan_adapter.errors import StoreError
from plan_adapter.store.tables import REVISION, REVISION_TABLE, metadata

if TYPE_CHECKING:
    from alembic.config import Config

_UPGRADE_LOCK = 0x706C616E  # "plan"; the key of PostgreSQL's advisory lock


def found_revision(connection: Connection) -> str | None:
    """Return the revision that the database has, None if it is no plan store yet."""
    if connection.dialect.name == "sqlite":
        known = text("SELECT 1 FROM sqlite_master WHERE name = :name")
    else:
        known = text("SELECT 1 WHERE to_regclass(:name) IS NOT NULL")
    if connection.scalar(known, {"name": REVISION_TABLE}) is None:
        return None
    return connection.scalar(text(f"SELECT version_num FROM {REVISION_TABLE}"))  # noqa: S608  # a constant


def refuse_unless_current(found: str | None, store: str) -> None:
    """Raise a StoreError that names both revisions and the way out, unless the database has the newest one."""
    if found == REVISION:
        return
    if found is None:
        raise StoreError(f"{store} has no tables yet, revision {REVISION} is needed: run `plan store upgrade`")
    _refuse_newer(found, store)
    raise StoreError(f"{store} has revision {found}, revision {REVISION} is needed: run `plan store upgrade`")


def upgrade(connection: Connection, store: str) -> str:
    """Make the newest schema, or migrate to it, in the transaction of `connection`; return its revision. Does nothing where it is there.

    Processes that do this at once wait for each other: on PostgreSQL by an advisory lock, on SQLite because the transaction writes.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
    found = found_revision(connection)
    if found is None:
        _refuse_foreign(connection, store)
        _make(connection)
    elif found != REVISION:
        alembic = load()
        _refuse_newer(found, store)
        alembic.upgrade(_config(connection), "head")
    return REVISION


def _make(connection: Connection) -> None:
    """Make the tables at once, as all the migrations together would: a test holds that they are the same."""
    metadata.create_all(connection, checkfirst=connection.dialect.name != "sqlite")  # a SQLite file is empty by now
    revision = Table(REVISION_TABLE, MetaData(), Column("version_num", String(32), nullable=False))
    revision.append_constraint(PrimaryKeyConstraint("version_num", name=f"{REVISION_TABLE}_pkc"))
    revision.create(connection)
    connection.execute(insert(revision).values(version_num=REVISION))


def load() -> ModuleType:
    """Return `alembic.command`; imports it, which takes a while, so do it before a lock is taken."""
    from alembic import command

    return command


def _config(connection: Connection | None = None) -> "Config":
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", "plan_adapter.store:migrations")
    config.set_main_option("path_separator", "os")
    return config


def _refuse_newer(found: str, store: str) -> None:
    from alembic.script import ScriptDirectory

    if found not in {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}:
        raise StoreError(
            f"{store} has revision {found}, which this version does not know (it needs {REVISION}): install a newer prefect-plan-adapter"
        )


def _refuse_foreign(connection: Connection, store: str) -> None:
    """Raise StoreError for a SQLite file of another application; a PostgreSQL database may be shared."""
    if connection.dialect.name == "sqlite" and (names := inspect(connection).get_table_names()):
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise StoreError(f"{store} is a database of another application (tables: {shown}); give the plan store a file of its own")
