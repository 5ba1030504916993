"""Tests of prompts for missing inputs: `plan run` asks for them only at a terminal."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run import TOOLS, document, step
from tests.cli.test_terminal import Terminal, piped, run_at, terminals

__all__ = ["terminals"]

HOST = {"title": "主机", "description": "The node to greet", "enum": ["web-1", "网-2"]}
TIMES = {"type": "integer", "minimum": 2}


def greeting(**inputs: dict[str, Any]) -> Path:
    """Write a plan that needs `inputs` and returns their values as outputs."""
    outputs = {f"given_{name}": f"${{{{ inputs.{name} }}}}" for name in inputs}
    return document(step("greet", "greet", parameters={"who": "x"}), inputs=inputs, outputs=outputs)


def run_until_asked(terminals: list[Terminal], *arguments: str, **inputs: dict[str, Any]) -> Terminal:
    """Start `plan run` at a terminal and wait until it asks for the first missing input."""
    terminal = run_at(terminals, greeting(**inputs), *arguments)
    terminal.wait_for(f"{next(name for name in inputs if f'{name}=' not in ' '.join(arguments))}: ")
    return terminal


def recorded_runs() -> bytes:
    """Return the output of `plan runs --json`."""
    return piped("runs", "--json").stdout


def test_each_missing_input_is_described_and_asked_again_after_an_invalid_value(terminals: list[Terminal]) -> None:
    terminal = run_until_asked(
        terminals, "--input", "force=true", host=HOST, force={"type": "boolean"}, times=TIMES, left={"default": "as it is"}
    )
    terminal.wait_for("\nhost: ")
    assert (
        "试运行 needs 2 inputs; Ctrl-C ends the command, and nothing starts\ndefaults, which `--input NAME=VALUE` changes: left=as it is\n"
        in terminal.shown
    )
    assert "主机 (host): text\n  The node to greet\n  1) web-1\n  2) 网-2\n" in terminal.shown
    terminal.type("3\n")
    terminal.wait_for("  the value `3` is none of `web-1`, `网-2`\nhost: ")
    terminal.type("2\n")
    terminal.wait_for("times: an integer\n  at least 2\ntimes: ")
    terminal.type("many\n")
    terminal.wait_for("  this is not an integer\ntimes: ")
    terminal.type("1\n")
    terminal.wait_for("  the value `1` is smaller than 2\ntimes: ")
    terminal.type("2\n")
    assert terminal.end() == 0
    outputs = terminal.shown.partition("\ngiven_host: ")[2].splitlines()
    assert outputs[:4] == ["网-2", "given_force: true", "given_times: 2", "given_left: as it is"]


@pytest.mark.parametrize(
    ("definition", "typed", "value"),
    [
        ({"enum": ["web-1", "网-2"]}, "网-2", "网-2"),
        ({"type": "integer", "enum": [8, 2, 1]}, "2", 2),
        ({"enum": ["8", "x"]}, "8", "8"),
        ({"type": "boolean"}, "false", False),
        ({"type": "array"}, '["ö", 1]', ["ö", 1]),
    ],
    ids=["the text of a choice", "choices that are numbers", "a choice that looks like one", "boolean", "JSON"],
)
def test_a_typed_value_is_parsed_like_an_input_option(
    terminals: list[Terminal], definition: dict[str, Any], typed: str, value: object
) -> None:
    terminal = run_until_asked(terminals, what=definition)
    terminal.type(f"{typed}\n")
    assert terminal.end() == 0
    (run,) = map(json.loads, recorded_runs().splitlines())
    assert run["inputs"] == {"what": value}


def test_an_empty_line_is_not_accepted(terminals: list[Terminal]) -> None:
    terminal = run_until_asked(terminals, what={})
    terminal.type("\n")
    terminal.wait_for("  an empty text is not accepted here; `--input what=` gives one\nwhat: ")
    terminal.type("x\n")
    assert terminal.end() == 0


def test_the_value_of_a_secret_input_is_not_shown(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, greeting(api_token={}, host={}))
    terminal.wait_for("\napi_token: text\napi_token: ")
    terminal.type("hush-hush\n")
    terminal.wait_for("\nhost: text\nhost: ")
    terminal.type("web-1\n")
    terminal.wait_for("\nhost: web-1")
    assert "hush-hush" not in terminal.shown


def test_the_end_of_input_starts_nothing_and_reports_the_missing_inputs(terminals: list[Terminal]) -> None:
    terminal = run_until_asked(terminals, what={})
    terminal.type("\x04")
    assert terminal.end() == 2
    assert "no value for `what`" in terminal.shown
    assert recorded_runs() == b""


def test_ctrl_c_at_a_question_starts_nothing(terminals: list[Terminal]) -> None:
    terminal = run_until_asked(terminals, what={})
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == 130
    assert "interrupted" in terminal.shown
    assert recorded_runs() == b""


@pytest.mark.parametrize("option", ["--yes", "--json"])
def test_nothing_is_asked_with_yes_or_json(terminals: list[Terminal], option: str) -> None:
    terminal = run_at(terminals, greeting(what={}), option)
    assert terminal.end() == 2
    assert "no value for `what`" in terminal.shown
    assert "\nwhat: " not in terminal.shown


def test_a_given_value_that_is_wrong_is_asked_again_and_the_others_are_kept(terminals: list[Terminal]) -> None:
    name = {"pattern": "^web-[0-9]+$", "max_length": 9}
    terminal = run_at(
        terminals, greeting(kept={}, node=name, times=TIMES), "--input", "node=db-1", "--input", "kept=保留", "--input", "times=1"
    )
    terminal.wait_for("--input node: the value `db-1` does not match the pattern `^web-[0-9]+$`\nnode: text\n")
    terminal.wait_for("  pattern `^web-[0-9]+$`, at most 9 characters\nnode: ")
    terminal.type("web-1\n")
    terminal.wait_for("--input times: the value `1` is smaller than 2\n")
    terminal.type("2e0\n")
    assert terminal.end() == 0
    (run,) = map(json.loads, recorded_runs().splitlines())
    assert run["inputs"] == {"kept": "保留", "node": "web-1", "times": 2}


def test_the_wrong_value_of_a_secret_input_is_not_shown(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, greeting(api_token={"min_length": 10}), "--input", "api_token=hush")
    terminal.wait_for("--input api_token: the value has 4 characters, but needs at least 10\n")
    terminal.type("\x04")
    assert terminal.end() == 2
    assert "hush" not in terminal.shown


def test_nothing_is_asked_if_an_input_does_not_exist(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, greeting(what={}), "--input", "whta=1")
    assert terminal.end() == 2
    assert "no value for `what`" in terminal.shown
    assert "did you mean `what`?" in terminal.shown
    assert "\nwhat: " not in terminal.shown


def test_secrets_and_tools_are_checked_before_anything_is_asked(terminals: list[Terminal]) -> None:
    inputs = {"what": {}}
    uses = {"who": "${{ secrets.greeting_token }} ${{ inputs.what }}"}
    for wrong, message in (
        (step("greet", "greet", parameters=uses), "greeting_token"),
        (step("greet", "greeet"), "no tool is called `greeet`"),
    ):
        terminal = run_at(terminals, document(wrong, inputs=inputs))
        assert terminal.end() == 2
        assert message in terminal.shown
        assert "needs 1 input" not in terminal.shown
    assert recorded_runs() == b""


def test_nothing_is_asked_without_a_terminal() -> None:
    done = piped("run", greeting(what={}), "--offline", *TOOLS)
    assert (done.returncode, b"no value for `what`" in done.stderr) == (2, True)
