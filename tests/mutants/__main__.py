"""`make mutants`: change the code that decides, one place at a time, and check that a test fails.

    python -m tests.mutants [ONLY=text] [JOBS=number]

runs mutmut on the modules in `modules.toml` whose paths contain the text, each with the tests that are listed for it, and prints a table.
It fails if a mutant survives that is not listed with a reason, or if fewer than 95 % are killed. mutmut changes only the bodies of
functions: the queries and tables at the top level of a module stay as they are. mutmut and its packages are in `.matrix`.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".matrix"
MUTMUT = "mutmut==3.8.1"
PACKAGES = FOLDER / MUTMUT
GOAL = 0.95
KILLED = {"killed", "timeout", "segfault"}
TEST_SECONDS = 30
"""A test that takes longer waits for something that the change took away, so it has noticed."""

STABLE_IDS = ("-o", "disable_test_id_escaping_and_forfeit_all_rights_to_community_support=true")
"""Each mutant's process collects the tests a second time. Then pytest escapes an escaped id again, and mutmut's list names no such test."""

ALSO_COPIED = ("deployments", "flows", "blocks", ".ci")
"""What the tests read besides `plan_adapter` and `tests`."""


@dataclass(frozen=True)
class Module:
    """A module to mutate, its tests, and its known survivors with the reason why each may survive."""

    path: str
    tests: Sequence[str]
    survivors: dict[str, str]

    def run(self, children: str) -> list[tuple[str, str]]:
        """Return each mutant of the module with how it ended."""
        shutil.rmtree(ROOT / "mutants", ignore_errors=True)
        options, results, log = (FOLDER / f"mutants.{kind}" for kind in ("options.json", "results.json", "log"))
        content = {
            "source_paths": ["plan_adapter"],
            "only_mutate": [self.path],
            "also_copy": ALSO_COPIED,
            "pytest_add_cli_args_test_selection": ["-k", "not postgresql and not contradictory", *self.tests],
            "pytest_add_cli_args": [
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist.plugin",
                "--hypothesis-seed=0",
                f"--timeout={TEST_SECONDS}",
                *STABLE_IDS,
            ],
            "process_isolation": "forkserver",  # a test leaves threads, which no fork should inherit
            "children": children,
        }
        options.write_text(json.dumps(content), encoding="utf-8")
        command = [sys.executable, str(Path(__file__).with_name("mutmut_run.py")), str(options), str(results)]
        with log.open("wb") as out:
            ended = subprocess.run(command, cwd=ROOT, stdout=out, stderr=out, env=os.environ | {"PYTHONPATH": str(PACKAGES)})
        if ended.returncode:
            raise SystemExit(f"mutmut failed for {self.path}: see {log.relative_to(ROOT)}")
        return [tuple(each) for each in json.loads(results.read_text(encoding="utf-8"))]


def modules(only: str) -> list[Module]:
    """Return the modules whose paths contain `only`."""
    tables = tomllib.loads(Path(__file__).with_name("modules.toml").read_text(encoding="utf-8"))
    return [
        Module(
            path=f"plan_adapter/{name}.py",
            tests=table["tests"],
            survivors={mutant: group["reason"] for group in table.get("survivors", ()) for mutant in group["mutants"]},
        )
        for name, table in tables.items()
        if only in name
    ]


def install() -> None:
    """Install mutmut with the versions that the tests run with, unless it is there."""
    if not PACKAGES.exists():
        FOLDER.mkdir(exist_ok=True)
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        draft = FOLDER / "mutmut.draft"
        subprocess.run([*pip, "--target", str(draft), "--constraint", "requirements.lock", MUTMUT], cwd=ROOT, check=True)
        draft.rename(PACKAGES)


def row(name: str, ends: Sequence[str]) -> str:
    """Return a row of the table."""
    killed = sum(end in KILLED for end in ends)
    return f"| {name} | {len(ends)} | {killed} | {ends.count('timeout')} | {len(ends) - killed} | {killed / len(ends):.1%} |"


def main(only: str = "", children: str = "") -> int:
    """Run mutmut on the modules, print the table, and return the exit code."""
    install()
    rows, ends, unlisted, gone = list[str](), list[str](), list[str](), list[str]()
    for module in modules(only):
        print(f"{module.path} …", file=sys.stderr, flush=True)
        found = module.run(children or str(os.cpu_count() or 2))
        survived = [mutant for mutant, end in found if end not in KILLED]
        new = [f"{module.path}: ({end}) {mutant}" for mutant, end in found if end not in KILLED and mutant not in module.survivors]
        unlisted += new
        gone += [f"{module.path}: {mutant}" for mutant in module.survivors if mutant not in survived]
        rows.append(row(module.path, [end for _, end in found]))
        print(rows[-1], *new, sep="\n  ", file=sys.stderr, flush=True)  # a later module may take long
        ends += [end for _, end in found]
    print("| module | mutants | killed | by time-out | survived | share |\n|---|---|---|---|---|---|")
    print("\n".join([*rows, row("all", ends)]))
    for title, lines in (("survived, and are not in modules.toml", unlisted), ("in modules.toml, but killed or gone now", gone)):
        if lines:
            print(f"\n{title}:", *lines, sep="\n  ")
    return 0 if not unlisted and sum(end in KILLED for end in ends) >= GOAL * len(ends) else 1


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    sys.exit(main(given.get("ONLY", ""), given.get("JOBS", "")))
