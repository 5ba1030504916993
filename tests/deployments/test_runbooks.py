"""Every runbook: sound, without a warning, and read by editors with a schema that is current."""

import json

import pytest
import yaml
from jsonschema import Draft202012Validator

from plan_adapter import ToolRegistry, lint, load_plan
from plan_adapter.documents import is_test_file, plan_schema
from tests.deployments.conftest import RUNBOOKS

NAMES = sorted(path.stem for path in RUNBOOKS.glob("*.yaml") if not is_test_file(path))
SCHEMA = RUNBOOKS.parent / "plan.schema.json"


def test_there_are_these_runbooks() -> None:
    assert NAMES == [
        "ci-pipeline",
        "data-pipeline",
        "data-quality",
        "dependency-upgrade",
        "disk-full",
        "own-pipeline",
        "postgres-backup",
        "release-package",
        "rolling-restart",
        "schema-migration",
        "site-check",
        "tls-rotation",
        "user-offboarding",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_has_no_problem(name: str) -> None:
    problems = lint(load_plan(RUNBOOKS / f"{name}.yaml"), ToolRegistry.with_builtins())
    # A runbook's author says what a command does.
    assert [problem for problem in problems if problem.code != "lowered-effect"] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_begins_with_the_line_that_editors_read(name: str) -> None:
    first = (RUNBOOKS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=../plan.schema.json"


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_fits_the_schema(name: str) -> None:
    document = yaml.safe_load((RUNBOOKS / f"{name}.yaml").read_text(encoding="utf-8"))
    assert list(Draft202012Validator(plan_schema()).iter_errors(document)) == []


def test_the_schema_beside_the_runbooks_is_current() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == plan_schema(), "`make generated` writes it again"
