"""The databases on which faults are tried."""

from collections.abc import Iterator

import pytest

from tests.postgres import PostgresServer, postgres_server
from tests.store.conftest import migrated

__all__ = ["migrated", "postgres_server"]


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_store(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The URL of a store that many runs share; None where each has a file of its own."""
    if request.param == "sqlite":
        yield None
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    yield server.url(request.getfixturevalue("migrated"))
