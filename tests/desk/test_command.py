"""Tests of the command `plan desk`: it refuses, with one clear error, to serve what would be open to others."""

import json
import os
import signal
import subprocess

import httpx
import pytest

from plan_adapter.cli.desk.sign_in import PROXY_SECRET_HEADER
from tests.cli.conftest import Plan, check_lines, home, plan
from tests.cli.test_terminal import REAL_PLAN
from tests.desk.people import SECRET

__all__ = ["home", "plan"]

PROXY = {"PROXY_HEADER": "X-Forwarded-Email", "PROXY_SECRET": SECRET}
OIDC = {"OIDC_ISSUER": "https://login.example.org", "OIDC_CLIENT_ID": "desk"}


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({}, ("--host", "0.0.0.0"), "on 0.0.0.0, other machines reach the desk, and nobody signs in: set PLAN_ADAPTER_DESK_OIDC_ISSUER"),
        ({}, ("--host", "::"), "on ::, other machines reach the desk, and nobody signs in"),
        (PROXY, ("--host", "0.0.0.0"), "set PLAN_ADAPTER_DESK_URL to the address that people use"),
        (PROXY | OIDC, (), "are both set: choose one way to sign in"),
        ({"PROXY_HEADER": "X-Forwarded-Email"}, (), "PLAN_ADAPTER_DESK_PROXY_HEADER and PLAN_ADAPTER_DESK_PROXY_SECRET belong together"),
        ({"PROXY_SECRET": SECRET}, (), "belong together: set both"),
        (PROXY | {"PROXY_SECRET": "short"}, (), "PLAN_ADAPTER_DESK_PROXY_SECRET needs 32 or more printable ASCII characters"),
        ({"OIDC_ISSUER": "https://login.example.org"}, (), "PLAN_ADAPTER_DESK_OIDC_CLIENT_ID belong together"),
        (OIDC | {"OIDC_ISSUER": "http://login.example.org"}, (), "PLAN_ADAPTER_DESK_OIDC_ISSUER must be an https:// address"),
        (PROXY | {"URL": "http://desk.example.org"}, (), "PLAN_ADAPTER_DESK_URL must be an https:// address without a path"),
        (PROXY | {"URL": "https://desk.example.org/desk"}, (), "without a path"),
        (PROXY | {"URL": "https://ana@desk.example.org"}, (), "without a path"),
        ({}, ("--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid"),
        ({}, ("--port", "70000"), "--port is a number from 0 to 65535"),
    ],
)  # fmt: skip
def test_what_would_be_open_is_refused(
    settings: dict[str, str], options: tuple[str, ...], message: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"PLAN_ADAPTER_DESK_{name}", value)
    result = plan("desk", *(() if "--port" in options else ("--port", "0")), *options)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert SECRET not in result.err


def test_a_missing_library_is_named(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plan_adapter.cli.verbs.desk.LIBRARIES", ("no_such_library",))
    result = plan("desk")
    assert (result.code, "pip install 'prefect-plan-adapter[desk]'" in result.err) == (2, True)


@pytest.mark.usefixtures("home")
def test_a_program_reads_the_address_and_ends_the_desk() -> None:
    environment = {**os.environ, "PLAN_ADAPTER_DESK_PROXY_HEADER": "X-Forwarded-Email", "PLAN_ADAPTER_DESK_PROXY_SECRET": SECRET}
    with subprocess.Popen([*REAL_PLAN, "desk", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        check_lines(line)
        desk = json.loads(line)
        assert desk["sign_in"] == "proxy"
        assert httpx.get(desk["address"], trust_env=False).status_code == 403
        headers = {"X-Forwarded-Email": "ana", PROXY_SECRET_HEADER: SECRET}
        assert "Nothing waits" in httpx.get(desk["address"], headers=headers, trust_env=False).text
        process.send_signal(signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM
