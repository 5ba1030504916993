"""Tests of the audit log: which entries are appended, when, and in which form."""

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any, get_args
from zoneinfo import ZoneInfo

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from plan_adapter.model.approvals import Decision, GateEnd, Resolution
from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.status import PlanStatus, StepStatus
from plan_adapter.store.outcomes import ResolutionRecord
from plan_adapter.store.proof import digests, entries
from plan_adapter.store.proof.verification import ROW_CHECKS, verify
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import a_complete_run, a_gate, a_receipt, an_answer, an_approval, an_attempt, begun, created, ended


async def test_every_write_of_a_run_is_in_the_audit_log_and_the_chain_is_intact(store: PlanStore):
    run = await a_complete_run(store)
    assert [entry.kind for entry in await store.audit(run.id)] == [
        "run_created", "gate_opened", "gate_answered", "revised", "new_version", "approved", "approval_used", "run_started",
        "attempt_started", "attempt_succeeded", "step_completed", "attempt_started", "attempt_failed", "step_failed", "step_skipped",
        "gate_opened", "gate_cancelled", "cancel_requested", "run_ended",
    ]  # fmt: skip
    found = await store.verify(run.id[:13])
    assert (found.ok, found.entries, found.problem) == (True, 19, None)
    assert found.digest == (await store.export(run.id))["head"]


def test_each_kind_that_describes_a_row_names_a_table_that_is_verified():
    assert set(entries.DESCRIBED_TABLES) < set(get_args(entries.AuditKind))
    assert set(entries.DESCRIBED_TABLES.values()) == set(ROW_CHECKS)
    ends = {kind for kind in get_args(entries.AuditKind) if kind.startswith(("gate_", "step_", "attempt_"))}
    assert ends < set(entries.DESCRIBED_TABLES)


async def test_a_run_verifies_after_every_write(store: PlanStore):
    run = await created(store)
    assert (await store.verify(run.id)).ok
    await store.add_approval(mine := an_approval(run_id=run.id, approval_digest=run.approval_digest))
    assert (await store.verify(run.id)).ok
    await store.ledger.use_approval(mine, run_id=run.id)
    run.status, run.started_at = PlanStatus.APPROVED, await store.now()
    await store.ledger.update(run)
    assert (await store.verify(run.id)).ok
    await store.ledger.claim(run)
    recorder = await store.ledger.recorder(run)
    await recorder.intent(an_attempt(run, at=recorder.now(), effect="write"))
    assert (await store.verify(run.id)).ok
    await store.ledger.release(run.id)
    await store.outcomes.resolve(run.id, "check", ResolutionRecord("again", "安娜", "os_user", "没有\x00"))
    assert (await store.verify(run.id)).ok
    await store.cancel(run.id, "不需要了")
    found = await store.verify(run.id)
    assert found.ok, str(found.problem)
    assert [entry.kind for entry in await store.audit(run.id)][-3:] == ["run_changed", "cancel_requested", "run_ended"]


async def test_a_run_resumed_after_it_ended_verifies(store: PlanStore):
    run = await a_complete_run(store)
    run = await store.run(run.id)
    run.status, run.completed_at = PlanStatus.EXECUTING, None
    await store.ledger.claim(run)
    found = await store.verify(run.id)
    assert found.ok, str(found.problem)
    recorder = await store.ledger.recorder(run)
    recorder.step_ended(ended(run, "check", StepStatus.COMPLETED, at=recorder.now(), carried=True))
    await recorder.intent(an_attempt(run, "drain", at=recorder.now(), number=2))
    assert (await store.verify(run.id)).ok


async def test_the_database_refuses_to_change_or_delete_entries(store: PlanStore, sql: Sql):
    run = await created(store)
    for statement in (f"UPDATE audit SET message = '' WHERE run_id = '{run.id}'", f"DELETE FROM audit WHERE run_id = '{run.id}'"):
        with pytest.raises(DBAPIError, match="rows of audit cannot be changed or deleted"):
            await sql.change(statement)
    assert (await store.verify(run.id)).ok


async def test_verify_refuses_a_document_that_is_not_a_run():
    for document in ({}, {"run": {}, "audit": []}, {"run": None}, {"audit": 3}):
        found = verify(document)
        assert not found.ok


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-(2**53) + 1, 2**53 - 1), st.text(st.characters(exclude_categories=["Cs"])))


@given(st.dictionaries(st.text(st.characters(codec="ascii")), VALUES))
@settings(max_examples=75)
def test_a_digest_covers_the_canonical_form(row: dict[str, Any]):
    assert digests._encode(row).encode() == rfc8785.dumps(row)


async def test_concurrent_processes_write_one_chain(store: PlanStore, store_url: str):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)

    async def steps() -> None:
        for number in range(1, 13):
            await recorder.intent(attempt := an_attempt(run, at=recorder.now(), number=number))
            recorder.receipt(a_receipt(attempt, at=recorder.now(), error="no"))
        await recorder.flush()

    async def gates(other: PlanStore) -> None:
        for item in range(6):
            gate = await other.gates.open(a_gate(run, "drain", item=item), timeout_ms=0)
            await other.gates.answer(gate.id, an_answer(gate))
            await other.add_approval(an_approval(run_id=run.id, decision="reject"))

    async with PlanStore(store_url) as first, PlanStore(store_url) as second:
        await asyncio.gather(steps(), gates(first), second.ledger.request_cancel(run.id, "够了"))
    found = await store.verify(run.id)
    assert (found.ok, found.entries) == (True, 4 + 24 + 18 + 1), str(found.problem)


async def test_an_unknown_run_cannot_be_verified(store: PlanStore):
    with pytest.raises(RunConflictError, match="no run"):
        await store.verify("0000")


@pytest.mark.parametrize("own", ["UTC", "Asia/Tokyo"])
def test_a_time_is_written_the_same_in_every_time_zone(own: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", own)
    time.tzset()
    at = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
    assert digests.instant_text(at) == digests.instant_text(at.astimezone(ZoneInfo("Asia/Shanghai"))) == "2026-11-21T09:30:00.000000Z"
    assert digests.instant_of(digests.instant_text(at)) == at
    monkeypatch.undo()
    time.tzset()


def test_a_forged_or_older_row_has_a_digest():
    assert digests.digest_of("\ud800") != digests.digest_of("\ud801")
    for table in digests.BOOKKEEPING:  # without their columns
        assert digests.row_digest(table, {"id": "r-1"}, open_gate=True) == digests.digest_of({"id": "r-1"})
    words = digests.Words("note", "\ud800 secret", "salt")
    erased, proof = words.erase([1])
    assert (erased, digests.Words("note", erased, json.dumps({"note": proof})).digest) == ("\ud800 [erased]", words.digest)


def test_a_row_says_whether_and_where_words_were_erased():
    row: digests.JsonRow = {"salt": json.dumps({"result": {"erased": {}}, "error": {"erased": {}}, "note": {"seed": "s"}})}
    assert digests.erased_columns(row) == ["error", "result"]
    assert digests.has_erasures(row)
    assert not digests.has_erasures({"salt": digests.new_salt()})


def test_the_digest_of_words_is_pinned():
    # The audit log of each run holds such digests, so a new version must not change them.
    assert digests.Words("note", '密码 is "4711"', "salt").digest == PINNED


PINNED = "41b665735d925f40ef4818b207626dd7074bd3f2672f65e98d99e869afb7ef7a"


def test_only_a_row_without_texts_shows_its_salt():
    bare: digests.JsonRow = {"id": "r-1", "note": None}
    assert digests.with_words_digested("receipts", bare) == bare
    assert digests.with_words_digested("receipts", bare | {"salt": "s"}) == bare | {"salt": "s"}
    assert digests.with_words_digested("receipts", bare | {"note": "n", "salt": "s"}).keys() == bare.keys()


def test_each_row_gets_a_salt_of_its_own():
    assert len({digests.new_salt() for _ in range(10)}) == 10
    assert len(digests.new_salt()) == 16


def test_every_decision_and_every_end_of_a_gate_or_step_has_an_entry_kind() -> None:
    assert entries.DECISION_ENTRIES.keys() == set(get_args(Decision))
    assert entries.GATE_END_ENTRIES.keys() == {*get_args(get_args(GateEnd)[0]), *get_args(Resolution)} - {"answered"}
    assert entries.STEP_END_ENTRIES.keys() == {status.value for status in StepStatus if status.has_ended}
