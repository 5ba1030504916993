"""Tests of mistyped names of runs, steps, files and versions: the error names what is near, and its JSON has that as `hint`."""

import pytest

from tests.cli.conftest import Plan
from tests.cli.scenes import at_a_step, completed, files, write_plan


def test_an_unknown_run_has_a_code_of_its_own_and_the_exit_code_for_usage(plan: Plan) -> None:
    files(plan)
    result = plan("show", "01a22451", "--json")
    assert (result.code, result.run["code"], result.run["error"]) == (2, "run-not-found", "usage")
    assert result.run["hint"] == "`plan save FILE` stores one"
    assert result.run["message"].startswith("no run has the id `01a22451`")


@pytest.mark.parametrize("command", [("approve", "last"), ("reject", "last"), ("logs", "last"), ("resolve", "last")])
def test_a_mistyped_step_is_answered_with_the_nearest_one(plan: Plan, command: tuple[str, ...]) -> None:
    at_a_step(plan)
    result = plan(*command, "restrat", *(["done"] if command[0] == "resolve" else []), "--json")
    assert (result.code, result.run["hint"]) == (2, "did you mean `restart`?")
    assert result.err.endswith("; did you mean `restart`?\n")


@pytest.mark.parametrize("verb", ["run", "validate", "preview", "save"])
def test_a_mistyped_path_is_answered_with_the_nearest_document_of_its_folder(plan: Plan, verb: str) -> None:
    write_plan("runbooks/release.yaml")
    result = plan(verb, "runbooks/rlease.yml")
    assert (result.code, "the file does not exist; did you mean `runbooks/release.yaml`?" in result.err + result.out) == (2, True)
    assert "the file does not exist; check the path" in plan("run", "nothing/like/it.yaml").err
    assert "the file does not exist; check the path" in plan("run", "runbooks/unlike.yaml").err


def test_a_version_that_is_not_stored_is_answered_with_those_that_are(plan: Plan) -> None:
    completed(plan)
    assert plan("run", "restart-web@7").err == "plan: there is no version 7 of a plan `restart-web`; its versions: 2, 1\n"
    assert plan("run", "restrat-web@1").err == "plan: there is no version 1 of a plan `restrat-web`; did you mean `restart-web`?\n"
