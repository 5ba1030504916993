"""`plan approve`, `reject` and `resolve` with `--digest`: an answer counts for what was read."""

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
    """Terminals to close."""
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def revised(plan: Plan) -> str:
    """Return the id of a run whose plan was replaced after it was created."""
    run_id = waiting(plan)
    said = plan("revise", run_id, document(step("greet", "greet", parameters={"who": "大家"}), **NEEDS_APPROVAL), *TOOLS)
    assert said.code == 0, said.err
    return run_id


def commands_in(text: str) -> list[list[str]]:
    """Return the commands that answer, as they stand in `text`."""
    return [found.split()[1:] for found in re.findall(r"`(plan approve [^`]*--digest [0-9a-f]+)`", text)]


def test_every_hint_holds_the_command_that_is_bound_to_the_content(plan: Plan) -> None:
    begun = plan("run", document(GREET, **NEEDS_APPROVAL), "--offline", *TOOLS)
    (gate,) = plan("gates", "--json").lines
    run_id = gate["run_id"]
    command = ["approve", run_id, "--digest", digest_of(plan, run_id)[:12]]
    assert gate["command"] == " ".join(["plan", *command])
    for text in (begun.err, plan("gates").err, plan("show", run_id).err, plan("approve", run_id, "--show").err):
        assert commands_in(text) == [command], text
    assert plan("show", run_id, "--json").run["gates"][0]["command"] == gate["command"]
    assert gate["digest"][:12] in plan("gates").out
    assert plan(*command).code == 0


def test_a_wrong_digest_is_refused_with_the_one_that_is_there_now(plan: Plan) -> None:
    run_id = waiting(plan)
    read = digest_of(plan, run_id)
    assert plan("revise", run_id, document(step("greet", "greet", parameters={"who": "大家"}), **NEEDS_APPROVAL), *TOOLS).code == 0
    now = digest_of(plan, run_id)[:12]
    for verb in ("approve", "reject"):
        said = plan(verb, run_id, "--digest", read[:12], "--json")
        shows = f"`plan approve {run_id} --show` prints it, then `plan {verb} {run_id} --digest {now}` answers"
        message = f"the content of the gate changed: you answered about {read[:12]}, and the gate now asks about {now}; {shows}"
        assert (said.code, said.lines) == (6, [{"error": "NotApprovedError", "message": message}])
    assert plan("show", run_id, "--json").run["approvals"] == []
    assert plan("approve", run_id, "--digest", now).code == 0


def test_a_digest_that_no_gate_of_the_run_ever_had_is_not_called_a_change(plan: Plan) -> None:
    run_id = revised(plan)
    now = digest_of(plan, run_id)[:12]
    said = plan("approve", run_id, "--digest", "0" * 12)
    message = (
        f"no gate of this run has a digest beginning with 000000000000; the open one is {now}; `plan approve {run_id} --show` prints it"
    )
    assert (said.code, message in said.err, "changed" in said.err) == (6, True, False), said.err


def test_without_a_terminal_content_that_changed_is_not_approved_unnamed(plan: Plan) -> None:
    run_id = revised(plan)
    said = plan("approve", run_id)
    assert (said.code, "the content of the gate has changed since the run was created" in said.err) == (6, True)
    (command,) = commands_in(said.err.splitlines()[-1])
    assert plan("approve", run_id, "--json").code == 6
    assert plan(*command).code == 0
    assert plan("resume", run_id, "--offline", *TOOLS).code == 0


def test_nothing_runs_by_a_rejection_which_needs_no_digest(plan: Plan) -> None:
    assert plan("reject", revised(plan)).code == 0


def test_at_a_terminal_the_content_is_shown_and_confirmed(plan: Plan, terminals: list[Terminal]) -> None:
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
def test_what_is_no_digest_is_a_wrong_usage(plan: Plan, given: str) -> None:
    for verb in (["approve", "0192f0c4"], ["reject", "0192f0c4"], ["resolve", "0192f0c4", "greet", "done"]):
        said = plan(*verb, "--digest", given)
        assert (said.code, "--digest needs at least 8 characters of an approval digest" in said.err) == (2, True)


def test_a_resolution_applies_only_to_its_attempt(plan: Plan) -> None:
    run_id = plan("run", document(step("lost", "get_lost")), "--offline", "--yes", "--json", *TOOLS).run["id"]
    said = plan("resolve", run_id, "lost", "done", "--digest", "0" * 12, "--json")
    assert (said.code, "another attempt of `lost` waits now" in said.lines[0]["message"]) == (6, True)
    assert json.loads(plan("show", run_id, "--json").out)["steps"][0]["outcome"] == "unknown"
    assert plan("resolve", run_id, "lost", "done").code == 0
