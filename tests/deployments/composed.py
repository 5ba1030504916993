"""The services of deployments/compose.yaml without containers: processes on this machine with its commands and variables."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from plan_adapter.engine.connection import Server
from tests.postgres import PostgresServer, free_port, running_server

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deployments" / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

EXEC = re.compile(r"^#   docker compose -f deployments/compose.yaml exec worker (plan .*)$", re.MULTILINE)
VARIABLE = re.compile(r"\$\{(\w+):\?[^}]*\}")
VALUES = {"DATABASE_PASSWORD": "ofTests1", "PREFECT_PASSWORD": "ofTests2"}
HEALTH_SECONDS = 240

NAMESPACES = ["unshare", "--user", "--map-root-user", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""Gives a process its own host name and process table, as on another machine. Killing it kills its children, too."""


@dataclass
class Composed:
    """The running services, on free ports of this machine."""

    folder: Path
    postgres: PostgresServer
    port: int
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def server(self) -> Server:
        """Prefect's server, for clients in this process."""
        return Server(api_url=f"http://127.0.0.1:{self.port}/api", ui_url=None)

    def here(self, text: str) -> str:
        """Return a text of the file with its variables replaced and with the addresses of this machine."""
        text = VARIABLE.sub(lambda found: VALUES[found[1]], text).replace("database:5432", f"127.0.0.1:{self.postgres.port}")
        return text.replace("server:4200", f"127.0.0.1:{self.port}").replace("127.0.0.1:4200", f"127.0.0.1:{self.port}")

    def environment(self, service: str) -> dict[str, str]:
        """Return the environment of a service: its own variables, and those that every process here needs."""
        written = {name: self.here(value) for name, value in SERVICES[service]["environment"].items()}
        if service == "server":
            written |= {"PREFECT_SERVER_API_HOST": "127.0.0.1", "PREFECT_SERVER_API_PORT": str(self.port)}
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PLAN_ADAPTER_"))}
        return {
            **mine,
            **written,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PLAN_ADAPTER_HOME": str(self.folder / "home"),
        }

    def run(self, *command: str, service: str = "worker") -> subprocess.CompletedProcess[str]:
        """Run a command in a service to its end, as `docker compose exec` does."""
        return subprocess.run(command, cwd=self.folder, env=self.environment(service), capture_output=True, text=True, check=False)

    def is_healthy(self, service: str, port: int = 8080) -> bool:
        """Run the health check of a service."""
        check = [self.here(word).replace("8080", str(port)) for word in SERVICES[service]["healthcheck"]["test"]]
        return self.run(*check[1:], service=service).returncode == 0

    def start(self, service: str, *, log: str, prefix: list[str] | None = None, **variables: str) -> subprocess.Popen[bytes]:
        """Start the command of a service."""
        command = [*(prefix or []), *shlex.split(self.here(SERVICES[service]["command"]))]
        with (self.folder / log).open("ab") as output:
            environment = {**self.environment(service), **variables}
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=output, stderr=output, start_new_session=True)

    def start_worker(self, name: str, **variables: str) -> None:
        """Start a worker as on a machine with this name, and wait until it is healthy."""
        port = free_port()
        rename = ["sh", "-c", f'hostname {name} && exec "$@"', "sh"]
        prefix = [*NAMESPACES, *rename] if has_namespaces() else []
        variables |= {"PREFECT_WORKER_WEBSERVER_PORT": str(port)}
        self.workers[name] = self.start("worker", log=f"{name}.log", prefix=prefix, **variables)
        self.wait_for("worker", self.workers[name], log=f"{name}.log", port=port)

    def kill_worker(self, name: str) -> None:
        """Kill a worker and its children, as if its machine lost power."""
        process = self.workers.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def wait_for(self, service: str, process: subprocess.Popen[bytes], *, log: str, port: int = 8080) -> None:
        """Wait until a service is healthy."""
        deadline = time.monotonic() + HEALTH_SECONDS
        while not self.is_healthy(service, port):
            text_of_log = (self.folder / log).read_text(errors="replace")
            assert process.poll() is None, text_of_log
            assert time.monotonic() < deadline, text_of_log


@contextmanager
def composed(folder: Path) -> Iterator[Composed]:
    """Start the database and the server, and run the setup, in the order of the file."""
    with running_server() as postgres:
        user = SERVICES["database"]["environment"]["POSTGRES_USER"]
        postgres.execute(f"CREATE ROLE {user} SUPERUSER LOGIN PASSWORD '{VALUES['DATABASE_PASSWORD']}'")
        postgres.execute(f"CREATE DATABASE {SERVICES['database']['environment']['POSTGRES_DB']} OWNER {user}")
        postgres.execute(COMPOSE["configs"]["store"]["content"])
        found = Composed(folder, postgres, free_port())
        (folder / "runbooks").symlink_to(ROOT / "deployments" / "runbooks")
        server = found.start("server", log="server.log")
        try:
            found.wait_for("server", server, log="server.log")
            done = found.run(*shlex.split(found.here(SERVICES["setup"]["command"])), service="setup")
            assert done.returncode == 0, done.stdout + done.stderr
            yield found
        finally:
            for name in [*found.workers]:
                found.kill_worker(name)
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


@cache
def has_namespaces() -> bool:
    """Whether this machine allows namespaces; without them, workers are processes of one machine."""
    try:
        return subprocess.run([*NAMESPACES, "hostname", "elsewhere"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
