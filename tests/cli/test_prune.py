"""Tests of `plan prune`: it deletes old records and result files and leaves tombstones that can be verified."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.approval import os_user
from plan_adapter.gates.signatures import sign
from tests.cli.conftest import Plan
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document
from tests.sql import Sql

ME = os_user()


@pytest.fixture
def runs(plan: Plan) -> list[str]:
    """Return the ids of two completed runs and of one that waits for its approval."""
    paths: list[dict[str, Any]] = [{}, {"name": "other"}, NEEDS_APPROVAL]
    return [plan("run", document(GREET, **fields), "--offline", "--json", *TOOLS).run["id"] for fields in paths]


def test_a_dry_run_lists_the_runs_and_deletes_nothing(plan: Plan, runs: list[str]) -> None:
    result = plan("prune", "--older-than", "0m", "--dry-run")
    assert (result.code, result.err) == (0, "would delete 2 records\n")
    assert [line.split()[0] for line in result.out.splitlines()[1:]] == runs[:2]
    assert len(plan("runs", "--json").lines) == 3


def test_old_runs_are_deleted_with_their_results_and_leave_tombstones(plan: Plan, runs: list[str], home: Path) -> None:
    for run_id in runs:
        (home / "results" / run_id).mkdir(parents=True)
        (home / "results" / run_id / "greet-1.json").write_text("{}")
    digest = plan("verify", runs[0], "--json").run["digest"]
    result = plan("prune", "--older-than", "0m", "--yes")
    assert (result.code, result.out, result.err) == (0, "", "deleted 2 records; removed the result files of 2 runs\n")
    assert [run["id"] for run in plan("runs", "--json").lines] == [runs[2]]
    assert [path.name for path in (home / "results").iterdir()] == [runs[2]]

    verified = plan("verify", runs[0])
    assert verified.code == 0
    assert verified.out.startswith(f"pruned: run {runs[0]} was pruned, by {ME} (os_user) at ")
    assert verified.out.endswith(f"digest {digest}\n")
    as_json = plan("verify", runs[0], "--json").run
    assert (as_json["verdict"], as_json["ok"], as_json["tombstone"]["last_digest"]) == ("pruned", True, digest)
    shown = plan("show", runs[0], "--all")
    assert (shown.code, f"run {runs[0]} was pruned" in shown.err) == (2, True)
    assert plan("verify").out == "1 run, tombstones, policy and versions of plans: intact\n"
    assert plan("prune", "--older-than", "0m", "--yes").err == "deleted 0 records\n"


def key_of(name: str, folder: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / name)], check=True)
    return folder / name


def test_a_signature_covers_all_tombstones_and_a_forged_one_is_reported(
    plan: Plan, runs: list[str], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other, allowed = key_of("mine", tmp_path), key_of("other", tmp_path), tmp_path / "allowed"
    allowed.write_text(f"{ME} {mine.with_suffix('.pub').read_text()}")
    monkeypatch.setenv("PLAN_ADAPTER_SIGNING_KEY", str(tmp_path / "none"))
    assert plan("prune", "--older-than", "0m", "--sign", "--yes").code != 0
    monkeypatch.setenv("PLAN_ADAPTER_SIGNING_KEY", str(mine))
    assert plan("prune", "--older-than", "0m", "--sign", "--yes").err == "deleted 2 records; signed the tombstones up to number 2\n"
    covered = f"the signature of {ME} at tombstone 2 covers it"
    assert plan("verify", runs[0]).err == f"{covered}, which was not checked: no allowed signers are named\n"
    monkeypatch.setenv("PLAN_ADAPTER_ALLOWED_SIGNERS", str(allowed))
    assert (plan("verify", runs[0]).err, plan("verify", runs[0], "--json").run["signature"]["checked"]) == (
        f"{covered}\n",
        True,
    )
    assert plan("verify").out == "1 run, tombstones, policy and versions of plans: intact\n"
    assert plan("prune", "--older-than", "0m", "--sign", "--yes").err == "deleted 0 records\n"  # everything is signed

    forged = sign("prefect-plan-adapter tombstones\nnumber: 1\ndigest: 0\n", key=other)
    row = "INSERT INTO tombstone_signatures VALUES (1, :by, :signature, '2026-01-01 00:00:00')"
    asyncio.run(Sql(f"sqlite:///{home / 'plans.db'}").change(row, by=ME, signature=forged))
    for result in (plan("verify", runs[0]), plan("verify")):
        assert (result.code, result.out.startswith(f"altered: the signature of {ME} at tombstone 1: ")) == (1, True)


def test_the_next_prune_removes_results_left_by_an_interrupted_one(plan: Plan, runs: list[str], home: Path) -> None:
    assert plan("prune", "--older-than", "0m", "--yes").code == 0
    (home / "results" / runs[0]).mkdir(parents=True)
    (home / "results" / "not-a-run").mkdir()
    assert plan("prune", "--older-than", "0m", "--yes").err == "deleted 0 records; removed the result files of 1 run\n"
    assert [path.name for path in (home / "results").iterdir()] == ["not-a-run"]


def test_filters_select_the_runs_to_delete_and_json_lists_each_run(plan: Plan, runs: list[str]) -> None:
    assert plan("prune", "--older-than", "1h", "--yes", "--json").lines == []
    (line,) = plan("prune", "--older-than", "0m", "--runbook", "other", "--yes", "--json").lines
    assert (line["id"], line["name"], line["status"], line["kept"]) == (runs[1], "other", "completed", None)
    assert plan("prune", "--older-than", "0m", "--status", "failed", "--yes", "--json").lines == []
    assert {run["id"] for run in plan("runs", "--json").lines} == {runs[0], runs[2]}


def test_only_operators_can_prune(plan: Plan, runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_OPERATORS", "ana,bo")
    result = plan("prune", "--older-than", "0m", "--yes")
    assert (result.code, result.err) == (10, f"plan: {ME} may not prune runs; operators: ana, bo\n")
    assert len(plan("runs", "--json").lines) == 3


def test_runs_of_plans_with_other_operators_are_kept(plan: Plan, runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"值班": [ME]}))
    theirs = document(GREET, name="theirs", approval={"operators": ["值班"]})
    run_id = plan("run", theirs, "--offline", "--json", *TOOLS).run["id"]
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", json.dumps({"值班": ["ana"]}))
    assert plan("prune", "--older-than", "0m", "--yes").err == f"deleted 2 records; kept 1: 1 {ME} is not an operator of its plan\n"
    assert {run["id"] for run in plan("runs", "--json").lines} == {runs[2], run_id}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--older-than", "0m"), "add --yes, or --dry-run"),
        (("--older-than", "soon", "--yes"), "write a number and s, m, h, d or w, as in --older-than 90d"),
        (("--older-than", "1d", "--status", "dead", "--yes"), "there is no status `dead`"),
        (("--yes",), "--older-than"),
    ],
    ids=" ".join,
)
def test_a_usage_error_deletes_nothing(plan: Plan, runs: list[str], arguments: tuple[str, ...], message: str) -> None:
    result = plan("prune", *arguments)
    assert (result.code, message in result.err) == (2, True), result.err
    assert len(plan("runs", "--json").lines) == 3


def test_an_altered_record_is_kept_and_reported(plan: Plan, runs: list[str], home: Path) -> None:
    change = f"UPDATE runs SET message = 'x' WHERE id = '{runs[0]}'"
    asyncio.run(Sql(f"sqlite:///{home / 'plans.db'}").change(change))
    assert plan("prune", "--older-than", "0m", "--yes").err == "deleted 1 record; kept 1: 1 record does not verify\n"
    verified = plan("verify")
    assert (verified.code, verified.out.startswith(f"altered: run {runs[0]}: runs: ")) == (1, True)
    assert plan("verify", "--json").run["ok"] is False
