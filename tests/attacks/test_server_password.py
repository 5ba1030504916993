"""Tests of when a local server demands a password, and which accounts count as other people."""

import os
from pathlib import Path

import pytest

from plan_adapter.engine import server_state as server_password
from plan_adapter.engine.server_state import ServerFolder, other_people, password_reason, server_environment


def test_the_server_does_not_inherit_the_callers_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING", "prefect_server_api_auth_string"):
        monkeypatch.setenv(name, "of another server")
    assert "of another server" not in server_environment(ServerFolder(tmp_path), 4711, None).values()
    assert server_environment(ServerFolder(tmp_path), 4711, "ours")["PREFECT_SERVER_API_AUTH_STRING"] == "ours"


@pytest.mark.parametrize(
    ("mode", "ssh", "others", "why"),
    [
        ("auto", "", [], None),
        ("auto", "198.51.100.7 50022 192.0.2.9 22", [], "this machine is reached over SSH"),
        ("auto", "", ["ana"], "other people can log in to this machine (ana)"),
        ("auto", "", ["ana", "bo", "cy", "di"], "other people can log in to this machine (ana, bo, cy, …)"),
        ("off", "198.51.100.7 50022 192.0.2.9 22", ["ana"], None),
        ("on", "", [], "PLAN_ADAPTER_LOCAL_SERVER_AUTH=on"),
    ],
)
def test_a_password_is_demanded_when_others_could_reach_the_server(
    monkeypatch: pytest.MonkeyPatch, mode: str, ssh: str, others: list[str], why: str | None
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", ssh)
    monkeypatch.setattr(server_password, "other_people", lambda: others)
    assert password_reason(mode) == why


def test_other_people_are_login_accounts_except_services_root_and_this_one() -> None:
    import pwd

    shells = {account.pw_name: account.pw_shell for account in pwd.getpwall()}
    assert {"root", "daemon", "nobody"}.isdisjoint(other_people())
    assert pwd.getpwuid(os.geteuid()).pw_name not in other_people()
    assert all(not shells[name].endswith(("/nologin", "/false")) for name in other_people())
