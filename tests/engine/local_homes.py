"""Helpers that inspect a local server through its home folder and from outside."""

import http.client
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plan_adapter.engine.connection import Server
from plan_adapter.engine.server_state import ServerFolder, ServerState
from plan_adapter.local.settings import Settings

Notices = list[str]


@dataclass(frozen=True)
class FirstServer:
    """Observations of a server that started in a new home and has stopped since."""

    home: Path
    notices: Notices
    servers: tuple[Server, Server]  # of the command that started it, and of the next one
    listeners: set[str]
    session: int
    settings: dict[str, Any]
    ui: tuple[int, str]
    unreachable: tuple[str, str, str]  # while another host seems to run it: why it is not used, why it is not stopped, its status
    status_reachable: str
    users_database: Path


def folder_of(settings: Settings) -> ServerFolder:
    return ServerFolder(settings.home / "server")


def state_of(settings: Settings) -> ServerState:
    state = folder_of(settings).read_state()
    assert state is not None
    return state


def pid_of(server: Server) -> int:
    assert server.pid is not None
    return server.pid


def get(server: Server, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.api_url.split("/")[2], timeout=30)
    connection.request("GET", path, headers={"Accept": "text/html,application/json"})
    response = connection.getresponse()
    return response.status, response.read().decode()


def addresses_of_listeners(port: int) -> set[str]:
    """Return the local addresses, in the kernel's notation, of sockets that listen at `port`."""
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A" and int(address.rpartition(":")[2], 16) == port:
                found.add(address.rpartition(":")[0])
    return found


def port_of(server: Server) -> int:
    return int(server.api_url.split(":")[2].split("/")[0])
