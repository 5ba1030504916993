"""Tests of gates: each is opened once, listed, and closed by the database clock or with its run."""

import asyncio
import os
from dataclasses import replace
from datetime import timedelta

import pytest

from plan_adapter.model.approvals import GatePolicy
from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus
from plan_adapter.store.database import tables
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import DIGEST_OF_CALL, a_gate, a_plan, a_run, an_answer, begun, created, dead_owner, validated


async def test_an_open_gate_is_read_back_unchanged(store: PlanStore):
    run = await created(store)
    asked = a_gate(run, text="看 \x00", description="检查网站")
    opened = await store.gates.open(asked, timeout_ms=60_000)
    assert opened.expires_at == opened.opened_at + timedelta(minutes=1)
    fixed = {"opened_at": opened.opened_at, "expires_at": opened.expires_at, "text": "看 \\x00"}
    assert opened == replace(asked, **fixed, attended=True)
    assert await store.gates.get(asked.id) == opened
    assert await store.gates.find(run_id=run.id) == [opened]
    assert await store.gates.find() == [replace(opened, text="")]
    await store.gates.show(asked.id, flow_run_id="f-1", keyset="k-1")
    assert await store.gates.get(asked.id) == replace(opened, flow_run_id="f-1", keyset="k-1")


async def test_times_come_from_the_database_and_zero_means_no_limit(store: PlanStore):
    run = await created(store)
    before = await store.now()
    opened = await store.gates.open(a_gate(run, opened_at=before - timedelta(days=1)), timeout_ms=0)
    assert before <= opened.opened_at <= await store.now()
    assert opened.expires_at is None


async def test_reopening_an_open_gate_keeps_it_and_counts_the_opening(store: PlanStore):
    run = await created(store)
    first = await store.gates.open(a_gate(run), timeout_ms=60_000)
    await store.gates.show(first.id, flow_run_id="f-1", keyset="k-1")
    again = await store.gates.open(a_gate(run, text="with a note", gate_policy=GatePolicy(), name="x"), timeout_ms=5)
    assert again == replace(first, text="with a note", openings=2, flow_run_id="f-1", keyset="k-1")
    assert await store.gates.find(run_id=run.id, open_only=False) == [again]


async def test_a_gate_for_other_content_replaces_the_open_one(store: PlanStore):
    run = await created(store)
    old = await store.gates.open(a_gate(run), timeout_ms=0)
    new = await store.gates.open(a_gate(run, approval_digest="e" * 64), timeout_ms=0)
    assert (await store.gates.get(old.id)).end == "superseded"
    assert await store.gates.find(run_id=run.id) == [new]
    with pytest.raises(RunConflictError, match=r"a new version replaced it at .*; answer that one"):
        await store.gates.answer(old.id, an_answer(old))


async def test_gates_of_several_steps_and_items_can_be_open_at_once(store: PlanStore):
    run = await begun(store)
    places = [("check", None), ("drain", 0), ("drain", 1), (None, None)]
    opened = [await store.gates.open(a_gate(run, step_id, item=item), timeout_ms=0) for step_id, item in places]
    assert await store.gates.find(run_id=run.id) == opened
    await store.gates.answer(opened[1].id, an_answer(opened[1]))
    assert [(gate.step_id, gate.item) for gate in await store.gates.find(run_id=run.id)] == [places[0], *places[2:]]


async def test_the_gates_of_a_step_and_of_its_rollback_can_be_open_at_once(store: PlanStore):
    run = await begun(store)
    opened = [await store.gates.open(a_gate(run, "drain", kind="outcome", call_kind=kind), timeout_ms=0) for kind in ("step", "rollback")]
    assert await store.gates.find(run_id=run.id) == opened


async def test_stores_that_open_the_same_gate_concurrently_share_one(store: PlanStore, store_url: str):
    run = await created(store)
    stores = [PlanStore(store_url) for _ in range(3)]
    opened = await asyncio.gather(*(stores[number % 3].gates.open(a_gate(run), timeout_ms=0) for number in range(9)))
    assert len({gate.id for gate in opened}) == 1
    assert sorted(gate.openings for gate in opened) == list(range(1, 10))
    await asyncio.gather(*(store.close() for store in stores))


@pytest.mark.parametrize("digest", ["d" * 64, "e" * 64], ids=["the same content", "other content"])
async def test_a_second_process_cannot_open_a_gate_where_a_live_one_waits(store: PlanStore, sql: Sql, digest: str):
    run = await created(store)
    gate = await store.gates.open(a_gate(run), timeout_ms=0)
    await _set_owner(sql, gate.id, HostProcess.of(os.getppid()))
    with pytest.raises(RunConflictError, match=f"process {os.getppid()} on this host waits at this gate of run {run.id}"):
        await store.gates.open(a_gate(run, approval_digest=digest), timeout_ms=0)
    assert (await store.gates.get(gate.id)).attended is True


async def test_a_gate_whose_process_died_is_unattended_and_can_be_reopened(store: PlanStore, sql: Sql):
    run = await created(store)
    gate = await store.gates.open(a_gate(run), timeout_ms=60_000)
    await _set_owner(sql, gate.id, dead_owner())
    assert [stored_gate.attended for stored_gate in (await store.gates.get(gate.id), *await store.gates.find())] == [False, False]
    again = await store.gates.open(a_gate(run), timeout_ms=5)
    assert (again.id, again.expires_at, again.attended, again.openings) == (gate.id, gate.expires_at, True, 2)


async def test_the_state_of_a_process_on_another_host_is_unknown(store: PlanStore, sql: Sql):
    gate = await store.gates.open(a_gate(await created(store)), timeout_ms=0)
    await _set_owner(sql, gate.id, replace(HostProcess.this(), place="elsewhere"))
    assert (await store.gates.get(gate.id)).attended is None


async def test_a_gate_its_process_left_stays_open_and_unattended(store: PlanStore):
    gate = await store.gates.open(a_gate(await created(store)), timeout_ms=0)
    await store.gates.leave(gate.id)
    assert await store.gates.get(gate.id) == replace(gate, attended=False)


async def test_a_gate_where_another_process_waits_is_neither_closed_nor_left(store: PlanStore, sql: Sql):
    gate = await store.gates.open(a_gate(await created(store)), timeout_ms=0)
    await _set_owner(sql, gate.id, HostProcess.of(os.getppid()))
    assert await store.gates.close(gate.id, "cancelled") == gate
    await store.gates.leave(gate.id)
    assert await store.gates.get(gate.id) == gate
    await _set_owner(sql, gate.id, HostProcess.this())
    await store.gates.leave(gate.id)
    assert (await store.gates.close(gate.id, "cancelled")).end == "cancelled"


async def test_a_gate_of_another_host_can_be_taken_over(store: PlanStore, sql: Sql):
    run = await created(store)
    gate = await store.gates.open(a_gate(run), timeout_ms=0)
    await _set_owner(sql, gate.id, replace(HostProcess.this(), place="elsewhere"))
    again = await store.gates.open(a_gate(run), timeout_ms=0)
    assert (again.id, again.attended, again.openings) == (gate.id, True, 2)


async def test_the_process_that_executes_a_run_takes_over_its_step_gates(store: PlanStore, sql: Sql):
    run = await begun(store)
    gate, of_plan = [await store.gates.open(a_gate(run, step_id), timeout_ms=0) for step_id in ("drain", None)]
    for waiting in (gate, of_plan):
        await _set_owner(sql, waiting.id, HostProcess.of(os.getppid()))
    assert (await store.gates.open(a_gate(run, "drain"), timeout_ms=0)).openings == 2
    with pytest.raises(RunConflictError, match="waits at this gate"):
        await store.gates.open(a_gate(run), timeout_ms=0)


async def test_a_gate_shown_again_is_recorded_only_if_its_text_changed(store: PlanStore):
    run = await created(store)
    for text in ("one", "one", "one", "two"):
        gate = await store.gates.open(a_gate(run, text=text), timeout_ms=0)
    assert gate.openings == 4
    assert [entry.kind for entry in await store.audit(run.id) if entry.kind.startswith("gate_")] == ["gate_opened"] * 2


async def test_gates_are_listed_oldest_first_with_their_texts_if_wanted(store: PlanStore, sql: Sql):
    run = await begun(store)
    opened = [await store.gates.open(a_gate(run, step_id, id=step_id), timeout_ms=0) for step_id in ("drain", "check", "restart")]
    await sql.change(tables.gates.update().values(opened_at=opened[0].opened_at))
    await sql.change(tables.gates.update().where(tables.gates.c.id == "restart").values(opened_at=opened[0].opened_at - timedelta(1)))
    await store.gates.close("check", "cancelled")
    assert [(gate.id, gate.text) for gate in await store.gates.find(with_texts=True)] == [
        ("restart", "重启 `web-1`"),
        ("drain", "重启 `web-1`"),
    ]
    listed = await store.gates.find(open_only=False)
    assert [(gate.id, gate.text, gate.attended) for gate in listed] == [("restart", "", True), ("check", "", None), ("drain", "", True)]
    assert await store.gates.find(run_id="another") == []


@pytest.mark.parametrize("status", [PlanStatus.COMPLETED, PlanStatus.CANCELLED, PlanStatus.FAILED, PlanStatus.PARTIAL])
async def test_no_gate_opens_in_an_ended_run(store: PlanStore, status: PlanStatus):
    run = await created(store, status=status)
    with pytest.raises(RunConflictError, match=f"run {run.id} has ended \\(it is {status}\\): it opens no gate"):
        await store.gates.open(a_gate(run), timeout_ms=0)
    missing = a_run(a_plan())
    with pytest.raises(RunConflictError, match=f"there is no run {missing.id}"):
        await store.gates.open(a_gate(missing), timeout_ms=0)


async def test_a_gate_expires_only_at_its_deadline(store: PlanStore):
    run = await begun(store)
    long = await store.gates.open(a_gate(run, "check"), timeout_ms=60_000)
    short, other = [await store.gates.open(a_gate(run, step_id), timeout_ms=1) for step_id in ("drain", "restart")]
    assert await store.gates.expire(long.id) == long
    while (await store.gates.expire(short.id)).end is None:
        await asyncio.sleep(0.001)
    assert (await store.gates.get(short.id)).end == "expired"
    assert (await store.gates.get(other.id)).end is None


async def test_a_gate_that_does_not_exist_cannot_be_used(store: PlanStore):
    gate = a_gate(await created(store))
    for use in (
        store.gates.get(gate.id),
        store.gates.answer(gate.id, an_answer(gate)),
        store.gates.expire(gate.id),
        store.gates.close(gate.id, "cancelled"),
        store.gates.show(gate.id, flow_run_id="f", keyset="k"),
    ):
        with pytest.raises(RunConflictError, match=f"there is no gate {gate.id}"):
            await use


async def test_an_ending_run_closes_its_gates(store: PlanStore):
    run = await begun(store)
    answered, gate = [await store.gates.open(a_gate(run, step_id), timeout_ms=0) for step_id in ("check", "drain")]
    answered = await store.gates.answer(answered.id, an_answer(answered))
    run.status = PlanStatus.EXECUTING
    await store.ledger.update(run)
    assert (await store.gates.get(gate.id)).end is None
    run.status = PlanStatus.PARTIAL
    await store.ledger.update(run)
    with pytest.raises(RunConflictError, match="its run was cancelled at"):
        await store.gates.answer(gate.id, an_answer(gate))
    assert await store.gates.get(answered.id) == answered


async def test_cancelling_a_run_at_once_closes_its_gates(store: PlanStore):
    waiting, executing = await created(store), await begun(store)
    gates = [await store.gates.open(a_gate(run), timeout_ms=0) for run in (waiting, executing)]
    await store.cancel(waiting.id, "不需要了")
    await store.cancel(executing.id, "enough")
    assert [(await store.gates.get(gate.id)).end for gate in gates] == ["cancelled", None]


async def test_the_audit_log_shows_who_answered_what_at_which_gate(store: PlanStore):
    run = await begun(store)
    done = await store.gates.open(a_gate(run, "drain", item=1, description="步骤 drain"), timeout_ms=0)
    await store.gates.answer(done.id, an_answer(done, known_by="totp", note="好的"))
    late = await store.gates.open(a_gate(run, "check"), timeout_ms=1)
    while (await store.gates.expire(late.id)).end is None:
        await asyncio.sleep(0.001)
    await store.gates.close((await store.gates.open(a_gate(run, "restart"), timeout_ms=0)).id, "cancelled")
    entries = [entry for entry in await store.audit(run.id) if entry.kind.startswith("gate_")]
    assert [(entry.kind, entry.step_id, entry.item, entry.by, entry.known_by, entry.message) for entry in entries] == [
        ("gate_opened", "drain", 1, None, None, "步骤 drain"),
        ("gate_answered", "drain", 1, "安娜", "totp", "approve: 好的"),
        ("gate_opened", "check", None, None, None, "检查网站"),
        ("gate_expired", "check", None, None, None, None),
        ("gate_opened", "restart", None, None, None, "检查网站"),
        ("gate_cancelled", "restart", None, None, None, None),
    ]


async def test_a_tenant_sees_only_its_own_gates(store_url: str):
    async with PlanStore(store_url, tenant_id="acme") as acme, PlanStore(store_url, tenant_id="umbrella") as umbrella:
        run = await created(acme)
        gate = await acme.gates.open(a_gate(run), timeout_ms=0)
        other = await acme.gates.open(a_gate(run, "drain"), timeout_ms=0)
        assert (await acme.gates.get(gate.id), await acme.gates.get(other.id)) == (gate, other)
        assert (await acme.gates.close(other.id, "cancelled")).id == other.id
        assert await umbrella.gates.find() == await umbrella.gates.find(run_id=run.id) == []
        for use in (
            umbrella.gates.get(gate.id),
            umbrella.gates.answer(gate.id, an_answer(gate)),
            umbrella.gates.close(gate.id, "cancelled"),
        ):
            with pytest.raises(RunConflictError, match="there is no gate"):
                await use
        with pytest.raises(RunConflictError, match="there is no run"):
            await umbrella.gates.open(a_gate(run), timeout_ms=0)
        assert await acme.gates.find(run_id=run.id) == [gate]
        await umbrella.gates.leave(gate.id)
        with pytest.raises(RunConflictError, match="there is no gate"):
            await umbrella.gates.show(gate.id, flow_run_id="f", keyset="k")
        assert await acme.gates.get(gate.id) == gate
        await acme.gates.answer(gate.id, an_answer(gate, decision="request_changes"))
        assert await umbrella.gates.answer_to(gate.id) is None
        again = await acme.gates.open(a_gate(run), timeout_ms=0)
        assert [*(await acme.gates.change_requests())] == [again.id]
        assert await umbrella.gates.change_requests() == {}


async def test_a_thousand_open_gates_are_listed_without_their_texts(store: PlanStore, sql: Sql):
    runs = [await _pending(store, number) for number in range(10)]
    now, owner, gate_policy = await store.now(), str(HostProcess.this()), '{"approvers": ["安娜"], "known_by": null}'
    rows = [
        {
            "id": f"g-{number:04}", "tenant_id": "", "run_id": runs[number % 10].id, "step_id": f"s{number}", "item": -1,
            "approval_digest": DIGEST_OF_CALL, "name": "站点", "description": "x" * 200, "rules": gate_policy, "opened_at": now,
            "openings": 1, "kind": "approval", "call_kind": "step", "owner": owner, "text": "长" * 5_000,
        }
        for number in range(1001)
    ]  # fmt: skip
    await sql.run(lambda connection: connection.execute(tables.gates.insert(), rows) and None)
    listed = await store.gates.find()
    assert [gate.id for gate in listed] == [row["id"] for row in rows[:1000]]
    assert {(gate.attended, gate.text) for gate in listed} == {(True, "")}
    assert len(await store.gates.find(limit=7)) == 7


async def _pending(store: PlanStore, number: int) -> PlanRun:
    plan = a_plan(f"plan {number}")
    run = a_run(plan)
    await store.ledger.create(run, validated(plan))
    return run


async def _set_owner(sql: Sql, gate_id: str, owner: HostProcess) -> None:
    statement = tables.gates.update().where(tables.gates.c.id == gate_id).values(owner=str(owner))
    await sql.change(statement)
