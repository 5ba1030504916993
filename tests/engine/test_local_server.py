"""The local server from its first start to its end, with real processes that are killed by their id."""

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
from plan_adapter.settings import Settings
from tests.engine.local_homes import FirstLife, folder_of, pid_of, port_of, state_of
from tests.processes import Program


def test_the_first_run_starts_a_server_and_the_next_uses_it(first_life: FirstLife) -> None:
    started, reused = first_life.servers
    port = port_of(started)
    assert started == Server(
        api_url=f"http://127.0.0.1:{port}/api",
        ui_url=f"http://127.0.0.1:{port}",
        started=True,
        log_path=first_life.home / "server/server.log",
        pid=started.pid,
    )
    assert reused == replace(started, started=False)
    assert len(first_life.notices) == 1
    assert first_life.notices[0].startswith(f"started a local Prefect server: {started.ui_url} (`plan down` stops it")


def test_it_listens_on_loopback_only_and_in_a_session_of_its_own(first_life: FirstLife) -> None:
    assert first_life.listeners == {"0100007F"}
    assert first_life.session == first_life.servers[0].pid


def test_it_never_touches_the_users_database(first_life: FirstLife) -> None:
    assert not first_life.users_database.exists()
    assert (first_life.home / "server/prefect/prefect.db").exists()
    assert (first_life.home / "server").stat().st_mode & 0o777 == 0o700


def test_it_tells_nobody_records_task_runs_together_and_keeps_every_service(first_life: FirstLife) -> None:
    services = first_life.settings["services"]
    assert first_life.settings["analytics_enabled"] is False
    assert (services["task_run_recorder"]["batch_size"], services["task_run_recorder"]["read_batch_size"]) == (200, 200)
    for service in ("scheduler", "late_runs", "triggers", "event_persister", "pause_expirations", "foreman", "repossessor"):
        assert services[service]["enabled"] is True, service


def test_its_ui_is_served_and_knows_its_api(first_life: FirstLife) -> None:
    assert first_life.ui[0] == 200
    assert "<html" in first_life.ui[1]
    assert first_life.settings["ui"]["api_url"] == first_life.servers[0].api_url


def test_what_was_stopped_is_gone_and_is_not_stopped_twice(first_life: FirstLife) -> None:
    assert process_start(pid_of(first_life.servers[0])) is None
    assert server_status(Settings(home=first_life.home)).state == "none"
    assert not stop_server(Settings(home=first_life.home))


def test_a_process_that_got_the_dead_servers_number_is_left_alone(settings: Settings) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        folder = folder_of(settings)
        folder.write_state(replace(state_of(settings), pid=other.pid))
        assert server_status(settings).state == "none"
        assert not stop_server(settings)
        assert other.poll() is None
        other.communicate(b"\n")


@pytest.mark.thorough
def test_a_port_that_is_taken_meanwhile_is_given_up(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        folder_of(settings).write_state(replace(state_of(settings), port=taken))
        assert port_of(ensure_server(settings, notify=lambda _: None)) != taken


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"pid": 1}', "\x00"])
def test_a_state_that_cannot_be_read_is_none(settings: Settings, text: str) -> None:
    folder_of(settings).state_file.write_text(text)
    assert folder_of(settings).read_state() is None
    assert server_status(settings).state == "none"


def test_a_log_that_has_grown_large_is_set_aside(settings: Settings) -> None:
    folder = folder_of(settings)
    folder.log.write_bytes(b"x" * (LOG_BYTES + 1))
    os.close(folder.open_log())
    assert (folder.log.stat().st_size, (folder.path / "server.log.1").stat().st_size) == (0, LOG_BYTES + 1)


@pytest.mark.thorough
def test_two_commands_at_once_start_one_server(settings: Settings) -> None:
    code = (
        "from plan_adapter.engine.local_server import ensure_server\n"
        "from plan_adapter.settings import Settings\n"
        "server = ensure_server(Settings(), notify=print)\n"
        "print(server.pid, server.started)\n"
    )
    environment = {**os.environ, "PLAN_ADAPTER_HOME": str(settings.home)}
    commands = [subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [command.communicate()[0].splitlines() for command in commands]
    assert len({lines[-1].split()[0] for lines in said}) == 1
    assert sorted(lines[-1].split()[1] for lines in said) == ["False", "True"]
    assert sorted(len(lines) for lines in said) == [1, 2]


@pytest.mark.thorough
def test_ctrl_c_in_the_terminal_that_started_it_does_not_end_it(settings: Settings) -> None:
    code = (
        "import time\n"
        "from plan_adapter.engine.local_server import begin_server\n"
        "from plan_adapter.settings import Settings\n"
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
def test_starting_does_not_wait_and_waiting_gives_the_server(settings: Settings) -> None:
    pending = begin_server(settings, notify=lambda _: None)
    assert server_status(settings).state != "healthy"
    assert pending.wait().started
    assert server_status(settings).state == "healthy"


def test_garbage_is_collected_on_a_thread_of_its_own_and_nowhere_else() -> None:
    program = """
import threading
from plan_adapter.engine.server_process import collect_apart

class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        where.append(threading.current_thread().name)
        collected.set()

where, collected = [], threading.Event()
collect_apart()
Cycle()
kept = [[] for _ in range(100_000)]  # enough for any automatic collection
collected.wait()
print(where)
"""
    said, problem = Program(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE).communicate()
    assert (said, problem) == ("['collector']\n", "")


def test_a_locked_database_holds_up_a_request_for_ten_seconds_at_most(tmp_path: Path) -> None:
    program = f"""
import asyncio
from sqlalchemy import text
from plan_adapter.engine.internals import refuse_soon_what_waits_for_a_lock
from prefect.server.database.configurations import AioSqliteConfiguration

async def waits():
    engine = await AioSqliteConfiguration("sqlite+aiosqlite:///{tmp_path / "prefect.db"}").engine()
    async with engine.connect() as connection:
        print(await connection.scalar(text("PRAGMA busy_timeout")), await connection.scalar(text("PRAGMA journal_mode")))

refuse_soon_what_waits_for_a_lock()
asyncio.run(waits())
"""
    said, problem = Program(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE).communicate()
    assert (said, problem) == ("10000 wal\n", "")


def test_the_servers_environment_has_nothing_that_redirects_it_or_that_is_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
from plan_adapter.settings import Settings

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
def test_a_good_run_prints_nothing_of_prefects_whatever_proxy_there_is_and_its_log_is_on_the_server(
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


def test_the_state_is_plain_text_that_a_person_can_read(settings: Settings) -> None:
    assert json.loads(folder_of(settings).state_file.read_text()) == asdict(state_of(settings))
