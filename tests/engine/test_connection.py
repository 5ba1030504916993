"""Tests of the server that Prefect's settings name: how it is found, which errors it raises, and how this process uses it."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prefect.context import root_settings_context
from prefect.settings import get_current_settings, temporary_settings

from plan_adapter.engine.connection import (
    Server,
    check_server,
    configured_api_url,
    in_flow_run_process,
    ui_hint,
    url_source,
    url_without_credentials,
    use_server,
)
from plan_adapter.gates.approval import os_user
from plan_adapter.model.errors import NoServerError
from tests.engine.gateway import Gateway, self_signed

URL = "http://127.0.0.1:1/api"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: empty, also Prefect's home, with no other Prefect variable set."""
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def url_and_source() -> tuple[str | None, str]:
    """Return the API URL that a new process would find, and its source."""
    with root_settings_context():
        url = configured_api_url()
        return url, url_source() if url else ""


def test_a_new_user_of_prefect_has_no_server_configured(folder: Path) -> None:
    assert url_and_source() == (None, "")


@pytest.mark.parametrize("name", ["PREFECT_API_URL", "prefect_api_url"])
def test_the_environment_names_a_server(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, URL)
    assert url_and_source() == (URL, "the environment variable PREFECT_API_URL")


def test_an_empty_url_configures_no_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "")
    assert url_and_source() == (None, "")


@pytest.mark.parametrize(
    ("file", "text", "source"),
    [
        (".env", f"PREFECT_API_URL={URL}", "{}/.env"),
        ("prefect.toml", f'[api]\nurl = "{URL}"', "{}/prefect.toml"),
        ("pyproject.toml", f'[tool.prefect.api]\nurl = "{URL}"', "[tool.prefect] in {}/pyproject.toml"),
    ],
)
def test_a_settings_file_names_a_server(folder: Path, file: str, text: str, source: str) -> None:
    (folder / file).write_text(text)
    assert url_and_source() == (URL, source.format(folder))


def test_prefects_ephemeral_profile_names_no_server(folder: Path) -> None:
    (folder / "profiles.toml").write_text('active = "ephemeral"\n[profiles.ephemeral]\nPREFECT_SERVER_ALLOW_EPHEMERAL_MODE = "true"')
    assert url_and_source() == (None, "")


def test_settings_made_in_python_name_a_server(folder: Path) -> None:
    with temporary_settings({"api.url": URL}):
        assert configured_api_url() == URL
        assert url_source() == "Prefect's settings in this process"


def test_invalid_settings_are_reported_without_their_values(folder: Path) -> None:
    with pytest.raises(NoServerError, match="request_timeout: Input should be a valid number") as caught:
        in_a_new_process("PREFECT_API_REQUEST_TIMEOUT=hunter2")
    assert "hunter2" not in str(caught.value)


def in_a_new_process(*variables: str, home: Path | None = None) -> str:
    """Return the API URL that a new Python process finds, and its source. Raises its NoServerError."""
    code = (
        "import sys\n"
        "from plan_adapter.engine.connection import configured_api_url, url_source\n"
        "from plan_adapter.model.errors import NoServerError\n"
        "try: print(configured_api_url(), url_source() if 'prefect' in sys.modules else 'Prefect is not imported')\n"
        "except NoServerError as error: print('NoServerError', error)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= dict(variable.split("=", 1) for variable in variables)
    environment |= {"HOME": str(home)} if home is not None else {}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    if done.stdout.startswith("NoServerError "):
        raise NoServerError(done.stdout.removeprefix("NoServerError ").strip())
    return done.stdout.strip()


def test_prefect_is_not_imported_if_no_setting_could_name_a_server(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.other]\nname = "no settings of Prefect"')
    (folder / ".env").write_text("COLOUR=blue")
    assert in_a_new_process(home=folder) == "None Prefect is not imported"


def test_a_profile_in_the_users_home_is_found(folder: Path) -> None:
    (folder / ".prefect").mkdir()
    (folder / ".prefect" / "profiles.toml").write_text(f'active = "team"\n[profiles.team]\nPREFECT_API_URL = "{URL}"')
    assert in_a_new_process(home=folder) == f"{URL} Prefect's profile `team` in {folder}/.prefect/profiles.toml"


def test_a_process_with_a_flow_run_id_runs_under_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_flow_run_process()
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0d8ad9c5-0000-0000-0000-000000000000")
    assert in_flow_run_process()


# Servers named by the settings.


def server_error() -> str:
    with pytest.raises(NoServerError) as caught:
        check_server()
    return str(caught.value)


def test_a_server_that_answers_is_used(prefect_server: Server) -> None:
    assert check_server() == Server(api_url=prefect_server.api_url, ui_url=prefect_server.ui_url)


def test_an_unreachable_server_is_reported_with_its_url_and_source_but_no_password() -> None:
    with temporary_settings({"api.url": "http://ana:s3cret@127.0.0.1:1/api?token=s3cret"}):
        message = server_error()
    assert message.startswith("the Prefect server http://127.0.0.1:1/api cannot be used: ConnectError")
    assert "Its URL comes from Prefect's settings in this process; no other server is started instead." in message
    assert "--offline" in message
    assert "s3cret" not in message


def test_a_url_that_is_not_a_prefect_api_is_reported(prefect_server: Server) -> None:
    with temporary_settings({"api.url": prefect_server.ui_url}):
        assert "it is not a Prefect API (HTTP 404); the URL of a Prefect API usually ends with /api" in server_error()


@pytest.fixture
def gateway(prefect_server: Server) -> Iterator[Gateway]:
    """A gateway in front of the server that requires credentials."""
    with Gateway(prefect_server.api_url) as proxy:
        yield proxy


def test_wrong_credentials_are_reported_with_the_names_of_their_settings(gateway: Gateway) -> None:
    with temporary_settings({"api.url": gateway.url, "api.auth_string": "ana:s3cret"}):
        message = server_error()
    assert "it refuses the credentials (HTTP 401): PREFECT_API_AUTH_STRING or PREFECT_API_KEY is missing or wrong" in message
    assert "s3cret" not in message


@pytest.mark.parametrize("settings", [{"api.auth_string": "ana:pw"}, {"client.custom_headers": {"X-Gate": "open"}}], ids=["auth", "header"])
def test_the_credentials_in_the_settings_are_used(gateway: Gateway, settings: dict[str, object]) -> None:
    with temporary_settings({"api.url": gateway.url, **settings}):
        assert check_server().api_url == gateway.url


def test_the_certificate_in_the_settings_is_used(prefect_server: Server, tmp_path: Path) -> None:
    certificate = self_signed(tmp_path / "gate.pem")
    with Gateway(prefect_server.api_url, certificate=certificate) as proxy:
        settings = {"api.url": proxy.url, "api.auth_string": "ana:pw"}
        with temporary_settings(settings):
            assert "certificate verify failed" in server_error()
        with temporary_settings({**settings, "api.ssl_cert_file": str(certificate)}):
            assert check_server().api_url == proxy.url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://ana:pw@prefect.example/api?key=1#x", "https://prefect.example/api"),
        ("http://127.0.0.1:4200/api", "http://127.0.0.1:4200/api"),
        ("http://[::1]:4200/api", "http://[::1]:4200/api"),
    ],
)
def test_a_url_is_shown_without_credentials(url: str, shown: str) -> None:
    assert url_without_credentials(url) == shown


# Using a server.


def test_the_local_server_is_used_without_the_credentials_of_another_server(tmp_path: Path) -> None:
    local = Server(api_url="http://127.0.0.1:2/api", ui_url="http://127.0.0.1:2", log_path=tmp_path / "log", pid=1)
    others = {"api.key": "pnu_s3cret", "api.auth_string": "ana:s3cret", "client.custom_headers": {"X-Gate": "open"}}
    with temporary_settings({**others, "server.ephemeral.enabled": True}):
        with use_server(local):
            settings = get_current_settings()
            assert (settings.api.url, settings.ui_url) == (local.api_url, local.ui_url)
            assert (settings.api.key, settings.api.auth_string, settings.client.custom_headers) == (None, None, {})
            assert not settings.server.ephemeral.enabled
        assert get_current_settings().server.ephemeral.enabled


def test_a_configured_server_is_used_with_its_url_and_credentials() -> None:
    with (
        temporary_settings({"api.url": "http://ana:pw@prefect.example/api", "api.auth_string": "ana:pw"}),
        use_server(Server(api_url="http://prefect.example/api", ui_url=None)),
    ):
        settings = get_current_settings()
        assert settings.api.url == "http://ana:pw@prefect.example/api"
        assert settings.api.auth_string is not None
        assert not settings.server.ephemeral.enabled


def test_loopback_bypasses_the_proxy_while_the_local_server_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = Server(api_url="http://127.0.0.1:2/api", ui_url="http://127.0.0.1:2", log_path=tmp_path / "log")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "intranet.example")
    with use_server(local):
        assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == "intranet.example,127.0.0.1"
    assert os.environ["no_proxy"] == "intranet.example"
    assert "NO_PROXY" not in os.environ


@pytest.fixture
def console() -> Iterator[Callable[[], str]]:
    """Return a function that reads what Prefect's console handler on the root logger got."""
    import io

    from prefect.logging.handlers import PrefectConsoleHandler

    stream = io.StringIO()
    handler = PrefectConsoleHandler(stream=stream)
    logging.getLogger().addHandler(handler)
    yield stream.getvalue
    logging.getLogger().removeHandler(handler)


def test_only_prefects_log_lines_are_kept_off_the_console(console: Callable[[], str]) -> None:
    with use_server(Server(api_url=URL, ui_url=None)):
        logging.getLogger("prefect.engine").error("Finished in state Failed()")
        logging.getLogger("somebody").error("mine")
    logging.getLogger("prefect.engine").error("after")
    assert [word for word in ("Finished", "mine", "after") if word in console()] == ["mine", "after"]


def test_prefects_log_lines_are_shown_if_its_logging_level_is_set(console: Callable[[], str]) -> None:
    with temporary_settings({"logging.level": "DEBUG"}), use_server(Server(api_url=URL, ui_url=None)):
        logging.getLogger("prefect.engine").error("Finished in state Failed()")
    assert "Finished" in console()


# Links.


def test_run_links_of_the_local_server_open_the_newer_ui(tmp_path: Path) -> None:
    local = Server(api_url="http://127.0.0.1:2/api", ui_url="http://127.0.0.1:2", log_path=tmp_path / "log")
    assert local.run_url("0d8a") == "http://127.0.0.1:2/v2/runs/flow-run/0d8a"
    assert Server(api_url="https://p.example/api", ui_url=None).run_url("0d8a") is None


def test_run_links_of_another_server_open_the_newer_ui_if_it_has_one(prefect_server: Server) -> None:
    here = prefect_server.ui_url
    assert Server(api_url=prefect_server.api_url, ui_url=here).run_url("0d8a") == f"{here}/v2/runs/flow-run/0d8a"
    assert Server(api_url=prefect_server.api_url, ui_url=f"{here}/api").run_url("0d8a") == f"{here}/api/runs/flow-run/0d8a"
    away = "http://127.0.0.1:9"
    assert Server(api_url=f"{away}/api", ui_url=away).run_url("0d8a") == f"{away}/runs/flow-run/0d8a"
    cloud = "https://app.prefect.cloud/account/1/workspace/2"
    assert Server(api_url="https://api.prefect.cloud/api", ui_url=cloud).run_url("0d8a") == f"{cloud}/runs/flow-run/0d8a"


def test_a_loopback_link_over_ssh_comes_with_a_port_forward_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "mallory")
    monkeypatch.setenv("SSH_CONNECTION", "198.51.100.7 50022 192.0.2.9 22")
    forward = f"from your own machine, first: ssh -N -L 4711:127.0.0.1:4711 {os_user()}@192.0.2.9"
    assert ui_hint("http://127.0.0.1:4711/v2/runs") == ["http://127.0.0.1:4711/v2/runs", forward]
    monkeypatch.setenv("SSH_CONNECTION", "198.51.100.7 50022 192.0.2.9 2222")
    assert ui_hint("http://127.0.0.1:4711/")[1].endswith(f"4711:127.0.0.1:4711 -p 2222 {os_user()}@192.0.2.9")
    assert ui_hint("https://prefect.example/runs") == ["https://prefect.example/runs"]


def test_a_link_without_ssh_has_no_port_forward_command() -> None:
    assert ui_hint("http://127.0.0.1:4711/") == ["http://127.0.0.1:4711/"]
