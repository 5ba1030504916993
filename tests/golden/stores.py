"""Stores that earlier versions of this package wrote, with runs of the shipped runbooks: two cases of each.

`python -m tests.golden.stores NAME` writes one by this version, on SQLite and on PostgreSQL. Do it at each release, with its version as
NAME; never replace one. A test replays each of them: the runs go as they went, with the same steps, order, gates and status.
"""

import lzma
import subprocess
import sys
from pathlib import Path

from plan_adapter import PlanStore
from plan_adapter.testing import load_cases
from plan_adapter.testing.running import CaseRunner
from tests.golden import FOLDER
from tests.golden.session import dumped
from tests.postgres import running_server

STORES = FOLDER / "stores"
RUNBOOKS = FOLDER.parents[1] / "deployments" / "runbooks"
CASES = 2
"""How many cases of each runbook run: those of all are three times as large."""


def names(database: str) -> list[str]:
    """Return the names of the stores that were written on this database, oldest first."""
    return sorted(path.name.partition(f"-{database}")[0] for path in STORES.glob(f"*-{database}.sql.xz"))


def statements(name: str, database: str) -> str:
    """Return the statements that make a store."""
    return lzma.decompress(_path(name, database).read_bytes()).decode()


def write(name: str) -> None:
    """Write a store on each database."""
    with CaseRunner() as runner:
        _run_cases(runner)
        _save(name, "sqlite", dumped(Path(runner._folder.name) / "plans.db"))
    with running_server() as server, CaseRunner() as runner:
        url = server.url(server.make_database())
        runner._store = PlanStore(url)
        runner._loop.run(runner._store.upgrade())
        _run_cases(runner)
        command = [str(server.bin / "pg_dump"), "--inserts", "--rows-per-insert=100", "--no-owner", "--no-privileges", url]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        _save(name, "postgresql", "".join(f"{line}\n" for line in lines if line and not line.startswith(("\\", "--"))))


def _run_cases(runner: CaseRunner) -> None:
    for file in sorted(RUNBOOKS.glob("*.test.yaml")):
        for case in load_cases(file)[:CASES]:
            runner.run(case)


def _save(name: str, database: str, text: str) -> None:
    with _path(name, database).open("xb") as file:
        file.write(lzma.compress(text.encode(), preset=9))


def _path(name: str, database: str) -> Path:
    return STORES / f"{name}-{database}.sql.xz"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.golden.stores NAME")
    write(sys.argv[1])
