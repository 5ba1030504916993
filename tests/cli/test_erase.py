"""Tests of `plan erase`: it removes personal data from the record and files of a run, which still verifies."""

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from plan_adapter.gates.approval import os_user
from plan_adapter.runs import erase
from tests.cli.conftest import Plan
from tests.cli.test_run import TOOLS, document, step
from tests.exports import document_of

ME, NAME = os_user(), "安娜·穆勒"


@pytest.fixture
def run_id(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of a failed run that greeted a person twice; the second greeting is in a result file."""
    monkeypatch.setenv("PLAN_ADAPTER_RESULT_LIMIT_BYTES", "1024")
    who = "${{ inputs.who }}"
    steps = [
        step("greet", "greet", parameters={"who": who}),
        step("again", "greet", parameters={"who": f"{'!' * 1000}{who}"}),
        step("fail", "fail", parameters={"text": f"no {who}"}, depends_on=["greet", "again"]),
    ]
    path = document(*steps, inputs={"who": {"type": "string"}})
    result = plan("run", path, "--offline", "--json", "--input", f"who={NAME}", *TOOLS)
    assert result.code == 1
    return result.run["id"]


def test_a_dry_run_counts_the_values_and_erases_nothing(plan: Plan, run_id: str) -> None:
    before = plan("export", run_id).out
    result = plan("erase", run_id[:13], "--fields", "inputs.who", "--dry-run")
    assert result.code == 0
    assert result.out.startswith(f"would erase inputs.who of run {run_id}: ")
    assert result.out.endswith(" and 1 result file\n")
    assert plan("export", run_id).out == before


def test_personal_data_is_erased_from_record_and_files_and_the_record_verifies(plan: Plan, run_id: str, home: Path) -> None:
    (file,) = (home / "results" / run_id).iterdir()
    assert NAME in file.read_text(encoding="utf-8")
    (line,) = plan("erase", run_id, "--fields", "inputs.who,steps.fail.error", "--yes", "--json").lines
    assert (line["run"], line["fields"], line["files"], line["erased"]) == (run_id, ["inputs.who", "steps.fail.error"], [str(file)], True)

    assert NAME not in plan("export", run_id).out
    assert NAME not in file.read_text(encoding="utf-8")
    assert "[erased]" in json.loads(file.read_text(encoding="utf-8"))["text"]
    exported = document_of(plan("export", run_id).out)
    result = json.loads(next(row["result"] for row in exported["receipts"] if row["step_id"] == "again"))
    assert (result["path"], result["digest"]) == (str(file), "[erased]:[erased]")
    (tombstone,) = exported["tombstones"]
    assert json.loads(tombstone["replaced"])[str(file)] == "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
    verified = plan("verify", run_id)
    assert verified.code == 0
    assert 'receipts ["again", "step", -1, 1]: result' in verified.err
    assert "erased: inputs.who, steps.fail.error" in verified.err
    Path("run.jsonl").write_text(plan("export", run_id).out, encoding="utf-8")
    assert plan("verify", "run.jsonl", "--json").run["erased"] == ["inputs.who", "steps.fail.error"]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_an_erased_run_cannot_be_resumed(plan: Plan, run_id: str) -> None:
    assert plan("erase", run_id, "--fields", "inputs.who", "--yes").code == 0
    result = plan("resume", run_id, "--offline", *TOOLS)
    assert result.code == 8
    assert f"run {run_id} has erased fields (inputs.who), by {ME} (os_user) at " in result.err
    assert "it cannot run again" in result.err
    assert plan("show", run_id).code == 0


def test_an_erasure_interrupted_before_the_files_are_replaced_is_completed(
    plan: Plan, run_id: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = (home / "results" / run_id).iterdir()

    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(erase, "_replace_results", interrupted)
        assert plan("erase", run_id, "--fields", "inputs.who", "--yes").code == 130
    assert NAME in file.read_text(encoding="utf-8")
    assert NAME not in plan("export", run_id).out
    assert plan("erase", run_id, "--fields", "inputs.who", "--yes").code == 0
    assert NAME not in file.read_text(encoding="utf-8")
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_only_operators_can_erase_and_a_refusal_is_recorded(plan: Plan, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_OPERATORS", "ana")
    result = plan("erase", run_id, "--fields", "inputs.who", "--yes")
    assert (result.code, f"{ME} may not erase values in runs of" in result.err) == (10, True)
    assert NAME in plan("export", run_id).out
    assert plan("verify", run_id).code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--fields", "inputs.who"), "add --yes, or --dry-run"),
        (("--fields", "who,inputs.you", "--yes"), "no field is called `who`; write inputs.NAME"),
        (("--fields", "inputs.you,steps.greet.error", "--yes"), "has no value at `inputs.you`, `steps.greet.error`"),
        (("--fields", ",", "--yes"), "erase what?"),
    ],
)
def test_invalid_fields_erase_nothing(plan: Plan, run_id: str, arguments: tuple[str, ...], message: str) -> None:
    result = plan("erase", run_id, *arguments)
    assert (result.code, message in result.err) == (2, True), result.err
    assert NAME in plan("export", run_id).out


def test_answers_to_questions_and_concurrency_keys_are_erased_too(plan: Plan, home: Path) -> None:
    asks = {"id": "decide", "ask": {"question": "Who is it?", "fields": {"who": {"type": "string"}}}}
    uses = step("greet", "greet", parameters={"who": "${{ steps.decide.result.who }}"})
    inputs = {"mail": {"type": "string"}}
    path = document(asks, uses, inputs=inputs, concurrency={"key": "of-${{ inputs.mail }}"}, options={"require_approval": False})
    run_id = plan("run", path, "--offline", "--json", "--detach", "--input", "mail=ana@example.org", *TOOLS).run["id"]
    assert plan("answer", run_id, "decide", f"who={NAME}").code == 0
    assert plan("resume", run_id, "--offline", "--yes", *TOOLS).code == 0
    assert plan("erase", run_id, "--fields", "steps.decide.result.who,inputs.mail", "--yes").code == 0
    assert plan("verify", run_id).code == 0
    with closing(sqlite3.connect(home / "plans.db")) as database:
        kept = "\n".join(database.iterdump())
    assert (NAME in kept, "ana@example.org" in kept) == (False, False)
