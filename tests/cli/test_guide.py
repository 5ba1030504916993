"""Tests of `plan guide` and its pages: promises name existing tests, plans are valid, links work."""

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import cast

import pytest

from plan_adapter.cli.verbs.schema import output_schema
from tests.cases import for_each
from tests.cli.conftest import Plan

ROOT = Path(__file__).parent.parent.parent
SECURITY = (ROOT / "plan_adapter/guide/security.md").read_text(encoding="utf-8")
PROMISES = [line for line in re.sub(r"\n  +", " ", SECURITY).splitlines() if line.startswith("- ") and "tests/" in line]
GENERAL = (ROOT / "plan_adapter/guide/promises.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"tests/\w[\w/]*(?:\.py(?:::\w+)?)?", SECURITY + GENERAL)))
PAGES = sorted((ROOT / "plan_adapter/guide").glob("*.md"))
PLANS = [
    block for page in PAGES for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
]


@cache
def functions_in(file: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@for_each(name=NAMED)
def test_every_test_named_by_a_promise_exists(name: str) -> None:
    path, _, function = name.partition("::")
    assert (ROOT / path).exists()
    assert not function or function in functions_in(ROOT / path)


def test_every_promise_of_the_security_page_names_a_test() -> None:
    promises = SECURITY.split("## What holds")[1].split("\n## ")[0]
    without = [line for line in re.sub(r"\n  +", " ", promises).splitlines() if line.startswith("- ") and "tests/" not in line]
    assert len(PROMISES) >= 25
    assert without == []


def test_every_other_promise_names_a_test() -> None:
    promises = GENERAL.split("## What is not promised")[0].split("\n- ")[1:]
    assert len(promises) >= 24
    assert [promise for promise in promises if "tests/" not in promise] == []


def test_the_promises_say_which_files_only_make_thorough_runs() -> None:
    files = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMED if name.endswith(".py")}
    thorough = {name for name, text in files.items() if re.search(r"^pytestmark = .*\bmark\.thorough\b", text, re.M)}
    assert set(re.findall(r"tests/[\w/]+\.py", GENERAL.partition("\n- ")[0])) == thorough


def test_the_guide_lists_its_pages(plan: Plan) -> None:
    assert "Security: what is protected, from whom" in plan("guide").out
    assert json.loads(plan("guide", "--json").out.splitlines()[0])["topic"]


def test_the_page_about_json_lists_every_type() -> None:
    text = (PAGES[0].parent / "json.md").read_text(encoding="utf-8")
    types = cast("list[dict[str, str]]", output_schema()["oneOf"])
    assert re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE) == [(line["title"], line["description"]) for line in types]


def test_a_page_is_printed_unchanged(plan: Plan) -> None:
    assert plan("guide", "security").out == SECURITY
    assert json.loads(plan("guide", "security", "--json").out)["text"] == SECURITY


def test_an_unknown_page_is_a_usage_error_that_suggests_the_nearest(plan: Plan) -> None:
    result = plan("guide", "securty")
    assert result.code == 2
    assert result.err == "plan: the guide has no page `securty`; did you mean `security`?\n"
    assert plan("guide", "replay").err == "plan: the guide has no page `replay`; `plan guide testing` is about `plan replay`\n"


@pytest.mark.parametrize("text", [text for text in PLANS if "\nsteps:" in text and "\ncases:" not in text])
def test_a_plan_in_the_guide_is_valid_without_a_warning(plan: Plan, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_MODEL", "any")  # without a model, a plan with a goal has a warning
    for other in PLANS:  # a plan can run another one
        if found := re.match(r"name: (\S+)", other):
            Path(f"{found[1]}.yaml").write_text(other, encoding="utf-8")
    Path("plan.yaml").write_text(text, encoding="utf-8")
    result = plan("validate", "plan.yaml")
    is_imported = "(from a workflow of GitHub Actions)" in text  # so it has the limits of the workflow, which are none
    assert (result.code, [line for line in result.out.splitlines() if not (is_imported and "[no-timeout]" in line)]) == (0, [])


def test_one_part_of_a_page_is_printed_by_its_heading(plan: Plan) -> None:
    part = plan("guide", "reference-python", "answer_gate").out
    assert (part.splitlines()[0], len(re.findall(r"^### ", part, re.MULTILINE))) == ("### answer_gate", 1)
    assert "Raises ValueError for an empty `by`" in part
    whole = plan("guide", "failures", "CANCEL").out
    assert whole in plan("guide", "failures").out
    wrong = plan("guide", "reference-python", "anser_gate")
    assert (wrong.code, "did you mean `answer_gate`?" in wrong.err) == (2, True)


def test_a_heading_in_a_code_block_is_none(plan: Plan) -> None:
    part = plan("guide", "testing", "A replay: what would recorded runs have done?").out
    assert "# .github/workflows/replay.yml" in part
    assert "pre-commit" in part
