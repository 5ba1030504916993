"""Tests of erasing: erased values leave the record, the record still verifies, and every other change is detected."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from pydantic import JsonValue
from sqlalchemy.exc import DBAPIError

from plan_adapter.gates.approval import os_user
from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, StepStatus
from plan_adapter.store.proof.digests import ERASED
from plan_adapter.store.proof.erasing import Erasure, Field, file_digest, file_text, read_fields
from plan_adapter.store.proof.signed import signed_statements
from plan_adapter.store.proof.verification import verify
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import a_gate, a_plan, a_receipt, an_answer, an_approval, an_attempt, begun, ended, validated

EMAIL, NAME = "安娜@example.org", "Ana Müller"
TWO = f"{ERASED} {ERASED}"
"""Two erased words."""


async def a_personal_run(store: PlanStore) -> PlanRun:
    """Return a failed run with an email address and a name in all its tables."""
    plan = a_plan(lists=("drain",))
    run = await begun(store, plan, inputs={"email": EMAIL, "age": 42, "host": "web-1"}, requested_by="bo")
    recorder = await store.ledger.recorder(run)
    await recorder.intent(attempt := an_attempt(run, at=recorder.now(), parameters={"to": EMAIL, "text": f"Dear {NAME}"}))
    rows = [{"name": NAME, "id": 1}, {"name": "Bo Li", "id": 2}]
    recorder.receipt(a_receipt(attempt, {"rows": rows, "mail": f"to {EMAIL}"}, at=recorder.now()))
    recorder.step_ended(ended(run, "check", StepStatus.COMPLETED, at=recorder.now()))
    for item in (0, 1):
        await recorder.intent(attempt := an_attempt(run, "drain", at=recorder.now(), item=item, label=f"{NAME} {item}"))
        recorder.receipt(a_receipt(attempt, {"who": NAME, "n": item}, at=recorder.now(), error=f"{EMAIL} bounced" if item else None))
    recorder.step_ended(ended(run, "drain", StepStatus.FAILED, at=recorder.now(), error=f"{EMAIL} bounced"))
    await recorder.flush()
    gate = await store.gates.open(a_gate(run, "restart", text=f"重启 for {NAME}", description=f"Mail {EMAIL}"), timeout_ms=0)
    await store.gates.answer(gate.id, an_answer(gate, decision="reject", note=f"{NAME} said no"))
    run.status, run.completed_at, run.message = PlanStatus.FAILED, recorder.now() + timedelta(seconds=1), f"step drain: {EMAIL} bounced"
    run.outputs = {"mail": EMAIL}
    await store.ledger.update(run)
    return run


async def erase(store: PlanStore, run_id: str, *fields: str, files: Mapping[str, JsonValue] | None = None) -> Erasure:
    return await store.retention.erase(run_id, fields, files=files or {}, stage=lambda _files: None, by="bo")


async def text_of(store: PlanStore, run_id: str) -> str:
    return json.dumps(await store.export(run_id), ensure_ascii=False)


async def test_an_erased_value_is_gone_from_the_record_and_the_record_still_verifies(store: PlanStore):
    run = await a_personal_run(store)
    before = await store.verify(run.id)
    assert EMAIL in await text_of(store, run.id)

    erasure = await erase(store, run.id, "inputs.email", "steps.check.result.rows[].name")
    text = await text_of(store, run.id)
    assert not [value for value in (EMAIL, NAME, "Bo Li") if value in text]
    after = await store.verify(run.id)
    assert (after.ok, str(after.problem)) == (True, "None")
    assert after.entries == before.entries + 1
    assert erasure.rows.keys() == {"runs", "step_runs", "attempts", "receipts", "approvals", "gates", "audit"}

    found = await store.run(run.id)
    assert (found.inputs, found.outputs) == ({"email": ERASED, "age": 42, "host": "web-1"}, {"mail": ERASED})
    assert found.step("check").result == {"rows": [{"name": TWO, "id": 1}, {"name": TWO, "id": 2}], "mail": f"to {ERASED}"}
    (attempt, first, second) = await store.attempts(run.id)
    assert (attempt.parameters, first.label, second.label) == ({"to": ERASED, "text": f"Dear {TWO}"}, f"{TWO} 0", f"{TWO} 1")
    told = (await store.audit(run.id))[-1]
    assert (told.kind, told.by, told.message) == ("erased", "bo", "inputs.email, steps.check.result.rows[].name")
    (tombstone,) = await store.retention.tombstones(run.id)
    assert (tombstone.kind, tombstone.last_digest, tombstone.fields) == ("erased", before.digest, erasure.fields)
    assert list(signed_statements(await store.export(run.id))) == []


async def test_fields_can_be_erased_one_by_one_and_the_run_pruned_afterwards(store: PlanStore):
    run = await a_personal_run(store)
    fields = (
        "steps.drain.result[1].n",
        "steps.drain.error",
        "message",
        "notes",
        "steps.restart.gate",
        "inputs.age",
        "outputs.mail",
        "inputs.email",
    )
    for field in fields:
        erasure = await erase(store, run.id, field)
        assert erasure.fields == (field,)
        found = await store.verify(run.id)
        assert found.ok, (field, str(found.problem))
    assert EMAIL not in await text_of(store, run.id)
    receipts = {receipt.item: receipt.result for receipt in await store.receipts(run.id) if receipt.step_id == "drain"}
    assert receipts == {0: {"who": NAME, "n": 0}, 1: {"who": NAME, "n": "[erased value]"}}
    assert len(await store.retention.tombstones(run.id)) == len(fields) - 2  # `message` had the text of `outputs.mail` and `inputs.email`
    later = await store.now() + timedelta(hours=1)
    assert await store.retention.prune([run.id], ended_before=later, by="bo") == {}
    assert await store.retention.problem() is None


async def test_erasing_again_changes_nothing(store: PlanStore):
    run = await a_personal_run(store)
    await erase(store, run.id, "inputs.email")
    assert (await erase(store, run.id, "inputs.email")).rows == {}
    assert len(await store.retention.tombstones(run.id)) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE receipts SET result = '{{\"mail\": \"[erased]\"}}' WHERE run_id = '{run}' AND step_id = 'check'",
        "UPDATE runs SET inputs = '{{\"host\": \"[erased]\"}}' WHERE id = '{run}'",
        "UPDATE audit SET message = '[erased] by somebody' WHERE run_id = '{run}' AND number = 3",
        "UPDATE gates SET text = '[erased]' WHERE run_id = '{run}'",
    ],
)
async def test_an_erasure_made_behind_the_stores_back_is_detected(store: PlanStore, sql: Sql, statement: str):
    run = await a_personal_run(store)
    await erase(store, run.id, "inputs.email")
    await sql.change(statement.format(run=run.id))
    assert not (await store.verify(run.id)).ok


async def test_the_database_allows_changes_to_messages_only_after_a_tombstone(store: PlanStore, sql: Sql):
    run = await a_personal_run(store)
    mark = f"UPDATE audit SET message = '[erased]' WHERE run_id = '{run.id}' AND number = 3"
    with pytest.raises(DBAPIError, match="rows of audit cannot be changed or deleted"):
        await sql.change(mark)
    await erase(store, run.id, "inputs.email")
    for change in ("message = 'x'", "message = NULL", "message = '[erased]', kind = 'signed'"):
        with pytest.raises(DBAPIError, match="rows of audit cannot be changed or deleted"):
            await sql.change(f"UPDATE audit SET {change} WHERE run_id = '{run.id}' AND number = 3")
    assert (await store.verify(run.id)).ok


async def test_a_run_with_erased_values_cannot_be_resumed(store: PlanStore):
    run = await a_personal_run(store)
    await erase(store, run.id, "inputs.email")
    why = r"has erased fields \(inputs.email\), by bo .*: it cannot run again, because its steps would get `\[erased\]`"
    with pytest.raises(RunConflictError, match=why):
        await store.ledger.snapshot(run.id)
    with pytest.raises(RunConflictError, match=why):
        await store.ledger.claim(await store.run(run.id), keeps_ends=True)
    with pytest.raises(RunConflictError, match=why):
        await store.revisions.revise(run.id, validated(a_plan("其他")), "e" * 64, by="安娜", note="")


async def test_erasing_refuses_runs_in_use_and_records_that_do_not_verify(store: PlanStore, sql: Sql):
    executing, damaged = await begun(store), await a_personal_run(store)
    with pytest.raises(RunConflictError, match=r"is still in use \(executing\)"):
        await erase(store, executing.id, "inputs.host")
    await sql.change(f"UPDATE runs SET message = 'x' WHERE id = '{damaged.id}'")
    with pytest.raises(RunConflictError, match="does not verify: `plan verify"):
        await erase(store, damaged.id, "inputs.email")


async def test_every_field_without_a_value_is_named(store: PlanStore):
    run = await a_personal_run(store)
    with pytest.raises(RunConflictError, match=r"no value at `inputs.mail`, `steps.check.error`, `steps.check.result.rows\[9\].name`"):
        await erase(store, run.id, "inputs.email", "inputs.mail", "steps.check.error", "steps.check.result.rows[9].name")
    assert await store.retention.tombstones(run.id) == []


async def test_a_result_in_a_file_is_erased_and_its_receipt_gets_the_new_digest(store: PlanStore):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    path, other = (f"/results/{run.id}/{name}-1.json" for name in ("check", "drain"))
    for step_id, file in (("check", path), ("drain", other)):
        await recorder.intent(attempt := an_attempt(run, step_id, at=recorder.now()))
        recorder.receipt(a_receipt(attempt, {"path": file, "size": 9, "digest": "sha256:1"}, at=recorder.now()))
    await recorder.flush()
    run.status, run.completed_at = PlanStatus.COMPLETED, recorder.now()
    await store.ledger.update(run)

    erasure = await erase(store, run.id, "steps.check.result[].name", files={path: [{"name": NAME}, {"name": EMAIL}]})
    assert erasure.files == {path: [{"name": TWO}, {"name": ERASED}]}
    assert erasure.elsewhere == (other,)
    result: Any = (await store.receipts(run.id))[0].result
    assert result == {"path": path, "size": "[erased value]", "digest": f"{ERASED}:{ERASED}"}
    (tombstone,) = await store.retention.tombstones(run.id)
    assert tombstone.replaced[path] == file_digest(file_text(erasure.files[path]))
    assert (await store.verify(run.id)).ok
    with pytest.raises(RunConflictError, match=f"no value at `steps.drain.result`; results that are not on this machine: {other}"):
        await erase(store, run.id, "steps.drain.result", files={path: []})


async def test_an_exported_run_verifies_and_shows_that_a_signed_note_was_erased(store: PlanStore):
    run = await a_personal_run(store)
    await store.add_approval(an_approval(run_id=run.id, known_by="ssh_signature", signature="x", note=NAME, decision="reject"))
    await erase(store, run.id, "notes")
    document = await store.export(run.id)
    assert verify(document).ok
    assert [(signed.table, signed.is_erased) for signed in signed_statements(document)] == [("approvals", False)]  # the note is unsigned


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("inputs.email", Field("inputs.email", "inputs", None, ("email",))),
        ("outputs.rows[0]", Field("outputs.rows[0]", "outputs", None, ("rows", 0))),
        ("steps.a-b.result", Field("steps.a-b.result", "result", "a-b")),
        ('steps.a.parameters["x.y"].姓名[]', Field('steps.a.parameters["x.y"].姓名[]', "parameters", "a", ("x.y", "姓名", None))),
        ("steps.a.gate", Field("steps.a.gate", "gate", "a")),
        ("notes", Field("notes", "notes")),
    ],
)
def test_a_field_is_parsed(text: str, field: Field):
    assert read_fields([text, text]) == [field]


def test_all_invalid_fields_are_named():
    with pytest.raises(
        RunConflictError, match=r"no field is called `inputs`, `steps.a.status`, `message.x`, `inputs.a\[`; write inputs.NAME"
    ):
        read_fields(["inputs", "steps.a.status", "inputs.ok", "message.x", "inputs.a["])


async def test_the_tombstone_says_only_what_was_checked_about_who_erased(store: PlanStore) -> None:
    for by, known_by in (("ana", "unverified"), (os_user(), "os_user")):
        run = await a_personal_run(store)
        await store.retention.erase(run.id, ["inputs.email"], files={}, stage=lambda _files: None, by=by)
        (stone,) = await store.retention.tombstones(run.id)
        assert (stone.by, stone.known_by) == (by, known_by)
