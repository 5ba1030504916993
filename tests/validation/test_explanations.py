"""The examples of `plan explain`: each wrong piece of a plan has just the problem that it explains, and the right one has none."""

from pathlib import Path

import pytest

from plan_adapter.cli.verbs.explain import explanations
from plan_adapter.documents import read_file
from plan_adapter.loading import pin_files
from plan_adapter.model.problems import CATALOGUE, Problem
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import lint

STEP = "steps:\n  - {tool_name: read_file, parameters: {path: notes.txt}}\n"

FOUND = explanations()

WITHOUT_A_PIECE = {
    "unreadable": "there is no file to read",
    "not-utf8": "the bytes of the file are wrong",
    "too-deep": "the piece would have more than 100 levels",
    "no-dask": "it depends on what is installed",
    "no-model": "it depends on the settings",
    "not-permitted": "no built-in tool needs a permission",
    "missing-input": "the inputs of a run are wrong, not its plan",
    "bad-input": "the inputs of a run are wrong, not its plan",
    "unknown-input": "the inputs of a run are wrong, not its plan",
    "missing-secret": "it depends on the settings",
    "secret-in-text": "it depends on the secrets of the machine",
    "nobody-may-answer": "it needs two plans",
    "bad-freeze": "the policy of a store is wrong, not its plan",
    "bad-answer": "a test file is wrong, not its plan",
    "broken-constraint": "the request to a model has the constraint",
    "dropped-dependency": "it needs two answers of a model",
    "too-many-steps": "the request to a model has the limit",
    "unnamed-secret": "the request to a model names the secrets",
    "taken-id": "it needs a run",
    "approval-by-agent": "an agent must submit the plan",
}
"""The codes that no plan by itself has, and why."""


def problems_of(piece: str) -> list[Problem]:
    """Return the problems of a plan that a piece is completed to: a description, a step, and a limit for commands where it has none."""
    begins = {line.partition(":")[0] for line in piece.splitlines()}
    description = "" if "description" in begins else "description: An example\n"
    options = "" if "options" in begins else "options: {step_timeout_ms: 60000}\n"
    Path("plan.yaml").write_text(description + options + piece + ("" if "steps" in begins else STEP), encoding="utf-8")
    plan, problems = read_file("plan.yaml")
    if plan is None:
        return problems
    pin_files(plan)
    return lint(plan, ToolRegistry.from_settings([]))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a plan that another one can run, and with a model in the settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLAN_ADAPTER_MODEL", "any")
    Path("drain.yaml").write_text(f"name: drain\ndescription: Drain a node\n{STEP}", encoding="utf-8")


def test_every_code_is_in_one_group_and_has_a_piece_or_a_reason() -> None:
    assert sorted(FOUND) == sorted(CATALOGUE)
    assert {code for code, found in FOUND.items() if found.wrong is None} == set(WITHOUT_A_PIECE)
    assert all((found.wrong is None) == (found.right is None) for found in FOUND.values())


@pytest.mark.parametrize("code", [code for code in FOUND if code not in WITHOUT_A_PIECE])
def test_the_wrong_piece_has_just_this_problem_and_the_right_one_none(code: str) -> None:
    wrong, right = FOUND[code].wrong, FOUND[code].right
    assert wrong is not None and right is not None
    assert {problem.code for problem in problems_of(wrong)} == {code}
    assert problems_of(right) == []
