"""Tests of outcome gates at a pseudo-terminal: the prompt, its answers, and answers from other processes."""

import json

import pytest

from plan_adapter.gates.approval import os_user
from tests.cli.test_run import GREET, document, step
from tests.cli.test_terminal import Terminal, piped, run_at, terminals

__all__ = ["terminals"]

PROMPT = f"Did `lost` take effect? Your answer as {os_user()}: done, again, abort, [v]iew, [?] "
LOST = step("lost", "get_lost")


def test_the_person_at_the_terminal_resolves_the_outcome_and_the_run_continues(terminals: list[Terminal]) -> None:
    used = {**GREET, "depends_on": ["lost"], "parameters": {"who": "${{ string(steps.lost.result) }}"}}
    terminal = run_at(terminals, document(LOST, used))
    terminal.wait_for(PROMPT)
    assert "Did lost take effect?" in terminal.shown
    assert "approval digest" not in terminal.shown
    terminal.type("y\n")
    terminal.wait_for_next(PROMPT)
    assert "it did not, and is repeated; if you are wrong, it happens twice" in terminal.shown
    terminal.type("done\n")
    terminal.wait_for("What did it return?")
    terminal.type("{kaputt\n")
    terminal.wait_for("that is not JSON")
    terminal.type('"v3"\n')
    terminal.wait_for("How do you know?")
    terminal.type("看过了\n")
    assert terminal.end() == 0
    run = json.loads(piped("show", json.loads(piped("runs", "--json").stdout)["id"], "--json").stdout)
    first = run["steps"][0]
    assert (first["id"], first["status"], first["result"]) == ("lost", "completed", "v3")


@pytest.mark.thorough
def test_other_commands_list_and_resolve_the_outcome_but_cannot_approve_it(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(LOST))
    terminal.wait_for(PROMPT)
    (gate,) = [json.loads(line) for line in piped("gates", "--json").stdout.splitlines()]
    assert (gate["asks"], gate["step"], gate["attended"]) == ("outcome", "lost", True)
    command = f"plan resolve {gate['run_id']} lost done|again|abort --digest {gate['digest'][:12]}"
    assert f"`{command}` answers the first one" in piped("gates").stderr.decode()
    refused = piped("approve", gate["run_id"])
    assert refused.returncode == 2
    assert f"waits for the outcome of a call, not for an approval: `{command}`" in refused.stderr.decode()
    result = piped("resolve", gate["run_id"], "lost", "abort", "--note", "从别处")
    assert (result.returncode, "the waiting process ends the run" in result.stderr.decode()) == (0, True)
    assert terminal.end() == 4


def test_the_run_ends_as_unknown_if_nobody_can_be_asked(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(LOST), "--yes")
    assert terminal.end() == 7
    assert "take effect?" not in terminal.shown


def test_nobody_is_asked_for_a_result_that_nothing_uses(terminals: list[Terminal]) -> None:
    terminal = run_at(terminals, document(LOST, {**GREET, "depends_on": ["lost"]}))
    terminal.wait_for(PROMPT)
    terminal.type("done\n")
    terminal.wait_for("How do you know?")
    assert "What did it return?" not in terminal.shown
    terminal.type("看过了\n")
    assert terminal.end() == 0
