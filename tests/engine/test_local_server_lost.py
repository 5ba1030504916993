"""Tests of a local server that was killed, hangs, cannot start or cannot be reached, and of the errors that report it."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plan_adapter.engine import local_server
from plan_adapter.engine.diagnosis import diagnose
from plan_adapter.engine.local_server import begin_server, ensure_server, server_for, server_status, stop_server
from plan_adapter.engine.server_state import process_start
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NoServerError
from tests.engine.local_homes import FirstServer, Notices, folder_of, pid_of, state_of


@pytest.fixture(scope="module")
def running_home(first_server: FirstServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("running") / "home"
    shutil.copytree(first_server.home, home)
    yield home
    stop_server(Settings(home=home))


@pytest.fixture
def running(running_home: Path) -> Settings:
    """Settings of a home where a server runs. It is restarted if an earlier test stopped it."""
    ensure_server(Settings(home=running_home), notify=lambda _: None)
    return Settings(home=running_home)


@pytest.mark.thorough
def test_a_server_killed_while_a_command_waits_is_replaced_at_the_same_address(running: Settings) -> None:
    first = ensure_server(running, notify=lambda _: None)
    pending = begin_server(running, notify=lambda _: None)
    os.kill(pid_of(first), signal.SIGKILL)
    second = pending.wait()
    assert second.pid != first.pid
    assert (second.started, second.ui_url) == (True, first.ui_url)


@pytest.mark.thorough
def test_a_server_older_than_the_installed_prefect_is_restarted_but_not_a_newer_one(running: Settings) -> None:
    first = ensure_server(running, notify=lambda _: None)
    state = state_of(running)
    folder_of(running).write_state(replace(state, prefect_version="99.0.0"))
    assert ensure_server(running, notify=lambda _: None).pid == first.pid
    folder_of(running).write_state(replace(state, prefect_version="3.0.11"))
    notices = Notices()
    assert ensure_server(running, notify=notices.append).pid != first.pid
    assert notices[0].startswith("Prefect was upgraded from 3.0.11 to ")


def test_an_unreachable_server_is_not_used_duplicated_or_stopped(first_server: FirstServer) -> None:
    pid = first_server.servers[0].pid
    not_used, not_stopped, status = first_server.unreachable
    assert f"runs on host laptop as process {pid}, out of reach from here" in not_used
    assert "out of reach" in not_stopped
    assert (status, first_server.status_reachable) == ("unhealthy", "healthy")


@pytest.mark.thorough
def test_a_hanging_server_is_reported_with_its_log_and_can_be_stopped(running: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = state_of(running).pid
    folder_of(running).log.write_text("the last words\n")
    for name in ("ANSWER_SECONDS", "START_SECONDS", "STOP_SECONDS"):
        monkeypatch.setattr(local_server, name, 1.0)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(NoServerError, match=r"(?s)does not answer; `plan down` stops it.*--offline.*the last words"):
        ensure_server(running, notify=lambda _: None)
    assert server_status(running).state == "unhealthy"
    assert stop_server(running)
    while process_start(pid) is not None:  # it was killed, but the kernel may still be cleaning it up
        time.sleep(0.01)


@pytest.mark.thorough
def test_the_doctor_shows_the_port_forward_and_the_log_tail_of_a_hanging_server(running: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "198.51.100.7 50022 192.0.2.9 22")
    state, log = state_of(running), folder_of(running).log
    [finding] = [
        finding
        for finding in diagnose(running)
        if finding.what.endswith(f"process {state.pid}, http://127.0.0.1:{state.port} answers; log: {log}")
    ]
    assert finding.ok
    assert f"ssh -N -L {state.port}:127.0.0.1:{state.port} " in finding.hint
    log.write_text("the last words\n")
    os.kill(state.pid, signal.SIGSTOP)
    try:
        *_, finding = diagnose(running)
    finally:
        os.kill(state.pid, signal.SIGCONT)
    assert not finding.ok
    assert finding.what.endswith("does not answer")
    assert finding.hint == f"`plan down`, then run again; log: {log}\n  the last words"


@pytest.mark.thorough
def test_a_server_that_cannot_start_is_reported_with_its_log_tail(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    folder_of(settings).prefect_home.mkdir(parents=True)
    (folder_of(settings).prefect_home / "prefect.db").write_bytes(b"no database" * 1000)
    with pytest.raises(NoServerError, match=r"(?s)did not start\. `plan doctor`.*--offline.*file is not a database"):
        ensure_server(settings, notify=lambda _: None)


def test_a_home_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoServerError, match=r"cannot be kept in .*/file/home/server: .*: Not a directory\. Set PREFECT_API_URL"):
        ensure_server(Settings(home=tmp_path / "file/home"), notify=lambda _: None)


def test_no_server_is_started_if_a_setting_forbids_it(settings: Settings) -> None:
    pending = begin_server(settings.model_copy(update={"local_server": "never"}), notify=lambda _: None)
    with pytest.raises(NoServerError, match=r"PLAN_ADAPTER_LOCAL_SERVER=never.*offline=True"):
        pending.wait()


def test_no_server_is_started_under_a_worker(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0d8ad9c5-0000-0000-0000-000000000000")
    with pytest.raises(NoServerError, match="belongs to a Prefect worker"):
        server_for(settings)


def test_no_server_is_started_if_the_configured_url_is_unreachable(settings: Settings) -> None:
    from prefect.settings import temporary_settings

    with temporary_settings({"api.url": "http://127.0.0.1:1/api"}), pytest.raises(NoServerError, match="no other server is started"):
        begin_server(settings, notify=lambda _: None).wait()
    assert server_status(settings).state == "none"
