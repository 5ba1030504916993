"""Home folders where a local server ran before: the first start is slow, so every test gets a copy."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plan_adapter.engine.local_server import ensure_server, server_status, stop_server
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NoServerError
from tests.conftest import PrepareServer
from tests.engine.local_homes import FirstServer, Notices, addresses_of_listeners, folder_of, get, pid_of, port_of, state_of


@pytest.fixture(scope="session")
def first_server(tmp_path_factory: pytest.TempPathFactory, prepare_server: PrepareServer) -> FirstServer:
    """Run a server in a new home, in an environment whose variables must not affect it."""
    home = tmp_path_factory.mktemp("first")
    prepare_server(home)
    users_database = home / "users.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", f"sqlite+aiosqlite:///{users_database}")
        patch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", f"sqlite+aiosqlite:///{users_database}")
        patch.setenv("PREFECT_SERVER_API_HOST", "0.0.0.0")
        patch.setenv("UVICORN_HOST", "0.0.0.0")
        patch.setenv("WEB_CONCURRENCY", "3")
        settings, notices = Settings(home=home), Notices()
        try:
            started = ensure_server(settings, notify=notices.append)
            reused = ensure_server(settings, notify=notices.append)
            return FirstServer(
                home=home,
                notices=notices,
                servers=(started, reused),
                listeners=addresses_of_listeners(port_of(started)),
                session=os.getsid(pid_of(started)),
                settings=json.loads(get(started, "/api/admin/settings")[1])["server"] | {"ui": json.loads(get(started, "/ui-settings")[1])},
                ui=get(started, "/v2/"),
                unreachable=_observe_as_unreachable(settings),
                status_reachable=server_status(settings).state,
                users_database=users_database,
            )
        finally:
            stop_server(settings)


def _observe_as_unreachable(settings: Settings) -> tuple[str, str, str]:
    """Return both errors and the status of a running server while its state names another host."""
    state = state_of(settings)
    folder_of(settings).write_state(replace(state, host="laptop", process_start="of another host"))
    try:
        with pytest.raises(NoServerError) as not_used:
            ensure_server(settings, notify=lambda _: None)
        with pytest.raises(NoServerError) as not_stopped:
            stop_server(settings)
        return str(not_used.value), str(not_stopped.value), server_status(settings).state
    finally:
        folder_of(settings).write_state(state)


@pytest.fixture
def settings(first_server: FirstServer, tmp_path: Path) -> Iterator[Settings]:
    """Settings of a home where a server ran before and none runs now. A server that the test starts is stopped."""
    shutil.copytree(first_server.home, tmp_path / "home")
    settings = Settings(home=tmp_path / "home")
    yield settings
    stop_server(settings)
