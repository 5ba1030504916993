"""Tests of operator requests (skip, run from, roll back, mark done): proof, persistence and verification."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.gates.approval import os_user
from plan_adapter.store.proof import entries
from plan_adapter.store.proof.audit import entry_digest, genesis_digest
from tests.cli.conftest import CommandResult, Plan
from tests.cli.gated import signer
from tests.cli.test_run import GREET, TOOLS, document, step
from tests.exports import document_of
from tests.processes import PLAN, Program

__all__ = ["signer"]

SIGNED: dict[str, Any] = {"approvers": ["ana"], "known_by": ["ssh_signature"]}
BY_ANA = ("--sign", "--by", "ana")
FAIL = step("check", "fail", depends_on=["greet"])
PUT = step("put", "say", parameters={"text": "放好"}, effect="write", rollback={"tool_name": "say", "parameters": {"text": "收回"}})
SKIP_CHECK = "--skip", "check", "--note", "它没有用"


def failed(plan: Plan, *steps: dict[str, Any], **options: Any) -> str:
    """Return the id of a run whose step `check` failed; the policy requires a signature of ana."""
    result = plan("run", document(GREET, FAIL, *steps, **{"approval": SIGNED, **options}), *TOOLS, "--offline", "--json")
    assert (result.code, result.run["status"]) == (1, "partial"), result.err
    return result.run["id"]


def resume(plan: Plan, run_id: str, *options: str) -> CommandResult:
    return plan("resume", run_id, *TOOLS, "--offline", "--json", *options)


def audit(plan: Plan, run_id: str, *kinds: str) -> list[dict[str, Any]]:
    return [entry for entry in document_of(plan("export", run_id).out)["audit"] if entry["kind"] in kinds]


@pytest.mark.usefixtures("signer")
def test_a_signed_request_skips_a_step_if_the_policy_requires_a_signature(plan: Plan) -> None:
    run_id = failed(plan, step("tell", "greet", parameters={"who": "ana"}, depends_on=["check"]))
    refused = plan("resume", run_id, *TOOLS, "--offline", *SKIP_CHECK)
    hint = f"use `plan resume {run_id} --offline --skip check --note …` with --sign and --by NAME"
    message = f"plan: the step is not skipped: {os_user()} may not answer here; only ana may; {hint}\n"
    assert (refused.code, refused.err) == (10, message)
    (refusal,) = audit(plan, run_id, "refused", "skip_requested")
    assert (refusal["step_id"], refusal["by"], refusal["known_by"]) == ("check", os_user(), "os_user")
    done = resume(plan, run_id, *SKIP_CHECK, *BY_ANA)
    assert done.code == 0, done.err
    assert [(step["id"], step["status"], step["reason"]) for step in done.run["steps"]] == [
        ("greet", "completed", None),
        ("check", "skipped", "skipped by ana: 它没有用"),
        ("tell", "completed", None),
    ]
    request, signature = audit(plan, run_id, "skip_requested", "signed")
    assert (request["step_id"], request["by"], request["known_by"], request["message"]) == ("check", "ana", "ssh_signature", "它没有用")
    assert (signature["by"], signature["message"][:29]) == ("ana", "-----BEGIN SSH SIGNATURE-----")
    assert plan("verify", run_id).code == 0


@pytest.mark.usefixtures("signer")
def test_a_signature_under_another_name_is_refused(plan: Plan) -> None:
    run_id = failed(plan, approval={"known_by": ["ssh_signature"]})
    refused = resume(plan, run_id, *SKIP_CHECK, "--sign", "--by", "bo")
    assert (refused.code, "the signature is by the key of ana, not of bo" in refused.err, "; use `plan" in refused.err) == (10, True, False)
    assert resume(plan, run_id).code == 1
    assert audit(plan, run_id, "skip_requested") == []


def test_the_error_suggests_an_alternative_if_no_proof_is_possible(plan: Plan) -> None:
    run_id = failed(plan, approval={"known_by": ["form"]})
    refused = plan("resume", run_id, *TOOLS, "--offline", *SKIP_CHECK)
    assert (refused.code, f"no option proves your identity here; `plan revise {run_id} FILE` without the step" in refused.err) == (10, True)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("resume", "RUN", *SKIP_CHECK, "--by", "ana"), "--by alone proves nothing"),
        (("resume", "RUN", "--sign"), "they go with --skip and --from"),
        (("cancel", "RUN", "--sign"), "Unknown option: --sign"),
    ],
    ids=["a name alone", "nothing is asked", "a plain cancel"],
)
def test_a_proof_without_a_request_is_a_usage_error(plan: Plan, command: tuple[str, ...], message: str) -> None:
    run_id = failed(plan, approval=None)
    refused = plan(*[run_id if word == "RUN" else word for word in command])
    assert (refused.code, message in refused.err) == (2, True), refused.err
    assert audit(plan, run_id, "skip_requested", "refused") == []


@pytest.mark.usefixtures("signer")
def test_a_signed_request_rolls_a_run_back(plan: Plan) -> None:
    options = {"require_approval": False, "stop_on_error": False}
    path = document(PUT, step("check", "fail", depends_on=["put"]), options=options, approval={**SIGNED, "effects": ["write"]})
    run_id = plan("run", path, *TOOLS, "--offline", "--detach", "--json").run["id"]
    assert plan("approve", run_id, "--step", "put", *BY_ANA, "--yes").code == 0
    assert resume(plan, run_id, "--detach").run["status"] == "partial"
    undo = "rollback", run_id, *TOOLS, "--note", "放错了"
    refused = plan(*undo)
    assert (refused.code, audit(plan, run_id, "rollback_requested")) == (10, [])
    assert f"ana may; use `plan rollback {run_id} --offline` with --sign and --by NAME" in refused.err
    done = plan(*undo, *BY_ANA, "--json")
    assert (done.code, done.run["steps"][0]["rolled_back"]) == (0, True), done.err
    request, signature = audit(plan, run_id, "rollback_requested", "signed")
    assert (request["by"], request["known_by"], request["message"]) == ("ana", "ssh_signature", "放错了 (by ana)")
    verified = plan("verify", run_id, "--json").run
    assert [(row["table"], row["problem"]) for row in verified["signatures"]] == [("approvals", None), ("audit", None)]
    assert verified["signatures"][1]["id"] == signature["row_id"]


@pytest.mark.usefixtures("signer")
def test_a_step_done_by_hand_is_recorded_with_a_signature(plan: Plan) -> None:
    run_id = failed(plan)
    assert plan("resolve", run_id, "check", "done").code == 10
    assert plan("resolve", run_id, "check", "done", "--result", '{"看": 1}', *BY_ANA).code == 0
    done = resume(plan, run_id)
    assert (done.code, done.run["steps"][1]["result"]) == (0, {"看": 1})
    (signature,) = audit(plan, run_id, "signed")
    (receipt,) = [row for row in document_of(plan("export", run_id).out)["receipts"] if row["by"] is not None]
    assert (signature["step_id"], receipt["by"], receipt["known_by"]) == ("check", "ana", "ssh_signature")
    assert plan("verify", run_id, "--json").run["signatures"] == [
        {
            "table": "receipts",
            "id": receipt["attempt_id"],
            "step": "check",
            "call_kind": "step",
            "by": "ana",
            "erased": False,
            "checked": True,
            "problem": None,
        }
    ]


@pytest.mark.usefixtures("signer")
@pytest.mark.parametrize(
    ("field", "signed"),
    [
        ("steps.check.result", ("resolve", "RUN", "check", "done", "--result", '{"看": 1}')),
        ("notes", ("resume", "RUN", "--offline", *SKIP_CHECK, *TOOLS)),
    ],
    ids=["the result of a resolution", "the reason to skip a step"],
)
def test_a_signature_over_an_erased_value_is_not_checked_and_the_record_verifies(plan: Plan, field: str, signed: tuple[str, ...]) -> None:
    run_id = failed(plan)
    assert plan(*[run_id if word == "RUN" else word for word in signed], *BY_ANA).code == 0
    assert resume(plan, run_id).code in (0, 8)  # the second case already skipped the step and completed
    assert plan("erase", run_id, "--fields", field, "--yes").code == 0
    verified = plan("verify", run_id)
    assert (verified.code, "the signature of ana can no longer be checked" in verified.err) == (0, True), verified.out
    erased = {"notes": "它没有用", "steps.check.result": "看"}[field]
    assert erased not in plan("export", run_id).out


# Requests are kept for later starts


def test_a_skipped_step_stays_skipped_after_a_kill_and_a_resume(plan: Plan, tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    run_id = failed(plan, step("later", "wait_once", parameters={"path": str(mark)}, depends_on=["check"]), approval=None)
    process = Program(PLAN, "resume", run_id, *TOOLS, "--offline", *SKIP_CHECK)
    while not mark.exists():
        assert process.poll() is None, "it ended before the step was called"
        time.sleep(0.02)
    process.kill()
    process.wait()
    done = resume(plan, run_id)
    assert done.code == 0, done.err
    ends = {step["id"]: (step["status"], step["reason"]) for step in done.run["steps"]}
    assert ends["check"] == ("skipped", f"skipped by {os_user()}: 它没有用")
    assert ends["later"][0] == "completed"
    assert [entry["step_id"] for entry in audit(plan, run_id, "skip_requested", "run_from_requested")] == ["check"]


def run_with_skipped_step(plan: Plan, *steps: dict[str, Any], **options: Any) -> str:
    """Return the id of a run whose step `check` is skipped and whose step `other` keeps failing."""
    run_id = failed(plan, step("other", "fail"), *steps, **{"options": {"require_approval": False, "stop_on_error": False}, **options})
    assert resume(plan, run_id, *SKIP_CHECK, *(BY_ANA if options.get("approval", SIGNED) else ())).code == 1
    return run_id


def previewed_steps(plan: Plan, run_id: str, *options: str) -> dict[str, str]:
    result = plan("preview", "--resume", run_id, *TOOLS, "--json", *options)
    assert result.code == 0, result.err
    return {step["id"]: step["fate"] for step in result.run["steps"]}


def test_only_an_explicit_from_runs_a_skipped_step_again(plan: Plan) -> None:
    run_id = run_with_skipped_step(plan, step("tell", "greet", parameters={"who": "x"}, depends_on=["check"]), approval=None)
    assert previewed_steps(plan, run_id)["check"] == "skipped"
    assert previewed_steps(plan, run_id, "--only-failed") == {"greet": "carried", "check": "skipped", "other": "run", "tell": "carried"}
    assert resume(plan, run_id, "--only-failed").run["steps"][1]["status"] == "skipped"
    assert resume(plan, run_id, *SKIP_CHECK).code == 1  # the same request again: nothing new is recorded
    assert len(audit(plan, run_id, "skip_requested")) == 1
    assert previewed_steps(plan, run_id, "--from", "check")["check"] == "run"
    assert resume(plan, run_id, "--from", "check").run["steps"][1]["status"] == "failed"
    assert resume(plan, run_id).run["steps"][1]["status"] == "failed"
    assert [entry["kind"] for entry in audit(plan, run_id, "skip_requested", "run_from_requested")] == [
        "skip_requested",
        "run_from_requested",
    ]


@pytest.mark.usefixtures("signer")
def test_running_a_skipped_step_again_needs_proof_too(plan: Plan) -> None:
    run_id = run_with_skipped_step(plan)
    refused = plan("resume", run_id, *TOOLS, "--offline", "--from", "check")
    hint = f"use `plan resume {run_id} --offline --from check` with --sign and --by NAME"
    assert (refused.code, "the skipped step does not run" in refused.err, hint in refused.err) == (10, True, True)
    assert resume(plan, run_id, "--from", "check", *BY_ANA).run["steps"][1]["status"] == "failed"
    assert plan("verify", run_id).code == 0


def test_a_new_version_of_a_skipped_step_runs(plan: Plan) -> None:
    run_id = run_with_skipped_step(plan, approval=None)
    options = {"require_approval": False, "stop_on_error": False}
    same = document(GREET, FAIL, step("other", "greet", parameters={"who": "x"}), options=options)
    assert plan("revise", run_id, same, *TOOLS).code == 0
    assert previewed_steps(plan, run_id)["check"] == "skipped"
    fixed = document(GREET, step("check", "greet", parameters={"who": "y"}, depends_on=["greet"]), options=options)
    assert plan("revise", run_id, fixed, *TOOLS).code == 0
    assert resume(plan, run_id).run["steps"][1]["status"] == "completed"


def test_a_skipped_step_resolved_as_done_is_completed(plan: Plan) -> None:
    run_id = run_with_skipped_step(plan, approval=None)
    assert plan("resolve", run_id, "check", "done").code == 0
    assert resume(plan, run_id).run["steps"][1]["status"] == "completed"


# Verification


def rebuild_audit_log(found: dict[str, Any]) -> None:
    """Rebuild the audit log, as someone with write access to everything could."""
    receipts = {row["attempt_id"]: row for row in found["receipts"]}
    before = genesis_digest(found["run"])
    for number, entry in enumerate(found["audit"], 1):
        entry["number"] = number
        if entry["kind"] in ("attempt_succeeded", "attempt_failed"):
            entry |= {"row_digest": entries.of_receipt(receipts[entry["row_id"]]).row_digest}
        entry["digest"] = before = entry_digest(entry, before)
    found["head"] = before


def alter_entry(found: dict[str, Any], entry_kind: str, **fields: Any) -> None:
    for entry in found["audit"]:
        if entry["kind"] == entry_kind:
            entry |= fields


def remove_signature(found: dict[str, Any]) -> None:
    found["audit"] = [entry for entry in found["audit"] if entry["kind"] != "signed"]


def alter_result(found: dict[str, Any]) -> None:
    (row,) = [row for row in found["receipts"] if row["by"] is not None]
    row["result"] = '{"看":2}'


FORGED: dict[str, tuple[Callable[[dict[str, Any]], None], str, str]] = {
    "the reason": (
        lambda found: alter_entry(found, "skip_requested", message="x"),
        "audit, step `check`",
        "does not belong to this answer",
    ),
    "which step": (
        lambda found: alter_entry(found, "skip_requested", step_id="greet"),
        "audit, step `greet`",
        "does not belong to this answer",
    ),
    "what is wanted": (
        lambda found: alter_entry(found, "skip_requested", kind="run_from_requested"),
        "audit, step `check`",
        "does not belong to this answer",
    ),
    "by whom": (lambda found: alter_entry(found, "skip_requested", by="bo"), "audit, step `check`", "is by the key of ana, not of bo"),
    "no signature": (remove_signature, "receipts, step `hand`", "it is recorded as signed, and there is no signature"),
    "a result": (alter_result, "receipts, step `hand`", "does not belong to this answer"),
}


@pytest.mark.usefixtures("signer")
def test_a_forged_request_is_detected_on_any_machine_that_knows_the_signers(plan: Plan) -> None:
    run_id = failed(plan, step("hand", "fail"), options={"require_approval": False, "stop_on_error": False})
    assert plan("resolve", run_id, "hand", "done", "--result", '{"看": 1}', *BY_ANA).code == 0
    assert resume(plan, run_id, *SKIP_CHECK, *BY_ANA).code == 0
    exported = plan("export", run_id).out
    untouched = document_of(exported)
    rebuild_audit_log(untouched)
    Path("run.json").write_text(json.dumps(untouched))
    result = plan("verify", "run.json")
    assert (result.code, ", intact: " in result.out) == (0, True)
    for forge, where, what in FORGED.values():
        found = document_of(exported)
        forge(found)
        rebuild_audit_log(found)
        Path("run.json").write_text(json.dumps(found))
        result = plan("verify", "run.json")
        assert (result.code, result.out.startswith(f"altered: {where}: the signature of "), what in result.out) == (1, True, True), (
            result.out
        )
