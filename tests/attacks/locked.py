"""A local Prefect server that demands a password, and its owner's home."""

import base64
import http.client
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.engine.connection import Server
from plan_adapter.engine.local_server import ensure_server, stop_server
from plan_adapter.engine.server_state import ServerFolder
from plan_adapter.local.settings import Settings
from tests.conftest import PrepareServer


@dataclass(frozen=True)
class LockedServer:
    """A local server that demands a password, and its owner's home."""

    home: Path
    server: Server
    notices: list[str]

    @property
    def folder(self) -> ServerFolder:
        return ServerFolder(self.home / "server")

    @property
    def password(self) -> str:
        return self.folder.password_file.read_text().strip()

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
        """Send one request, as any account of this machine can."""
        connection = http.client.HTTPConnection(self.server.api_url.split("/")[2], timeout=60)
        given = {"Content-Type": "application/json", **(headers or {})}
        try:
            connection.putrequest(method, path, skip_host="Host" in given)
            content = b"" if body is None else json.dumps(body).encode()
            for name, value in {**given, "Content-Length": str(len(content))}.items():
                connection.putheader(name, value)
            connection.endheaders(content)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def environment(self) -> dict[str, str]:
        """Return the environment of the owner's commands, which does not contain the password."""
        return {**os.environ, "PLAN_ADAPTER_HOME": str(self.home), "PLAN_ADAPTER_LOCAL_SERVER_AUTH": "on", "NO_COLOR": "1"}


def basic(password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(password.encode()).decode()}"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, prepare_server: PrepareServer) -> Iterator[LockedServer]:
    """A server as PLAN_ADAPTER_LOCAL_SERVER_AUTH=on starts it."""
    home = tmp_path_factory.mktemp("locked") / "home"
    prepare_server(home)
    settings, notices = Settings(home=home, local_server_auth="on"), list[str]()
    try:
        yield LockedServer(home, ensure_server(settings, notify=notices.append), notices)
    finally:
        stop_server(settings)
