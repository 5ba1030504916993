"""Finds out whether a Prefect server requires authentication."""

import ssl
from uuid import UUID

from plan_adapter.engine.connection import quiet_import, url_without_credentials

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
