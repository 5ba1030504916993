"""Tests of the folder of a run: where it is shown, and resuming from another folder."""

from pathlib import Path

import pytest

from tests.cli.conftest import Plan, digest_of
from tests.cli.gated import waiting
from tests.cli.test_run import TOOLS


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return another folder; its name needs quoting in a shell."""
    folder = tmp_path / "别处 and more"
    folder.mkdir()
    return folder


def test_the_gate_and_the_run_show_the_folder(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = str((tmp_path / "work").resolve())
    run_id = waiting(plan)
    assert f"- works in `{work}`\n" in plan("approve", run_id, "--show").out
    assert f"- folder: `{work}`\n" in plan("show", run_id, "--all").out
    monkeypatch.setenv("PLAN_ADAPTER_FILES_ROOT", str(tmp_path))
    run_id = waiting(plan)
    assert f"- folder: `{work}`, files in `{tmp_path.resolve()}`\n" in plan("show", run_id, "--all").out
    folder = plan("show", run_id, "--json").run["folder"]
    assert (folder["path"], folder["files_root"], folder["is_moved"]) == (work, str(tmp_path.resolve()), False)


def test_resuming_from_another_folder_is_refused_with_the_commands_to_type(
    plan: Plan, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = (tmp_path / "work").resolve()
    run_id = waiting(plan)
    assert plan("approve", run_id, "--yes").code == 0
    monkeypatch.chdir(elsewhere)
    message = (
        f"run {run_id} works in {work}, but the current folder is {elsewhere.resolve()}, which nobody approved: "
        f"`cd {work} && plan resume {run_id} --offline` resumes it there, "
        f"`plan resume {run_id} --offline --here` asks for an approval of this folder"
    )
    for verb in (["resume", "--offline"], ["preview", "--resume"]):
        result = plan(verb[0], run_id, *verb[1:], *TOOLS) if verb[0] == "resume" else plan(*verb, run_id, *TOOLS)
        assert (result.code, message in result.err) == (10, True), result.err
    assert plan("show", run_id, "--json").run["status"] == "pending_approval"
    monkeypatch.chdir(work)
    assert plan("resume", run_id, "--offline", *TOOLS).code == 0


def test_here_asks_for_an_approval_of_the_new_folder(plan: Plan, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = (tmp_path / "work").resolve()
    run_id = waiting(plan)
    before = digest_of(plan, run_id)
    assert plan("approve", run_id, "--yes").code == 0
    monkeypatch.chdir(elsewhere)
    moved = plan("resume", run_id, "--here", "--offline", "--json", *TOOLS)
    assert (moved.code, moved.run["status"]) == (6, "pending_approval"), moved.err
    now = digest_of(plan, run_id)
    assert now != before
    assert f"The folder of the run changed: from {work} to {elsewhere.resolve()}." in plan("approve", run_id, "--show").out.replace(
        "\\", ""
    )
    assert "version 1 was replaced by" in plan("show", run_id, "--all").out
    assert plan("approve", run_id, "--yes").code == 10  # the content changed after the approval
    assert plan("approve", run_id, "--digest", now[:12]).code == 0
    done = plan("resume", run_id, "--offline", "--json", *TOOLS)
    assert (done.code, done.run["folder"]["path"]) == (0, str(elsewhere.resolve()))
    assert plan("verify", run_id).code == 0


def test_here_in_the_same_folder_changes_nothing(plan: Plan) -> None:
    run_id = waiting(plan)
    assert plan("approve", run_id, "--yes").code == 0
    assert plan("resume", run_id, "--here", "--offline", *TOOLS).code == 0
