"""Tests of what an erasure proves: only erased words differ, in rows that a tombstone names; and of what no digest covers."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, select, update

import plan_adapter
from plan_adapter import ExecutionPlan, Step, ToolRegistry, tool
from plan_adapter.gates import CallbackApprover
from plan_adapter.gates.policy import Policy
from plan_adapter.model.options import Input
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus
from plan_adapter.runner import arun_plan
from plan_adapter.store.database.columns import SQLITE_NOW, Instant, sqlite_now
from plan_adapter.store.database.rows import dump_json
from plan_adapter.store.database.tables import approvals, audit, metadata, receipts, runs
from plan_adapter.store.policies import NewPolicy
from plan_adapter.store.proof import entries, tombstones
from plan_adapter.store.proof.audit import append, entry_digest, witness_of
from plan_adapter.store.proof.digests import (
    BOOKKEEPING,
    BOOKKEEPING_TABLES,
    ERASED,
    Words,
    json_row,
    new_salt,
    row_digest,
    with_words_digested,
)
from plan_adapter.store.proof.verification import ROW_CHECKS
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import a_receipt, an_attempt, begun, created

ADDRESS = "Anna-Katharina Müller-Lüdenscheidt, Hinter den Sieben Bergen 4711, 99999 Musterhausen an der Beispielach, Tel. 0171 5550199"


async def a_paid_run(store: PlanStore) -> PlanRun:
    """Return a completed run with an approval and a receipt."""
    run = await begun(store, inputs={"who": "Anna", "host": "web-1"})
    recorder = await store.ledger.recorder(run)
    await recorder.intent(attempt := an_attempt(run, at=recorder.now(), parameters={"to": "Anna"}))
    recorder.receipt(a_receipt(attempt, {"paid": 1000, "to": "Anna"}, at=recorder.now()))
    await recorder.flush()
    run.status, run.completed_at = PlanStatus.COMPLETED, recorder.now()
    await store.ledger.update(run)
    return run


def forge(connection: Connection, table: Any, run_id: str, **changed: Any) -> None:
    """Alter the row of a run, and append a tombstone that lists its digests, and its entry, as somebody with the database could."""
    if connection.dialect.name == "sqlite":
        connection.connection.create_function(SQLITE_NOW, 0, sqlite_now)  # type: ignore[union-attr]
    row = connection.execute(select(table).where(table.c.run_id == run_id)).mappings().first()
    assert row is not None
    run = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one()
    check, forged = ROW_CHECKS[table.name], {**row, **changed}
    old, new = (str(check.entry_of(json_row(table, each)).row_digest) for each in (row, forged))
    place = tombstones.place_text(table.name, check.key(json_row(table, row)))
    replaced = {new: old, place: ", ".join(changed)}
    stone = tombstones.add(connection, run, "erased", by="root", known_by="os_user", fields=["notes"], replaced=replaced)
    connection.execute(update(table).where(*(column == row[column.name] for column in table.primary_key.columns)).values(changed))
    append(connection, run_id, [entries.of_erasure(stone)])


FORGED: dict[str, tuple[Any, dict[str, Any]]] = {
    "a result": (receipts, {"result": '{"paid":1,"to":"Anna"}'}),
    "an outcome": (receipts, {"outcome": "failed"}),
    "a decision": (approvals, {"decision": "reject"}),
    "an approver": (approvals, {"by": "mallory"}),
    "a note that says erased": (approvals, {"note": f"{ERASED} but I say yes"}),
    "an erased word without its digest": (receipts, {"result": f'{{"paid":1000,"to":"{ERASED}"}}'}),
    "a salt of its own": (receipts, {"result": '{"paid":1,"to":"Anna"}', "salt": '{"result":{"seed":"00"}}'}),
    "a word that only claims to be erased": (
        receipts,
        {"result": '{"paid":1,"to":"Anna"}', "salt": dump_json({"result": {"keys": "00" * 64, "erased": {"1": "ab" * 32}}})},
    ),
}


@pytest.mark.parametrize("name", FORGED)
async def test_an_appended_tombstone_makes_no_altered_row_intact(name: str, store: PlanStore, sql: Sql) -> None:
    run = await a_paid_run(store)
    assert (await store.verify(run.id)).ok
    table, changed = FORGED[name]
    await sql.run(lambda connection: forge(connection, table, run.id, **changed))
    found = await store.verify(run.id)
    assert found.problem is not None
    assert found.problem.table == table.name


async def test_words_erased_behind_the_stores_back_are_reported_although_the_rest_is_intact(store: PlanStore, sql: Sql) -> None:
    run = await a_paid_run(store)
    (row,) = await sql.rows(f"SELECT * FROM receipts WHERE run_id = '{run.id}'")
    erased, proof = Words("result", row["result"], row["salt"]).erase([1], [1])
    assert erased == '{"paid":"[erased value]","to":"Anna"}'
    await sql.change(update(receipts).where(receipts.c.run_id == run.id).values(result=erased, salt=dump_json({"result": proof})))
    found = await store.verify(run.id)
    assert str(found.problem) == 'receipts: words were erased in the row ["check", "step", -1, 1], but no tombstone names it'


async def test_an_appended_entry_about_a_receipt_is_reported(store: PlanStore, sql: Sql) -> None:
    run = await a_paid_run(store)

    def alter(connection: Connection) -> None:
        connection.execute(update(receipts).where(receipts.c.run_id == run.id).values(result="1"))
        row = connection.execute(select(receipts).where(receipts.c.run_id == run.id)).mappings().one()
        append(connection, run.id, [entries.of_receipt(json_row(receipts, row))])

    await sql.run(alter)
    found = await store.verify(run.id)
    assert "it was appended: an earlier entry records the same row" in str(found.problem)


async def test_a_tombstone_and_the_verification_name_the_rows_with_erased_words(store: PlanStore) -> None:
    run = await a_paid_run(store)
    await store.retention.erase(run.id, ["inputs.who"], files={}, stage=lambda _: None, by="bo")
    found = await store.verify(run.id)
    (tombstone,) = await store.retention.tombstones(run.id)
    place = '["check", "step", -1, 1]'
    expected = {f'runs ["{run.id}"]': "inputs", f"attempts {place}": "parameters", f"receipts {place}": "result"}
    assert found.ok
    assert found.erased_rows == tombstone.replaced == expected
    assert (await store.receipts(run.id))[0].result == {"paid": 1000, "to": ERASED}


@pytest.mark.parametrize("table", ["policy_history", "tombstones"])
async def test_a_run_witnesses_the_newest_policy_and_tombstone(table: str, store: PlanStore, sql: Sql) -> None:
    erased = await a_paid_run(store)
    await store.retention.erase(erased.id, ["inputs.who"], files={}, stage=lambda _: None, by="bo")
    await store.policy.set(NewPolicy(Policy(self_approval=False), 1, "ana", "os_user"))
    later = await created(store)
    assert (await store.verify(later.id)).ok
    if sql.dialect == "sqlite":
        await sql.change(f"DROP TRIGGER {table}_refuses_delete", f"DELETE FROM {table}")
    else:
        await sql.change("SET LOCAL session_replication_role = 'replica'", f"DELETE FROM {table}")
    problem = (await store.verify(later.id)).problem
    assert str(problem) == f"{table}: row 1, the newest one when the run was created, is missing or was altered"
    witness = await sql.run(lambda connection: witness_of(connection, {"tenant_id": "", "name": later.name}))
    assert json.loads(witness).keys() == {"policy_history", "tombstones"} - {table}


def test_every_column_is_covered_by_a_digest_or_named_as_bookkeeping() -> None:
    """Change each column of a row of each table: its digest changes, or the column is bookkeeping."""
    uncovered = set[str]()
    chained = {"policy_history", "tombstones", "versions"}  # each row's digest covers all its columns and the digest before
    looked_up = {"leases": {"run_id", "epoch"}, "implied_dependencies": {"tenant_id", "digest", "steps"}}
    looked_up["plans"] = {"tenant_id", "digest", "document", "name", "description"}
    for table in metadata.sorted_tables:
        for column in table.columns:
            at, later = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
            row = {each.name: at if isinstance(each.type, Instant) else "1" for each in table.columns}
            row |= {"salt": "s"} if "salt" in row else {}
            other = {**row, column.name: later if row[column.name] == at else "2"}
            if table.name in chained or column.name in looked_up.get(table.name, ()):
                continue
            old, new = json_row(table, row), json_row(table, other)
            if table is audit:
                is_covered = column.name == "digest" or entry_digest(old, "") != entry_digest(new, "")
            else:
                is_covered = table.name in ROW_CHECKS or table.name == "runs"
                is_covered = is_covered and row_digest(table.name, old) != row_digest(table.name, new)
            uncovered |= set() if is_covered else {f"{table.name}.{column.name}"}
    named = {f"{table}.{column}" for table, columns in BOOKKEEPING.items() for column in columns}
    named |= {f"{table}.{column.name}" for table in BOOKKEEPING_TABLES for column in metadata.tables[table].columns}
    assert uncovered == named


def test_the_guide_lists_what_no_digest_covers() -> None:
    guide = (Path(plan_adapter.__file__).parent / "guide" / "records.md").read_text(encoding="utf-8")
    listed = guide.partition("No digest covers")[2].partition("\n\n`")[0]
    rows = re.findall(r"^\| ([\w, ]+) \| ([\w, ]+) \|$", listed, re.M)
    found = {table.strip(): columns for tables, columns in rows for table in tables.split(",")}
    assert {name for name, columns in found.items() if columns == "all"} == BOOKKEEPING_TABLES
    assert {name: set(columns.split(", ")) for name, columns in found.items() if name in BOOKKEEPING} == {
        name: set(columns) for name, columns in BOOKKEEPING.items()
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data(), JSON)
def test_the_digest_of_a_text_stays_when_any_of_its_words_are_erased(data: st.DataObject, value: Any) -> None:
    for text_of_value in (dump_json(value), str(value)):
        before = Words("result", text_of_value, "salt")
        chosen = data.draw(st.sets(st.integers(0, max(len(before.spans) - 1, 0)), max_size=4)) if before.spans else set[int]()
        erased, proof = before.erase(chosen)
        whole: dict[str, Any] = {"result": text_of_value, "salt": "salt"}
        without: dict[str, Any] = {"result": erased, "salt": dump_json({"result": proof})}
        assert with_words_digested("receipts", whole) == with_words_digested("receipts", without) == {"result": before.digest}
        after = Words("result", erased, dump_json({"result": proof}))
        assert after.digest == before.digest
        assert set(after.erased) == chosen
        altered = Words("result", erased.replace(ERASED, "x", 1) + "y", dump_json({"result": proof}))
        assert altered.digest != before.digest


def test_an_erased_word_cannot_be_found_by_guessing() -> None:
    salt, text_of_value = new_salt(), '{"code":"4711"}'
    _, proof = Words("result", text_of_value, salt).erase([1])
    assert salt not in json.dumps(proof)
    assert str(proof["keys"])[32:64] == "00" * 16


@tool(effect="read")
def look(text: str) -> dict[str, Any]:
    """Look."""
    return {"text": text, "by_text": {text: 1}, "of": {text: {text: 2}, "other": 3}}


@tool(effect="write")
def mail(text: str, note: str = "") -> dict[str, bool]:
    """Mail."""
    return {"sent": True}


async def record_without(store: PlanStore, value: str, *fields: str, note: str = "", gated: bool = True) -> str:
    """Return the export of a run with `value` in its input, results and gate, once it is erased."""
    call: dict[str, Any] = {"text": "${{ inputs.who }}", "note": note}
    plan = ExecutionPlan(name="mail", description="mail", inputs={"who": Input(type="string")})
    plan.options.require_approval = False
    plan.steps = [
        Step(id="look", tool_name="look", description="look", parameters={"text": "${{ inputs.who }}"}),
        Step(id="mail", tool_name="mail", description="mail", parameters=call, depends_on=["look"], requires_approval=gated),
    ]
    approver = CallbackApprover(lambda _: True, by="bot")
    run = await arun_plan(plan, inputs={"who": value}, tools=ToolRegistry([look, mail]), store=store, offline=True, approver=approver)
    assert run.status is PlanStatus.COMPLETED, run.message
    for field in fields or ("inputs.who",):
        await store.retention.erase(run.id, [field], files={}, stage=lambda _: None, by="bo")
    found = await store.verify(run.id)
    assert found.ok, str(found.problem)
    return json.dumps(await store.export(run.id), ensure_ascii=False)


LEFT: dict[str, tuple[str, tuple[str, ...]]] = {
    "wrapped": (ADDRESS, ("Müller-Lüdenscheidt", "0171 5550199", "Beispielach")),
    "cut": (ADDRESS + " x" * 4000, ("Müller-Lüdenscheidt", "Hinter den Sieben")),
    "a key": ("anna@example.org", ("anna@example.org",)),
    "Chinese": (
        "安娜·穆勒，北京市朝阳区建国路八十八号现代城五号楼一千二百零三室，电话一三八零零一三八零零零，" * 3,
        ("穆勒", "现代城五号楼"),
    ),
    "Markdown": ("a_b*c `d` [e](f) " * 6, ("a_b*c", "[e](f)")),
    "several lines": ("Anna Müller\nHinter den Sieben Bergen\n\tTel. 0171", ("Anna Müller", "Sieben Bergen")),
    "short": ("Anna", ("Anna",)),
}


@pytest.mark.parametrize("name", LEFT)
async def test_a_value_is_erased_wherever_it_stands(name: str, store: PlanStore) -> None:
    value, parts = LEFT[name]
    exported = await record_without(store, value)
    assert [part for part in parts if part in exported] == []


async def test_an_object_with_erased_keys_can_be_erased_again_and_keeps_what_was_not_named(store: PlanStore) -> None:
    exported = await record_without(store, "anna@example.org", "inputs.who", "steps.look.result.of", note="kept: a note")
    assert "anna@example.org" not in exported
    result = next(row["result"] for row in json.loads(exported)["receipts"] if row["step_id"] == "look")
    expected = '{"text":"[e]","by_text":{"[e]":1},"of":{"[e]":{"[e]":"[erased value]"},"[e]":"[erased value]"}}'
    assert result == expected.replace("[e]", ERASED)
    assert "kept: a note" in exported
