"""Tests of the command `plan desk`: it refuses, with one clear error, to serve what would be open to others."""

import json
import os
import signal
import subprocess

import httpx
import pytest

from plan_adapter.cli.desk.sign_in import PROXY_SECRET_HEADER
from tests.cli.conftest import Plan, check_lines, home, plan
from tests.cli.test_terminal import REAL_PLAN, Terminal, terminals
from tests.desk.people import SECRET

__all__ = ["home", "plan", "terminals"]

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
        ({"ALERTMANAGER_TOKEN": "short"}, (), "PLAN_ADAPTER_DESK_ALERTMANAGER_TOKEN needs 16 or more printable ASCII characters"),
        ({"GRAFANA_SECRET": ""}, (), "PLAN_ADAPTER_DESK_GRAFANA_SECRET needs 16 or more printable ASCII characters"),
        ({"GITHUB_SECRET": SECRET + "\n"}, (), "PLAN_ADAPTER_DESK_GITHUB_SECRET needs 16 or more printable ASCII characters"),
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


SLACK = {"SLACK_TOKEN": "xoxb-1234-only-this-app-knows-it", "SLACK_CHANNEL": "C024BE91L"}
BUTTONS = {"SLACK_SIGNING_SECRET": "8f742231b10e8888abcd99yyyzzz85a5", "SLACK_USERS": '{"U024BE7LH": "ana@example.org"}'}
MAIL = {"MAIL_SERVER": "smtps://mail.example.org", "MAIL_FROM": "plans@example.org", "MAIL_TO": "sre@example.org,bo@example.org"}
WEBHOOK = "https://example.webhook.office.com/?sig=only-whoever-has-the-address-knows"


def without(settings: dict[str, str], name: str) -> dict[str, str]:
    return {known: value for known, value in settings.items() if known != name}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SLACK, "messages (Slack) link to the desk: set PLAN_ADAPTER_DESK_URL to the address that people use"),
        (without(SLACK, "SLACK_TOKEN"), "SLACK_TOKEN and PLAN_ADAPTER_DESK_SLACK_CHANNEL belong together: set both"),
        (without(SLACK, "SLACK_CHANNEL"), "SLACK_TOKEN and PLAN_ADAPTER_DESK_SLACK_CHANNEL belong together: set both"),
        (SLACK | without(BUTTONS, "SLACK_USERS"), "belong together: set both, for buttons"),
        (SLACK | without(BUTTONS, "SLACK_SIGNING_SECRET"), "belong together: set both, for buttons"),
        (BUTTONS, "buttons in Slack need messages: set PLAN_ADAPTER_DESK_SLACK_TOKEN"),
        (SLACK | BUTTONS | {"SLACK_SIGNING_SECRET": "short"}, "PLAN_ADAPTER_DESK_SLACK_SIGNING_SECRET is too short"),
        (SLACK | {"SLACK_TOKEN": "two words"}, "PLAN_ADAPTER_DESK_SLACK_TOKEN is no token"),
        (SLACK | {"SLACK_API": "http://slack.example.org/api/"}, "PLAN_ADAPTER_DESK_SLACK_API must be an https:// address"),
        (SLACK | BUTTONS | {"SLACK_USERS": '{"@ana": "ana"}'}, '"@ana" is no id of a Slack user, such as `U024BE7LH`'),
        (SLACK | BUTTONS | {"SLACK_USERS": '{"U024BE7LH": " "}'}, "the name of U024BE7LH is empty, too long, or has invisible characters"),
        (SLACK | BUTTONS | {"SLACK_USERS": "ana"}, "write JSON with the name of each user"),
        ({"TEAMS_WEBHOOK": WEBHOOK.replace("https", "http")}, "PLAN_ADAPTER_DESK_TEAMS_WEBHOOK must be the https:// address"),
        ({"TEAMS_WEBHOOK": WEBHOOK}, "messages (Teams) link to the desk"),
        (without(MAIL, "MAIL_FROM"), "PLAN_ADAPTER_DESK_MAIL_FROM and …_MAIL_TO belong together: set all three"),
        (without(MAIL, "MAIL_TO"), "belong together: set all three"),
        (MAIL | {"MAIL_USER": "plans"}, "PLAN_ADAPTER_DESK_MAIL_USER and PLAN_ADAPTER_DESK_MAIL_PASSWORD belong together: set both"),
        ({"MAIL_USER": "plans", "MAIL_PASSWORD": SECRET}, "PLAN_ADAPTER_DESK_MAIL_USER needs PLAN_ADAPTER_DESK_MAIL_SERVER"),
        (MAIL | {"MAIL_USER": "plans", "MAIL_PASSWORD": "ä" * 9}, "PLAN_ADAPTER_DESK_MAIL_PASSWORD take only ASCII characters"),
        (MAIL | {"MAIL_SERVER": "mail.example.org"}, "PLAN_ADAPTER_DESK_MAIL_SERVER must be `smtps://host` or `smtp://host:587`"),
        (MAIL | {"MAIL_SERVER": f"smtps://plans:{SECRET}@mail.example.org"}, "without a name and a password in it"),
        (MAIL | {"MAIL_SERVER": "smtp://mail.example.org:x"}, "PLAN_ADAPTER_DESK_MAIL_SERVER must be"),
        (MAIL | {"MAIL_FROM": "plans"}, 'PLAN_ADAPTER_DESK_MAIL_FROM: "plans" is no e-mail address'),
        (MAIL | {"MAIL_TO": "Ana <ana@example.org>"}, "PLAN_ADAPTER_DESK_MAIL_TO: "),
        (MAIL | {"MAIL_TO": "ana@example.org\nBcc: eve@example.org"}, "PLAN_ADAPTER_DESK_MAIL_TO: "),
    ],
)  # fmt: skip
def test_wrong_and_incomplete_channels_are_refused(
    settings: dict[str, str], message: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"PLAN_ADAPTER_DESK_{name}", value)
    result = plan("desk", "--port", "0")
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1
    for secret in (SECRET, SLACK["SLACK_TOKEN"], BUTTONS["SLACK_SIGNING_SECRET"], "only-whoever"):
        assert secret not in result.err


@pytest.mark.usefixtures("home")
def test_the_channels_are_named() -> None:
    settings = {**SLACK, **BUTTONS, **MAIL, "TEAMS_WEBHOOK": WEBHOOK, "URL": "https://desk.example.org"}
    environment = {**os.environ, **{f"PLAN_ADAPTER_DESK_{name}": value for name, value in settings.items()}}
    for options, stream in ((["--json"], "stdout"), ([], "stderr")):
        command = [*REAL_PLAN, "desk", "--port", "0", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
            lines = getattr(process, stream)
            if options:
                assert json.loads(lines.readline())["channels"] == ["slack", "teams", "mail"]
            else:
                assert "the desk is at https://desk.example.org/" in lines.readline()
                assert lines.readline() == "what waits is also sent to Slack, Teams, e-mail\n"
            process.send_signal(signal.SIGTERM)


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
        assert (desk["sign_in"], desk["webhooks"]) == ("proxy", [])
        assert httpx.get(desk["address"], trust_env=False).status_code == 403
        headers = {"X-Forwarded-Email": "ana", PROXY_SECRET_HEADER: SECRET}
        assert "Nothing waits" in httpx.get(desk["address"], headers=headers, trust_env=False).text
        process.send_signal(signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.usefixtures("home")
def test_it_says_which_webhooks_it_takes_and_that_they_need_a_server(terminals: list[Terminal], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DESK_PAGERDUTY_SECRET", SECRET)
    monkeypatch.setenv("PLAN_ADAPTER_DESK_GITHUB_SECRET", SECRET)
    terminals.append(terminal := Terminal("desk", "--port", "0", controls=True))
    terminal.wait_for("/hooks/github")
    shown = " ".join(terminal.shown.split())
    assert "/hooks/pagerduty" in shown
    assert "each webhook is answered with 503, and its sender has to try again: there is no Prefect server" in shown
    assert SECRET not in shown
