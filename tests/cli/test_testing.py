"""Tests of `plan test`, of test files in other verbs, and of the pre-commit hooks."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Plan
from tests.testing.conftest import RESTART, SHARED

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "plan_adapter/guide/testing.md").read_text(encoding="utf-8")


def write(cases: str, *, name: str = "restart", plan: str = RESTART) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(f"{name}.yaml").write_text(plan, encoding="utf-8")
    Path(f"{name}.test.yaml").write_text(cases, encoding="utf-8")


def test_each_passing_case_is_one_line(plan: Plan) -> None:
    write(f"{SHARED}cases:\n  一切正常: {{}}\n  rejected: {{gates: {{plan: reject}}, expect: {{status: cancelled}}}}\n")
    result = plan("test")
    assert result.code == 0, result
    assert [line.split(" (")[0] for line in result.out.splitlines()] == [
        "ok    restart.test.yaml:5: 一切正常",
        "ok    restart.test.yaml:6: rejected",
    ]
    assert result.err.startswith("2 passed in ")


def test_a_failing_case_shows_its_mismatch_and_exits_with_1(plan: Plan) -> None:
    write(f"{SHARED}cases:\n  wrong: {{expect: {{order: [drain]}}}}\n  good: {{}}\n")
    result = plan("test", "restart.yaml")
    assert result.code == 1
    assert result.out.splitlines()[:4] == [
        "FAIL  restart.test.yaml:5: wrong",
        "  order",
        '    expected: ["drain"]',
        '    actual:   ["drain", "restart", "verify", "tell"]',
    ]
    assert result.err.startswith("1 passed, 1 failed in ")


def test_json_prints_one_object_per_case(plan: Plan) -> None:
    write(f"{SHARED}cases:\n  wrong: {{expect: {{attempts: {{drain: 2}}}}}}\n  good: {{}}\n")
    result = plan("test", ".", "--json")
    wrong, good = result.lines
    assert result.code == 1
    assert wrong["mismatches"] == [{"at": "attempts.drain", "expected": 2, "actual": 1}]
    assert (wrong["passed"], wrong["file"], wrong["line"], wrong["status"]) == (False, "restart.test.yaml", 5, "completed")
    assert (good["passed"], good["name"], good["mismatches"], good["unanswered"]) == (True, "good", [], [])


def test_k_selects_cases_by_file_and_name(plan: Plan) -> None:
    write(f"{SHARED}cases:\n  Restart: {{}}\n  roll back: {{}}\n", name="a/web")
    write(f"{SHARED}cases:\n  roll back: {{}}\n", name="a/db")
    assert len(plan("test", "a", "-k", "ROLL").out.splitlines()) == 2
    assert len(plan("test", "a", "-k", "db.test").out.splitlines()) == 1
    result = plan("test", "a", "-k", "nothing")
    assert (result.code, result.err) == (2, "plan: no case contains `nothing`\n")


def test_problems_in_any_file_exit_with_2_and_nothing_runs(plan: Plan) -> None:
    write("cases: {a: {expect: {ordr: []}}}", name="a/web")
    write(f"{SHARED}cases:\n  a: {{stpes: {{}}}}\n", name="a/db")
    result = plan("test", "a")
    assert result.code == 2
    assert result.out == ""
    assert [line.split(": error")[0] for line in result.err.splitlines()] == [
        "a/db.test.yaml:5:7",
        "a/web.test.yaml:1:9",
        "a/web.test.yaml:1:22",
    ]
    assert plan("validate", "a/db.test.yaml").out == result.err.splitlines()[0] + "\n"


def test_a_path_without_tests_is_a_usage_error(plan: Plan) -> None:
    result = plan("test")
    assert (result.code, result.err) == (2, "plan: . has no test files (NAME.test.yaml)\n")


def test_custom_tools_are_tested_without_being_called(plan: Plan) -> None:
    own = "description: D\noptions: {require_approval: false}\nsteps: [{id: a, tool_name: greet, parameters: {who: Ana}}]\n"
    write("cases: {it works: {expect: {order: [a]}}}", plan=own)
    assert plan("test", "--tools", "tests.cli.some_tools:greet").code == 0
    assert "unknown-tool" in plan("test").err


def test_the_example_in_the_guide_passes(plan: Plan) -> None:
    document, cases = [
        text for text in re.findall(r"^```yaml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL) if "steps:" in text and "github" not in text
    ]
    write(cases, plan=document)
    result = plan("test", "restart.yaml")
    assert result.code == 0, result.out
    line = next(text for text in GUIDE.splitlines() if text.startswith("ok    "))
    assert result.out.splitlines()[0].split(" (")[0] == line.split(" (")[0]


def test_a_folder_is_deployed_without_its_test_files(plan: Plan) -> None:
    from plan_adapter.cli.verbs.deploy import plans_in

    write("cases: {}", name="runbooks/web")
    assert [runbook.description for runbook in plans_in(Path("runbooks"))] == ["Restart one web node"]


@pytest.mark.parametrize("hook", yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")), ids=lambda hook: hook["id"])
def test_a_pre_commit_hook_accepts_valid_plans_and_refuses_others(plan: Plan, hook: dict[str, object]) -> None:
    program, *arguments = shlex.split(str(hook["entry"]))
    assert program == "plan"  # the installed console script
    write(f"{SHARED}cases: {{it works: {{}}}}", name="runbooks/web")
    files = [str(path) for path in sorted(Path("runbooks").iterdir()) if re.search(str(hook["files"]), str(path))]
    assert len(files) == 2
    given = files if hook.get("pass_filenames", True) else []
    assert plan(*arguments, *given).code == 0
    Path("runbooks/web.yaml").write_text(RESTART.replace("depends_on: [drain]", "depends_on: [drian]"), encoding="utf-8")
    assert plan(*arguments, *given).code == 2
