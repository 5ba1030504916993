"""Tests of secrets on the command line: their sources, and missing ones, are reported before anything runs."""

from pathlib import Path

import pytest

from tests.cli.conftest import Plan

DOCUMENT = """
description: Two secrets, and one that a step makes
options: {require_approval: false, stop_on_error: false}
steps:
  - {id: first, tool_name: run_command, parameters: {argv: [touch, first, "${{ secrets.token }}"]},
     creates_secrets: [made],
     rollback: {tool_name: run_command, parameters: {argv: [rm, "${{ secrets.undo }}"]}}}
  - {id: second, tool_name: run_command, effect: read, parameters: {argv: [echo, "${{ secrets.second }}"]}}
  - {id: later, tool_name: run_command, parameters: {argv: [echo, "${{ secrets.made }}"]}, depends_on: [first]}
"""

CREATED = "is created by step `first`"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    monkeypatch.setenv("PLAN_ADAPTER_SECRETS_DIR", str(folder))
    Path("plan.yaml").write_text(DOCUMENT, encoding="utf-8")
    return folder


def test_a_run_with_missing_secrets_is_refused_before_it_starts_and_all_are_reported(plan: Plan):
    result = plan("run", "plan.yaml", "--offline")
    assert (result.code, result.out) == (2, "")
    for place, name in (("plan.yaml:5:", "token"), ("plan.yaml:7:", "undo"), ("plan.yaml:8:", "second")):
        (line,) = [line for line in result.err.splitlines() if f"there is no secret `{name}`" in line]
        assert line.startswith(place) and "error[missing-secret]" in line and f"PLAN_ADAPTER_SECRET_{name.upper()}" in line
    assert "`made`" not in result.err  # `first` creates it
    assert not Path("first").exists()
    assert plan("runs", "--json").out == ""


def test_a_secret_that_an_earlier_step_creates_is_checked_when_its_step_runs(plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "token").write_text("geheim-密码")
    (folder / "undo").write_text("first")
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_SECOND", "also-secret")
    result = plan("run", "plan.yaml", "--offline", "--json")
    assert result.code == 1
    assert {step["id"]: step["status"] for step in result.run["steps"]} == {"first": "completed", "second": "completed", "later": "failed"}
    assert "there is no secret `made`" in result.run["steps"][2]["error"]


def test_preview_and_doctor_show_the_source_of_each_secret_but_no_value(plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "token").write_text("geheim-密码")
    (folder / "undo").write_text("ab")
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_SECOND", "also-secret")
    shown, asked = plan("preview", "plan.yaml"), plan("doctor", "plan.yaml")
    (found,) = plan("preview", "plan.yaml", "--json").lines
    assert (shown.code, asked.code) == (0, 9)
    for text in (shown.out, asked.out):
        assert f"secret `token`: from the file {folder}/token" in text
        assert "secret `second`: from the environment variable PLAN_ADAPTER_SECRET_SECOND" in text
        assert f"secret `made`: {CREATED}; now: there is no secret `made`; places checked: the file" in text
        assert "has fewer than 4 characters" in text
    assert {place["name"]: place["problem"] is None for place in found["secret_places"]} == {
        "made": False, "second": True, "token": True, "undo": False,
    }  # fmt: skip
    assert {place["name"]: place["created_by"] for place in found["secret_places"] if place["created_by"]} == {"made": ["first"]}
    (folder / "undo").write_text("long-enough")
    assert f"ok  secret `made`: {CREATED}" in plan("doctor", "plan.yaml").out  # it may be missing
    assert "geheim" not in shown.out + asked.out + str(found) and "also-secret" not in shown.out + asked.out + str(found)


def test_a_plan_without_secrets_looks_up_nothing(plan: Plan):
    Path("plain.yaml").write_text("description: Nothing\nsteps: [{tool_name: run_command, parameters: {argv: [ls]}}]\n", encoding="utf-8")
    assert "## Secrets" not in plan("preview", "plain.yaml").out
    assert "plain.yaml uses no secrets" in plan("doctor", "plain.yaml").out


def test_a_run_with_missing_secrets_is_refused_before_its_gate_and_on_resume(plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch):
    Path("plan.yaml").write_text(DOCUMENT.replace("require_approval: false", "require_approval: true"), encoding="utf-8")
    refused = plan("run", "plan.yaml", "--offline", "--detach")
    assert (refused.code, "error[missing-secret]" in refused.err, plan("runs", "--json").out) == (2, True, "")
    for name in ("token", "undo"):
        (folder / name).write_text("first")
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_SECOND", "also-secret")
    run_id = plan("run", "plan.yaml", "--offline", "--detach", "--json").run["id"]
    shown = plan("approve", run_id, "--show").out
    assert f"`made` ({CREATED})" in shown and "creates secrets `made`" in shown
    assert "The process that opened the gate has no secret" not in shown
    assert plan("approve", run_id, "--yes").code == 0
    monkeypatch.delenv("PLAN_ADAPTER_SECRET_SECOND")
    refused = plan("resume", run_id, "--offline")
    assert (refused.code, "there is no secret `second`" in refused.err, Path("first").exists()) == (2, True, False)
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_SECOND", "also-secret")
    assert plan("resume", run_id, "--offline").code == 1  # no step created the secret of `later`
    for name in ("token", "undo"):
        (folder / name).unlink()
    refused = plan("resume", run_id, "--offline")  # of a completed step, only the rollback may still be called
    assert [f"no secret {name}" in refused.err for name in ("`token`", "`undo`", "`made`")] == [False, True, True]
    assert (refused.code, "`first`, which creates it, does not run now" in refused.err) == (2, True)
    (folder / "undo").write_text("first")
    (folder / "made").write_text("made-by-hand")
    assert plan("resume", run_id, "--offline").code == 0


def test_a_gate_lists_the_missing_secrets_of_a_revised_plan(plan: Plan, folder: Path):
    approved = "description: Later\noptions: {require_approval: true}\nsteps: [{id: a, tool_name: run_command, parameters: {argv: [%s]}}]"
    Path("plan.yaml").write_text(approved % "echo", encoding="utf-8")
    run_id = plan("run", "plan.yaml", "--offline", "--detach", "--json").run["id"]
    Path("plan.yaml").write_text(approved % 'echo, "${{ secrets.nope }}"', encoding="utf-8")
    assert plan("revise", run_id, "plan.yaml").code == 0
    assert "The process that opened the gate has no secret `nope`" in plan("approve", run_id, "--show").out
