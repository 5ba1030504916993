"""Run `plan` as a child process, in an environment that the attacker chooses."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import run_plan


@dataclass(frozen=True)
class CommandResult:
    """The exit code and output of one `plan` process."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> dict[str, Any]:
        """The last JSON object of stdout."""
        return json.loads(self.out.splitlines()[-1])


def plan(*arguments: str | Path, cwd: Path, text: str = "", **environment: str) -> CommandResult:
    """Run `plan` without a terminal, with these variables added to the environment, and return its result."""
    ended = run_plan(*arguments, cwd=cwd, env={**os.environ, "PLAN_ADAPTER_LOCAL_SERVER": "never", **environment}, text=text)
    return CommandResult(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def write_plan(folder: Path, document: dict[str, Any], name: str = "plan.json") -> Path:
    """Write a plan to `folder` and return its path."""
    path = folder / name
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return path
