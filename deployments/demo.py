"""`make demo`: runs the runbook ci-pipeline on a small new git repository, on the local Prefect server."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNBOOK = "deployments/runbooks/ci-pipeline.yaml"
PLAN = [sys.executable, "-c", "import sys; from plan_adapter.cli.app import main; sys.exit(main())"]
ANSWER = re.compile("`plan (approve [^`]+)`")
"""Matches the command in the output of `plan run` that answers the open gate."""

# PAUSE slows the commands down, so that people can watch them.
FILES = {
    "Makefile": """\
PYTHON ?= python3
PAUSE ?= 0

install:
\t@for package in greetings clock; do echo "installing $$package"; sleep $(PAUSE); done

build:
\t@echo "packing app into build/app.pyz"
\t@mkdir -p build
\t@sleep $(PAUSE)
\t@$(PYTHON) -m zipapp app --output build/app.pyz
\t@sleep $(PAUSE)

lint:
\t@for file in app/*.py; do echo "checking $$file"; sleep $(PAUSE); $(PYTHON) -m py_compile "$$file" || exit 1; done

test:
\t@sleep $(PAUSE)
\t@$(PYTHON) -m unittest --verbose

deploy:
\t@sleep $(PAUSE)
\t@mkdir -p released
\t@cp build/app.pyz "released/app-$$COMMIT.pyz"
\t@echo "released commit $$COMMIT of $$BRANCH"
""",
    "app/__init__.py": "",
    "app/__main__.py": "from greeting import greet\n\nprint(greet('world'))\n",
    "app/greeting.py": "def greet(name):\n    return f'Hello, {name}!'\n",
    "test_app.py": """\
import subprocess
import sys
import unittest


class BuiltApp(unittest.TestCase):
    def test_greets_the_world(self):
        said = subprocess.run([sys.executable, 'build/app.pyz'], capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout.strip(), 'Hello, world!')
""",
    ".gitignore": "__pycache__/\nbuild/\nreleased/\n",
}


def make_repository(path: Path) -> Path:
    """Create a git repository at `path`, with one commit on `main`: a small application with a Makefile. Return `path`."""
    for name, text in FILES.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    author = ["-c", "user.name=Demo", "-c", "user.email=demo@example.invalid", "-c", "commit.gpgsign=false"]
    for arguments in (
        ["init", "--quiet", "--initial-branch", "main"],
        ["add", "."],
        [*author, "commit", "--quiet", "--message", "Say hello"],
    ):
        subprocess.run(["git", *arguments], cwd=path, check=True)
    return path


def main() -> int:
    """Run the demo and return the exit code of `plan run`."""
    folder = Path(tempfile.mkdtemp(prefix="plan-demo-"))
    inputs = {"repository": make_repository(folder / "repository"), "workspace": folder / "workspace"}
    command = ["run", RUNBOOK]
    for name, path in inputs.items():
        command += ["--input", f"{name}={path}"]
    print("$ plan", *command, file=sys.stderr, flush=True)
    exit_code = run_at_terminal(command) if sys.stdin.isatty() and sys.stderr.isatty() else run_and_approve(command)
    print("\n`.venv/bin/plan runs` lists the runs, `.venv/bin/plan down` stops the local server.", file=sys.stderr)
    return exit_code


def run_at_terminal(command: list[str]) -> int:
    """Run `plan` with `command`, which asks for an approval at this terminal. Return the exit code."""
    print("The plan waits at its gate: answer here, or in the form on the page that is linked below.", file=sys.stderr, flush=True)
    return subprocess.run([*PLAN, *command], cwd=ROOT, env=environment(), check=False).returncode


def run_and_approve(command: list[str]) -> int:
    """Run `plan` with `command`, and approve each of its gates from a second process. Return the exit code."""
    env, nothing = environment(), subprocess.DEVNULL
    with subprocess.Popen([*PLAN, *command], cwd=ROOT, env=env, stdin=nothing, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        for line in run.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            if match := ANSWER.search(line):
                answer = [*match[1].split(), "--note", "the demo answers by itself, because there is no terminal"]
                print("There is no terminal, so the demo answers by itself:\n$ plan", *answer, file=sys.stderr, flush=True)
                subprocess.run([*PLAN, *answer], cwd=ROOT, env=env, stdin=nothing, stderr=nothing, check=True)
    return run.returncode


def environment() -> dict[str, str]:
    """Return the environment of `plan`, without the variables by which `make` marks nested makes."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return {"PAUSE": "1", **inherited, "PYTHON": sys.executable}


if __name__ == "__main__":
    sys.exit(main())
