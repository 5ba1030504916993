"""Which Prefect server Prefect's settings name, how to log in to it, whether it answers, and how to make this process use it."""

import contextlib
import logging
import os
import re
import socket
import ssl
import sys
import tomllib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import BaseModel, SecretStr

from plan_adapter.gates.approval import os_user
from plan_adapter.model.errors import NoServerError

Model = TypeVar("Model", bound=BaseModel)

log = logging.getLogger(__name__)

ANSWER_SECONDS = 15.0
UI_SECONDS = 2.0
"""How long a UI may take to report the paths of its pages while a link is built."""

_urls_without_csrf: set[str] = set()
"""API URLs of servers that have reported to this process that they use no CSRF tokens."""


@dataclass(frozen=True, slots=True)
class Server:
    """A Prefect server that answered. `log_path` and `pid` are None for a server that Prefect's settings name."""

    api_url: str
    ui_url: str | None
    started: bool = False
    log_path: Path | None = None
    pid: int | None = None
    password: str | None = field(default=None, repr=False)
    """The password of the local server. For any other server, Prefect's settings hold the credentials."""
    password_file: Path | None = None
    """The file that holds the password of the local server, as `PREFECT_API_AUTH_STRING` expects it."""

    @property
    def is_local(self) -> bool:
        """Whether this is the local server that this package starts."""
        return self.log_path is not None

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the server's address is one of this machine's. May look the name up."""
        return self.is_local or _is_own_address(urlsplit(self.api_url).hostname or "")

    def run_url(self, flow_run_id: UUID | str) -> str | None:
        """Return the URL of a flow run's page, or None if the UI's address is unknown."""
        return self._page_url(f"runs/flow-run/{flow_run_id}")

    def artifact_url(self, artifact_id: UUID | str) -> str | None:
        """Return the URL of an artifact's page, or None if the UI's address is unknown."""
        return self._page_url(f"artifacts/artifact/{artifact_id}")

    def deployment_url(self, deployment_id: UUID | str) -> str | None:
        """Return the URL of a deployment's page, or None if the UI's address is unknown."""
        return self._page_url(f"deployments/deployment/{deployment_id}")

    def form_url(self, deployment_id: str) -> str | None:
        """Return the URL of the form that starts a run of a deployment, or None if the UI's address is unknown."""
        return None if self.ui_url is None else f"{self.ui_url}/deployments/deployment/{deployment_id}/run"

    def _page_url(self, path: str) -> str | None:
        if self.ui_url is None:
            return None
        # Prefect's newer UI renders Mermaid and tables in forms. A deep link without /v2 opens the older UI.
        newer = "/v2" if self.is_local else _newer_ui(self.ui_url)
        return f"{self.ui_url}{newer}/{path}"


def configured_api_url() -> str | None:
    """Return the API URL of Prefect's settings, or None if none is set.

    Prefect reads environment, .env, prefect.toml, pyproject.toml, profile and context. Importing Prefect takes about a second, so it is
    imported only if one of these places exists.
    """
    if "prefect" not in sys.modules and not _may_be_configured():
        return None
    try:
        with quiet_import():
            from prefect.settings import get_current_settings
        return get_current_settings().api.url or None
    except (ValueError, OSError) as error:
        raise NoServerError(f"Prefect's settings cannot be read: {_describe_settings_error(error)}") from error


def in_flow_run_process() -> bool:
    """Whether a Prefect worker or runner started this process to execute a flow run."""
    return bool(os.environ.get("PREFECT__FLOW_RUN_ID"))


def current_server() -> Server:
    """Return the server that this process's Prefect settings name, without contacting it."""
    from prefect.settings import get_current_settings

    settings = get_current_settings()
    return Server(
        api_url=url_without_credentials(settings.api.url or ""),
        ui_url=url_without_credentials(settings.ui_url) if settings.ui_url else None,
    )


def check_server() -> Server:
    """Return the server that Prefect's settings name, after it has answered a request that needs credentials.

    The request uses Prefect's own client, so auth string, API key, headers and TLS settings apply. Raises NoServerError.
    """
    with quiet_import():
        from prefect.client.orchestration import get_client
        from prefect.settings import get_current_settings
    settings = get_current_settings()
    if not settings.api.url:
        raise NoServerError("Prefect's settings name no API URL")
    no_retries = {"client.max_retries": 0, "server.ephemeral.enabled": False}
    try:
        with (
            override_settings(no_retries),
            get_client({"timeout": ANSWER_SECONDS}, sync_client=True) as client,
            remember_csrf_support(client),
        ):
            # /health answers without credentials.
            client.read_flows(limit=1)
            client.raise_for_api_version_mismatch_once()
    except Exception as error:
        raise NoServerError(
            f"the Prefect server {url_without_credentials(settings.api.url)} cannot be used: {_describe_error(error)}. "
            f"Its URL comes from {url_source()}; no other server is started instead. "
            "Fix it, unset it to get a local server, or run without one: `--offline` (`offline=True` in Python)."
        ) from error
    return current_server()


def server_version() -> str | None:
    """Return which version of Prefect the server of Prefect's settings runs, or None if it does not say."""
    from prefect.client.orchestration import get_client

    try:
        with override_settings({"client.max_retries": 0}), get_client({"timeout": ANSWER_SECONDS}, sync_client=True) as client:
            return client.api_version()
    except Exception as error:
        log.info("the Prefect server does not say its version: %s", _describe_error(error))
        return None


@contextlib.contextmanager
def remember_csrf_support(client: object) -> Generator[None]:
    """Stop Prefect's `client` from asking for a CSRF token if its server said earlier that it uses none.

    A new client asks before its first write, and every run creates new clients.
    """
    http = getattr(client, "_client", None)
    url, was_enabled = str(getattr(http, "base_url", "")), bool(getattr(http, "enable_csrf_support", False))
    if http is not None and url in _urls_without_csrf:
        http.enable_csrf_support = False
    try:
        yield
    except Exception as error:
        if getattr(getattr(error, "response", None), "status_code", None) == 403:  # the server may have started to use tokens
            _urls_without_csrf.discard(url)
        raise
    if was_enabled and not getattr(http, "enable_csrf_support", True):
        _urls_without_csrf.add(url)


@contextlib.contextmanager
def use_server(server: Server, *, quiet: bool = True) -> Generator[Server]:
    """Make Prefect use `server` in this context, and never its ephemeral server.

    Settings are context variables: copy the context into threads. With `quiet`, Prefect's log lines stay off the console unless its logging
    level was set explicitly; they still go to the API.
    """
    from prefect.settings import get_current_settings

    updates: dict[str, object] = {"server.ephemeral.enabled": False}
    if server.is_local:
        # The local server must not receive the credentials of another server.
        password = None if server.password is None else SecretStr(server.password)
        updates |= {"api.url": server.api_url, "ui_url": server.ui_url}
        updates |= {"api.key": None, "api.auth_string": password, "client.custom_headers": dict[str, str]()}
    wants_logs = "level" in get_current_settings().logging.model_fields_set
    with contextlib.ExitStack() as stack:
        stack.enter_context(override_settings(updates))
        if server.is_local:
            stack.enter_context(_bypass_proxy_for_loopback())
        if quiet and not wants_logs:
            stack.enter_context(_silence_console())
        yield server


@contextlib.contextmanager
def override_settings(updates: Mapping[str, object]) -> Generator[None]:
    """Change Prefect's settings in this context.

    `updates` maps paths, such as "api.url", to values of the settings' own types. This takes microseconds. Prefect's `temporary_settings`
    takes 50 ms because it reads and validates every setting again.
    """
    from prefect.context import SettingsContext, get_settings_context

    current = get_settings_context()
    settings = current.settings
    for path, value in updates.items():
        settings = _with_setting(settings, path.split("."), value)
    with SettingsContext(profile=current.profile, settings=settings):
        yield


def _with_setting(settings: Model, path: Sequence[str], value: object) -> Model:
    name, *rest = path
    return settings.model_copy(update={name: _with_setting(getattr(settings, name), rest, value) if rest else value})


@contextlib.contextmanager
def quiet_import() -> Generator[None]:
    """Keep `import prefect` from printing its notice about usage data and from sending any."""
    if "prefect" in sys.modules or "DO_NOT_TRACK" in os.environ:
        yield
        return
    os.environ["DO_NOT_TRACK"] = "1"
    try:
        yield
    finally:
        del os.environ["DO_NOT_TRACK"]


def ui_hint(url: str) -> list[str]:
    """Return the lines that help a person open `url`.

    They are the URL and, for a loopback URL in an SSH session, the port-forwarding command.
    """
    parts = urlsplit(url)
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if parts.hostname not in ("127.0.0.1", "localhost", "::1") or len(connection) != 4:
        return [url]
    host, port = connection[2], connection[3]
    other_port = "" if port == "22" else f" -p {port}"
    return [url, f"from your own machine, first: ssh -N -L {parts.port}:127.0.0.1:{parts.port}{other_port} {os_user()}@{host}"]


def url_without_credentials(url: str) -> str:
    """Return `url` without user, password, query and fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl()


def describe_server_error(error: BaseException | None) -> str | None:
    """Return what is wrong with the server, without URLs or headers, or None if `error` does not come from a request to it."""
    while error is not None and type(error).__module__.partition(".")[0] not in ("httpx", "prefect"):
        error = error.__cause__
    return None if error is None else _describe_error(error)


def url_source() -> str:
    """Return a phrase that says which setting the API URL comes from."""
    from prefect.context import get_settings_context

    context = get_settings_context()
    url = context.settings.api.url
    if any(name.upper() == "PREFECT_API_URL" and value == url for name, value in os.environ.items()):
        return "the environment variable PREFECT_API_URL"
    if url is not None and _read_text(Path(".env")).find(url) >= 0:
        return f"{Path('.env').absolute()}"
    if _read_toml_table(Path("prefect.toml"), "api").get("url") == url:
        return f"{Path('prefect.toml').absolute()}"
    if _read_toml_table(Path("pyproject.toml"), "tool", "prefect", "api").get("url") == url:
        return f"[tool.prefect] in {Path('pyproject.toml').absolute()}"
    profile = context.profile
    if any(setting.name == "PREFECT_API_URL" for setting in profile.settings):
        return f"Prefect's profile `{profile.name}` in {profile.source or context.settings.profiles_path}"
    return "Prefect's settings in this process"


@cache
def _newer_ui(ui_url: str) -> str:
    """Return the path of the newer UI below `ui_url`, as the UI reports it; empty if there is none or the UI does not say.

    The request is made once per process and without credentials. Prefect Cloud has only one UI and is not asked.
    """
    import httpx

    host = urlsplit(ui_url).hostname or ""
    if host == "prefect.cloud" or host.endswith(".prefect.cloud"):
        return ""
    try:
        settings: object = httpx.get(f"{ui_url}/ui-settings", timeout=UI_SECONDS).json()
    except (httpx.HTTPError, ValueError):
        return ""
    bases = cast("dict[str, object]", settings) if isinstance(settings, dict) else {}
    older, newer = bases.get("v1_base_url") or "", bases.get("v2_base_url") or ""
    if not isinstance(older, str) or not isinstance(newer, str):
        return ""
    path = newer.rstrip("/").removeprefix(older.rstrip("/"))
    return path if re.fullmatch(r"(/[\w.~-]+)*", path) else ""


def _is_own_address(host: str) -> bool:
    """Return whether a socket of this machine can have the address of `host`."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe, contextlib.suppress(OSError):
            probe.bind(address)
            return True
    return False


def is_set_by_environment() -> bool:
    """Return whether the API URL comes from the environment of this process, which other terminals may lack."""
    return any(name.upper() == "PREFECT_API_URL" and value for name, value in os.environ.items())


def _may_be_configured() -> bool:
    """Whether Prefect could take an API URL from anywhere. False is certain, True is not."""
    if any(name.upper().startswith("PREFECT_") for name in os.environ):
        return True
    if Path("prefect.toml").exists() or Path("~/.prefect/profiles.toml").expanduser().exists():
        return True
    return "prefect" in _read_text(Path(".env")).casefold() or bool(_read_toml_table(Path("pyproject.toml"), "tool", "prefect"))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_toml_table(path: Path, *keys: str) -> dict[str, object]:
    """Return the TOML table at `keys` of `path`, or an empty one if it is missing or the file is not TOML."""
    try:
        table: object = tomllib.loads(_read_text(path))
    except tomllib.TOMLDecodeError:
        return {}
    for key in keys:
        table = cast("dict[str, object]", table).get(key) if isinstance(table, dict) else None
    return cast("dict[str, object]", table) if isinstance(table, dict) else {}


def _describe_error(error: BaseException) -> str:
    """Return what went wrong, without URLs or headers."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"it refuses the credentials (HTTP {status}): PREFECT_API_AUTH_STRING or PREFECT_API_KEY is missing or wrong"
    if status in (404, 405):
        return f"it is not a Prefect API (HTTP {status}); the URL of a Prefect API usually ends with /api"
    if status is not None:
        return f"it answers with HTTP {status}"
    if isinstance(error, ValueError):
        return "it does not answer like a Prefect API"
    line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}" + (f": {line}" if line and "://" not in line and "@" not in line else "")


def _describe_settings_error(error: Exception) -> str:
    """Return the locations and messages of pydantic's errors without the values, which may be secrets."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}" for found in error.errors(include_input=False))
    return str(error)


class _NonPrefectFilter(logging.Filter):
    """Let only records through that do not come from Prefect's own loggers."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name != "prefect" and not record.name.startswith("prefect.")


@contextlib.contextmanager
def _silence_console() -> Generator[None]:
    """Keep Prefect's records out of its own console handlers. The user's handlers are left alone."""
    from prefect.logging.configuration import ensure_logging_setup
    from prefect.logging.handlers import PrefectConsoleHandler

    ensure_logging_setup()
    consoles = [handler for handler in logging.getLogger().handlers if isinstance(handler, PrefectConsoleHandler)]
    consoles += logging.getLogger("prefect._internal").handlers
    prefect_filter = _NonPrefectFilter()
    for handler in consoles:
        handler.addFilter(prefect_filter)
    try:
        yield
    finally:
        for handler in consoles:
            handler.removeFilter(prefect_filter)


@contextlib.contextmanager
def _bypass_proxy_for_loopback() -> Generator[None]:
    """Exempt loopback from a proxy that the environment names. Otherwise Prefect's client would send it requests for 127.0.0.1."""
    names = [name for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy") if os.environ.get(name)]
    before = {name: os.environ.get(name) for name in ("NO_PROXY", "no_proxy")}
    exempt = before["no_proxy"] or before["NO_PROXY"] or ""
    if not names or exempt == "*" or "127.0.0.1" in exempt.split(","):
        yield
        return
    for name in before:
        os.environ[name] = f"{exempt},127.0.0.1".lstrip(",")
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


ASK_SECONDS = 10.0

_known_answers = dict[str, bool]()  # by API URL; a server does not change its authentication while a process runs


def demands_authentication(api_url: str) -> bool | None:
    """Return whether the Prefect server at `api_url` refuses a request without credentials, or None if its answer is not clear.

    The server itself is asked: credentials in the client do not prove that the server requires them. A clear answer is cached for the
    process. Call it in a thread: it may take `ASK_SECONDS`.
    """
    url = url_without_credentials(api_url).rstrip("/")
    if (known := _known_answers.get(url)) is not None:
        return known
    found = _request_without_credentials(url)
    if found is not None:
        _known_answers[url] = found
    return found


def _request_without_credentials(url: str) -> bool | None:
    import httpx

    # A flow run that does not exist: reading and answering a gate's form needs read access to flow runs.
    path = f"{url}/flow_runs/{UUID(int=0)}"
    is_local = httpx.URL(url).host in ("127.0.0.1", "::1", "localhost")
    try:
        with httpx.Client(verify=_tls_verification(), trust_env=not is_local, timeout=ASK_SECONDS) as client:
            status = client.get(path).status_code
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        return None
    if status in (401, 403) or 300 <= status < 400:  # a redirect leads to a login page
        return True
    return False if status < 300 or status == 404 else None


def _tls_verification() -> ssl.SSLContext | bool:
    """Return how Prefect's settings verify the server's certificate."""
    with quiet_import():
        from prefect.settings import get_current_settings
    api = get_current_settings().api
    if api.tls_insecure_skip_verify:
        return False
    return ssl.create_default_context(cafile=api.ssl_cert_file) if api.ssl_cert_file else True
