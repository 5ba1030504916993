"""Tests of the calls that `plan show RUN` prints: parameters, attempts and durations."""

import json
from pathlib import Path

import pytest

from plan_adapter.gates.approval import os_user
from tests.cli.conftest import Plan
from tests.cli.test_run import TOOLS, document, step


def test_each_step_shows_its_resolved_parameters_attempts_and_durations(plan: Plan) -> None:
    greet = step("greet", "greet", parameters={"who": "${{ inputs.name }}"})
    fails = step("fails", "fail", parameters={"text": "坏了"}, max_retries=2, retry_delay_ms=0)
    path = document(greet, fails, inputs={"name": {"type": "string", "default": "世界"}})
    run_id = plan("run", path, "--offline", "--yes", "--json", *TOOLS).run["id"]
    first, second = plan("show", run_id, "--json").run["steps"]
    (greeted,), (failed,) = first["calls"], second["calls"]
    assert {**greeted, "duration_ms": 0} == {
        "item": None,
        "parameters": {"who": "世界"},
        "attempts": 1,
        "max_attempts": 1,
        "outcome": "succeeded",
        "duration_ms": 0,
        "label": None,
        "resolution": None,
        "by": None,
        "known_by": None,
        "note": None,
        "command": None,
    }
    assert greeted["duration_ms"] >= 0
    assert (failed["parameters"], failed["attempts"], failed["max_attempts"]) == ({"text": "坏了"}, 3, 3)
    assert failed["outcome"] == "failed"
    shown = plan("show", run_id, "--all").out
    assert "   - attempt 1 of 1, " in shown
    assert '   - parameters: `{"who": "世界"}`\n' in shown
    assert "   - attempt 3 of 3, " in shown
    assert plan("resume", run_id, "--offline", *TOOLS).code == 1
    assert "   - attempt 6 (at most 3 each time the run starts), " in plan("show", run_id, "--all").out


def test_each_item_of_a_step_shows_its_own_calls(plan: Plan) -> None:
    each = step("each", "greet", parameters={"who": "${{ item }}"}, for_each="${{ inputs.names }}")
    names = [f"n{number}" for number in range(25)]
    path = document(each, inputs={"names": {"type": "array", "default": names}})
    run_id = plan("run", path, "--offline", "--yes", "--json", *TOOLS).run["id"]
    calls = plan("show", run_id, "--json").run["steps"][0]["calls"]
    shown = [(call["item"], call["label"], call["parameters"]["who"]) for call in calls]
    assert shown == [(number, name, name) for number, name in enumerate(names, start=1)]
    shown = plan("show", run_id, "--all").out
    assert '   - item n3: parameters: `{"who": "n3"}`\n' in shown
    assert f"   - … 5 more items: `plan show {run_id} --json`\n" in shown


def test_a_resolved_item_names_the_person(plan: Plan) -> None:
    each = step("each", "get_lost", for_each="${{ ['web-1', 'web-2'] }}", on_error="continue")
    run_id = plan("run", document(each), "--offline", "--json", *TOOLS).run["id"]
    assert plan("resolve", run_id, "each", "done", "--item", "web-1", "--note", "看过了").code == 0
    assert plan("resolve", run_id, "each", "again", "--item", "web-2").code == 0
    shown, calls = plan("show", run_id, "--all").out, plan("show", run_id, "--json").run["steps"][0]["calls"]
    assert f"   - item web-1: attempt 1 of 1, succeeded\n   - item web-1: `done`, recorded by {os_user()} (os_user): 看过了\n" in shown
    assert f"   - item web-2: `again`, recorded by {os_user()} (os_user)\n" in shown
    named = [(call["resolution"], call["by"], call["known_by"], call["note"]) for call in calls]
    assert named == [("done", os_user(), "os_user", "看过了"), ("again", os_user(), "os_user", None)]


def test_an_item_without_a_label_is_shown_by_its_number_from_1(plan: Plan) -> None:
    each = step("each", "greet", parameters={"who": "x"}, for_each="${{ [[1], [2]] }}")
    run_id = plan("run", document(each), "--offline", "--yes", "--json", *TOOLS).run["id"]
    shown = plan("show", run_id, "--all").out
    assert ("   - item 1: attempt 1 of 1, " in shown, "   - item 2: attempt 1 of 1, " in shown, "item 0" in shown) == (True, True, False)


def test_secrets_are_redacted_and_a_skipped_step_has_no_calls(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "token").write_text("geheim-密码-42")
    monkeypatch.setenv("PLAN_ADAPTER_SECRETS_DIR", str(tmp_path / "mounted"))
    used = step("used", "run_command", parameters={"argv": ["echo", "${{ secrets.token }}"], "env": {"API_TOKEN": "literal-geheim"}})
    never = step("never", "greet", parameters={"who": "x"}, when="${{ false }}")
    run_id = plan("run", document(used, never), "--offline", "--yes", "--json", *TOOLS).run["id"]
    result, shown = plan("show", run_id, "--json"), plan("show", run_id, "--all").out
    first, second = result.run["steps"]
    assert first["calls"][0]["parameters"] == {"argv": ["echo", "${{ secrets.token }}"], "env": {"API_TOKEN": "***"}}
    assert second["calls"] == []
    for secret in ("geheim-密码-42", "literal-geheim"):
        assert secret not in shown + result.out


def test_json_names_the_step_that_runs_or_is_next_until_the_run_has_ended(plan: Plan) -> None:
    calls = {"tool_name": "bash", "description": "Call it", "parameters": {"command": "true"}}
    steps = [{"id": "a", **calls}, {"id": "b", **calls, "requires_approval": True, "depends_on": ["a"]}]
    document = {"description": "x", "options": {"require_approval": False}, "steps": steps}
    Path("next.json").write_text(json.dumps(document), encoding="utf-8")
    waits = plan("run", "next.json", "--offline", "--json").run
    assert plan("show", waits["id"], "--json").run["current_step"] == "b"
    assert plan("resume", waits["id"], "--offline", "--json", "--yes").run["current_step"] is None
