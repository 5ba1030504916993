"""Every example in the help of a verb is run here, or on a server in `test_examples_on_server.py`."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from plan_adapter.cli.app import VERBS
from plan_adapter.cli.examples import EXAMPLES
from plan_adapter.cli.exit_codes import ExitCode
from plan_adapter.cli.help_text import WIDTH, example_command
from tests.agent.conftest import forget_model_servers
from tests.agent.server import says, scripted
from tests.cli.conftest import Plan
from tests.cli.drafting import configure
from tests.cli.scenes import DRAFT, REVISED, scene_of
from tests.cli.test_terminal import Terminal, piped, terminals

__all__ = ["forget_model_servers", "terminals"]

COMMANDS = [example_command(name, example) for name, found in EXAMPLES.items() for example in found.examples]

ON_SERVER = (
    "plan run restart.yaml --input host=web-2",
    "plan deploy runbooks/ --dry-run",
    'plan deploy restart.yaml --cron "0 3 * * *"',
    "plan deploy restart-web --delete",
    "plan serve runbooks/",
    "plan serve restart.yaml --interval 6h",
    "plan gates --api",
    "plan resume last",
    "plan rollback last",
    'plan rollback last --note "the release is bad"',
    "plan doctor",
    "plan doctor restart.yaml",
    "plan doctor --model",
    "plan reconcile",
    "plan notify slack-webhook/oncall",
    "plan notify slack-webhook/oncall --after 30m",
)
"""The examples that need a Prefect server."""

ON_STDIN = ("plan mcp --allow-tool run_command",)
"""The examples that serve a program on stdin and stdout until it closes them."""

SERVING = ("plan desk", "plan desk --port 0")
"""The examples that serve until a signal."""

AT_TERMINAL = ("plan approve last", "plan revise last --edit")
"""The examples that need a terminal, where they ask for a confirmation."""

CODES = {"pursue": 6}
"""The verbs whose examples end with another exit code than 0: nobody approves the draft here."""

OFFLINE = [command for command in COMMANDS if command not in (*ON_SERVER, *ON_STDIN, *SERVING, *AT_TERMINAL)]


@pytest.mark.parametrize("command", OFFLINE)
def test_an_example_runs(command: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    words = words_of(command, scene_of(command)(plan))
    with scripted(says(REVISED if words[0] == "revise" else DRAFT)) as server:
        configure(monkeypatch, server.url)
        result = plan(*words)
    assert result.code == CODES.get(words[0], 0), result.out + result.err
    assert "error[" not in result.out + result.err
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


@pytest.mark.parametrize("command", ON_STDIN)
def test_an_example_serves_until_its_input_ends(command: str, plan: Plan) -> None:
    done = piped(*words_of(command, scene_of(command)(plan)))
    assert (done.returncode, b"serving " in done.stderr) == (0, True), done.stderr


@pytest.mark.parametrize("command", SERVING)
def test_an_example_serves_until_a_signal(command: str, plan: Plan, terminals: list[Terminal]) -> None:
    words = words_of(command, scene_of(command)(plan))
    terminals.append(terminal := Terminal(*words, *(() if "--port" in words else ("--port", "0")), controls=True))
    terminal.wait_for("the desk is at http://127.0.0.1:")
    terminal.type("\x03")
    assert terminal.end() == ExitCode.INTERRUPTED


@pytest.mark.parametrize("command", AT_TERMINAL)
def test_an_example_runs_at_a_terminal(command: str, plan: Plan, terminals: list[Terminal], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("editor.sh").write_text('#!/bin/sh\nsed -i "s/Tell the team/Tell the whole team/" "$1"\n', encoding="utf-8")
    Path("editor.sh").chmod(0o755)
    monkeypatch.setenv("EDITOR", str(Path("editor.sh").absolute()))
    terminal = Terminal(*words_of(command, scene_of(command)(plan)))
    terminals.append(terminal)
    terminal.wait_for("[y")
    terminal.type("y\n")
    assert terminal.end() == 0, terminal.shown


def test_every_verb_has_examples_and_a_page_of_the_guide(plan: Plan) -> None:
    pages = {line["topic"] for line in plan("guide", "--json").lines}
    assert list(EXAMPLES) == [name for verb in VERBS.values() for name in verb.commands]
    assert {found.page for found in EXAMPLES.values()} <= pages
    counts = {name: [len(EXAMPLES[command].examples) for command in verb.commands] for name, verb in VERBS.items()}
    assert all(sum(found) >= 2 and max(found) <= 3 for found in counts.values()), counts
    assert {*ON_SERVER, *ON_STDIN, *AT_TERMINAL} <= set(COMMANDS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_help_ends_with_the_examples_and_the_page_and_fits_80_columns(name: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    lines = plan(*name.split(), "--help").out.splitlines()
    shown = lines[lines.index("Examples:") + 1 :]
    assert shown[-2:] == ["", f"Guide: plan guide {EXAMPLES[name].page}"]
    for example in EXAMPLES[name].examples:
        at = next(at for at, line in enumerate(shown) if f"{line}  ".startswith(f"  {example_command(name, example)}  "))
        assert shown[at].endswith(f"  {example.text}") or shown[at + 1].strip() == example.text
    assert [line for line in lines if len(line) > WIDTH or line.endswith(" ")] == []


def words_of(command: str, values: Mapping[str, str]) -> list[str]:
    """Return the arguments of an example, with these values for the words in capitals."""
    return [values.get(word, word) for word in shlex.split(command)[1:]]
