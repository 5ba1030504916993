"""`Workers`: each run that an agent starts goes on in a process of its own, which needs neither the agent nor its server."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plan_adapter.private_files import make_folder, open_file
from plan_adapter.readable import one_line


@dataclass(slots=True)
class Workers:
    """Starts the processes, and knows those that this one has started."""

    home: Path  # of the settings
    by: str  # in whose name they go on with runs
    tools: Sequence[str] = ()  # import strings
    offline: bool = False
    _processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])

    def start(self, run_id: str) -> None:
        """Let a process go on with a run, unless one of these does; it waits for nobody, and leaves the run at a gate."""
        if self.is_running(run_id):
            return
        path = log_of(run_id, self.home)
        make_folder(self.home)
        make_folder(path.parent)
        words = [run_id, self.by, "offline" if self.offline else "", *self.tools]
        log = open_file(path, os.O_WRONLY | os.O_APPEND)
        try:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", "plan_adapter.cli.mcp.worker", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # whatever ends the server, and its terminal, does not end the run
            )
        finally:
            os.close(log)
        self._processes[run_id] = process
        threading.Thread(target=process.wait, name="plan-mcp-worker", daemon=True).start()  # leaves no zombie

    def is_running(self, run_id: str) -> bool:
        """Return whether a process that was started here still has to do with the run."""
        process = self._processes.get(run_id)
        return process is not None and process.poll() is None

    def failure(self, run_id: str) -> str | None:
        """Return the last that the run's process said before it ended, None where its run tells how it ended, or it has not ended."""
        process = self._processes.get(run_id)
        if process is None or process.poll() in (None, 0):
            return None
        try:
            said = log_of(run_id, self.home).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            said = []
        return one_line(said[-1]) if said else f"its process ended with the exit code {process.returncode}, and said nothing"


def log_of(run_id: str, home: Path) -> Path:
    """Return where the process of a run writes what it has to say; it removes that once the run's own record says it."""
    return home / "mcp" / f"{run_id}.log"
