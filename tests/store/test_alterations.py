"""Tests of tampering: every change of a run behind the store's back is detected and named."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, text

from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.status import PlanStatus
from plan_adapter.store.proof.export import document_of
from plan_adapter.store.proof.verification import verify
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import a_complete_run, an_attempt, begun, created


async def _do(sql: Sql, *statements: str) -> None:
    await sql.run(lambda connection: _alter(connection, statements))


def _alter(connection: Connection, statements: Sequence[str]) -> None:
    """Run statements as a database owner who drops the triggers first."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
        connection.exec_driver_sql("DROP TRIGGER IF EXISTS audit_refuses_update")
        connection.exec_driver_sql("DROP TRIGGER IF EXISTS audit_refuses_delete")
    else:
        connection.exec_driver_sql("SET LOCAL session_replication_role = 'replica'")  # no trigger fires, no foreign key is checked
    for statement in statements:
        connection.execute(text(statement))


_CHECK = "run_id = '{run}' AND step_id = 'check'"
_SECOND = "(SELECT min(number) FROM audit WHERE run_id = '{run}' AND kind = 'attempt_succeeded')"
_COPY = (
    "INSERT INTO receipts SELECT run_id, step_id, kind, item, {number}, tenant_id, agent_id, org_id, task_id, attempt_id, outcome, result, "
    'error, ended_at, duration_ms, "by", known_by, note, salt FROM receipts WHERE ' + _CHECK
)
ALTERED: dict[str, tuple[str, str, str]] = {
    "the result of a receipt": (
        f"UPDATE receipts SET result = '1' WHERE {_CHECK}",
        "receipts",
        "step `check`, attempt 1: the row was altered",
    ),
    "the outcome of a receipt": (
        "UPDATE receipts SET outcome = 'succeeded' WHERE run_id = '{run}' AND step_id = 'drain'",
        "receipts",
        "its outcome",
    ),
    "the person of a receipt": (f"UPDATE receipts SET \"by\" = 'ana' WHERE {_CHECK}", "receipts", "the person"),
    "the time of a receipt": (
        f"UPDATE receipts SET ended_at = (SELECT created_at FROM runs WHERE id = '{{run}}') WHERE {_CHECK}",
        "receipts",
        "its time",
    ),
    "a receipt that is deleted": (f"DELETE FROM receipts WHERE {_CHECK}", "receipts", "step `check`, attempt 1: the row is missing"),
    "a receipt that is inserted": (_COPY.replace("{number}", "2"), "receipts", "step `check`, attempt 2: the audit log has no entry"),
    "a receipt of another item": (f"UPDATE receipts SET item = 3 WHERE {_CHECK}", "receipts", "missing"),
    "the parameters of an attempt": (f"UPDATE attempts SET parameters = '[]' WHERE {_CHECK}", "attempts", "only its digest covers"),
    "the tool of an attempt": (f"UPDATE attempts SET tool_name = 'other' WHERE {_CHECK}", "attempts", "its message"),
    "the key of an attempt": (f"UPDATE attempts SET idempotency_key = 'x' WHERE {_CHECK}", "attempts", "altered"),
    "whether an attempt undoes its step": (f"UPDATE attempts SET kind = 'rollback' WHERE {_CHECK}", "attempts", "the row is missing"),
    "whether a receipt undoes its step": (f"UPDATE receipts SET kind = 'rollback' WHERE {_CHECK}", "receipts", "the row is missing"),
    "attempts that are deleted": ("DELETE FROM attempts WHERE run_id = '{run}'", "attempts", "step `check`, attempt 1: the row is missing"),
    "who approved": ("UPDATE approvals SET \"by\" = 'bo' WHERE run_id = '{run}' AND gate_id IS NULL", "approvals", "the person"),
    "what was approved": (
        "UPDATE approvals SET approval_digest = 'f' WHERE run_id = '{run}' AND gate_id IS NULL",
        "approvals",
        "its message",
    ),
    "how long an approval holds": (
        "UPDATE approvals SET expires_at = at WHERE run_id = '{run}' AND gate_id IS NULL",
        "approvals",
        "altered",
    ),
    "a rejection that becomes an approval": (
        "UPDATE approvals SET decision = 'approve' WHERE run_id = '{run}' AND gate_id IS NOT NULL",
        "approvals",
        "its message",
    ),
    "an approval that is given back": (
        "UPDATE approvals SET used_at = NULL WHERE run_id = '{run}' AND gate_id IS NULL",
        "approvals",
        "its outcome",
    ),
    "an approval that is deleted": ("DELETE FROM approvals WHERE run_id = '{run}' AND gate_id IS NULL", "approvals", "missing"),
    "what a gate showed": ("UPDATE gates SET text = 'harmless' WHERE run_id = '{run}' AND step_id = ''", "gates", "altered"),
    "who may answer at a gate": (
        "UPDATE gates SET rules = '{{}}' WHERE run_id = '{run}' AND step_id <> ''",
        "gates",
        "step `restart`",
    ),
    "how a gate ended": ("UPDATE gates SET \"end\" = 'expired' WHERE run_id = '{run}' AND step_id <> ''", "gates", "its outcome"),
    "when a gate was answered": (
        "UPDATE gates SET closed_at = opened_at WHERE run_id = '{run}' AND step_id = ''",
        "gates",
        "no answer was recorded at that time",
    ),
    "a gate that is deleted": ("DELETE FROM gates WHERE run_id = '{run}' AND step_id = 'restart'", "gates", "missing"),
    "how a step ended": (
        "UPDATE step_runs SET status = 'completed' WHERE run_id = '{run}' AND step_id = 'drain'",
        "step_runs",
        "step `drain`",
    ),
    "a step's end that is deleted": ("DELETE FROM step_runs WHERE run_id = '{run}' AND step_id = 'restart'", "step_runs", "missing"),
    "who revised": ("UPDATE revisions SET \"by\" = 'bo' WHERE run_id = '{run}'", "revisions", "the person"),
    "a revision that is deleted": ("DELETE FROM revisions WHERE run_id = '{run}'", "revisions", "missing"),
    "the status of the run": ("UPDATE runs SET status = 'completed' WHERE id = '{run}'", "runs", "does not match entry 19"),
    "what the run is approved for": ("UPDATE runs SET approval_digest = 'f' WHERE id = '{run}'", "runs", "altered"),
    "the definitions of the tools": ("UPDATE runs SET definitions = '[]' WHERE id = '{run}'", "runs", "altered"),
    "the inputs of the run": ("UPDATE runs SET inputs = '{{}}' WHERE id = '{run}'", "audit", "the data that the run was created with"),
    "who asked for the run": ("UPDATE runs SET requested_by = 'ana' WHERE id = '{run}'", "audit", "the data that the run was created with"),
    "the document of the plan": (
        "UPDATE plans SET document = '{{}}' WHERE digest = (SELECT digest FROM runs WHERE id = '{run}')",
        "plans",
        "altered",
    ),
    "what steps wait for": (
        "UPDATE implied_dependencies SET steps = replace(steps, 'steps', 'other') "
        "WHERE digest = (SELECT implied_dependencies_digest FROM runs WHERE id = '{run}')",
        "implied_dependencies",
        "altered",
    ),
    "what steps wait for, deleted": (
        "DELETE FROM implied_dependencies WHERE digest = (SELECT implied_dependencies_digest FROM runs WHERE id = '{run}')",
        "implied_dependencies",
        "missing",
    ),
    "what steps wait for, in the row of the run": (
        "UPDATE runs SET implied_dependencies_digest = 'f' WHERE id = '{run}'",
        "implied_dependencies",
        "missing",
    ),
    "the epoch of the lease": ("UPDATE leases SET epoch = 9 WHERE run_id = '{run}'", "leases", "has epoch 9"),
    "a lease that is deleted": ("DELETE FROM leases WHERE run_id = '{run}'", "leases", "is missing"),
    "the words of an entry": (
        "UPDATE audit SET message = 'nothing' WHERE run_id = '{run}' AND kind = 'cancel_requested'",
        "audit",
        "entry 18: it was altered",
    ),
    "the digest of an entry": (
        "UPDATE audit SET digest = 'f' WHERE run_id = '{run}' AND number = 10",
        "audit",
        "entry 10, step `check`, attempt 1",
    ),
    "an entry that is deleted": (
        "DELETE FROM audit WHERE run_id = '{run}' AND number = 10",
        "audit",
        "entry 10: the entry is missing: entry 9 is followed by entry 11",
    ),
    "entries that are exchanged": (
        "UPDATE audit SET number = -1 WHERE run_id = '{run}' AND number = 10; "
        "UPDATE audit SET number = 10 WHERE run_id = '{run}' AND number = 11; "
        "UPDATE audit SET number = 11 WHERE run_id = '{run}' AND number = -1",
        "audit",
        "entry 10",
    ),
    "an entry that is inserted": (
        'INSERT INTO audit SELECT run_id, 20, tenant_id, agent_id, org_id, task_id, at, kind, step_id, item, attempt, call_kind, "by", '
        "known_by, message, row_id, row_digest, salt, digest FROM audit WHERE run_id = '{run}' AND number = 19",
        "audit",
        "entry 20: it was altered",
    ),
    "the end that is cut off": ("DELETE FROM audit WHERE run_id = '{run}' AND number > 18", "runs", "the end of the log is missing"),
    "more of the end that is cut off": (
        "DELETE FROM audit WHERE run_id = '{run}' AND number > 12",
        "receipts|step_runs|gates",
        "the audit log has no entry",
    ),
    "the run that is deleted": ("DELETE FROM runs WHERE id = '{run}'", "runs", "missing"),
}
"""For each alteration: the statement, the table that is named, and part of the message."""


async def test_every_alteration_is_detected_and_named(store: PlanStore, sql: Sql):
    run = await a_complete_run(store)
    documents = await sql.run(lambda connection: _altered(connection, run.id))
    for name, (_, table, message) in ALTERED.items():
        found = verify(documents[name])
        assert found.problem is not None, name
        assert found.problem.table in table.split("|"), (name, str(found.problem))
        assert message in str(found.problem), name
    assert (await store.verify(run.id)).ok


def _altered(connection: Connection, run_id: str) -> dict[str, dict[str, Any]]:
    """Return the exported run after each alteration; each is rolled back."""
    documents = dict[str, dict[str, Any]]()
    for name, (statements, _, _) in ALTERED.items():
        undone = connection.begin_nested()
        _alter(connection, [statement.format(run=run_id) for statement in statements.split("; ")])
        documents[name] = document_of(connection, run_id)
        undone.rollback()
    return documents


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE commands SET process = replace(process, ':', ': ')", "step `check`, attempt 1: the row is missing"),
        ("UPDATE commands SET attempt_id = 'another'", "in columns that only its digest covers"),
        ("DELETE FROM commands", "step `check`, attempt 1: the row is missing"),
        (
            "INSERT INTO commands SELECT run_id, step_id, kind, item, number, replace(process, ':', ': '), tenant_id, agent_id, org_id, "
            "task_id, attempt_id FROM commands",
            "the audit log has no entry for this row",
        ),
    ],
)
async def test_an_altered_command_is_named(change: str, message: str, store: PlanStore, sql: Sql):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    await recorder.intent(attempt := an_attempt(run, at=recorder.now(), effect="write"))
    recorder.command_started(attempt, HostProcess.this())
    await recorder.flush()
    assert (await store.verify(run.id)).ok
    await sql.change(change)
    found = (await store.verify(run.id)).problem
    assert found is not None
    assert found.table == "commands"
    assert message in str(found)


async def test_any_changed_byte_of_a_row_is_detected(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    async with PlanStore(url) as store:
        run = await a_complete_run(store)
        whole = await store.export(run.id)
    left_out = {("runs", "updated_at"), *(("gates", name) for name in ("openings", "owner", "flow_run_id", "keyset"))}
    left_out |= {("plans", name) for name in ("name", "description", "created_at", "tenant_id")} | {
        ("leases", "until"),
        ("leases", "owner"),
    }
    with create_engine(url, isolation_level="AUTOCOMMIT").connect() as database:
        database.exec_driver_sql("DROP TRIGGER audit_refuses_update")
        database.exec_driver_sql("PRAGMA foreign_keys = OFF")
        tables = ("attempts", "receipts", "approvals", "gates", "step_runs", "revisions", "audit")
        places = [(name, index, column) for name in tables for index, row in enumerate(whole[name]) for column in row]  # pyright: ignore
        places += [("runs", 0, column) for column in whole["run"] if column != "id"]  # pyright: ignore
        places = [place for place in places if (place[0], place[2]) not in left_out and isinstance(_row(whole, place)[place[2]], str)]

        @given(st.sampled_from(places), st.integers(0, 2**20), st.integers(1, 255))
        @example(("runs", 0, "digest"), 0, 128)  # invalid UTF-8 in a column that other rows refer to
        @example(("runs", 0, "tenant_id"), 0, 128)
        @example(("audit", 0, "row_id"), 0, 128)  # which names the newest rows of other tables
        @settings(max_examples=60, database=None)
        def is_found(place: tuple[str, int, str], at: int, flip: int) -> None:
            table, _, column = place
            old = _row(whole, place)
            where = " AND ".join(f'"{name}" IS ?' for name in _KEYS[table])
            key = tuple(old[name] for name in _KEYS[table])
            stored = database.exec_driver_sql(f'SELECT CAST("{column}" AS BLOB) FROM {table} WHERE {where}', key).scalar_one()
            if not stored:
                return
            changed = bytearray(stored)
            changed[at % len(changed)] ^= flip
            database.exec_driver_sql("BEGIN")
            try:
                database.exec_driver_sql(f'UPDATE {table} SET "{column}" = CAST(? AS TEXT) WHERE {where}', (bytes(changed), *key))
                found = verify(document_of(database, run.id))
                assert not found.ok, (place, stored, bytes(changed))
            finally:
                database.exec_driver_sql("ROLLBACK")

        is_found()


_KEYS = {
    "runs": ("id",), "approvals": ("id",), "gates": ("id",), "revisions": ("run_id", "number"), "audit": ("run_id", "number"),
    "step_runs": ("run_id", "step_id"), **dict.fromkeys(("attempts", "receipts"), ("run_id", "step_id", "item", "number")),
}  # fmt: skip


def _row(document: dict[str, Any], place: tuple[str, int, str]) -> dict[str, Any]:
    return document["run"] if place[0] == "runs" else document[place[0]][place[1]]


async def test_a_resumed_run_whose_audit_entries_were_deleted_is_altered(store: PlanStore, sql: Sql):
    run = await created(store)
    await _do(sql, "DELETE FROM audit")
    run.status = PlanStatus.EXECUTING
    await store.ledger.claim(run)
    assert [entry.kind for entry in await store.audit(run.id)] == ["run_started"]
    found = await store.verify(run.id)
    assert (found.verdict, found.ok) == ("altered", False)
    assert "does not record the creation of the run" in str(found.problem)


async def test_a_run_without_audit_entries_is_not_verifiable_and_never_intact(store: PlanStore, sql: Sql):
    run = await begun(store)
    await _do(sql, "DELETE FROM audit")
    found = await store.verify(run.id)
    assert (found.verdict, found.ok, found.problem) == ("not_verifiable", False, None)
