"""A Prefect server that is there already: for commands that read or answer, and start none."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plan_adapter.engine.connection import Server
    from plan_adapter.settings import Settings


def answering_server(settings: "Settings") -> "Server | None":
    """Return the server that Prefect's settings name, else the local one if it runs; starts none. Raises NoServerError."""
    from plan_adapter.engine.connection import Server, check_server, configured_api_url
    from plan_adapter.engine.local_server import server_status

    if configured_api_url() is not None:
        return check_server()
    status = server_status(settings)
    if status.state != "healthy" or status.api_url is None:
        return None
    return Server(api_url=status.api_url, ui_url=status.ui_url, log_path=status.log_path, pid=status.pid)


def known_server(settings: "Settings") -> "Server | None":
    """Return the server whose pages can be named without asking it anything and without importing Prefect; None where that takes more."""
    import os

    from plan_adapter.engine.connection import Server, without_credentials
    from plan_adapter.engine.local_server import server_status

    if url := os.environ.get("PREFECT_API_URL"):
        ui = os.environ.get("PREFECT_UI_URL") or url.rstrip("/").removesuffix("/api")
        return Server(api_url=without_credentials(url), ui_url=without_credentials(ui))
    status = server_status(settings)
    if status.api_url is None:
        return None
    return Server(api_url=status.api_url, ui_url=status.ui_url, log_path=status.log_path, pid=status.pid)


def has_only_the_api(settings: "Settings") -> bool:
    """Return whether the store is only the default one of this machine, while Prefect's settings name a server."""
    from plan_adapter.engine.connection import configured_api_url

    return settings.database_url is None and configured_api_url() is not None
