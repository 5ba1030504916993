"""Tests of the local server from first start to stop, with real processes that are killed by their id."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from plan_adapter.engine.connection import Server
from plan_adapter.engine.local_server import begin_server, ensure_server, server_status, stop_server
from plan_adapter.engine.server_state import LOG_BYTES, ServerFolder, process_start, server_environment
from plan_adapter.local.settings import Settings
from tests.engine.local_homes import FirstServer, folder_of, pid_of, port_of, state_of
from tests.processes import Program


def test_the_first_run_starts_a_server_and_the_next_uses_it(first_server: FirstServer) -> None:
    started, reused = first_server.servers
    port = port_of(started)
    assert started == Server(
        api_url=f"http://127.0.0.1:{port}/api",
        ui_url=f"http://127.0.0.1:{port}",
        started=True,
        log_path=first_server.home / "server/server.log",
        pid=started.pid,
    )
    assert reused == replace(started, started=False)
    assert len(first_server.notices) == 1
    assert first_server.notices[0].startswith(f"started a local Prefect server: {started.ui_url} (`plan down` stops it")


def test_it_listens_on_loopback_only_and_has_its_own_session(first_server: FirstServer) -> None:
    assert first_server.listeners == {"0100007F"}
    assert first_server.session == first_server.servers[0].pid


def test_it_never_touches_the_users_database(first_server: FirstServer) -> None:
    assert not first_server.users_database.exists()
    assert (first_server.home / "server/prefect/prefect.db").exists()
    assert (first_server.home / "server").stat().st_mode & 0o777 == 0o700


def test_it_disables_analytics_batches_task_runs_and_keeps_every_service(first_server: FirstServer) -> None:
    services = first_server.settings["services"]
    assert first_server.settings["analytics_enabled"] is False
    assert (services["task_run_recorder"]["batch_size"], services["task_run_recorder"]["read_batch_size"]) == (200, 200)
    for service in ("scheduler", "late_runs", "triggers", "event_persister", "pause_expirations", "foreman", "repossessor"):
        assert services[service]["enabled"] is True, service


def test_its_ui_is_served_and_knows_its_api(first_server: FirstServer) -> None:
    assert first_server.ui[0] == 200
    assert "<html" in first_server.ui[1]
    assert first_server.settings["ui"]["api_url"] == first_server.servers[0].api_url


def test_a_stopped_server_is_gone_and_cannot_be_stopped_twice(first_server: FirstServer) -> None:
    assert process_start(pid_of(first_server.servers[0])) is None
    assert server_status(Settings(home=first_server.home)).state == "none"
    assert not stop_server(Settings(home=first_server.home))


def test_a_process_that_reuses_the_pid_of_a_dead_server_is_left_alone(settings: Settings) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        folder = folder_of(settings)
        folder.write_state(replace(state_of(settings), pid=other.pid))
        assert server_status(settings).state == "none"
        assert not stop_server(settings)
        assert other.poll() is None
        other.communicate(b"\n")


@pytest.mark.thorough
def test_a_port_that_is_in_use_is_replaced(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        folder_of(settings).write_state(replace(state_of(settings), port=taken))
        assert port_of(ensure_server(settings, notify=lambda _: None)) != taken


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"pid": 1}', "\x00"])
def test_an_unreadable_state_file_counts_as_no_server(settings: Settings, text: str) -> None:
    folder_of(settings).state_file.write_text(text)
    assert folder_of(settings).read_state() is None
    assert server_status(settings).state == "none"


def test_a_large_log_is_rotated(settings: Settings) -> None:
    folder = folder_of(settings)
    folder.log.write_bytes(b"x" * (LOG_BYTES + 1))
    os.close(folder.open_log())
    assert (folder.log.stat().st_size, (folder.path / "server.log.1").stat().st_size) == (0, LOG_BYTES + 1)


@pytest.mark.thorough
def test_two_commands_at_once_start_one_server(settings: Settings) -> None:
    code = (
        "from plan_adapter.engine.local_server import ensure_server\n"
        "from plan_adapter.local.settings import Settings\n"
        "server = ensure_server(Settings(), notify=print)\n"
        "print(server.pid, server.started)\n"
    )
    environment = {**os.environ, "PLAN_ADAPTER_HOME": str(settings.home)}
    commands = [subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    output = [command.communicate()[0].splitlines() for command in commands]
    assert len({lines[-1].split()[0] for lines in output}) == 1
    assert sorted(lines[-1].split()[1] for lines in output) == ["False", "True"]
    assert sorted(len(lines) for lines in output) == [1, 2]


@pytest.mark.thorough
def test_ctrl_c_in_the_terminal_that_started_it_does_not_end_it(settings: Settings) -> None:
    code = (
        "import time\n"
        "from plan_adapter.engine.local_server import begin_server\n"
        "from plan_adapter.local.settings import Settings\n"
        "begin_server(Settings(), notify=lambda line: print(line, flush=True)).wait()\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PLAN_ADAPTER_HOME": str(settings.home)}
    terminal = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert terminal.stdout is not None
    assert terminal.stdout.readline().startswith("started a local Prefect server")
    os.killpg(terminal.pid, signal.SIGINT)
    assert terminal.wait() != 0
    assert not ensure_server(settings, notify=lambda _: None).started


@pytest.mark.thorough
def test_begin_server_returns_at_once_and_wait_returns_the_server(settings: Settings) -> None:
    pending = begin_server(settings, notify=lambda _: None)
    assert server_status(settings).state != "healthy"
    assert pending.wait().started
    assert server_status(settings).state == "healthy"


def test_garbage_is_collected_only_on_its_own_thread() -> None:
    program = """
import threading
from plan_adapter.engine.server_process import collect_garbage_in_thread

class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        where.append(threading.current_thread().name)
        collected.set()

where, collected = [], threading.Event()
collect_garbage_in_thread()
Cycle()
kept = [[] for _ in range(100_000)]  # enough for any automatic collection
collected.wait()
print(where)
"""
    output, errors = Program(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE).communicate()
    assert (output, errors) == ("['collector']\n", "")


def test_a_locked_database_delays_a_request_by_ten_seconds_at_most(tmp_path: Path) -> None:
    program = f"""
import asyncio
from sqlalchemy import text
from plan_adapter.engine.internals import shorten_lock_wait
from prefect.server.database.configurations import AioSqliteConfiguration

async def waits():
    engine = await AioSqliteConfiguration("sqlite+aiosqlite:///{tmp_path / "prefect.db"}").engine()
    async with engine.connect() as connection:
        print(await connection.scalar(text("PRAGMA busy_timeout")), await connection.scalar(text("PRAGMA journal_mode")))

shorten_lock_wait()
asyncio.run(waits())
"""
    output, errors = Program(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE).communicate()
    assert (output, errors) == ("10000 wal\n", "")


def test_the_server_environment_has_no_redirecting_or_secret_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    foreign = ("PREFECT_PROFILE", "PREFECT_API_KEY", "prefect_server_database_password", "UVICORN_WORKERS", "PLAN_ADAPTER_DATABASE_URL")
    for name in foreign:
        monkeypatch.setenv(name, "of the user")
    monkeypatch.setenv("PATH_OF_THE_USER", "kept")
    environment = server_environment(ServerFolder(tmp_path), 4711, None)
    assert [value for value in environment.values() if value == "of the user"] == []
    assert environment["PATH_OF_THE_USER"] == "kept"
    assert environment["PREFECT_HOME"] == str(tmp_path / "prefect")


FLOW = """
from prefect import flow, get_run_logger, task
from plan_adapter.engine.connection import use_server
from plan_adapter.engine.local_server import server_for
from plan_adapter.local.settings import Settings

@task
def greet():
    get_run_logger().info("good morning")

@flow
def morning():
    greet()

with use_server(server_for(Settings())) as server:
    morning()
print(server.api_url)
"""


@pytest.mark.thorough
def test_a_good_run_prints_no_prefect_output_and_logs_to_the_server_despite_a_proxy(
    prefect_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prefect_server.log_path is not None
    monkeypatch.delenv("PREFECT_API_URL")
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(prefect_server.log_path.parent.parent))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    done = subprocess.run([sys.executable, "-c", FLOW], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, prefect_server.api_url + "\n", "")
    monkeypatch.delenv("HTTP_PROXY")
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        found = client.request("POST", "/logs/filter", json={"sort": "TIMESTAMP_DESC"})
    assert "good morning" in [line["message"] for line in found.json()]


def test_the_state_file_is_readable_json(settings: Settings) -> None:
    assert json.loads(folder_of(settings).state_file.read_text()) == asdict(state_of(settings))
