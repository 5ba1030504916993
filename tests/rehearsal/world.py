"""Runs every runbook dry in this process, and prints each change of the world that Python's audit events show."""

import os
import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from urllib.parse import unquote, urlsplit

from plan_adapter.runs import DryRun, dry_run_plan
from plan_adapter.testing import load_cases
from plan_adapter.tools.registry import ToolRegistry

CHANGES = frozenset(
    ("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate", "shutil.rmtree")
)
IN_FOLDER = frozenset(("os.mkdir", "os.remove", "os.rmdir"))  # their last argument is the open folder of a relative path
STARTS = frozenset(("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"))
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def watch(changes: list[str], temporary: str) -> None:
    """Add every change outside the folder `temporary` to `changes`, from now on: of files, processes and connections."""

    def is_elsewhere(path: object, folder: str = "") -> bool:
        if isinstance(path, int):
            return False  # a file that is open: opening it was the change
        text = urlsplit(str(path)).path if str(path).startswith("file:") else str(path)
        return text != ":memory:" and not str(Path(folder, unquote(text)).resolve()).startswith((temporary, "/dev/null"))

    def is_change(event: str, arguments: Sequence[object]) -> bool:
        if event == "open":
            flags = arguments[2]
            return isinstance(flags, int) and bool(flags & WRITES) and is_elsewhere(arguments[0])
        if event in STARTS:
            return "plan_adapter.expressions" not in str(arguments)  # the process that evaluates large expressions
        if event == "os.mkdir" and Path(str(arguments[0])).exists():
            return False  # it asks whether the folder is there
        if event == "sqlite3.connect":
            return is_elsewhere(arguments[0])
        if event in CHANGES:
            paths = [path for path in arguments if isinstance(path, str | bytes | PathLike)]
            numbers = [number for number in arguments if isinstance(number, int)]
            folder = f"/proc/self/fd/{numbers[-1]}" if event in IN_FOLDER and numbers[-1] >= 0 else ""
            return any(is_elsewhere(os.fsdecode(path), folder) for path in paths)
        return event == "socket.connect"

    def hook(event: str, arguments: Sequence[object]) -> None:
        if is_change(event, arguments):
            changes.append(f"{event} {arguments}")

    sys.addaudithook(hook)


def rehearse(files: Sequence[Path]) -> list[DryRun]:
    """Return a dry run of the runbook of each test file, with the inputs of its first case."""
    cases = [load_cases(file)[0] for file in files]
    tools = ToolRegistry.from_settings(())
    return [dry_run_plan(case.plan.validated.plan, tools=tools, inputs=case.plan.inputs, reads=False) for case in cases]


if __name__ == "__main__":
    found_changes, found_files = list[str](), sorted(Path(sys.argv[1]).glob("*.test.yaml"))
    rehearse(found_files)  # everything is imported
    watch(found_changes, sys.argv[2])
    for found in rehearse(found_files):
        print(f"{found.run.name}: {len(found.calls)} calls, effects: {found.effects},", found.run.status.value, *found.problems)
    print("changes:", len(found_changes), *found_changes[:5])
