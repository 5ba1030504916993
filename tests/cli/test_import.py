"""`plan import`: plans that other programs wrote, as documents and versions; nothing that they claim counts."""

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.documents import load_plan
from plan_adapter.gates.approval import os_user
from plan_adapter.settings import Settings
from plan_adapter.store.store import PlanStore
from tests.cli.conftest import Plan
from tests.cli.test_run import TOOLS
from tests.documents.test_key_styles import GO, camel

Document = dict[str, Any]


def go(**fields: Any) -> Document:
    """The seeds' plan whose steps greet, with `fields` on top."""
    document = copy.deepcopy(GO)
    for step in document["Steps"]:
        step |= {"ToolName": "greet", "Parameters": {"who": step["Description"]}, "MaxRetries": 0}
    return {**document, **fields}


def write(*documents: Any, name: str = "plans.jsonl") -> str:
    """Write documents, a line each, and return the file's name."""
    Path(name).write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in documents), encoding="utf-8")
    return name


@pytest.mark.parametrize("document", [go(), camel(go())], ids=["PascalCase", "camelCase"])
def test_a_plan_is_taken_over_with_its_ids_and_its_claims_are_history(plan: Plan, document: Document) -> None:
    said = plan("import", write(document, name="go.json"), *TOOLS)
    assert said.code == 0, said.err
    found = load_plan(said.out)
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
    assert "approved by user@example.com; this is kept as history and approves nothing here" in said.err
    assert "the results of 1 step (step-1) are left out" in said.err


def test_what_was_approved_elsewhere_waits_for_an_approval_here(plan: Plan) -> None:
    assert plan("import", write(go(Status="completed")), "--save", *TOOLS).code == 0
    said = plan("run", "store:部署", "--offline", "--json", *TOOLS)
    assert (said.code, said.run["status"], said.run["approved_by"]) == (6, "pending_approval", None)
    assert {step["status"] for step in said.run["steps"]} == {"pending"}


def test_results_are_kept_only_if_asked_for_and_without_known_secrets(plan: Plan) -> None:
    document = go()
    document["Steps"][0] |= {"Result": {"token": "canary-1", "url": "https://ana:canary-2@x/", "rows": 3}, "Error": "late"}
    said = plan("import", write(document), *TOOLS)
    assert "canary" not in said.out + said.err
    said = plan("import", write(document), "--results", *TOOLS)
    assert "canary" not in said.out + said.err
    metadata: Any = load_plan(said.out).metadata
    told = metadata["history"]["record"]["steps"]["step-1"]
    assert (told["result"], told["error"]) == ({"token": "***", "url": "https://ana:***@x/", "rows": 3}, "late")


@pytest.mark.parametrize("form", ["lines", "array", "pretty"])
def test_a_file_of_many_plans_becomes_a_file_each(plan: Plan, form: str) -> None:
    documents = [go(), go(ID="p2", Name="a/b"), go(ID="p3", Name="A b")]
    if form == "lines":
        file = write(*documents)
    else:
        file = "plans.json"
        written = json.dumps(documents, indent=2) if form == "array" else "\n".join(json.dumps(one, indent=2) for one in documents)
        Path(file).write_text(written)
    assert plan("import", file, *TOOLS).code == 2
    Path("out").mkdir()
    said = plan("import", file, "--out", "out", "--save", *TOOLS)
    assert said.code == 0, said.err
    assert sorted(path.name for path in Path("out").iterdir()) == ["A-b-2.yaml", "a-b.yaml", "部署.yaml"]
    assert load_plan(Path("out/A-b-2.yaml")).id == "p3"
    assert asyncio.run(_authors()) == {"部署": os_user(), "a/b": os_user(), "A b": os_user()}


async def _authors() -> dict[str, str]:
    async with PlanStore(Settings().store_url) as store:
        return {name: (await store.versions(name))[0].author for name in await store.names()}


def test_every_problem_of_every_plan_is_reported_with_its_place_and_nothing_is_written(plan: Plan) -> None:
    wrong = go(Stepz=1)
    wrong["Steps"][1]["DependsOn"] = "step-1"
    file = write(go(), wrong)
    with Path(file).open("a") as lines:
        lines.write('{"description": "half", "steps": [\n[1]\n')
    said = plan("import", file, "--out", "x.yaml", "--save", *TOOLS)
    assert (said.code, said.out, Path("x.yaml").exists()) == (2, "", False)
    assert "plans.jsonl:2:" in said.err
    assert "error[unknown-field] at Stepz: a plan has no field `Stepz`; did you mean `steps`?" in said.err
    assert "error[wrong-type] at steps[1].depends_on" in said.err
    assert "plans.jsonl:5:1: error[syntax]" in said.err
    assert "`--leave-out-unknown` leaves out 1 unknown field" in said.err
    assert asyncio.run(_authors()) == {}


def test_unknown_fields_are_named_and_left_out_only_with_the_option(plan: Plan) -> None:
    file = write(go(Priority=3))
    assert plan("import", file, *TOOLS).code == 2
    said = plan("import", file, "--leave-out-unknown", *TOOLS)
    assert said.code == 0
    assert "error[unknown-field] at Priority" in said.err
    assert len(load_plan(said.out).steps) == 2


def test_tools_that_are_not_there_are_named_and_may_come_later(plan: Plan) -> None:
    said = plan("import", write(go()), "--save")
    assert said.code == 0
    assert "error[unknown-tool]" in said.err
    assert "fix 1 error above before it can run" in said.err
    assert asyncio.run(_authors()) == {"部署": os_user()}


def test_a_plan_that_cannot_run_is_converted_but_not_saved(plan: Plan) -> None:
    document = go()
    document["Steps"][0]["DependsOn"] = ["step-2"]
    file = write(document)
    said = plan("import", file, *TOOLS)
    assert (said.code, "error[cycle]" in said.err) == (0, True)
    assert load_plan(said.out).steps[0].depends_on == ["step-2"]
    assert plan("import", file, "--save", *TOOLS).code == 2
    assert asyncio.run(_authors()) == {}


def test_a_plan_without_approval_and_a_written_secret_are_reported(plan: Plan) -> None:
    document = go(Options={"AutoApprove": True})
    document["Steps"][0]["Parameters"] = {"who": {"password": "canary"}}
    said = plan("import", write(document), *TOOLS)
    assert "with `auto_approve: true` the plan runs without an approval" in said.err
    assert "step-1.parameters.who.password looks like a secret" in said.err
    assert "canary" not in said.err


def test_a_document_of_ones_own_is_saved_as_it_is(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "name: mine\ndescription: d\nsteps:\n  - {tool_name: greet, parameters: {who: a}}\n"
    Path("mine.yaml").write_text(text)
    (line,) = plan("import", "mine.yaml", "--save", "--json", *TOOLS).lines
    assert (line["notes"], line["saved"]["name"], line["saved"]["version"]) == ([], "mine", 1)
    assert (load_plan(json.dumps(line["plan"])), line["plan"].get("metadata")) == (load_plan(text), None)
    (line,) = plan("import", "mine.yaml", "--save", "--name", "我的", "--json", *TOOLS).lines
    assert (line["plan"]["name"], line["saved"]["name"]) == ("我的", "我的")


@pytest.mark.parametrize(
    ("documents", "arguments", "words"),
    [
        ((go(), go(ID="q")), ("--save",), "several plans are called 部署"),
        ((go(), go(Name="x")), ("--name", "y", "--save"), "holds 2 plans: --name is for one"),
        ((go(), go(Name="x")), ("--out", "no"), "no is not a folder"),
        (([],), (), "holds no plan"),
    ],
)
def test_what_cannot_be_done_so_is_a_usage_error(plan: Plan, documents: tuple[Any, ...], arguments: tuple[str, ...], words: str) -> None:
    said = plan("import", write(*documents), *arguments, *TOOLS)
    assert (said.code, said.out, words in said.err) == (2, "", True)


def test_a_file_that_is_not_there_is_a_usage_error(plan: Plan) -> None:
    said = plan("import", "no.json")
    assert (said.code, "no.json" in said.err) == (2, True)
