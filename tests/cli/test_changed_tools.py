"""Tests of tool drift and changed code in `plan resume`, `preview` and `show`, and of commands by people who are not operators."""

import importlib
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.approval import os_user
from tests.cli.conftest import CommandResult, Plan, digest_of
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document, step

SHIPPING = '''
from pathlib import Path
from plan_adapter import tool

@tool(effect="{effect}")
def ship(where: str{more}) -> str:
    """Ship."""
    {body}
'''
BROKEN, FIXED = 'raise ValueError("no place")', 'return "there: " + where  # fixed'
SHIP = step("ship", "ship", parameters={"where": "上海"}, description="Ship it")
SHOP = (*TOOLS, "--tools", "shop_of_a_test:ship", "--offline")

WriteTool = Callable[..., None]


@pytest.fixture
def write_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteTool:
    """Return a function that rewrites the module of the tool; the next command imports it again."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))

    def write(body: str, *, effect: str = "read", more: str = "") -> None:
        path = tmp_path / "modules" / "shop_of_a_test.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(SHIPPING.format(body=body, effect=effect, more=more), encoding="utf-8")
        sys.modules.pop("shop_of_a_test", None)
        importlib.invalidate_caches()
        linecache.checkcache(str(path))

    write(BROKEN)
    return write


def failed(plan: Plan, **fields: Any) -> str:
    """Return the id of a run whose step `greet` completed and whose step `ship` failed."""
    path = document(GREET, {**SHIP, "depends_on": ["greet"]}, **{**NEEDS_APPROVAL, **fields})
    result = plan("run", path, *SHOP, "--yes", "--json")
    assert result.code == 1, result.err
    return result.run["id"]


def step_states(result: CommandResult) -> dict[str, tuple[str, bool, int]]:
    return {step["id"]: (step["status"], step["carried"], step["attempts"]) for step in result.run["steps"]}


def test_resuming_after_tool_drift_waits_for_a_new_approval_and_runs_the_rest(plan: Plan, write_tool: WriteTool) -> None:
    run_id = failed(plan)
    write_tool(FIXED, effect="write", more=", 快: bool = False")
    previewed = plan("preview", "--resume", run_id, *SHOP[:-1])
    assert "the gate opens again first: tool `ship` has changed since it was approved (parameters, effect)\n" in previewed.out
    result = plan("resume", run_id, *SHOP, "--detach", "--json")
    assert (result.code, result.run["status"]) == (6, "pending_approval")
    resumes = f"plan resume {run_id} --offline --tools tests.cli.some_tools:registry --tools shop_of_a_test:ship"
    assert f"`plan approve {run_id} --digest {digest_of(plan, run_id)[:12]}`, then `{resumes}`" in result.err
    shown = plan("approve", run_id, "--show").out
    assert "### Tools that changed" in shown
    assert "effect: read → **write**" in shown
    assert "parameter added: `快`" in shown
    assert "version 1 was replaced by" in plan("show", run_id, "--all").out
    assert plan("approve", run_id, "--digest", digest_of(plan, run_id)).code == 0
    done = plan("resume", run_id, *SHOP, "--json")
    assert (done.code, step_states(done)) == (0, {"greet": ("completed", True, 1), "ship": ("completed", False, 2)})
    assert plan("verify", run_id).code == 0


def test_rejecting_tool_drift_ends_the_run(plan: Plan, write_tool: WriteTool) -> None:
    run_id = failed(plan)
    write_tool(FIXED, effect="write")
    assert plan("resume", run_id, *SHOP, "--detach").code == 6
    assert plan("reject", run_id, "--note", "不").code == 0
    result = plan("resume", run_id, *SHOP)
    assert (result.code, "was rejected; resuming does not approve it" in result.err) == (3, True)


def test_yes_cannot_approve_tool_drift_if_the_policy_forbids_self_approval(
    plan: Plan, write_tool: WriteTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = failed(plan)
    write_tool(FIXED, effect="write")
    monkeypatch.setenv("PLAN_ADAPTER_ALLOW_SELF_APPROVAL", "false")
    result = plan("resume", run_id, *SHOP, "--yes")
    assert result.code == 10
    assert f"--yes is refused, and nothing has started: {os_user()} started this run and may not approve it" in result.err
    monkeypatch.delenv("PLAN_ADAPTER_ALLOW_SELF_APPROVAL")
    assert plan("resume", run_id, *SHOP, "--yes").code == 0


def test_changed_code_with_the_same_definition_is_reported_but_not_refused(plan: Plan, write_tool: WriteTool) -> None:
    run_id = failed(plan)
    assert "## Code" not in plan("show", run_id, "--all").out
    write_tool(FIXED)
    assert "the code of `ship` has changed since attempt 1 of `ship`\n" in plan("preview", "--resume", run_id, *SHOP[:-1]).out
    done = plan("resume", run_id, *SHOP, "--json")
    assert (done.code, step_states(done)) == (0, {"greet": ("completed", True, 1), "ship": ("completed", False, 2)})
    assert "## Code\n\n- the code of `ship` changed between attempts 1 and 2 of `ship`\n" in plan("show", run_id, "--all").out
    before, after = ({"step": "ship", "item": None, "attempt": number} for number in (1, 2))
    assert plan("show", run_id, "--json").run["code_changes"] == [{"tool": "ship", "before": before, "after": after}]


COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "run": (("run", "计划.json", *SHOP), "run"),
    "run detached": (("run", "计划.json", *SHOP, "--detach"), "run"),
    "resume": (("resume", "RUN", *SHOP), "resume runs of"),
    "resume some steps": (("resume", "RUN", *SHOP, "--only-failed"), "resume runs of"),
    "skip a step": (("resume", "RUN", *SHOP, "--skip", "ship", "--note", "快"), "resume runs of"),
    "cancel": (("cancel", "RUN"), "cancel runs of"),
    "roll back": (("rollback", "RUN", *SHOP), "roll back runs of"),
    "revise": (("revise", "RUN", "计划.json", *SHOP[:-1]), "revise runs of"),
}


def test_a_refused_operator_gets_exit_code_10_and_the_list_of_operators(
    plan: Plan, write_tool: WriteTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = failed(plan)
    before = plan("show", run_id, "--json").run
    monkeypatch.setenv("PLAN_ADAPTER_OPERATORS", "deployers")
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", '{"deployers": ["ana-of-elsewhere", "小明"]}')
    for name, (command, doing) in COMMANDS.items():
        result = plan(*(run_id if word == "RUN" else word for word in command))
        assert result.code == 10, name
        assert f"{os_user()} may not {doing} `试运行`; operators: ana-of-elsewhere, 小明" in result.err, name
        assert plan("show", run_id, "--json").run == before, name
    assert len(plan("runs", "--json").lines) == 1
    monkeypatch.setenv("PLAN_ADAPTER_OPERATORS", os_user())
    assert plan("resume", run_id, *SHOP).code == 1
