"""What every test stands on: an environment that leads nowhere, and one Prefect server for the whole session."""

import contextlib
import fcntl
import importlib.metadata
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from plan_adapter.engine.connection import Server, use_server
from plan_adapter.engine.local_server import ensure_server, stop_server
from plan_adapter.settings import Settings

FOREIGN = ("PREFECT_", "PLAN_ADAPTER_", "SSH_CONNECTION")


_before = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep every test and its subprocesses from the user's Prefect, server and store; Prefect reads its settings when it is imported."""
    config.stash[_before] = dict(os.environ)
    home = tempfile.mkdtemp(prefix="plan-tests-")
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    os.environ["PLAN_ADAPTER_HOME"] = f"{home}/plan_adapter"
    os.environ["PREFECT_HOME"] = f"{home}/prefect"
    os.environ["PREFECT_SERVER_EPHEMERAL_ENABLED"] = "false"
    os.environ["DO_NOT_TRACK"] = "1"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the environment as it was."""
    os.environ.clear()
    os.environ.update(config.stash[_before])


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Server]:
    """The session's Prefect server, started when the first test asks for it and shared by all workers of pytest-xdist.

    A test that asks for it finds Prefect's settings and the environment pointing at it.
    """
    shared = _folder_of_all_workers(tmp_path_factory)
    settings = Settings(home=shared / "prefect-server")
    with (shared / "prefect-server.users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        with _prefect_api_url(None), _migrated_before(settings.home / "server/prefect/prefect.db", pytestconfig):
            server = ensure_server(settings, notify=lambda _: None)
        yield server
        fcntl.flock(users, fcntl.LOCK_UN)
        with contextlib.suppress(BlockingIOError):  # another worker still uses it; the last one stops it
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _deliver_what_is_queued()
            stop_server(settings)


@pytest.fixture(autouse=True)
def _point_prefect_at_the_server(request: pytest.FixtureRequest) -> Iterator[None]:
    if "prefect_server" not in request.fixturenames:
        yield
        return
    server: Server = request.getfixturevalue("prefect_server")
    with _prefect_api_url(server.api_url), use_server(server, quiet=False):
        yield


@contextlib.contextmanager
def _migrated_before(database: Path, config: pytest.Config) -> Iterator[None]:
    """Give the server a database that an earlier session migrated and pytest's cache keeps: migrations are most of a first start."""
    kept = config.cache.mkdir(f"prefect-{importlib.metadata.version('prefect')}") / "prefect.db" if config.cache else None
    if kept is not None and kept.exists() and not database.exists():
        database.parent.mkdir(parents=True, exist_ok=True)
        draft = database.with_suffix(f".{os.getpid()}")  # several workers of pytest-xdist may do this at once
        shutil.copy(kept, draft)
        with contextlib.suppress(FileExistsError):
            os.link(draft, database)
        draft.unlink()
    yield
    if kept is not None and not kept.exists():
        draft = kept.with_suffix(f".{os.getpid()}")
        with contextlib.closing(sqlite3.connect(database)) as source, contextlib.closing(sqlite3.connect(draft)) as copy:
            source.backup(copy)
        draft.replace(kept)


def _deliver_what_is_queued() -> None:
    """Empty Prefect's queues of events and logs: with the server gone, the process would try for a minute at its exit."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for queue in (EventsWorker, APILogWorker):
        queue.drain_all(timeout=10)


def _folder_of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextlib.contextmanager
def _prefect_api_url(url: str | None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if url is None:
            patch.delenv("PREFECT_API_URL", raising=False)
        else:
            patch.setenv("PREFECT_API_URL", url)
        yield
