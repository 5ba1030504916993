"""Isolates all tests from the user's environment, and provides one Prefect server per session."""

import contextlib
import fcntl
import functools
import gc
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import certifi
import hypothesis
import pytest
from sqlalchemy import Connection, Dialect, Engine, event
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from plan_adapter.cli.app import GARBAGE_THRESHOLDS
from plan_adapter.engine.connection import Server, override_settings, use_server
from plan_adapter.engine.local_server import ensure_server, stop_server
from plan_adapter.local.private_files import make_folder
from plan_adapter.local.settings import Settings
from tests import installed
from tests.guide.typist import Typist
from tests.postgres import migrated, postgres_database, postgres_server
from tests.ssh import ssh_server
from tests.store.conftest import migrated_file

__all__ = ["migrated", "migrated_file", "postgres_database", "postgres_server", "ssh_server"]

FOREIGN = ("PREFECT_", "PLAN_ADAPTER_", "SSH_CONNECTION")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--installed", metavar="FOLDER", help="type the commands of the virtual environment in this folder, where tests can")
    parser.addoption("--prefect-server", metavar="URL", help="test with the Prefect server that has this API URL, not with an own one")


_before = pytest.StashKey[dict[str, str]]()


def _one_authority(folder: Path) -> str:
    """Write a file with one certificate authority. Each HTTP client reads all of them, which takes it 40 ms, and no test needs one."""
    file, end = folder / "authority.pem", "-----END CERTIFICATE-----"
    file.write_text(certifi.contents().partition(end)[0] + end, encoding="ascii")
    return str(file)


def pytest_configure(config: pytest.Config) -> None:
    """Isolate tests and their subprocesses from the user's Prefect, server and store. Prefect reads its settings on import."""
    if environment := config.getoption("--installed"):
        installed.folder = Path(environment).absolute() / "bin"
    gc.disable()  # until the end of the collection, which creates little garbage
    config.stash[_before] = dict(os.environ)
    home = tempfile.mkdtemp(prefix="plan-tests-")
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    os.environ["PLAN_ADAPTER_HOME"] = f"{home}/plan_adapter"
    os.environ["PLAN_ADAPTER_LOCAL_SERVER_AUTH"] = "off"  # otherwise it depends on the accounts of the machine
    os.environ["PREFECT_HOME"] = f"{home}/prefect"
    os.environ["PREFECT_SERVER_EPHEMERAL_ENABLED"] = "false"
    os.environ["DO_NOT_TRACK"] = "1"
    os.environ["SSL_CERT_FILE"] = _one_authority(Path(home))


def pytest_collection_finish() -> None:
    """Exclude imported modules and collected tests from garbage collections, because they stay until the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _unignore_signals() -> None:
    """Let subprocesses of tests receive SIGINT and SIGHUP, even if the tests run in the background or under `nohup`.

    Subprocesses inherit ignored signals, but not handlers.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(autouse=True)
def _keep_sys_path() -> Iterator[None]:
    """Restore `sys.path` after the test, because the command line adds its working folder."""
    before = sys.path.copy()
    yield
    sys.path[:] = before


def pytest_unconfigure(config: pytest.Config) -> None:
    """Restore the environment."""
    os.environ.clear()
    os.environ.update(config.stash[_before])


_dialects: dict[tuple[str, str], Dialect] = {}
_statements: dict[object, object] = {}


@event.listens_for(Engine, "engine_connect")
def _compile_each_statement_once(connection: Connection) -> None:
    """Share compiled statements between the engines of this process, because almost every test opens its own store."""
    dialect = connection.dialect
    connection.dialect = _dialects.setdefault((dialect.name, dialect.driver), dialect)  # Prefect uses another driver for SQLite
    connection.execution_options(compiled_cache=_statements)


_entry_points = importlib.metadata.entry_points


_path = frozenset(sys.path)


@functools.cache
def _entry_points_on(_folders: tuple[str, ...], **which: str) -> importlib.metadata.EntryPoints:
    return _entry_points(**which)


def _read_entry_points_once(**which: str) -> importlib.metadata.EntryPoints:
    """Read the entry points of installed packages once, instead of in every test that looks up tools or secrets.

    The command line adds the working folder of a test to `sys.path`. It matters only if a package is installed in it. This replaces
    `metadata.entry_points`, so modules have to call it by this name.
    """
    folders = tuple(folder for folder in sys.path if folder in _path or any(Path(folder).glob("*-info")))
    return _entry_points_on(folders, **which)


importlib.metadata.entry_points = _read_entry_points_once

# Each run draws new examples. Tests that need more set `max_examples`.
hypothesis.settings.register_profile("tests", max_examples=25, deadline=None)
hypothesis.settings.load_profile("tests")


PrepareServer = Callable[[Path], None]


LINES = (
    ("tests/browser/", "tests/cli/test_with_server.py", "tests/cli/test_gates_with_server.py", "tests/gates/test_with_server.py"),
    ("tests/deployments/", "tests/secrets/test_with_prefect.py", "tests/gates/test_outcomes_with_server.py"),
    ("tests/engine/test_local_server", "tests/test_readme.py", "tests/runs/"),
    # They set up automations of the server.
    (
        *("tests/engine/test_notifications.py", "tests/cli/test_examples_on_server.py", "tests/cli/test_triggers.py"),
        "tests/desk/test_webhooks_with_server.py",
    ),
)
"""Files whose tests load a server or wait for one. The files of a line run in one process, before all other tests. The first two lines
share a server, because a server on SQLite cannot serve more."""


LONG = ("tests/tools/test_ssh.py", "tests/desk/", "tests/agentdojo/", "tests/faults/", "tests/cli/test_examples.py", "tests/rehearsal/")
"""Files that take long. They run before the others."""


def line_of(nodeid: str) -> tuple[int, str]:
    """Return the group of the test `nodeid`, whose tests share a process: its line of LINES, or its file."""
    file = nodeid.partition("::")[0]
    line = next((number for number, names in enumerate(LINES) if file.startswith(names)), len(LINES))
    return line, "" if line < len(LINES) else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files in LINES first, then those in LONG. If one started last, all other processes would wait for it."""
    items.sort(key=lambda item: (line_of(item.nodeid)[0], not item.nodeid.startswith(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Distribute the tests by LINES."""

    class Lines(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return str(line_of(nodeid))

    return Lines(config, log)


@pytest.fixture(scope="session")
def prepare_server(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> PrepareServer:
    """A function that gives a new server a migrated database. Migrations take three quarters of a first start."""
    kept = f"prefect-{importlib.metadata.version('prefect')}.db"
    cache = getattr(pytestconfig, "cache", None)  # None without the cache plugin
    folder = cache.mkdir("prefect") if cache else _folder_of_all_workers(tmp_path_factory)

    def prepare(home: Path) -> None:
        database = home / "server/prefect/prefect.db"
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / kept).exists():
                _migrate(folder / f"{kept}.draft")
                (folder / f"{kept}.draft").replace(folder / kept)
            if not database.exists():  # several workers of pytest-xdist share one home
                make_folder(home)
                make_folder(database.parent)
                shutil.copy(folder / kept, database)
                database.chmod(0o600)

    return prepare


@pytest.fixture
def typist(tmp_path: Path, prepare_server: PrepareServer) -> Iterator[Typist]:
    """Someone with an empty home. Servers start faster, because their databases are there."""
    found = Typist(tmp_path)
    prepare_server(tmp_path / "home")
    (tmp_path / "prefect").mkdir()
    shutil.copy(tmp_path / "home/server/prefect/prefect.db", tmp_path / "prefect/prefect.db")
    yield found
    found.end()


def _migrate(database: Path) -> None:
    """Create a database file with the tables of Prefect's server."""
    database.unlink(missing_ok=True)
    environment = {**os.environ, "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}"}
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
    subprocess.run(command, env=environment, check=True, capture_output=True)


@pytest.fixture(scope="session")
def prefect_server(
    tmp_path_factory: pytest.TempPathFactory, prepare_server: PrepareServer, pytestconfig: pytest.Config
) -> Iterator[Server]:
    """The session's Prefect server, started on first use and shared by all workers of pytest-xdist, or that of `--prefect-server`.

    In tests that use it, Prefect's settings and the environment point to it.
    """
    if url := pytestconfig.getoption("--prefect-server"):
        yield Server(api_url=url, ui_url=url.removesuffix("/api"))
        return
    shared = _folder_of_all_workers(tmp_path_factory)
    settings = Settings(home=shared / "prefect-server")
    with (shared / "prefect-server.users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        with _prefect_api_url(None):
            prepare_server(settings.home)
            server = ensure_server(settings, notify=lambda _: None)
        yield server
        fcntl.flock(users, fcntl.LOCK_UN)
        with contextlib.suppress(BlockingIOError):  # another worker still uses it, and the last one stops it
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _flush_queues()
            stop_server(settings)


@pytest.fixture(autouse=True)
def _point_prefect_at_the_server(request: pytest.FixtureRequest) -> Iterator[None]:
    if "prefect_server" not in request.fixturenames:
        yield
        return
    server: Server = request.getfixturevalue("prefect_server")
    configured = {} if server.is_local else {"api.url": server.api_url, "ui_url": server.ui_url}
    with _prefect_api_url(server.api_url), override_settings(configured), use_server(server, quiet=False):
        yield


def _flush_queues() -> None:
    """Empty Prefect's queues of events and logs. Otherwise the process would try to send them for a minute on exit."""
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
