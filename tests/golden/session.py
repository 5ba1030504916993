"""A scripted session of the command line: what each verb prints with `--json`, and the store that the session leaves."""

import contextlib
import io
import json
import os
import pwd
import re
import socket
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from plan_adapter.cli.app import main
from plan_adapter.local.private_files import make_folder
from plan_adapter.model.host_process import _place
from tests.golden import FOLDER

ACTED, READ, STORE, EXPORT = (FOLDER / name for name in ("acted.json", "read.json", "store.sql", "erased.jsonl"))
OLD_EXPORT = FOLDER / "erased.json"
"""An export by a version that wrote one JSON object. It is never written again."""

TOOLS = ("--tools", "tests.golden.tools:registry")
NO_GATE: dict[str, Any] = {"options": {"require_approval": False}}
DO: dict[str, Any] = {"id": "build", "tool_name": "do", "description": "构建", "parameters": {"text": "${{ inputs.who }}"}}

PLANS: dict[str, dict[str, Any]] = {
    "done": {
        "name": "done",
        "description": "完成",
        **NO_GATE,
        "inputs": {"who": {"type": "string"}},
        "steps": [
            DO,
            {"id": "each", "tool_name": "look", "for_each": "${{ ['a', '乙'] }}", "parameters": {"text": "${{ item }}"}},
            {"id": "never", "tool_name": "do", "when": "${{ 1 > 2 }}"},
        ],
        "finally": [{"id": "end", "tool_name": "look", "parameters": {"text": "${{ run.status }}"}}],
        "outputs": {"text": "${{ steps.build.result.text }}"},
    },
    "undone": {
        "name": "undone",
        "description": "A step fails, and the one before is rolled back",
        **NO_GATE,
        "steps": [
            {"id": "a", "tool_name": "do", "rollback": {"tool_name": "undo", "parameters": {"text": "a"}}},
            {"id": "b", "tool_name": "fail", "max_retries": 1, "depends_on": ["a"]},
            {"id": "c", "tool_name": "do", "depends_on": ["b"]},
        ],
    },
    "lost": {"name": "lost", "description": "Unknown", **NO_GATE, "steps": [{"id": "a", "tool_name": "get_lost"}]},
    "gated": {
        "name": "gated",
        "description": "需要批准",
        "inputs": {"who": {"type": "string", "default": "世界"}},
        "steps": [DO, {"id": "ship", "tool_name": "do", "requires_approval": True, "depends_on": ["build"]}],
    },
    "pruned": {"name": "pruned", "description": "Pruned", **NO_GATE, "steps": [{"id": "a", "tool_name": "look"}]},
    "asked": {
        "name": "asked",
        "description": "A question",
        **NO_GATE,
        "steps": [{"id": "which", "ask": {"question": "Which?", "fields": {"node": {"type": "string"}, "n": {"type": "integer"}}}}],
    },
    "group": {
        "name": "group",
        "description": "A group",
        **NO_GATE,
        "steps": [
            {
                "id": "nodes",
                "for_each": "${{ ['web-1', 'web-2'] }}",
                "on_error": "continue",
                "steps": [
                    {"id": "drain", "tool_name": "do", "parameters": {"text": "${{ item }}"}},
                    {"id": "check", "tool_name": "fail", "when": "${{ item == 'web-2' }}", "depends_on": ["drain"]},
                ],
            }
        ],
    },
}

CASES = """
inputs: {who: 安娜}
steps:
  build: {result: {text: built}}
cases:
  it builds: {expect: {status: completed, outputs: {text: built}}}
  it does not: {expect: {status: failed}}
"""

# In each command, `{name}` is the id of the run that the command with this label started.
ACTS: tuple[tuple[str, str], ...] = (
    ("validated", "validate done.json"),
    ("previewed", "preview done.json --input who=安娜"),
    ("saved", "save done.json"),
    ("saved again", "save done2.json"),
    ("done", "run done.json --offline --input who=安娜"),
    ("undone", "run undone.json --offline"),
    ("lost", "run lost.json --offline"),
    ("resolved", "resolve {lost} a abort --note gone"),
    ("open", "run lost.json --offline"),
    ("rejected", "run gated.json --offline"),
    ("reject", "reject {rejected} --note 不"),
    ("approved", "run gated.json --offline"),
    ("approve", "approve {approved} --yes"),
    ("resumed", "resume {approved} --offline"),
    ("approve the step", "approve {approved} --step ship --yes"),
    ("ended", "resume {approved} --offline"),
    ("waiting", "run gated.json --offline"),
    ("asked", "run asked.json --offline"),
    ("answered", "answer {asked} which node=web-1 n=2"),
    ("answer read", "resume {asked} --offline"),
    ("asking", "run asked.json --offline"),
    ("group", "run group.json --offline"),
    ("cancelled", "run gated.json --offline"),
    ("cancel", "cancel {cancelled} --reason late"),
    ("erasing", "run done.json --offline --input who=安娜·穆勒"),
    ("erased", "erase {erasing} --fields inputs.who --yes"),
    ("pruning", "run pruned.json --offline"),
    ("policy", "policy set policy.json"),
    ("prune", "prune --older-than 0m --runbook pruned --yes"),
    ("standing", "standing add store:done --runs 3 --until 2126-12-31 --schedule done/nightly"),
    ("wrong", "validate wrong.json"),
    ("no run", "show nothing"),
)

READS = (
    *("runs", "runs --status partial", "gates", "versions", "versions done", "policy", "standing list", "store verify", "store status"),
    *("tools", "explain"),
    *(f"{verb} {{{name}}}" for name in ("done", "undone", "lost", "approved", "asked", "group", "cancelled") for verb in ("show", "logs")),
    *("show {waiting}", "show {asking}", "show {open}", "show {erasing}", "runs verify {erasing}", "export {done}"),
    *("show store:done@1", "diff store:done@1 store:done@2", "export store:done --format aster", "test done.json"),
)


@contextlib.contextmanager
def home(folder: Path) -> Iterator[Path]:
    """Make `folder` the home and the working folder of commands, with the documents of the session."""
    before, environment = Path.cwd(), dict(os.environ)
    for name in [name for name in os.environ if name.startswith(("PLAN_ADAPTER_", "PREFECT_"))]:
        del os.environ[name]
    os.environ |= {"PLAN_ADAPTER_HOME": str(folder / "home"), "PLAN_ADAPTER_LOCAL_SERVER": "never", "NO_COLOR": "1"}
    make_folder(folder / "home")
    (folder / "work").mkdir()
    os.chdir(folder / "work")
    account = mock.patch.object(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="ana"))
    try:
        with account, mock.patch.object(socket, "gethostname", lambda: "golden"):
            _place.cache_clear()
            for name, document in PLANS.items():
                _write(name, document)
            _write("done2", {**PLANS["done"], "description": "完成 (2)", "steps": PLANS["done"]["steps"][:2]})
            _write("wrong", {"steps": [{"id": "a", "tool_name": "does not exist", "max_retries": "two"}]})
            _write("policy", {"operators": [], "self_approval": True})
            Path("done.test.yaml").write_text(CASES, encoding="utf-8")
            yield folder
    finally:
        _place.cache_clear()
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)


def _write(name: str, document: dict[str, Any]) -> None:
    Path(f"{name}.json").write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")


def typed(command: str, runs: dict[str, str]) -> dict[str, Any]:
    """Run `plan COMMAND --json` in this process, and return what it printed and its exit code."""
    for name, run_id in runs.items():
        command = command.replace(f"{{{name}}}", run_id)
    verb, *rest = command.split(" ")
    arguments = [verb, *rest, "--json"]
    if verb in ("run", "resume", "validate", "preview", "tools", "test", "save") or command.startswith("standing add"):
        arguments += TOOLS
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def played() -> tuple[dict[str, Any], dict[str, str]]:
    """Type the commands of ACTS in a new store. Return what each printed, with what differs between sessions replaced, and the runs."""
    runs, printed = dict[str, str](), dict[str, Any]()
    for label, command in ACTS:
        found = typed(command, runs)
        if command.startswith("run ") and found["code"] != 2:
            runs[label] = json.loads(found["out"].splitlines()[-1])["id"]
        printed[label] = found
    return {label: steady(found, runs) for label, found in printed.items()}, runs


def read(commands: Iterable[str], runs: dict[str, str]) -> dict[str, Any]:
    """Type these commands, and return what each printed. Only measured durations are replaced."""

    def printed(command: str) -> Any:
        found = with_home_replaced(typed(command, runs))
        return _mapped(found, lambda text: re.sub(*DURATION, text)) if command.startswith("test ") else found

    return {command: printed(command) for command in commands}


def with_home_replaced(value: Any) -> Any:
    """Return a value in which the folder of the session is replaced."""
    return _mapped(value, lambda text: text.replace(str(Path.cwd().parent), "<home>"))


def steady(value: Any, runs: dict[str, str]) -> Any:
    """Return a value in which all that differs between two sessions is replaced: ids, digests that cover them, times, durations."""

    def replaced(text: str) -> str:
        for name, run_id in runs.items():
            text = text.replace(run_id, f"<{name}>")
        for pattern, name in VARYING:
            text = re.sub(pattern, name, text)
        return text

    return _mapped(with_home_replaced(value), replaced)


DURATION = (r'("(?:total_)?duration_ms": )[\d.]+', r"\1<n>")
VARYING = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<id>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?", "<time>"),
    (r'("inodes": )"[^"]*"', r"\1<n>"),
    (r'("at": "<time>", "digest": )"[0-9a-f]+"', r"\1<digest>"),  # a digest that covers the time
    DURATION,
)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(member, change) for key, member in value.items()}
    if isinstance(value, list):
        return [_mapped(member, change) for member in value]
    return change(value) if isinstance(value, str) else value


def dumped(database: Path) -> str:
    """Return the SQL that makes a store again."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return "".join(f"{line}\n" for line in connection.iterdump())


def restored(database: Path, statements: str | None = None) -> None:
    """Make the golden store at this path, or the one of these statements."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.executescript(STORE.read_text(encoding="utf-8") if statements is None else statements)
    database.chmod(0o600)


def write() -> None:
    """Play the session, and write its records."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder, home(Path(folder)):
        acted, runs = played()
        exported = typed("export {erasing}", runs)["out"]
        _save(ACTED, acted)
        STORE.write_text(dumped(Path(os.environ["PLAN_ADAPTER_HOME"]) / "plans.db"), encoding="utf-8")
        EXPORT.write_text(exported, encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, home(Path(folder)):
        restored(Path(os.environ["PLAN_ADAPTER_HOME"]) / "plans.db")
        _save(READ, {"runs": runs, "printed": read(READS, runs)})


def _save(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
