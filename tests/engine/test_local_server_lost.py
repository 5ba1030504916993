"""A local server that was killed, hangs, cannot start or cannot be reached, and what is said of it."""

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
from plan_adapter.errors import NoServerError
from plan_adapter.settings import Settings
from tests.engine.local_homes import FirstLife, Notices, folder_of, pid_of, state_of


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


@pytest.mark.thorough
def test_a_server_killed_while_it_was_waited_for_is_replaced_at_the_same_address(busy: Settings) -> None:
    first = ensure_server(busy, notify=lambda _: None)
    pending = begin_server(busy, notify=lambda _: None)
    os.kill(pid_of(first), signal.SIGKILL)
    second = pending.wait()
    assert second.pid != first.pid
    assert (second.started, second.ui_url) == (True, first.ui_url)


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
    assert (status, first_life.status_within_reach) == ("unhealthy", "healthy")


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
