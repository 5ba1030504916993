"""`make matrix`: all tests with each Python at hand and several versions of Prefect, and those of gates with each client and server.

    python -m tests.matrix [NAME ...]

runs the cells whose names contain one of the NAMEs, by default all of them, and prints a table in Markdown. The environments and logs are
in `.matrix`. `make newest`, which CI runs after `make test`, is the cell `newest-packages`.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plan_adapter.engine.diagnosis import TESTED_PREFECT
from tests import postgres

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".matrix"
PYTHONS = ("3.11", "3.12", "3.13")
NEWEST_SQLALCHEMY = "sqlalchemy>=2.1"
"""Newer than pyproject.toml allows, which says why."""
SHOWN = ("prefect", "sqlalchemy", "fastapi", "pydantic", "openai")
START_SECONDS = 120.0

GATES = (
    "tests/browser/test_every_gate.py",
    "tests/engine/test_gate.py",
    "tests/engine/test_gate_forms.py",
    "tests/engine/test_gate_steps.py",
    "tests/gates/test_with_server.py",
    "tests/gates/test_outcomes_with_server.py",
)
"""The tests of forms, which each pair of client and server runs."""

NEWEST = "newest-packages"
TOUCHED_BY_PACKAGES = (
    *("tests/engine", "tests/store", "tests/agent", "tests/documents", "tests/gates", "tests/runs", "tests/deployments", "tests/browser"),
    *("tests/blocks", "tests/secrets", "tests/mcp", "tests/expressions", "tests/test_readme.py", "tests/test_public_api.py"),
    *("tests/cli/test_with_server.py", "tests/cli/test_gates_with_server.py", "tests/cli/test_deploy.py", "tests/cli/test_on_server.py"),
)
"""The tests that touch Prefect, the store, the model client and the readers."""

CARRYING = {
    *("prefect", "fastapi", "starlette", "uvicorn", "pydantic", "pydantic-core", "pydantic-settings", "sqlalchemy", "alembic", "aiosqlite"),
    *("asyncpg", "anyio", "httpx", "httpx2", "openai", "mcp", "cel-expr-python", "cyclopts", "rich", "pyyaml", "griffe", "dask"),
}
"""Packages whose new versions need all tests that touch packages. Any other only needs `OVERVIEW`."""

OVERVIEW = ("tests/fundamentals", "tests/test_public_api.py", "tests/gates/test_with_server.py")
"""The tests that use each part of this package once."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with this package: everything as new as pyproject.toml allows, but for `requirements`."""

    python: str
    requirements: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()  # installed against the limits of pyproject.toml

    @property
    def name(self) -> str:
        """The name of its folder."""
        return "-".join([self.python, *(re.sub(r"[^\w.]+", "-", text) for text in (*self.requirements, *self.forced))])

    @property
    def interpreter(self) -> Path:
        """Its Python."""
        return FOLDER / self.name / "bin" / "python"

    def make(self) -> None:
        """Create it, unless this process has already."""
        if self.name in _made:
            return
        self._begin()
        self.call(*INSTALL, *self._wanted)
        if self.forced:
            self.call(*INSTALL, "--upgrade", *self.forced)
        _made.add(self.name)

    def resolve(self) -> tuple[str, ...]:
        """Return the packages that `make` would install, as `name==version`, without installing them."""
        self._begin()
        report = FOLDER / f"{self.name}.json"
        self.call(*INSTALL, "--dry-run", "--report", str(report), *self._wanted)
        found = [package["metadata"] for package in json.loads(report.read_text(encoding="utf-8"))["install"]]
        return tuple(f"{package['name']}=={package['version']}".lower() for package in found if package["name"] != "prefect-plan-adapter")

    def _begin(self) -> None:
        shutil.rmtree(FOLDER / self.name, ignore_errors=True)
        subprocess.run([str(interpreters()[self.python]), "-m", "venv", str(FOLDER / self.name)], check=True)
        self.call(*INSTALL, "--upgrade", "pip>=25.1")  # it knows `--group`

    @property
    def _wanted(self) -> tuple[str, ...]:
        return ("--editable", f".[{','.join(extras())}]", "--group", "dev", *self.requirements)

    def call(self, *arguments: str) -> None:
        """Run its Python with these arguments."""
        subprocess.run([str(self.interpreter), *arguments], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)

    def packages(self) -> tuple[str, ...]:
        """Return the installed packages, as `name==version`."""
        command = [str(self.interpreter), "-m", "pip", "freeze", "--exclude-editable"]
        return tuple(subprocess.run(command, check=True, capture_output=True, text=True).stdout.lower().split())


INSTALL = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")

_made = set[str]()
_tested: "dict[tuple[object, ...], str]" = {}  # by what was run with which packages, the name of its cell


@dataclass
class Cell:
    """Tests to run in an environment, with a server of another environment if there is one."""

    name: str
    environment: Environment
    tests: Sequence[str] = ()
    options: Sequence[str] = ()
    server: Environment | None = None
    outcome: str = ""
    seconds: float = 0.0
    packages: tuple[str, ...] = ()
    is_passed: bool = field(default=False)

    def run(self) -> None:
        """Run the tests and keep the last line of pytest."""
        began = time.monotonic()
        log = FOLDER / "logs" / f"{self.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        if self.name == NEWEST:
            self.packages = self.environment.resolve()
            newer = {package.partition("==")[0] for package in {*self.packages} - {*_locked()}}
            if not newer:
                self.outcome, self.is_passed = "the same packages as requirements.lock, which `make test` tests", True
                return
            self.tests = TOUCHED_BY_PACKAGES if newer & CARRYING else OVERVIEW
            print(f"newer than requirements.lock: {', '.join(sorted(newer))}", file=sys.stderr, flush=True)
        self.environment.make()
        self.packages = self.environment.packages()
        if self.server is not None:
            self.server.make()
        content = (self.environment.python, self.packages, self.tests, self.server and self.server.packages())
        if content in _tested:
            self.outcome, self.is_passed = f"the same packages as {_tested[content]}", True
            return
        _tested[content] = self.name
        with contextlib.ExitStack() as stack:
            where = () if self.server is None else ("--prefect-server", stack.enter_context(started(self.server.interpreter)))
            command = [str(self.environment.interpreter), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-loadscope-reorder"]
            with log.open("wb") as out:
                code = subprocess.run([*command, *self.options, *where, *self.tests], cwd=ROOT, stdout=out, stderr=out).returncode
        lines = [line for line in log.read_text("utf-8", "replace").splitlines() if re.search(r"\d+ (passed|failed|error)", line)]
        self.outcome = re.sub(r" in [\d.]+s.*|=", "", lines[-1]).strip() if lines else f"exit code {code}"
        self.is_passed, self.seconds = code == 0, time.monotonic() - began

    def row(self) -> str:
        """Return the row of the table."""
        server = "its own" if self.server is None else versions(self.server.packages()).partition(",")[0]
        result = self.outcome if self.is_passed else f"**FAILED**: {self.outcome}"
        return f"| {self.name} | {versions(self.packages)} | {server} | {result} | {self.seconds / 60:.1f} min |"


def extras() -> list[str]:
    """Return the extras of this package. The tests use all of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["optional-dependencies"]]


def versions(packages: Sequence[str]) -> str:
    """Return the versions of the packages that matter most."""
    known = dict(package.split("==") for package in packages if "==" in package)
    return ", ".join(f"{name} {known[name]}" for name in SHOWN)


def _locked() -> tuple[str, ...]:
    lines = (ROOT / "requirements.lock").read_text("utf-8").lower().splitlines()
    return tuple(line for line in lines if not line.startswith("#"))


def interpreters() -> dict[str, Path]:
    """Return the interpreters at hand by version: those on the PATH that run, and those of pyenv."""
    found = {own_version(): Path(sys.base_prefix) / "bin" / f"python{own_version()}"}
    for version in PYTHONS:
        if version in found:
            continue
        pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
        for candidate in (shutil.which(f"python{version}"), *map(str, pyenv)):
            if candidate is not None and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
                found[version] = Path(candidate)
                break
    return found


def own_version() -> str:
    """Return the version of this Python, as in 3.11."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def cells() -> list[Cell]:
    """Return the cells: each Python with the oldest, the newest tested and the newest Prefect, then each pair of versions."""
    at_hand, parallel = sorted(interpreters(), key=lambda version: int(version.partition(".")[2])), ("--numprocesses", "4")
    versions = [*((f"prefect=={version}",) for version in (TESTED_PREFECT[0], TESTED_PREFECT[-1])), ()]
    all_tests = [
        Cell(f"{python} {' '.join(requirements) or 'newest'}", Environment(python, requirements), options=parallel)
        for python in at_hand
        for requirements in versions
    ]
    newest = Environment(at_hand[-1], forced=(NEWEST_SQLALCHEMY,))
    all_tests.append(Cell(f"{at_hand[-1]} newest with SQLAlchemy 2.1", newest, options=parallel))
    with_prefect = {version: Environment(at_hand[0], (f"prefect=={version}",)) for version in TESTED_PREFECT}
    pairs = [
        Cell(
            f"client {client} server {server}",
            with_prefect[client],
            GATES,
            ("--numprocesses", "3", "-m", "not benchmark"),
            with_prefect[server],
        )
        for client in TESTED_PREFECT
        for server in TESTED_PREFECT
    ]
    return [*all_tests, *pairs]


def newest() -> Cell:
    """Return the cell that CI runs: the newest packages. Which tests it runs depends on those that are newer than requirements.lock."""
    return Cell(NEWEST, Environment(own_version()), options=("--numprocesses", "4"))


@contextlib.contextmanager
def started(interpreter: Path) -> Iterator[str]:
    """Yield the API URL of a Prefect server of this Python, with an empty database: in PostgreSQL, or in SQLite if that is not installed.

    Under the load of these tests, a server on SQLite stops for a minute now and then (`guide/compatibility.md`). The tests that each Python
    runs use a local server, which is on SQLite.
    """
    home = FOLDER / "server-home"
    shutil.rmtree(home, ignore_errors=True)
    port = postgres.free_port()
    url = f"http://127.0.0.1:{port}/api"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    ours = {"PREFECT_HOME": str(home), "DO_NOT_TRACK": "1", "PREFECT_API_URL": url}
    (FOLDER / "logs").mkdir(parents=True, exist_ok=True)
    command = [str(interpreter), "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with contextlib.ExitStack() as stack:
        if postgres.is_installed():
            database = stack.enter_context(postgres.running_server())
            address = database.url(database.make_database()).replace("postgresql:", "postgresql+asyncpg:", 1)
            ours["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = address
        log = stack.enter_context((FOLDER / "logs" / "server.log").open("wb"))
        server = stack.enter_context(subprocess.Popen(command, env=kept | ours, stdout=log, stderr=log))
        try:
            _wait_until_healthy(f"{url}/health", server)
            yield url
        finally:
            server.terminate()


def _wait_until_healthy(url: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)
    raise RuntimeError(f"the server did not start: see {FOLDER / 'logs' / 'server.log'}")


def main(names: Sequence[str]) -> int:
    """Run the cells, print the table, and return the exit code."""
    chosen = [newest()] if list(names) == [NEWEST] else [cell for cell in cells() if not names or any(name in cell.name for name in names)]
    if missing := [version for version in PYTHONS if version not in interpreters()]:
        print(f"not at hand, and not tested: Python {', '.join(missing)}", file=sys.stderr)
    for cell in chosen:
        cell.run()
        print(f"{cell.name}: {cell.outcome}, {cell.seconds:.0f} s", file=sys.stderr, flush=True)
    print("| cell | client | server | tests | time |\n|---|---|---|---|---|")
    print("\n".join(cell.row() for cell in chosen))
    return 0 if all(cell.is_passed for cell in chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
