"""Tests of shortened run ids: every verb takes a beginning of at least four characters, an end of at least six, and `last`."""

import itertools
from collections.abc import Callable

import pytest

from plan_adapter.cli.answering import GateSelector
from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.cli.remote import _find_form  # pyright: ignore[reportPrivateUsage]
from plan_adapter.engine.gate_forms import OpenForm
from plan_adapter.engine.local_server import server_status
from plan_adapter.local.settings import Settings
from tests.cli.conftest import Plan
from tests.cli.gated import waiting
from tests.cli.test_run import TOOLS

VERBS = (
    ["approve", "ID", "--yes"],
    ["reject", "ID"],
    ["resolve", "ID", "greet", "done"],
    ["cancel", "ID"],
    ["rollback", "ID"],
    ["resume", "ID", "--offline", *TOOLS],
    ["show", "ID"],
    ["logs", "ID"],
    ["export", "ID"],
    ["verify", "ID"],
)


def test_a_run_id_prefix_needs_at_least_four_characters(plan: Plan) -> None:
    run_id = waiting(plan)
    for verb, length in itertools.product(VERBS, (1, 3)):
        result = plan(*(run_id[:length] if word == "ID" else word for word in verb))
        message = f"`{run_id[:length]}` is too short for the id of a run: give at least 4 of its characters"
        assert (result.code, message in result.err) == (2, True), (verb, result.err)
    assert plan("show", run_id[:4], "--json").run["status"] == "pending_approval"


WAYS = {
    "end": lambda run_id: run_id[-6:],
    "longer end": lambda run_id: run_id[-15:],
    "END": lambda run_id: run_id[-8:].upper(),
    "last": lambda _: "last",
}


@pytest.mark.parametrize("way", WAYS.values(), ids=[*WAYS])
def test_a_run_is_found_by_its_end_among_runs_of_the_same_minute(plan: Plan, way: Callable[[str], str]) -> None:
    others, run_id = [waiting(plan) for _ in range(2)], waiting(plan)
    assert {other[:7] for other in others} == {run_id[:7]}, "they begin alike"  # the eighth changes once in 65 seconds
    assert plan("show", way(run_id), "--json").run["id"] == run_id


@pytest.mark.parametrize("way", WAYS.values(), ids=[*WAYS])
def test_every_verb_finds_a_run_by_its_end(plan: Plan, way: Callable[[str], str]) -> None:
    waiting(plan)
    run_id = waiting(plan)
    for verb in VERBS:
        result = plan(*(way(run_id) if word == "ID" else word for word in verb))
        assert "no run has the id" not in result.err and "several runs" not in result.err, (verb, result.err)
    assert [line["status"] for line in plan("runs", "--json").lines] == ["completed", "pending_approval"]


@pytest.mark.parametrize("end", [1, 5])
def test_fewer_than_six_last_characters_name_no_run(plan: Plan, end: int) -> None:
    run_id = waiting(plan)
    result = plan("logs", run_id[-end:])  # `plan show` also takes the beginning of a digest, which may be the same
    assert result.code == 2 and run_id not in result.err


def test_last_names_the_newest_run_and_says_if_there_is_none(plan: Plan) -> None:
    assert "there is no last run: the store has no run yet" in plan("logs", "last").err
    first = waiting(plan)
    assert plan("show", "last", "--json").run["id"] == first
    second = waiting(plan)
    assert plan("show", "last", "--json").run["id"] == second


def test_what_the_list_prints_works_when_it_is_typed_back(plan: Plan) -> None:
    ids = {waiting(plan) for _ in range(3)}
    printed = {word for line in plan("runs").out.splitlines() for word in line.split() if plan("show", word, "--json").code == 0}
    assert printed == {run_id[-6:] for run_id in ids}


@pytest.mark.parametrize("name", ["0000-none", "last", "x"])
def test_no_server_starts_for_a_run_that_does_not_exist(plan: Plan, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_LOCAL_SERVER", "auto")
    result = plan("resume", name)
    assert (result.code, "run" in result.err) == (2, True)
    assert server_status(Settings()).state == "none"


def test_a_pruned_run_is_named_by_its_end(plan: Plan) -> None:
    run_id = waiting(plan)
    plan("cancel", run_id)
    assert plan("prune", "--older-than", "0d", "--yes").code == 0
    assert f"`plan verify {run_id}` shows its tombstone" in plan("show", run_id[-6:]).err


def form_of(run_id: str) -> OpenForm:
    return OpenForm(
        gate_id="g", run_id=run_id, step_id=None, item=None, name="p", approval_digest="d" * 64, opened_at=None, expires_at=None,
        known_by=None, keyset="k", refused=None, kind="approval", label=None, call_kind="step", is_lost=False, progress=None,
        first_digest="", flow_run_id="f" * 8, is_unattended=False,
    )  # fmt: skip


@pytest.mark.parametrize("word", ["0192ab01-aaaa", "bcdef2", "last"])
def test_a_form_is_found_by_the_same_words_without_the_store(word: str) -> None:
    forms = [form_of("0192ab00-0000-abcdef1"), form_of("0192ab01-aaaa-abcdef2")]
    assert _find_form(forms, GateSelector(word), None) is forms[1]


def test_a_word_for_the_forms_of_several_runs_is_refused() -> None:
    forms = [form_of("0192ab00-0000-abcdef1"), form_of("0192ab01-aaaa-abcdef2")]
    with pytest.raises(UsageError, match="several runs have an id that begins or ends with `0192ab`"):
        _find_form(forms, GateSelector("0192ab"), None)
    with pytest.raises(UsageError, match="too short"):
        _find_form(forms, GateSelector("ab"), None)
