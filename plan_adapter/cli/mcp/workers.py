"""`Workers`: one process for each run that an agent starts, independent of the agent and its server."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plan_adapter.local.private_files import make_folder, open_file
from plan_adapter.model.readable import one_line


@dataclass(slots=True)
class Workers:
    """Starts processes for runs, and tracks the ones it started."""

    home: Path  # of the settings
    by: str  # the name under which they resume runs
    tools: Sequence[str] = ()  # import strings
    offline: bool = False
    _processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])

    def start(self, run_id: str) -> None:
        """Start a process that resumes the run, unless one is running. The process does not wait at gates."""
        if self.is_running(run_id):
            return
        path = worker_log_path(run_id, self.home)
        make_folder(self.home)
        make_folder(path.parent)
        arguments = [run_id, self.by, "offline" if self.offline else "", *self.tools]
        log = open_file(path, os.O_WRONLY | os.O_APPEND)
        try:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", "plan_adapter.cli.mcp.run_process", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the end of the server or its terminal does not end the run
            )
        finally:
            os.close(log)
        self._processes[run_id] = process
        threading.Thread(target=process.wait, name="plan-mcp-worker", daemon=True).start()  # leaves no zombie

    def is_running(self, run_id: str) -> bool:
        """Return whether a process that this object started still runs the run."""
        process = self._processes.get(run_id)
        return process is not None and process.poll() is None

    def failure(self, run_id: str) -> str | None:
        """Return the last line that the run's process printed before it failed; None if the process has not failed."""
        process = self._processes.get(run_id)
        if process is None or process.poll() in (None, 0):
            return None
        try:
            lines = worker_log_path(run_id, self.home).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return one_line(lines[-1]) if lines else f"its process ended with exit code {process.returncode} and printed nothing"


def worker_log_path(run_id: str, home: Path) -> Path:
    """Return the path of the log of a run's process. The log is deleted once the store records the same."""
    return home / "mcp" / f"{run_id}.log"
