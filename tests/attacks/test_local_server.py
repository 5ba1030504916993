"""Tests of what another account of the machine can do at a local Prefect server that demands a password."""

import base64
import json
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.cli.app import main
from plan_adapter.engine.connection import demands_authentication, use_server
from plan_adapter.engine.diagnosis import diagnose
from plan_adapter.engine.local_server import ensure_server, server_status, stop_server
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NoServerError
from plan_adapter.tools.processes import run_group
from plan_adapter.tools.tool import ToolContext
from tests.attacks.locked import LockedServer, basic, locked

__all__ = ["locked"]

PLAN = [sys.executable, "-c", "import sys; from plan_adapter.cli.app import main; sys.exit(main())"]
BOUND_SECONDS = 240.0

WAITING_PLAN = """
name: release
description: Release it
steps:
  - {id: say, tool_name: bash, description: Say it, parameters: {command: "echo said >> said.txt; env > env.txt"}}
"""


RUNS: tuple[str, str, Any] = ("POST", "/api/flow_runs/filter", {})
REQUESTS: list[tuple[str, str, Any]] = [
    RUNS,
    ("POST", "/api/flow_runs/count", {}),
    ("POST", "/api/flow_runs/", {"flow_id": "0d8ad9c5-0000-0000-0000-000000000000"}),
    ("GET", "/api/flow_runs/0d8ad9c5-0000-0000-0000-000000000000", None),
    ("POST", "/api/flow_runs/0d8ad9c5-0000-0000-0000-000000000000/resume", {"run_input": {"decision": "approve"}}),
    ("POST", "/api/flow_runs/0d8ad9c5-0000-0000-0000-000000000000/set_state", {"state": {"type": "RUNNING"}, "force": True}),
    ("POST", "/api/flow_runs/0d8ad9c5-0000-0000-0000-000000000000/input", {"key": "x", "value": "x"}),
    ("DELETE", "/api/flow_runs/0d8ad9c5-0000-0000-0000-000000000000", None),
    ("POST", "/api/task_runs/filter", {}),
    ("POST", "/api/deployments/filter", {}),
    ("POST", "/api/block_documents/filter", {"include_secrets": True}),
    ("POST", "/api/variables/filter", {}),
    ("POST", "/api/logs/filter", {}),
    ("POST", "/api/events/filter", {}),
    ("POST", "/api/artifacts/filter", {}),
    ("POST", "/api/automations/filter", {}),
    ("POST", "/api/work_pools/filter", {}),
    ("GET", "/api/admin/settings", None),
    ("POST", "/api/admin/database/clear", {"confirm": True}),
    ("GET", "/api/csrf-token?client=me", None),
    ("POST", "/api/ui/flow_runs/history", {}),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS, ids=[f"{method} {path[5:45]}" for method, path, _ in REQUESTS])
def test_a_request_without_the_password_is_refused(locked: LockedServer, method: str, path: str, body: Any) -> None:
    assert locked.ask(method, path, body)[0] == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Basic"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic " + base64.b64encode(b"\xff\xfe").decode()},
        {"Authorization": "Bearer x"},
        basic(""),
        basic("plan:"),
        basic("admin:pass"),
        {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-User": "root"},
        {"Cookie": "prefect-password=x"},
    ],
    ids=["no-value", "no-base64", "no-text", "bearer", "empty", "name-only", "guess", "forwarded", "cookie"],
)
def test_other_credentials_are_refused(locked: LockedServer, headers: dict[str, str]) -> None:
    assert locked.ask(*RUNS, headers)[0] == 401


@pytest.mark.parametrize("cut", [slice(0, -1), slice(5, None), slice(None, None, -1)], ids=["shorter", "without-name", "reversed"])
def test_a_nearly_correct_password_is_refused(locked: LockedServer, cut: slice) -> None:
    assert locked.ask(*RUNS, basic(locked.password))[0] == 200
    assert locked.ask(*RUNS, basic(locked.password[cut]))[0] == 401


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/api/health/../flow_runs/filter", None),
        ("/api/flow_runs/filter/../../health", None),
        ("/api//flow_runs/filter", None),
        ("//api/flow_runs/filter", None),
        ("/api/%2e%2e/api/flow_runs/filter", None),
        ("/api/flow_runs/filter?x=/api/health", None),
        ("/api/flow_runs/filter", "x/api/health?"),
        ("/api/flow_runs/filter", "127.0.0.1/api/health#"),
        ("/api/flow_runs/filter;/health", None),
    ],
)
def test_path_tricks_do_not_bypass_the_password(locked: LockedServer, path: str, host: str | None) -> None:
    assert locked.ask("POST", path, {}, {} if host is None else {"Host": host})[0] in (307, 400, 401, 404, 405)


@pytest.mark.parametrize("path", ["events/in", "events/out", "logs/out"])
@pytest.mark.parametrize("password", [None, "plan:guess"], ids=["none", "wrong"])
async def test_a_websocket_without_the_password_is_refused(locked: LockedServer, path: str, password: str | None) -> None:
    from websockets.asyncio.client import connect
    from websockets.exceptions import WebSocketException
    from websockets.typing import Subprotocol

    url = f"{locked.server.api_url.replace('http', 'ws', 1)}/{path}"
    protocols = None if password is None else [Subprotocol("prefect")]
    with pytest.raises((WebSocketException, OSError)):
        async with connect(url, subprotocols=protocols, proxy=None) as socket:
            await socket.send(json.dumps({"type": "auth", "token": password}))
            while "auth_success" not in str(await socket.recv()):
                pass


def test_without_the_password_the_server_reveals_only_its_health(locked: LockedServer) -> None:
    assert locked.ask("GET", "/api/health") == (200, "true")
    assert demands_authentication(locked.server.api_url) is True
    ui_settings = json.loads(locked.ask("GET", "/ui-settings")[1])
    assert locked.password not in json.dumps(ui_settings)
    assert ui_settings["auth"] == "BASIC"


def test_only_the_owner_can_read_the_password_file(locked: LockedServer) -> None:
    found = locked.folder.password_file.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, os.geteuid())
    assert len(locked.password) >= 32


def test_only_the_password_file_contains_the_password(locked: LockedServer) -> None:
    holding = [path for path in locked.home.rglob("*") if path.is_file() and locked.password.encode() in path.read_bytes()]
    assert holding == [locked.folder.password_file]


def test_every_file_of_the_home_is_private(locked: LockedServer) -> None:
    pages = locked.folder.path / "ui"  # Prefect's own, copied with their modes
    found = [path for path in (locked.home, *locked.home.rglob("*")) if not path.is_relative_to(pages)]
    assert {path: oct(path.lstat().st_mode) for path in found if path.lstat().st_mode & 0o077} == {}


def test_the_process_list_does_not_show_the_password(locked: LockedServer) -> None:
    secret = locked.password.removeprefix("plan:").encode()
    shown = list[bytes]()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            shown.append((process / "cmdline").read_bytes())
        except OSError:  # it has ended
            continue
    assert len(shown) > 1
    assert not any(secret in arguments for arguments in shown)
    assert stat.S_IMODE(Path(f"/proc/{locked.server.pid}/environ").stat().st_mode) == 0o400


def test_messages_show_the_password_file_but_never_the_password(locked: LockedServer) -> None:
    (notice,) = locked.notices
    assert f"its pages ask for a password: `cat {locked.folder.password_file}` prints it" in notice
    (finding,) = [finding for finding in diagnose(Settings(home=locked.home)) if "local Prefect server" in finding.what]
    assert f"`cat {locked.folder.password_file}` prints it" in finding.hint
    status = server_status(Settings(home=locked.home))
    assert locked.server.password_file == status.password_file == locked.folder.password_file
    for text in (notice, finding.what, finding.hint, repr(status), repr(status.server()), repr(locked.server)):
        assert locked.password.removeprefix("plan:") not in text


async def test_commands_of_a_plan_do_not_inherit_prefects_password(locked: LockedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"):
        monkeypatch.setenv(name, locked.password)
    context = ToolContext("run", "step", 1, "key", None, None, None, logging.getLogger("test"), None)
    with use_server(locked.server):
        ended = await run_group(["env"], cwd=None, env={}, stdin=None, context=context)
    assert locked.password not in ended.stdout


class WaitingRun:
    """`plan run` without a terminal, stopped at its gate."""

    def __init__(self, locked: LockedServer, folder: Path) -> None:
        (folder / "release.yaml").write_text(WAITING_PLAN)
        self.process = subprocess.Popen(
            [*PLAN, "run", "release.yaml"],
            cwd=folder,
            env=locked.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.stderr_lines = list[str]()
        for line in self.process.stderr:
            self.stderr_lines.append(line)
            if "`plan approve " in line:
                break
        self.run_id = self.stderr_lines[-1].partition("`plan approve ")[2].partition("`")[0].split()[0]

    def end(self) -> int:
        _, err = self.process.communicate(timeout=BOUND_SECONDS)
        assert "Traceback" not in err, err
        assert "401" not in err, err
        return self.process.returncode


@pytest.fixture
def waiting(locked: LockedServer, tmp_path: Path) -> Iterator[WaitingRun]:
    run = WaitingRun(locked, tmp_path)
    yield run
    run.process.kill()


def plan(locked: LockedServer, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    given = {**locked.environment(), **environment}
    return subprocess.run([*PLAN, *words], env=given, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


@pytest.mark.thorough
def test_a_gate_is_answered_in_its_form_and_prefect_shows_the_completed_run(
    locked: LockedServer, waiting: WaitingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in locked.environment().items():
        monkeypatch.setenv(name, value)

    def output_of(*words: str) -> str:
        """Return the output of `plan`, run in this process with the same environment."""
        capsys.readouterr()
        code, written = main([*words]), capsys.readouterr()
        assert code == 0, written.err
        return written.out

    forms = list[dict[str, Any]]()
    deadline = time.monotonic() + BOUND_SECONDS
    while not forms and time.monotonic() < deadline:
        listed = output_of("gates", "--api", "--json")
        forms = [form for line in listed.splitlines() if (form := json.loads(line))["run_id"] == waiting.run_id]
    flow_run = f"/api/flow_runs/{forms[0]['flow_run_id']}"
    answer = {"run_input": {"decision": "approve"}}
    assert locked.ask("POST", f"{flow_run}/resume", answer)[0] == 401
    assert locked.ask("POST", f"{flow_run}/set_state", {"state": {"type": "RUNNING"}, "force": True})[0] == 401
    assert not (tmp_path / "said.txt").exists()
    output_of(*forms[0]["command"].split()[1:])
    assert waiting.end() == 0
    assert (tmp_path / "said.txt").read_text() == "said\n"
    assert locked.password not in (tmp_path / "env.txt").read_text()
    shown = json.loads(locked.ask("GET", flow_run, headers=basic(locked.password))[1])
    assert shown["state"]["type"] == "COMPLETED"
    steps = {"flow_runs": {"id": {"any_": [forms[0]["flow_run_id"]]}}}
    deadline = time.monotonic() + BOUND_SECONDS
    while True:  # states of task runs come as events, over a websocket
        named = json.loads(locked.ask("POST", "/api/task_runs/filter", steps, basic(locked.password))[1])
        if [(run["name"], run["state_type"]) for run in named] == [("say", "COMPLETED")]:
            break
        assert time.monotonic() < deadline, named
    output_of("logs", waiting.run_id)


@pytest.mark.thorough
def test_cancelling_a_run_killed_at_its_gate_closes_its_flow_run(locked: LockedServer, waiting: WaitingRun) -> None:
    waiting.process.kill()
    waiting.process.wait()
    cancelled = plan(locked, "cancel", waiting.run_id)
    assert cancelled.returncode == 0, cancelled.stderr
    reconciled = plan(locked, "reconcile")
    assert reconciled.returncode == 0, reconciled.stderr
    open_ones = {"flow_runs": {"state": {"type": {"any_": ["PENDING", "RUNNING", "PAUSED"]}}}}
    assert locked.ask("POST", "/api/flow_runs/count", open_ones, basic(locked.password)) == (200, "0")


@pytest.mark.thorough
def test_a_command_with_the_servers_url_finds_the_password_only_in_the_owners_home(locked: LockedServer, tmp_path: Path) -> None:
    doctor = plan(locked, "doctor", PREFECT_API_URL=locked.server.api_url)
    assert f"Prefect server {locked.server.api_url} answers" in doctor.stdout, doctor.stdout
    doctor = plan(locked, "doctor", PREFECT_API_URL=locked.server.api_url, PLAN_ADAPTER_HOME=str(tmp_path / "other"))
    assert doctor.returncode == 9
    assert "it refuses the credentials (HTTP 401): PREFECT_API_AUTH_STRING or PREFECT_API_KEY is missing or wrong" in doctor.stdout
    doctor = plan(locked, "doctor", PREFECT_API_URL=locked.server.api_url, PREFECT_API_AUTH_STRING="plan:wrong")
    assert "it refuses the credentials (HTTP 401)" in doctor.stdout
    doctor = plan(locked, "doctor", PREFECT_API_URL=locked.server.api_url, PREFECT_API_AUTH_STRING=locked.password)
    assert "answers (set by the environment variable PREFECT_API_URL)" in doctor.stdout


def test_auto_mode_uses_a_server_that_demands_a_password(locked: LockedServer) -> None:
    found = ensure_server(Settings(home=locked.home, local_server_auth="auto"), notify=pytest.fail)
    assert (found.pid, found.password) == (locked.server.pid, locked.password)


@pytest.mark.thorough
def test_a_change_of_the_auth_mode_restarts_the_server_only_if_no_run_waits(locked: LockedServer, waiting: WaitingRun) -> None:
    off, on = (Settings(home=locked.home, local_server_auth=mode) for mode in ("off", "on"))
    with pytest.raises(
        NoServerError, match=r"AUTH=off, but the local Prefect server .* demands a password and has unfinished runs: type `plan down`"
    ):
        ensure_server(off, notify=pytest.fail)
    assert plan(locked, "cancel", waiting.run_id).returncode == 0
    assert waiting.end() == 4
    stop_server(on)
    started = ensure_server(off, notify=lambda _: None)
    assert started.password is None
    assert locked.ask(*RUNS)[0] == 200
    notices = list[str]()
    again = ensure_server(on, notify=notices.append)
    assert notices[0] == "restarting the local Prefect server with a password (PLAN_ADAPTER_LOCAL_SERVER_AUTH=on)"
    assert again.password == locked.password
    assert again.api_url == locked.server.api_url
    assert locked.ask(*RUNS)[0] == 401
