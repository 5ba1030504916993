"""Tests of `plan import` for plans from other programs: conversion, reports, and claims that become history."""

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.documents import load_plan
from plan_adapter.gates.approval import os_user
from plan_adapter.local.settings import Settings
from plan_adapter.store.store import PlanStore
from tests.cli.conftest import Plan
from tests.cli.test_run import TOOLS
from tests.documents.test_key_styles import GO, camel

Document = dict[str, Any]


def go(**fields: Any) -> Document:
    """Return the sample plan in Go style, with greeting steps and `fields` replaced."""
    document = copy.deepcopy(GO)
    for step in document["Steps"]:
        step |= {"ToolName": "greet", "Parameters": {"who": step["Description"]}, "MaxRetries": 0}
    return {**document, **fields}


def write(*documents: Any, name: str = "plans.jsonl") -> str:
    """Write one document per line and return the name of the file."""
    Path(name).write_text("".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents), encoding="utf-8")
    return name


@pytest.mark.parametrize("document", [go(), camel(go())], ids=["PascalCase", "camelCase"])
def test_an_imported_plan_keeps_its_ids_and_its_record_becomes_history(plan: Plan, document: Document) -> None:
    result = plan("import", write(document, name="go.json"), *TOOLS)
    assert result.code == 0, result.err
    found = load_plan(result.out)
    assert (found.id, found.name, [step.id for step in found.steps]) == ("plan-1", "部署", ["step-1", "step-2"])
    assert found.history == {}
    history = found.metadata["history"]
    assert isinstance(history, dict)
    assert history["source"] == "go.json"
    assert "neither an approval nor a receipt" in str(history["meaning"])
    assert history["record"] == {
        "task_id": "task-9",
        "user_approved": True,
        "approved_by": "user@example.com",
        "status": "approved",
        "current_step": 1,
        "created_at": "2025-01-02T03:04:05Z",
        "agent_id": "agent-123",
        "org_id": "org",
        "tenant_id": "tenant",
        "steps": {"step-1": {"status": "completed", "started_at": "2025-01-02T03:04:05Z", "duration_ms": 1200, "retry_count": 1}},
    }
    assert "approved by user@example.com; this is kept as history and approves nothing here" in result.err
    assert "the results of 1 step (step-1) are left out" in result.err


def test_an_approval_from_another_program_does_not_count(plan: Plan) -> None:
    assert plan("import", write(go(Status="completed")), "--save", *TOOLS).code == 0
    result = plan("run", "store:部署", "--offline", "--json", *TOOLS)
    assert (result.code, result.run["status"], result.run["approved_by"]) == (6, "pending_approval", None)
    assert {step["status"] for step in result.run["steps"]} == {"pending"}


def test_results_are_kept_only_on_request_and_redacted(plan: Plan) -> None:
    document = go()
    document["Steps"][0] |= {"Result": {"token": "canary-1", "url": "https://ana:canary-2@x/", "rows": 3}, "Error": "late"}
    result = plan("import", write(document), *TOOLS)
    assert "canary" not in result.out + result.err
    result = plan("import", write(document), "--results", *TOOLS)
    assert "canary" not in result.out + result.err
    metadata: Any = load_plan(result.out).metadata
    step = metadata["history"]["record"]["steps"]["step-1"]
    assert (step["result"], step["error"]) == ({"token": "***", "url": "https://ana:***@x/", "rows": 3}, "late")


@pytest.mark.parametrize("form", ["lines", "array", "pretty"])
def test_each_plan_of_a_file_is_written_to_its_own_file(plan: Plan, form: str) -> None:
    documents = [go(), go(ID="p2", Name="a/b"), go(ID="p3", Name="A b")]
    if form == "lines":
        file = write(*documents)
    else:
        file = "plans.json"
        written = (
            json.dumps(documents, indent=2) if form == "array" else "\n".join(json.dumps(document, indent=2) for document in documents)
        )
        Path(file).write_text(written)
    assert plan("import", file, *TOOLS).code == 2
    Path("out").mkdir()
    result = plan("import", file, "--output", "out", "--save", *TOOLS)
    assert result.code == 0, result.err
    assert sorted(path.name for path in Path("out").iterdir()) == ["A-b-2.yaml", "a-b.yaml", "部署.yaml"]
    assert load_plan(Path("out/A-b-2.yaml")).id == "p3"
    assert asyncio.run(_authors()) == {"部署": os_user(), "a/b": os_user(), "A b": os_user()}


async def _authors() -> dict[str, str]:
    async with PlanStore(Settings().store_url) as store:
        return {name: (await store.versions(name))[0].author for name in await store.names()}


def test_every_problem_of_every_plan_is_reported_and_nothing_is_written(plan: Plan) -> None:
    wrong = go(Stepz=1)
    wrong["Steps"][1]["DependsOn"] = "step-1"
    file = write(go(), wrong)
    with Path(file).open("a") as lines:
        lines.write('{"description": "half", "steps": [\n[1]\n')
    result = plan("import", file, "--output", "x.yaml", "--save", *TOOLS)
    assert (result.code, result.out, Path("x.yaml").exists()) == (2, "", False)
    assert "plans.jsonl:2:" in result.err
    assert "error[unknown-field] at Stepz: a plan has no field `Stepz`; did you mean `steps`?" in result.err
    assert "error[wrong-type] at steps[1].depends_on" in result.err
    assert "plans.jsonl:5:1: error[syntax]" in result.err
    assert "`--leave-out-unknown` leaves out 1 unknown field" in result.err
    assert asyncio.run(_authors()) == {}


def test_unknown_fields_are_reported_and_left_out_only_with_the_option(plan: Plan) -> None:
    file = write(go(Priority=3))
    assert plan("import", file, *TOOLS).code == 2
    result = plan("import", file, "--leave-out-unknown", *TOOLS)
    assert result.code == 0
    assert "error[unknown-field] at Priority" in result.err
    assert len(load_plan(result.out).steps) == 2


def test_unknown_tools_are_reported_but_do_not_prevent_saving(plan: Plan) -> None:
    result = plan("import", write(go()), "--save")
    assert result.code == 0
    assert "error[unknown-tool]" in result.err
    assert "fix 1 error above before it can run" in result.err
    assert asyncio.run(_authors()) == {"部署": os_user()}


def test_a_plan_that_cannot_run_is_converted_but_not_saved(plan: Plan) -> None:
    document = go()
    document["Steps"][0]["DependsOn"] = ["step-2"]
    file = write(document)
    result = plan("import", file, *TOOLS)
    assert (result.code, "error[cycle]" in result.err) == (0, True)
    assert load_plan(result.out).steps[0].depends_on == ["step-2"]
    assert plan("import", file, "--save", *TOOLS).code == 2
    assert asyncio.run(_authors()) == {}


def test_a_missing_approval_and_a_literal_secret_are_reported(plan: Plan) -> None:
    document = go(Options={"AutoApprove": True})
    document["Steps"][0]["Parameters"] = {"who": {"password": "canary"}}
    result = plan("import", write(document), *TOOLS)
    assert "with `auto_approve: true` the plan runs without an approval" in result.err
    assert "step-1.parameters.who.password looks like a secret" in result.err
    assert "canary" not in result.err


def test_contradicting_options_about_approval_are_kept_with_a_note(plan: Plan) -> None:
    file = write(go(Options={"AutoApprove": True, "RequireApproval": True}))
    result = plan("import", file, *TOOLS)
    assert (result.code, "error[" in result.err) == (0, False)
    assert "`require_approval: true` and `auto_approve: true` contradict each other; both are kept" in result.err
    read = load_plan(result.out)
    assert (read.options.require_approval, read.options.auto_approve, read.options.says_both_of_approval) == (True, True, True)
    assert plan("import", file, "--save", *TOOLS).code == 0
    assert plan("validate", write(read.to_document(), name="kept.json"), *TOOLS).code == 2


def test_a_dash_as_the_output_is_stdout(plan: Plan) -> None:
    result = plan("import", write(go()), "-o", "-", *TOOLS)
    assert (result.code, load_plan(result.out).steps[0].id) == (0, "step-1")
    assert not Path("<stdin>").exists()


def test_a_native_document_is_saved_unchanged(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "name: mine\ndescription: d\nsteps:\n  - {tool_name: greet, parameters: {who: a}}\n"
    Path("mine.yaml").write_text(text)
    (line,) = plan("import", "mine.yaml", "--save", "--json", *TOOLS).lines
    assert (line["notes"], line["saved"]["name"], line["saved"]["version"]) == ([], "mine", 1)
    assert (load_plan(json.dumps(line["plan"])), line["plan"].get("metadata")) == (load_plan(text), None)
    (line,) = plan("import", "mine.yaml", "--save", "--name", "我的", "--json", *TOOLS).lines
    assert (line["plan"]["name"], line["saved"]["name"]) == ("我的", "我的")


@pytest.mark.parametrize(
    ("documents", "arguments", "message"),
    [
        ((go(), go(ID="q")), ("--save",), "several plans are called 部署"),
        ((go(), go(Name="x")), ("--name", "y", "--save"), "holds 2 plans, but --name fits only one"),
        ((go(), go(Name="x")), ("--output", "no"), "no is not a folder"),
        (([],), (), "holds no plan"),
    ],
)
def test_conflicting_options_are_a_usage_error(plan: Plan, documents: tuple[Any, ...], arguments: tuple[str, ...], message: str) -> None:
    result = plan("import", write(*documents), *arguments, *TOOLS)
    assert (result.code, result.out, message in result.err) == (2, "", True)


def test_a_missing_file_is_a_usage_error(plan: Plan) -> None:
    result = plan("import", "no.json")
    assert (result.code, "no.json" in result.err) == (2, True)
