"""The local server from its first start to its end, with real processes that are killed by their id."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.engine import local_server
from plan_adapter.engine.connection import Server
from plan_adapter.engine.diagnosis import diagnose
from plan_adapter.engine.local_server import begin_server, ensure_server, server_for, server_status, stop_server
from plan_adapter.engine.server_state import LOG_BYTES, ServerFolder, ServerState, process_start, server_environment
from plan_adapter.errors import NoServerError
from plan_adapter.settings import Settings
from tests.conftest import PrepareServer
from tests.processes import Program

Notices = list[str]


@dataclass(frozen=True)
class FirstLife:
    """What was seen of a server that started in a new home and has ended since."""

    home: Path
    notices: Notices
    servers: tuple[Server, Server]  # of the command that started it, and of the next one
    listeners: set[str]
    session: int
    settings: dict[str, Any]
    ui: tuple[int, str]
    out_of_reach: tuple[str, str, str]  # why it is not used, why it is not stopped, and its status, while another host seems to run it
    status_within_reach: str
    users_database: Path


@pytest.fixture(scope="module")
def first_life(tmp_path_factory: pytest.TempPathFactory, prepare_server: PrepareServer) -> FirstLife:
    """Run a server in a home where none ran before, in an environment that would lead it astray."""
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
            return FirstLife(
                home=home,
                notices=notices,
                servers=(started, reused),
                listeners=addresses_of_listeners(port_of(started)),
                session=os.getsid(pid_of(started)),
                settings=json.loads(get(started, "/api/admin/settings")[1])["server"] | {"ui": json.loads(get(started, "/ui-settings")[1])},
                ui=get(started, "/v2/"),
                out_of_reach=seen_out_of_reach(settings),
                status_within_reach=server_status(settings).state,
                users_database=users_database,
            )
        finally:
            stop_server(settings)


def seen_out_of_reach(settings: Settings) -> tuple[str, str, str]:
    """Return what is said of a running server while its state names another host."""
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
def settings(first_life: FirstLife, tmp_path: Path) -> Iterator[Settings]:
    """Settings of a home where a server ran before and none runs; whatever is started there is stopped."""
    shutil.copytree(first_life.home, tmp_path / "home")
    settings = Settings(home=tmp_path / "home")
    yield settings
    stop_server(settings)


@pytest.fixture(scope="module")
def busy_home(first_life: FirstLife, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("busy") / "home"
    shutil.copytree(first_life.home, home)
    yield home
    stop_server(Settings(home=home))


@pytest.fixture
def busy(busy_home: Path) -> Settings:
    """Settings of a home where a server runs, whatever a test before did to it."""
    ensure_server(Settings(home=busy_home), notify=lambda _: None)
    return Settings(home=busy_home)


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
    """The local addresses, in the kernel's notation, of sockets that listen at `port`."""
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A" and int(address.rpartition(":")[2], 16) == port:
                found.add(address.rpartition(":")[0])
    return found


def port_of(server: Server) -> int:
    return int(server.api_url.split(":")[2].split("/")[0])


# From a new home.


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


# What is left of an earlier one.


@pytest.mark.thorough
def test_a_server_killed_while_it_was_waited_for_is_replaced_at_the_same_address(busy: Settings) -> None:
    first = ensure_server(busy, notify=lambda _: None)
    pending = begin_server(busy, notify=lambda _: None)
    os.kill(pid_of(first), signal.SIGKILL)
    second = pending.wait()
    assert second.pid != first.pid
    assert (second.started, second.ui_url) == (True, first.ui_url)


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


# While one is running.


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


@pytest.mark.thorough
def test_an_older_server_than_the_installed_prefect_is_restarted_and_a_newer_one_is_not(busy: Settings) -> None:
    first = ensure_server(busy, notify=lambda _: None)
    state = state_of(busy)
    folder_of(busy).write_state(replace(state, prefect_version="99.0.0"))
    assert ensure_server(busy, notify=lambda _: None).pid == first.pid
    folder_of(busy).write_state(replace(state, prefect_version="3.0.11"))
    notices = Notices()
    assert ensure_server(busy, notify=notices.append).pid != first.pid
    assert notices[0].startswith("Prefect was upgraded from 3.0.11 to ")


def test_a_server_out_of_reach_is_neither_used_nor_doubled_nor_stopped(first_life: FirstLife) -> None:
    pid = first_life.servers[0].pid
    not_used, not_stopped, status = first_life.out_of_reach
    assert f"runs on host laptop as process {pid}, out of reach from here" in not_used
    assert "out of reach" in not_stopped
    assert status == "unhealthy"
    assert first_life.status_within_reach == "healthy"


@pytest.mark.thorough
def test_a_server_that_hangs_is_told_with_its_log_and_can_still_be_stopped(busy: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = state_of(busy).pid
    folder_of(busy).log.write_text("the last words\n")
    for name in ("ANSWER_SECONDS", "START_SECONDS", "STOP_SECONDS"):
        monkeypatch.setattr(local_server, name, 1.0)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(NoServerError, match=r"(?s)does not answer; `plan down` stops it.*--offline.*the last words"):
        ensure_server(busy, notify=lambda _: None)
    assert server_status(busy).state == "unhealthy"
    assert stop_server(busy)
    while process_start(pid) is not None:  # it is killed, and has let go of what it held; the kernel may still clear it away
        time.sleep(0.01)


@pytest.mark.thorough
def test_the_doctor_tells_of_it_with_its_port_forward_and_when_it_hangs_with_the_end_of_its_log(
    busy: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "198.51.100.7 50022 192.0.2.9 22")
    state, log = state_of(busy), folder_of(busy).log
    [found] = [
        one for one in diagnose(busy) if one.what.endswith(f"process {state.pid}, http://127.0.0.1:{state.port} answers; log: {log}")
    ]
    assert found.ok
    assert f"ssh -N -L {state.port}:127.0.0.1:{state.port} " in found.hint
    log.write_text("the last words\n")
    os.kill(state.pid, signal.SIGSTOP)
    try:
        *_, found = diagnose(busy)
    finally:
        os.kill(state.pid, signal.SIGCONT)
    assert not found.ok
    assert found.what.endswith("does not answer")
    assert found.hint == f"`plan down`, then run again; log: {log}\n  the last words"


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


# When none can be had.


@pytest.mark.thorough
def test_a_server_that_cannot_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    folder_of(settings).prefect_home.mkdir(parents=True)
    (folder_of(settings).prefect_home / "prefect.db").write_bytes(b"no database" * 1000)
    with pytest.raises(NoServerError, match=r"(?s)did not start\. `plan doctor`.*--offline.*file is not a database"):
        ensure_server(settings, notify=lambda _: None)


def test_a_home_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoServerError, match=r"cannot be kept in .*/file/home/server: .*: Not a directory\. Set PREFECT_API_URL"):
        ensure_server(Settings(home=tmp_path / "file/home"), notify=lambda _: None)


def test_a_setting_forbids_starting_one(settings: Settings) -> None:
    pending = begin_server(settings.model_copy(update={"local_server": "never"}), notify=lambda _: None)
    with pytest.raises(NoServerError, match=r"PLAN_ADAPTER_LOCAL_SERVER=never.*offline=True"):
        pending.wait()


def test_under_a_worker_none_is_started(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0d8ad9c5-0000-0000-0000-000000000000")
    with pytest.raises(NoServerError, match="belongs to a Prefect worker"):
        server_for(settings)


def test_with_a_url_set_that_is_out_of_reach_no_other_server_is_started(settings: Settings) -> None:
    from prefect.settings import temporary_settings

    with temporary_settings({"api.url": "http://127.0.0.1:1/api"}), pytest.raises(NoServerError, match="no other server is started"):
        begin_server(settings, notify=lambda _: None).wait()
    assert server_status(settings).state == "none"


def test_the_servers_environment_has_nothing_that_redirects_it_or_that_is_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    foreign = ("PREFECT_PROFILE", "PREFECT_API_KEY", "prefect_server_database_password", "UVICORN_WORKERS", "PLAN_ADAPTER_DATABASE_URL")
    for name in foreign:
        monkeypatch.setenv(name, "of the user")
    monkeypatch.setenv("PATH_OF_THE_USER", "kept")
    environment = server_environment(ServerFolder(tmp_path), 4711, None)
    assert [value for value in environment.values() if value == "of the user"] == []
    assert environment["PATH_OF_THE_USER"] == "kept"
    assert environment["PREFECT_HOME"] == str(tmp_path / "prefect")


# A run on it.

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
