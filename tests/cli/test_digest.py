"""Tests of `--digest` in `plan approve`, `reject` and `resolve`: an answer applies only to the content that was read."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Plan, digest_of
from tests.cli.gated import waiting
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document, step
from tests.cli.test_terminal import Terminal


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Return a list of terminals that are closed after the test."""
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def revised(plan: Plan) -> str:
    """Return the id of a run whose plan was replaced after it was created."""
    run_id = waiting(plan)
    result = plan("revise", run_id, document(step("greet", "greet", parameters={"who": "大家"}), **NEEDS_APPROVAL), *TOOLS)
    assert result.code == 0, result.err
    return run_id


def commands_in(text: str) -> list[list[str]]:
    """Return the approve commands in `text`, split into arguments."""
    return [found.split()[1:] for found in re.findall(r"`(plan approve [^`]*--digest [0-9a-f]+)`", text)]


def test_every_hint_shows_the_approve_command_with_its_digest(plan: Plan) -> None:
    first = plan("run", document(GREET, **NEEDS_APPROVAL), "--offline", *TOOLS)
    (gate,) = plan("gates", "--json").lines
    run_id = gate["run_id"]
    command = ["approve", run_id, "--digest", digest_of(plan, run_id)[:12]]
    assert gate["command"] == " ".join(["plan", *command])
    for text in (first.err, plan("gates").err, plan("show", run_id).next, plan("approve", run_id, "--show").err):
        assert commands_in(text) == [command], text
    assert plan("show", run_id, "--json").run["gates"][0]["command"] == gate["command"]
    assert gate["digest"][:12] in plan("gates", "--wide").out
    assert plan(*command).code == 0


def test_a_wrong_digest_is_refused_and_the_error_shows_the_current_one(plan: Plan) -> None:
    run_id = waiting(plan)
    read = digest_of(plan, run_id)
    assert plan("revise", run_id, document(step("greet", "greet", parameters={"who": "大家"}), **NEEDS_APPROVAL), *TOOLS).code == 0
    now = digest_of(plan, run_id)[:12]
    for verb in ("approve", "reject"):
        result = plan(verb, run_id, "--digest", read[:12], "--json")
        shows = f"`plan approve {run_id} --show` prints it, then `plan {verb} {run_id} --digest {now}` answers"
        message = f"the content of the gate changed: you answered about {read[:12]}, and the gate now asks about {now}; {shows}"
        assert (result.code, result.run["error"], result.run["message"]) == (10, "NotApprovedError", message)
    assert plan("show", run_id, "--json").run["approvals"] == []
    assert plan("approve", run_id, "--digest", now).code == 0


def test_a_digest_unknown_to_the_run_is_not_reported_as_a_change(plan: Plan) -> None:
    run_id = revised(plan)
    now = digest_of(plan, run_id)[:12]
    result = plan("approve", run_id, "--digest", "0" * 12)
    message = (
        f"no gate of this run has a digest beginning with 000000000000; the open one is {now}; `plan approve {run_id} --show` prints it"
    )
    assert (result.code, message in result.err, "changed" in result.err) == (10, True, False), result.err


GATES: dict[str, tuple[bool, tuple[str, ...]]] = {"the plan": (False, ()), "a step": (True, ("greet",))}
UNREAD: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "a note": ("--note", "看过了"),
    "json": ("--json",),
    "a code": ("--code", "123456"),
    "a signature": ("--sign", "--by", "ana"),
}


@pytest.mark.parametrize(("at_step", "where"), GATES.values(), ids=[*GATES])
@pytest.mark.parametrize("given", UNREAD.values(), ids=[*UNREAD])
def test_a_script_approves_nothing_that_it_does_not_name(plan: Plan, at_step: bool, where: tuple[str, ...], given: tuple[str, ...]) -> None:
    run_id = waiting_at(plan, at_step=at_step)
    (gate,) = plan("gates", "--json").lines
    result = plan("approve", run_id, *where, *given)
    show = " ".join(["plan", "approve", run_id, *where, "--show"])
    message = (
        f"nobody can confirm here, so nothing was approved: `{gate['command']}` approves exactly what waits now, and `{show}` prints it; "
        "`--yes` instead of `--digest` approves it unread"
    )
    assert (result.code, message in result.out + result.err) == (2, True), result.err
    assert [open_gate["digest"] for open_gate in plan("gates", "--json").lines] == [gate["digest"]]
    assert plan(*gate["command"].split()[1:]).code == 0


@pytest.mark.parametrize(("at_step", "where"), GATES.values(), ids=[*GATES])
@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["text", "json"])
def test_yes_approves_what_waits_unread(plan: Plan, at_step: bool, where: tuple[str, ...], as_json: tuple[str, ...]) -> None:
    run_id = waiting_at(plan, at_step=at_step)
    assert plan("approve", run_id, *where, "--yes", *as_json).code == 0
    done = plan("resume", run_id, "--offline", "--json", *TOOLS)
    assert (done.code, done.run["status"]) == (0, "completed"), done.err


def test_yes_approves_no_step_that_it_does_not_name(plan: Plan, terminals: list[Terminal]) -> None:
    run_id = waiting_at(plan, at_step=True)
    result = plan("approve", run_id, "--yes")
    assert (result.code, "waits only at a step; to answer there, name it: `plan approve" in result.err) == (2, True), result.err
    terminal = Terminal("approve", run_id, "--yes")
    terminals.append(terminal)
    assert terminal.end() == 2
    assert len(plan("gates", "--json").lines) == 1


def test_at_a_terminal_yes_asks_nothing_and_json_cannot_ask(plan: Plan, terminals: list[Terminal]) -> None:
    run_id = waiting(plan)
    for option, code in (("--json", 2), ("--yes", 0)):
        terminal = Terminal("approve", run_id, option)
        terminals.append(terminal)
        assert (terminal.end(), "[y]es" in terminal.shown) == (code, False), terminal.shown
    assert plan("gates", "--json").lines == []


def waiting_at(plan: Plan, *, at_step: bool) -> str:
    """Return the id of a run that waits at the gate of its plan, or of its step `greet`."""
    if not at_step:
        return waiting(plan)
    result = plan("run", document({**GREET, "requires_approval": True}), "--offline", "--json", *TOOLS)
    assert result.code == 6, result.err
    return result.run["id"]


def test_yes_does_not_approve_changed_content(plan: Plan) -> None:
    run_id = revised(plan)
    result = plan("approve", run_id, "--yes")
    assert (result.code, "the content of the gate has changed since the run was created" in result.err) == (10, True)
    (command,) = commands_in(result.err.splitlines()[-1])
    assert plan("approve", run_id, "--json", "--yes").code == 10
    assert plan(*command).code == 0
    assert plan("resume", run_id, "--offline", *TOOLS).code == 0


def test_a_rejection_needs_no_digest(plan: Plan) -> None:
    assert plan("reject", revised(plan)).code == 0


def test_changed_content_is_shown_and_confirmed_at_a_terminal(plan: Plan, terminals: list[Terminal]) -> None:
    run_id = revised(plan)
    for word, code, waits in (("n", 2, 1), ("y", 0, 0)):
        terminal = Terminal("approve", run_id)
        terminals.append(terminal)
        terminal.wait_for("Approve this plan? [y]es, [n]o ")
        assert "大家" in terminal.shown
        terminal.type(f"{word}\n")
        assert terminal.end() == code
        assert len(plan("gates", "--json").lines) == waits
    named = waiting(plan)
    terminal = Terminal("approve", named, "--digest", digest_of(plan, named))
    terminals.append(terminal)
    assert terminal.end() == 0


@pytest.mark.parametrize("given", ["1234567", "xyzxyzxyz", ""])
def test_an_invalid_digest_is_a_usage_error(plan: Plan, given: str) -> None:
    for verb in (["approve", "0192f0c4"], ["reject", "0192f0c4"], ["resolve", "0192f0c4", "greet", "done"]):
        result = plan(*verb, "--digest", given)
        assert (result.code, "--digest needs at least 8 characters of an approval digest" in result.err) == (2, True)


def test_a_resolution_applies_only_to_its_attempt(plan: Plan) -> None:
    run_id = plan("run", document(step("lost", "get_lost")), "--offline", "--yes", "--json", *TOOLS).run["id"]
    result = plan("resolve", run_id, "lost", "done", "--digest", "0" * 12, "--json")
    assert (result.code, "another attempt of `lost` waits now" in result.lines[0]["message"]) == (10, True)
    assert json.loads(plan("show", run_id, "--json").out)["steps"][0]["outcome"] == "unknown"
    assert plan("resolve", run_id, "lost", "done").code == 0
