"""`Workers`: a process of its own for each run that an agent starts, independent of the agent and its server."""

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
    """Starts the processes, and tracks those that it has started."""

    home: Path  # of the settings
    by: str  # in whose name they resume runs
    tools: Sequence[str] = ()  # import strings
    offline: bool = False
    _processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])

    def start(self, run_id: str) -> None:
        """Start a process that resumes the run, unless one is running; it does not wait at gates."""
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
        """Return whether a process that was started here still runs it."""
        process = self._processes.get(run_id)
        return process is not None and process.poll() is None

    def failure(self, run_id: str) -> str | None:
        """Return the last line that the run's process printed before it failed; None if it has not ended, or ended well."""
        process = self._processes.get(run_id)
        if process is None or process.poll() in (None, 0):
            return None
        try:
            lines = log_of(run_id, self.home).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return one_line(lines[-1]) if lines else f"its process ended with the exit code {process.returncode}, and said nothing"


def log_of(run_id: str, home: Path) -> Path:
    """Return the log of the process of a run, which is removed once the run's record says the same."""
    return home / "mcp" / f"{run_id}.log"
