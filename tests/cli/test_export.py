"""Tests of `plan export` and `plan verify`: another machine can verify the exported record."""

import json
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.approval import approval_text_to_sign
from tests.cases import for_each
from tests.cli.conftest import Plan
from tests.exports import document_of, rebuild_audit_log

DOCUMENT = """
name: 发布
description: Write a file
inputs: {text: {type: string, default: 你好}}
options: {require_approval: false}
steps:
  - {id: write, tool_name: write_file, parameters: {path: note.txt, content: "${{ inputs.text }}"}, description: 写}
  - {id: read, tool_name: read_file, parameters: {path: note.txt}, description: 读, depends_on: [write]}
"""


@pytest.fixture
def run_id(plan: Plan) -> str:
    """Return the id of a completed run."""
    Path("plan.yaml").write_text(DOCUMENT, encoding="utf-8")
    result = plan("run", "plan.yaml", "--offline", "--json")
    assert result.code == 0, result.err
    return result.run["id"]


def test_an_export_is_written_to_the_file_of_o(plan: Plan, run_id: str) -> None:
    assert plan("export", run_id, "-o", "record.jsonl").code == 0
    assert document_of(Path("record.jsonl").read_text(encoding="utf-8"))["run"]["id"] == run_id


def test_an_export_replaces_a_file_only_with_force(plan: Plan, run_id: str) -> None:
    Path("record.json").write_text("mine", encoding="utf-8")
    refused = plan("export", run_id, "-o", "record.json")
    assert (refused.code, refused.err) == (2, "plan: record.json already exists: give another name, or --force\n")
    assert Path("record.json").read_text(encoding="utf-8") == "mine"
    assert plan("export", "plan.yaml", "--format", "mermaid", "-o", "record.json").code == 2
    assert plan("export", run_id, "-o", "record.json", "--force").code == 0
    assert document_of(Path("record.json").read_text(encoding="utf-8"))["run"]["id"] == run_id


@pytest.mark.parametrize("folder", [".", "", ".."])
def test_a_folder_is_no_file_to_write(plan: Plan, run_id: str, folder: str) -> None:
    message = f"plan: {folder or '.'} is a folder: give the name of a file\n"
    for arguments in (
        ["export", run_id, "-o", folder],
        ["export", "plan.yaml", "--format", "mermaid", "-o", folder, "--force"],
        ["schema", folder],
    ):
        assert (plan(*arguments).code, plan(*arguments).err) == (2, message)


def test_an_unaltered_run_is_intact(plan: Plan, run_id: str):
    result = plan("verify", run_id[:13])
    assert (result.code, result.err) == (0, "")
    head = document_of(plan("export", run_id).out)["head"]
    assert result.out.endswith(f" entries, intact: digest {head}\n")
    (line,) = plan("verify", run_id, "--json").lines
    assert (line["ok"], line["digest"], line["run"], line["problem"], line["signatures"]) == (True, head, run_id, None, [])
    assert line["verdict"] == "intact"


def test_an_altered_row_in_the_store_is_reported(plan: Plan, run_id: str, home: Path):
    with sqlite3.connect(home / "plans.db") as database:
        database.execute("UPDATE receipts SET result = '{}' WHERE step_id = 'read'")
    result = plan("verify", run_id)
    assert result.code == 1
    assert result.out.startswith("altered: receipts, step `read`, attempt 1: the row was altered")
    (line,) = plan("verify", run_id, "--json").lines
    assert (line["ok"], line["problem"]["table"], line["problem"]["step_id"], line["problem"]["attempt"]) == (False, "receipts", "read", 1)


def _delete_audit_log(home: Path) -> None:
    with sqlite3.connect(home / "plans.db") as database:
        database.execute("DROP TRIGGER audit_refuses_delete")
        database.execute("DELETE FROM audit")


def test_a_run_without_audit_entries_is_not_verifiable(plan: Plan, run_id: str, home: Path):
    _delete_audit_log(home)
    result = plan("verify", run_id)
    assert (result.code, result.out[:58]) == (1, "not verifiable: the run has no audit log, so nothing shows")
    result = plan("verify", run_id, "--json")
    (line,) = result.lines
    assert (result.code, line["ok"], line["verdict"], line["entries"], line["problem"]) == (1, False, "not_verifiable", 0, None)


def test_an_exported_file_without_audit_entries_is_not_verifiable(plan: Plan, run_id: str, home: Path):
    _delete_audit_log(home)
    assert plan("export", run_id, "--output", "run.jsonl").code == 0
    result = plan("verify", "run.jsonl")
    assert (result.code, result.out.partition(":")[0]) == (1, "not verifiable")
    assert "intact" not in result.out + result.err


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_verifying_a_missing_run_fails(plan: Plan, flags: tuple[str, ...]):
    assert plan("verify", "0123", *flags).code == 2, "an empty store"
    Path("plan.yaml").write_text(DOCUMENT, encoding="utf-8")
    assert plan("run", "plan.yaml", "--offline").code == 0
    result = plan("verify", "zzzz", *flags)
    assert result.code == 2
    assert "intact" not in result.out + result.err


def test_an_exported_file_is_verified_without_a_store(plan: Plan, run_id: str, home: Path):
    assert plan("export", run_id, "--output", "run.jsonl").code == 0
    first = Path("run.jsonl").read_bytes()
    assert plan("export", run_id).out.encode() == plan("export", run_id, "--json").out.encode() == first
    document = document_of(first.decode())
    assert {"plans", "run", "approvals", "gates", "attempts", "receipts", "revisions", "audit", "head"} <= set(document)
    assert "你好" in first.decode()
    shutil.rmtree(home)
    result = plan("verify", "run.jsonl")
    assert (result.code, f"intact: digest {document['head']}" in result.out) == (0, True)
    assert not home.exists()


def _change(document: dict[str, Any], *path: Any, value: Any) -> None:
    for name in path[:-1]:
        document = document[name]
    document[path[-1]] = value


ALTERED: tuple[tuple[tuple[Any, ...], Any, str], ...] = (
    (("receipts", 0, "result"), "{}", "altered: receipts, step `"),
    (("audit", 2, "at"), "2026-01-01T00:00:00.000000Z", "altered: audit, entry 3"),
    (("head",), "f" * 64, "altered: audit: the newest entries are missing"),
    (("run", "status"), "failed", "altered: runs"),
    (("audit",), None, "altered: document"),
    (("audit",), [], "altered: audit: the newest entries are missing"),
    (("run",), [], "altered: document"),
)


@for_each(altered=ALTERED)
def test_an_altered_value_in_a_file_is_reported(plan: Plan, run_id: str, altered: tuple[tuple[Any, ...], Any, str]):
    path, value, message = altered
    document = document_of(plan("export", run_id).out)
    _change(document, *path, value=value)
    Path("run.json").write_text(json.dumps(document))
    result = plan("verify", "run.json")
    assert (result.code, result.out[: len(message)]) == (1, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("runs", "x"), "`plan runs` does not take `x`"),
        (("verify", "no.json"), "no file"),
        (("verify", "no.jsonl"), "no file"),
    ],
)
def test_wrong_arguments_are_a_usage_error(plan: Plan, arguments: tuple[str, ...], message: str):
    result = plan(*arguments)
    assert (result.code, message in result.err) == (2, True)


def test_a_file_that_is_not_a_run_is_refused(plan: Plan):
    Path("a.json").write_text("[1]")
    Path("b.json").write_text("{")
    assert [plan("verify", name).code for name in ("a.json", "b.json")] == [2, 2]


def test_signatures_are_verified_if_the_signers_are_known(plan: Plan, run_id: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen here")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    document = document_of(plan("export", run_id).out)
    document["approvals"][0] |= {"signature": _signature(key, document["approvals"][0], run_id), "gate_id": "g-1", "by": "ana"}
    rebuild_audit_log(document)
    Path("run.json").write_text(json.dumps(document))
    result = plan("verify", "run.json")
    assert (result.code, "the signature of ana was not checked" in result.err) == (0, True)
    signers = tmp_path / "signers"
    signers.write_text(f"ana {key.with_suffix('.pub').read_text()}")
    monkeypatch.setenv("PLAN_ADAPTER_ALLOWED_SIGNERS", str(signers))
    result = plan("verify", "run.json")
    assert (result.code, result.err) == (0, "")
    signers.write_text(f"bo {key.with_suffix('.pub').read_text()}")
    result = plan("verify", "run.json")
    assert (result.code, result.out.startswith("altered: approvals: the signature of ana")) == (1, True)


def _signature(key: Path, row: dict[str, Any], run_id: str) -> str:
    text = approval_text_to_sign(approval_digest=row["approval_digest"], decision=row["decision"], run_id=run_id, gate_id="g-1")
    command = ["ssh-keygen", "-Y", "sign", "-q", "-f", str(key), "-n", "prefect-plan-adapter"]
    return subprocess.run(command, input=text, text=True, capture_output=True, check=True).stdout


PLAN = """
name: 发布
description: Release it
inputs: {version: {type: string, default: "1"}}
steps:
  - {id: build, tool_name: bash, description: Build, parameters: {command: make, env: {V: "${{ inputs.version }}"}}, max_retries: 2}
  - id: push
    tool_name: bash
    description: Push
    parameters: {command: cat, stdin: "${{ steps.build.result.stdout }}"}
    requires_approval: true
finally:
  - {id: tidy, tool_name: bash, description: Tidy up, parameters: {command: make clean}}
"""


def test_a_plan_is_exported_as_a_flowchart(plan: Plan, home: Path):
    Path("release.yaml").write_text(PLAN)
    shown = plan("export", "release.yaml", "--format", "mermaid").out
    assert shown.startswith('flowchart TD\n  s1["build<br/>Build"]:::write\n  s2{{"push<br/>Push"}}:::write\n')
    assert "  s1 --> s2\n  s2 --> s3\n" in shown


def test_an_aster_export_reports_every_unsupported_field(plan: Plan, home: Path):
    Path("release.yaml").write_text(PLAN)
    result = plan("export", "release.yaml", "--format", "aster")
    assert result.err.splitlines() == [
        "left out: `requires_approval` of `push`",
        "left out: `inputs` of the plan",
        "left out: `finally` of the plan",
        "Aster does not evaluate `${{ }}`: write values in `build`, `push`",
    ]
    document = json.loads(result.out)
    assert (document["Name"], document["Options"]["MaxParallelSteps"]) == ("发布", 3)
    first, second = document["Steps"]
    assert (first["ToolName"], first["MaxRetries"], second["DependsOn"]) == ("bash", 2, ["build"])
    assert plan("export", "release.yaml", "--format", "aster", "--output", "aster.json").code == 0
    back = next(row["plan"] for row in map(json.loads, plan("import", "aster.json", "--json").out.splitlines()) if "plan" in row)
    assert [step["id"] for step in back["steps"]] == ["build", "push"]


def test_a_plan_that_needs_no_approval_comes_back_from_an_aster_export_without_contradiction(plan: Plan):
    options = {"auto_approve": True}
    Path("free.json").write_text(
        json.dumps({"description": "d", "options": options, "steps": [{"id": "a", "tool_name": "bash", "parameters": {"command": "true"}}]})
    )
    assert plan("export", "free.json", "--format", "aster", "--output", "aster.json").code == 0
    assert plan("import", "aster.json", "--output", "back.yaml").code == 0
    assert plan("validate", "back.yaml").code == 0
