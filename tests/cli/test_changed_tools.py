"""`plan resume` after a tool has changed, `plan show` after only its code has, and commands of people who may not give them."""

import importlib
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.approval import os_user
from tests.cli.conftest import Plan, Said, digest_of
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document, step

SHIPPING = '''
from pathlib import Path
from plan_adapter import tool

@tool(effect="{effect}")
def ship(where: str{more}) -> str:
    """Ship."""
    {body}
'''
BROKEN, MENDED = 'raise ValueError("no place")', 'return "there: " + where  # mended'
SHIP = step("ship", "ship", parameters={"where": "上海"}, description="Ship it")
SHOP = (*TOOLS, "--tools", "shop_of_a_test:ship", "--offline")

Ship = Callable[..., None]


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ship:
    """Writes the module of the tool anew, which the next command imports."""
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
    """The id of a run that has greeted, and could not ship."""
    path = document(GREET, {**SHIP, "depends_on": ["greet"]}, **{**NEEDS_APPROVAL, **fields})
    said = plan("run", path, *SHOP, "--yes", "--json")
    assert said.code == 1, said.err
    return said.run["id"]


def ends(said: Said) -> dict[str, tuple[str, bool, int]]:
    return {one["id"]: (one["status"], one["carried"], one["attempts"]) for one in said.run["steps"]}


def test_what_changed_is_previewed_waited_for_shown_approved_and_then_the_rest_is_run(plan: Plan, ship: Ship) -> None:
    run_id = failed(plan)
    ship(MENDED, effect="write", more=", 快: bool = False")
    previewed = plan("preview", "--resume", run_id, *SHOP[:-1])
    assert "the gate opens again first: tool `ship` has changed since it was approved (parameters, effect)\n" in previewed.out
    said = plan("resume", run_id, *SHOP, "--detach", "--json")
    assert (said.code, said.run["status"]) == (6, "pending_approval")
    resumes = f"plan resume {run_id} --offline --tools tests.cli.some_tools:registry --tools shop_of_a_test:ship"
    assert f"`plan approve {run_id} --digest {digest_of(plan, run_id)[:12]}`, then `{resumes}`" in said.err
    shown = plan("approve", run_id, "--show").out
    assert "### Tools that changed" in shown
    assert "effect: read → **write**" in shown
    assert "parameter added: `快`" in shown
    assert "version 1 was replaced by" in plan("show", run_id).out
    assert plan("approve", run_id, "--digest", digest_of(plan, run_id)).code == 0
    done = plan("resume", run_id, *SHOP, "--json")
    assert (done.code, ends(done)) == (0, {"greet": ("completed", True, 1), "ship": ("completed", False, 2)})
    assert plan("runs", "verify", run_id).code == 0


def test_what_changed_is_rejected_and_the_run_is_over(plan: Plan, ship: Ship) -> None:
    run_id = failed(plan)
    ship(MENDED, effect="write")
    assert plan("resume", run_id, *SHOP, "--detach").code == 6
    assert plan("reject", run_id, "--note", "不").code == 0
    said = plan("resume", run_id, *SHOP)
    assert (said.code, "was rejected; resuming approves nothing" in said.err) == (3, True)


def test_yes_is_not_taken_of_who_started_the_run_where_the_policy_wants_somebody_else(
    plan: Plan, ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = failed(plan)
    ship(MENDED, effect="write")
    monkeypatch.setenv("PLAN_ADAPTER_ALLOW_SELF_APPROVAL", "false")
    said = plan("resume", run_id, *SHOP, "--yes")
    assert said.code == 6
    assert f"--yes is refused, and nothing has started: {os_user()} started this run and may not approve it" in said.err
    monkeypatch.delenv("PLAN_ADAPTER_ALLOW_SELF_APPROVAL")
    assert plan("resume", run_id, *SHOP, "--yes").code == 0


def test_changed_code_behind_the_same_definition_is_reported_and_refuses_nothing(plan: Plan, ship: Ship) -> None:
    run_id = failed(plan)
    assert "## Code" not in plan("show", run_id).out
    ship(MENDED)
    assert "the code of `ship` has changed since attempt 1 of `ship`\n" in plan("preview", "--resume", run_id, *SHOP[:-1]).out
    done = plan("resume", run_id, *SHOP, "--json")
    assert (done.code, ends(done)) == (0, {"greet": ("completed", True, 1), "ship": ("completed", False, 2)})
    assert "## Code\n\n- the code of `ship` changed between attempts 1 and 2 of `ship`\n" in plan("show", run_id).out
    before, after = ({"step": "ship", "item": None, "attempt": number} for number in (1, 2))
    assert plan("show", run_id, "--json").run["code_changes"] == [{"tool": "ship", "before": before, "after": after}]


COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "run": (("run", "计划.json", *SHOP), "run"),
    "run and wait for nobody": (("run", "计划.json", *SHOP, "--detach"), "run"),
    "resume": (("resume", "RUN", *SHOP), "resume runs of"),
    "resume some steps": (("resume", "RUN", *SHOP, "--only-failed"), "resume runs of"),
    "leave a step out": (("resume", "RUN", *SHOP, "--skip", "ship", "--because", "快"), "resume runs of"),
    "cancel": (("cancel", "RUN"), "cancel runs of"),
    "roll back": (("cancel", "RUN", "--rollback", *SHOP), "roll back runs of"),
    "revise": (("revise", "RUN", "计划.json", *SHOP[:-1]), "revise runs of"),
}


def test_a_refused_operator_exits_with_6_and_learns_who_is_allowed(plan: Plan, ship: Ship, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = failed(plan)
    before = plan("show", run_id, "--json").run
    monkeypatch.setenv("PLAN_ADAPTER_OPERATORS", "deployers")
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", '{"deployers": ["ana-of-elsewhere", "小明"]}')
    for name, (command, doing) in COMMANDS.items():
        said = plan(*(run_id if word == "RUN" else word for word in command))
        assert said.code == 6, name
        assert f"{os_user()} may not {doing} `试运行`; operators: ana-of-elsewhere, 小明" in said.err, name
        assert plan("show", run_id, "--json").run == before, name
    assert len(plan("runs", "--json").lines) == 1
    monkeypatch.setenv("PLAN_ADAPTER_OPERATORS", os_user())
    assert plan("resume", run_id, *SHOP).code == 1
