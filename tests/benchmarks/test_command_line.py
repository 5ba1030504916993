"""Benchmarks of the command line. Absolute times depend on the machine, so they are printed and not asserted."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from yaml import safe_dump

from plan_adapter.engine.connection import Server

pytestmark = pytest.mark.benchmark

ROUNDS = 5
ROOT = Path(__file__).parent.parent.parent
PLAN = (sys.executable, "-c", "import sys; from plan_adapter.cli.app import main; sys.exit(main())")


def measured(arguments: Sequence[str], folder: Path) -> tuple[float, float]:
    """Return the median wall and CPU seconds of `plan ARGUMENTS`, each time in a new process."""
    rounds: list[tuple[float, float]] = []
    environment, silent = {**os.environ, "PYTHONPATH": str(ROOT)}, subprocess.DEVNULL
    for _ in range(ROUNDS):
        started = time.perf_counter()
        process = subprocess.Popen([*PLAN, *arguments], cwd=folder, env=environment, stdout=silent, stderr=silent)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        rounds.append((time.perf_counter() - started, usage.ru_utime + usage.ru_stime))
    walls, cpus = zip(*rounds, strict=True)
    return statistics.median(walls), statistics.median(cpus)


def plan_file(folder: Path, steps: int) -> str:
    """Return the path of a plan document with layers of ten no-op steps."""
    listed = [{"id": f"s{n}", "tool_name": "noop", "depends_on": [f"s{n - 10}"] if n >= 10 else []} for n in range(steps)]
    options = {"require_approval": False, "allow_parallel": True, "max_parallel_steps": 10}
    path = folder / f"steps-{steps}.yaml"
    path.write_text(safe_dump({"name": "bench", "description": "Nothing", "options": options, "steps": listed}), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("name", "steps", "arguments", "aim"),
    [
        ("plan --help", 0, ["--help"], 0.5),
        ("plan validate, 10 steps", 10, ["validate"], 0.5),
        ("plan validate, 10,000 steps", 10_000, ["validate"], 3.0),
        ("plan run --offline, 100 steps", 100, ["run", "--offline"], 4.0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_duration_of_a_command(name: str, steps: int, arguments: list[str], aim: float, tmp_path: Path) -> None:
    tools = ["--tools", "tests.benchmarks.tools:noop"] if steps else []
    plan = [plan_file(tmp_path, steps)] if steps else []
    wall, cpu = measured([*arguments, *plan, *tools], tmp_path)
    print(f"\n{name}: {wall:.2f} s, of it {cpu:.2f} s CPU (aim: under {aim} s)")


@pytest.mark.usefixtures("prefect_server")
def test_duration_of_a_cold_run_with_a_running_server(prefect_server: Server, tmp_path: Path) -> None:
    wall, cpu = measured(["run", plan_file(tmp_path, 100), "--tools", "tests.benchmarks.tools:noop"], tmp_path)
    print(f"\nplan run, 100 no-op steps, {prefect_server.api_url}: {wall:.2f} s, of it {cpu:.2f} s CPU (aim: under 4 s)")
