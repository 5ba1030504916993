"""The tools of runs under a worker. Importing this module installs the next fault in the run's process."""

import json
import os
import signal
from pathlib import Path

from plan_adapter.local import crash_points
from tests.faults.harness import Target
from tests.faults.world import HERE, TOOLS

__all__ = ["TOOLS"]

FOLDER = "FAULTS_FOLDER"


def read_faults(folder: Path) -> list[Target]:
    """Return the remaining faults."""
    return [tuple(target) for target in json.loads((folder / "faults").read_text())]


def write_faults(targets: list[Target], folder: Path) -> None:
    """Save the faults for the next processes, one for each."""
    (folder / "faults").write_text(json.dumps(targets))


def _install_next_fault(folder: Path) -> None:
    HERE.path = folder / "world"
    targets = read_faults(folder)
    if not targets:
        return
    write_faults(targets[1:], folder)

    def listener(point: str, detail: str) -> None:
        if point == targets[0][0] and targets[0][1] in (None, detail):
            os.kill(os.getpid(), signal.SIGKILL)

    crash_points.listener = listener


if FOLDER in os.environ:
    _install_next_fault(Path(os.environ[FOLDER]))
