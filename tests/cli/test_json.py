"""Tests of the contract of `--json`. The fixture `plan` checks every line that any test prints; these cover what it cannot see."""

import json
import re
from pathlib import Path
from typing import Any, cast

import plan_adapter.cli
from plan_adapter.cli.verbs.schema import output_schema
from tests.cli.conftest import Plan, check_lines
from tests.cli.gated import waiting

SOURCES = [path.read_text(encoding="utf-8") for path in Path(plan_adapter.cli.__file__).parent.rglob("*.py")]
TYPES = cast("list[dict[str, Any]]", output_schema()["oneOf"])


def test_every_type_that_is_printed_has_a_schema_and_the_other_way_round() -> None:
    printed = {kind for text in SOURCES for kind in re.findall(r'json_line\(\s*"(\w+)"', text)}
    assert printed == {line_type["title"] for line_type in TYPES}


def test_the_schema_is_printed(plan: Plan) -> None:
    assert json.loads(plan("schema", "--json-output").out) == output_schema()
    assert json.loads(plan("schema", "--json-output", "--json").out) == output_schema()
    refused = plan("schema", "--json-output", "--tool", "plan.yaml")
    assert (refused.code, "different schemas" in refused.err) == (2, True)


def test_an_error_is_one_object_with_its_code(plan: Plan) -> None:
    run_id = waiting(plan)
    commands = {
        "usage": ("explain", "nothing"),
        "run-not-found": ("logs", "0000000"),
        "not-stored": ("show", "store:nothing"),
        "content-changed": ("approve", run_id, "--digest", "00000000"),
        "run-conflict": ("answer", run_id, "greet"),
    }
    for code, command in commands.items():
        (error,) = plan(*command, "--json").lines
        assert (error["type"], error["code"]) == ("error", code), error


def test_an_empty_list_says_so_and_prints_no_object(plan: Plan) -> None:
    for verb in ("runs", "gates", "versions", "reconcile", "standing"):
        result = plan(verb, "--json")
        assert (result.code, result.out, bool(result.err)) == (0, "", True), verb


def test_a_line_with_an_unknown_key_would_be_found() -> None:
    check_lines('{"type": "file", "path": "x"}\n')
    for wrong in ('{"type": "file", "path": "x", "new": 1}', '{"type": "file"}', '{"type": "file", "path": 1}'):
        try:
            check_lines(wrong)
        except AssertionError:
            continue
        raise AssertionError(wrong)
