"""Tests of `plan save`, `plan show --versions` and `plan diff`: immutable versions of named plans and their differences."""

import subprocess
from pathlib import Path

import pytest

from plan_adapter.gates.approval import os_user
from tests.cli.conftest import Plan
from tests.cli.test_run import GREET, TOOLS, document

ME = os_user()
FIRST = """\
name: 重启
description: Restart a node
steps:
  - {id: look, tool_name: http_get, description: Look, parameters: {url: "http://127.0.0.1/"}}
"""
SECOND = FIRST.replace("Restart a node", "Restart the node") + (
    '  - {id: again, tool_name: http_get, description: Look again, parameters: {url: "http://127.0.0.1/"}}\n'
)
DIFFERENCES = ["added `again`: `http_get` (Look again)", "`description`: `Restart a node` → `Restart the node`"]


@pytest.fixture
def two_versions(plan: Plan) -> Plan:
    """Save two versions of one plan; `restart.yaml` holds the second."""
    for text in (FIRST, SECOND):
        Path("restart.yaml").write_text(text, encoding="utf-8")
        assert plan("save", "restart.yaml").code == 0
    return plan


@pytest.fixture
def named(two_versions: Plan) -> Plan:
    """Two versions in the store, and a git repository with the first one."""
    for command in (["init", "-q"], ["config", "user.email", "ana@example.org"], ["config", "user.name", "ana"]):
        subprocess.run(["git", *command], check=True)
    Path("restart.yaml").write_text(FIRST, encoding="utf-8")
    subprocess.run(["git", "add", "."], check=True)
    subprocess.run(["git", "commit", "-qm", "first"], check=True)
    Path("restart.yaml").write_text(SECOND, encoding="utf-8")
    return two_versions


def test_saving_creates_a_new_version_only_if_the_content_changed(plan: Plan) -> None:
    Path("restart.yaml").write_text(FIRST, encoding="utf-8")
    first = plan("save", "restart.yaml")
    assert first.out.startswith("重启@1: saved (")
    assert first.err == "`plan run store:重启@1` runs this version\n"
    assert plan("save", "restart.yaml").out.startswith("重启@1: unchanged (")
    (other,) = plan("save", "restart.yaml", "--name", "other", "--json").lines
    assert (other["name"], other["version"], other["author"]) == ("other", 1, ME)


def test_a_difference_says_what_a_new_step_calls(plan: Plan) -> None:
    plan("save", _written(FIRST))
    group = '  - {id: nodes, for_each: "${{ [1, 2] }}", steps: [{id: one, tool_name: http_get, parameters: {url: "http://127.0.0.1/"}}]}\n'
    goal = "  - {id: free, goal: Free a slot, tools: [http_get]}\n"
    assert plan("diff", "store:重启", _written(FIRST + group + goal)).out.splitlines() == [
        "added `nodes`: `group`",
        "added `one`: `http_get`",
        "added `free`: `goal`",
    ]


def test_a_difference_inside_a_group_is_shown_where_it_is(plan: Plan) -> None:
    long, effect = "http://127.0.0.1/" + "a" * 300, "effect: read, tool_name: http_send"
    group = '  - {id: nodes, for_each: "${{ [1, 2] }}", steps: [{id: one, %s, parameters: {url: "%s"}}]}\n'
    plan("save", _written(FIRST + group % (effect, long + "safe")))
    assert plan("diff", "store:重启", _written(FIRST + group % (effect.replace("read", "write"), long + "evil"))).out.splitlines() == [
        "MAY DO MORE THAN BEFORE: `one`, read → write",
        f"`one.parameters.url`: `…{'a' * 40}safe` → `…{'a' * 40}evil`",
        "`one.effect`: `read` → `write`",
    ]


def _written(text: str) -> str:
    Path("restart.yaml").write_text(text, encoding="utf-8")
    return "restart.yaml"


def test_a_plan_with_problems_is_not_saved(plan: Plan) -> None:
    Path("restart.yaml").write_text(FIRST.replace("http_get", "no_such_tool"), encoding="utf-8")
    assert plan("save", "restart.yaml").code == 2
    assert "no plan is stored yet" in plan("show", "--versions").err


def test_versions_are_listed_newest_first(two_versions: Plan) -> None:
    head, newest, oldest = two_versions("show", "--versions", "重启").out.splitlines()
    assert head.split() == ["VERSION", "DIGEST", "SAVED", "BY", "SAVED"]
    assert (newest.split()[0], oldest.split()[0]) == ("重启@2", "重启@1")
    assert [line["version"] for line in two_versions("show", "--versions", "--json").lines] == [2]
    missing = two_versions("show", "--versions", "重启动")
    assert (missing.code, "no plan is stored as `重启动`; did you mean `重启`?" in missing.err) == (2, True)


def test_runs_are_filtered_by_runbook_and_tags(plan: Plan) -> None:
    for name, tags in (("重启/web", ["web", "生产"]), ("other", ["web"])):
        assert plan("save", document(GREET, name=name, tags=tags), *TOOLS).code == 0
        assert plan("run", f"store:{name}", "--offline", *TOOLS).code == 0

    def names(*arguments: str) -> list[str]:
        return [run["name"] for run in plan("runs", *arguments, "--json").lines]

    assert names("--runbook", "other") == ["other"]
    assert names("--runbook", "重启/web") == names("--runbook", "重启 web") == ["重启/web"]  # Prefect shows the name with a space
    assert names("--tag", "web") == ["other", "重启/web"]
    assert names("--tag", "web", "--tag", "生产", "--limit", "1") == ["重启/web"]
    assert names("--tag", "生产", "--runbook", "other") == []
    assert plan("runs", "--tag", "生产", "--runbook", "other").err == "no runs match\n"


@pytest.mark.parametrize(("old", "new"), [("重启@1", "重启"), ("store:重启@1", "restart.yaml")])
def test_two_versions_are_compared_step_by_step(two_versions: Plan, old: str, new: str) -> None:
    assert two_versions("diff", old, new).out.splitlines() == DIFFERENCES
    (line,) = two_versions("diff", old, new, "--json").lines
    assert line["differences"] == DIFFERENCES
    same = two_versions("diff", "重启@2", "restart.yaml")
    assert (same.code, same.out, same.err) == (0, "", "no differences\n")


def test_a_file_is_compared_with_a_git_revision(named: Plan) -> None:
    assert named("diff", "git:HEAD:restart.yaml", "restart.yaml").out.splitlines() == DIFFERENCES


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("git:HEAD", "write git:REVISION:FILE"),
        ("git:--output=x:restart.yaml", "`git:--output=x:restart.yaml`: "),
        ("no-such-plan", "no-such-plan"),
    ],
)
def test_an_invalid_diff_source_is_refused_with_the_reason(two_versions: Plan, source: str, reason: str) -> None:
    result = two_versions("diff", source, "restart.yaml")
    assert (result.code, reason in result.err) == (2, True), result.err
    assert [path.name for path in Path().iterdir()] == ["restart.yaml"]


TAKES_A_PLAN = (
    ["validate", "PLAN"],
    ["show", "PLAN", "--json"],
    ["preview", "PLAN"],
    ["graph", "PLAN"],
    ["export", "PLAN", "--format", "mermaid"],
    ["schema", "--tool", "PLAN"],
    ["diff", "PLAN", "PLAN"],
    ["save", "PLAN"],
    ["run", "PLAN", "--offline", "--yes"],
    ["standing", "add", "PLAN", "--runs", "1", "--schedule", "night/night"],
)
MISTYPED = "there is no file `重启动`, and no stored plan is called `重启动`; did you mean `重启`?"


@pytest.mark.parametrize("arguments", TAKES_A_PLAN, ids=[words[0] for words in TAKES_A_PLAN])
def test_every_verb_finds_a_plan_under_each_of_its_names(named: Plan, arguments: list[str]) -> None:
    digest = named("show", "--versions", "重启", "--json").lines[0]["digest"]
    for name in ("restart.yaml", "重启", "重启@1", "store:重启@2", digest, digest[:12], "git:HEAD:restart.yaml"):
        result = named(*(name if word == "PLAN" else word for word in arguments))
        assert "no file" not in result.err and "no run" not in result.err and "no stored plan" not in result.err, (name, result.err)
        assert "unexpected" not in result.err, (name, result.err)
    missing = named(*("重启动" if word == "PLAN" else word for word in arguments))
    assert missing.code == 2 and MISTYPED in missing.err, missing.err
    path = named(*("elsewhere/重启.yaml" if word == "PLAN" else word for word in arguments))
    assert path.code == 2 and "a plan of this name is stored: `重启`" in path.out + path.err, (path.out, path.err)


def test_a_file_wins_over_a_stored_plan_and_a_folder_does_not(two_versions: Plan) -> None:
    Path("重启").mkdir()
    assert two_versions("show", "重启", "--json").run["description"] == "Restart the node"
    Path("重启").rmdir()
    Path("重启").write_text(FIRST, encoding="utf-8")
    assert two_versions("show", "重启", "--json").run["description"] == "Restart a node"
    assert two_versions("show", "store:重启", "--json").run["description"] == "Restart the node"


def test_a_mistyped_name_creates_no_store(plan: Plan, home: Path) -> None:
    (home / "plans.db").unlink()
    result = plan("validate", "nothing")
    assert (result.code, "there is no file `nothing`, and no plan is stored yet" in result.err) == (2, True), result.err
    assert not (home / "plans.db").exists()


def test_one_tool_is_shown_with_its_parameters_and_result(plan: Plan) -> None:
    shown = plan("tools", "http_get").out
    assert shown.splitlines()[0] == "http_get (read)"
    for text in (
        "Any status other than 2xx fails the step",
        "  url: string\n    An http or https URL.",
        "  expect_status: integer or list of integer or null, default null\n",
        "Result: object\n  status: integer\n  headers: object\n  body: any value\n",
    ):
        assert text in shown
    assert [line["name"] for line in plan("tools", "http_get", "--json").lines] == ["http_get"]
    wrong = plan("tools", "http_gte")
    assert (wrong.code, "there is no tool `http_gte`; did you mean `http_get`?" in wrong.err) == (2, True)
