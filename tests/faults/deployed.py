"""The tools of a run under a worker, which names this module as theirs: to import it puts the next fault into the run's process."""

import json
import os
import signal
from pathlib import Path

from plan_adapter import crash_points
from tests.faults.harness import Target
from tests.faults.world import HERE, TOOLS

__all__ = ["TOOLS"]

FOLDER = "FAULTS_FOLDER"


def faults_in(folder: Path) -> list[Target]:
    """Return the faults that no process has taken yet."""
    return [tuple(target) for target in json.loads((folder / "faults").read_text())]


def leave(targets: list[Target], folder: Path) -> None:
    """Keep the faults for the next processes, one each."""
    (folder / "faults").write_text(json.dumps(targets))


def _take_fault(folder: Path) -> None:
    HERE.path = folder / "world"
    targets = faults_in(folder)
    if not targets:
        return
    leave(targets[1:], folder)

    def listener(point: str, detail: str) -> None:
        if point == targets[0][0] and targets[0][1] in (None, detail):
            os.kill(os.getpid(), signal.SIGKILL)

    crash_points.listener = listener


if FOLDER in os.environ:
    _take_fault(Path(os.environ[FOLDER]))
