"""The checks behind `plan doctor`: what a run needs, whether it is in order, and how to fix it."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from plan_adapter.engine.connection import (
    configured_api_url,
    demands_authentication,
    in_flow_run_process,
    server_version,
    ui_hint,
    url_source,
)
from plan_adapter.engine.local_server import configured_server, server_status
from plan_adapter.engine.server_state import ServerFolder, login_hint
from plan_adapter.local.private_files import UnsafePathError, check_folder
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NoServerError

DISTRIBUTION = "prefect-plan-adapter"
FREE_BYTES = 200_000_000

TESTED_PREFECT = ("3.8.8", "3.9.0", "3.9.1")
"""The versions of Prefect that `make matrix` tests, each as client with each as server."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `hint` says how to fix a problem, or adds information to a good result."""

    ok: bool
    what: str
    hint: str = ""
    is_unavailable: bool = False  # the store or the Prefect server cannot be used


def diagnose(settings: Settings, *, checks: Iterable[Callable[[], Finding]] = ()) -> list[Finding]:
    """Return every finding, including good ones. Nothing is started or changed. `checks` are further checks, such as that of the store."""
    return [*_check_versions(), _check_home(settings), *(check() for check in checks), *_check_server(settings)]


def _check_versions() -> Iterator[Finding]:
    """Compare the installed versions with those that this package declares."""
    from packaging.requirements import Requirement

    yield Finding(ok=True, what=f"Python {platform.python_version()} ({sys.executable})")
    try:
        declared = [Requirement(text) for text in importlib.metadata.requires(DISTRIBUTION) or ()]
    except importlib.metadata.PackageNotFoundError:
        yield Finding(
            ok=False,
            what=f"{DISTRIBUTION} is not installed",
            hint="install it into this Python, so that its dependencies have the right versions",
        )
        return
    yield Finding(ok=True, what=f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}")
    for requirement in declared:
        if requirement.name in ("prefect", "fastapi"):
            installed = importlib.metadata.version(requirement.name)
            is_supported = requirement.specifier.contains(installed, prereleases=True)
            hint = "" if is_supported else f"Prefect's server may not start or may refuse requests with it: pip install '{requirement}'"
            yield Finding(ok=is_supported, what=f"{requirement.name} {installed}", hint=hint)


def _check_home(settings: Settings) -> Finding:
    """Check that the home is writable and has free space."""
    home = settings.home.expanduser().absolute()
    try:
        check_folder(home)
    except UnsafePathError as error:
        return Finding(ok=False, what=f"home {home} is not safe", hint=error.strerror or "")
    except OSError as error:
        return Finding(ok=False, what=f"home {home} cannot be used: {error.strerror}", hint="set PLAN_ADAPTER_HOME to a writable folder")
    existing = next(path for path in (home, *home.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Finding(ok=False, what=f"home {home} cannot be written", hint="set PLAN_ADAPTER_HOME to a writable folder")
    free = shutil.disk_usage(existing).free
    what = f"home {home}, {free / 1e9:.1f} GB free"
    return Finding(ok=free >= FREE_BYTES, what=what, hint="" if free >= FREE_BYTES else "free some disk space")


def _check_server(settings: Settings) -> Iterator[Finding]:
    """Report which server is configured, whether it answers, and how to reach its UI."""
    try:
        configured = configured_api_url() is not None
        if configured:
            server = configured_server(settings)
            yield Finding(ok=True, what=f"Prefect server {server.api_url} answers (set by {url_source()})")
            yield _compare_versions(server_version())
            yield _check_authentication(server.api_url)
        else:
            yield from _check_local_server(settings)
    except NoServerError as error:
        yield Finding(ok=False, what=str(error), is_unavailable=True)


def _compare_versions(server: str | None) -> Finding:
    """Report whether this Prefect is tested with a server of that version."""
    client = importlib.metadata.version("prefect")
    pair = f"Prefect {client} here, {server or 'an unknown version'} on the server"
    if client in TESTED_PREFECT and server in TESTED_PREFECT:
        return Finding(ok=True, what=f"{pair}: this pair is tested")
    hint = f"tested are {', '.join(TESTED_PREFECT)}, each with each; `plan gates` says if a form is missing in Prefect's UI"
    return Finding(ok=True, what=f"{pair}: this pair is not tested", hint=hint)


def _check_authentication(api_url: str) -> Finding:
    """Report whether people must sign in to the server before they can read and answer forms."""
    is_demanded = demands_authentication(api_url)
    if is_demanded:
        return Finding(ok=True, what="the Prefect server demands authentication")
    unknown = "it is not known whether the Prefect server demands authentication"
    what = "the Prefect server demands no authentication" if is_demanded is False else unknown
    hint = (
        "anyone who can reach it can answer gates under any name: a form proves nobody's identity, and one-time codes are accepted only by "
        "`plan approve RUN --code`; require ssh_signature, totp or os_user in `known_by`"
    )
    return Finding(ok=True, what=what, hint=hint)


def _check_local_server(settings: Settings) -> Iterator[Finding]:
    status = server_status(settings)
    if status.state == "none":
        if settings.local_server == "never" or in_flow_run_process():
            what = "Prefect's settings name no API URL, and a local server may not be started"
            yield Finding(ok=False, what=what, hint="set PREFECT_API_URL, or run with --offline", is_unavailable=True)
        else:
            yield Finding(ok=True, what="no API URL is set: a local Prefect server is started when a run needs one")
        return
    what = f"local Prefect server {status.prefect_version}, process {status.pid}, {status.ui_url}"
    if status.state == "healthy":
        login = [login_hint(status.password_file)] if status.password_file is not None else []
        yield Finding(ok=True, what=f"{what} answers; log: {status.log_path}", hint="; ".join([*login, *ui_hint(status.ui_url or "")[1:]]))
        yield _compare_versions(status.prefect_version)
        yield _check_authentication(status.api_url or "")
    else:
        hint = f"`plan down`, then run again; log: {status.log_path}{ServerFolder(status.log_path.parent).log_tail()}"
        yield Finding(ok=False, what=f"{what} does not answer", hint=hint, is_unavailable=True)
