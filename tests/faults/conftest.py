"""The databases on which the fault tests run."""

from collections.abc import Iterator

import pytest

from tests.postgres import PostgresServer
from tests.store.conftest import ON_SQLITE_OR_THOROUGH


@pytest.fixture(params=ON_SQLITE_OR_THOROUGH)
def shared_store(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The URL of a store that many runs share, or None if each run has its own file."""
    if request.param == "sqlite":
        yield None
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    yield server.url(request.getfixturevalue("migrated"))
