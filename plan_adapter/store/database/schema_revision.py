"""Check the schema's revision, and create or migrate the schema.

The tables in `tables.py` are the schema of a new store. A migration changes an older store into the same, which a test compares; it is the
only thing that needs alembic, so nothing else imports it.
"""

from types import ModuleType
from typing import TYPE_CHECKING

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, insert, inspect, text

from plan_adapter.model.errors import StoreSettingsError
from plan_adapter.store.database.tables import REVISION, REVISION_TABLE, metadata

if TYPE_CHECKING:
    from alembic.config import Config

_UPGRADE_LOCK = 0x706C616E  # "plan"; the key of PostgreSQL's advisory lock


def read_revision(connection: Connection) -> str | None:
    """Return the database's revision, or None if it is not a plan store yet."""
    if connection.dialect.name == "sqlite":
        known = text("SELECT 1 FROM sqlite_master WHERE name = :name")
    else:
        known = text("SELECT 1 WHERE to_regclass(:name) IS NOT NULL")
    if connection.scalar(known, {"name": REVISION_TABLE}) is None:
        return None
    return connection.scalar(text(f"SELECT version_num FROM {REVISION_TABLE}"))  # noqa: S608  # a constant


def refuse_unless_current(found: str | None, store: str) -> None:
    """Raise StoreSettingsError, with both revisions and the fix, unless the database has the newest revision."""
    if found == REVISION:
        return
    if found is None:
        raise StoreSettingsError(f"{store} has no tables yet, revision {REVISION} is needed: run `plan store upgrade`")
    _refuse_newer(found, store)
    raise StoreSettingsError(f"{store} has revision {found}, revision {REVISION} is needed: run `plan store upgrade`")


def upgrade(connection: Connection, store: str) -> str:
    """Create the newest schema or migrate to it, in the transaction of `connection`. Return its revision.

    Does nothing if the schema is current. Concurrent processes wait for each other: on PostgreSQL by an advisory lock, on SQLite because
    the transaction writes.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
    found = read_revision(connection)
    if found is None:
        _refuse_foreign(connection, store)
        _create_schema(connection)
    elif found != REVISION:
        alembic = load_alembic()
        _refuse_newer(found, store)
        alembic.upgrade(_config(connection), "head")
    return REVISION


def _create_schema(connection: Connection) -> None:
    """Create the tables, at the newest revision."""
    metadata.create_all(connection, checkfirst=connection.dialect.name != "sqlite")  # a SQLite file is known to be empty here
    revision = Table(REVISION_TABLE, MetaData(), Column("version_num", String(32), nullable=False))
    revision.append_constraint(PrimaryKeyConstraint("version_num", name=f"{REVISION_TABLE}_pkc"))
    revision.create(connection)
    connection.execute(insert(revision).values(version_num=REVISION))


def load_alembic() -> ModuleType:
    """Return `alembic.command`. The import is slow, so call this before taking a lock."""
    from alembic import command

    return command


def _config(connection: Connection | None = None) -> "Config":
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", "plan_adapter.store.database:migrations")
    config.set_main_option("path_separator", "os")
    return config


def _refuse_newer(found: str, store: str) -> None:
    from alembic.script import ScriptDirectory

    if found not in {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}:
        raise StoreSettingsError(
            f"{store} has revision {found}, which this version does not know (it needs {REVISION}): install a newer prefect-plan-adapter"
        )


def _refuse_foreign(connection: Connection, store: str) -> None:
    """Raise StoreSettingsError for a SQLite file of another application. A PostgreSQL database may be shared."""
    if connection.dialect.name == "sqlite" and (names := inspect(connection).get_table_names()):
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise StoreSettingsError(f"{store} is a database of another application (tables: {shown}); give the plan store a file of its own")
