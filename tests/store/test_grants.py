"""Tests of the PostgreSQL roles: each can do its work and no more."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from plan_adapter import ExecutionPlan, ToolRegistry, run_plan, tool
from plan_adapter.model.errors import StoreError
from plan_adapter.model.status import PlanStatus
from plan_adapter.store.database import schema
from plan_adapter.store.database.tables import metadata
from plan_adapter.store.outcomes import ResolutionRecord
from plan_adapter.store.store import PlanStore
from tests.postgres import PASSWORD, PostgresServer
from tests.store.builders import a_complete_run, a_gate, a_standing_approval, an_answer, an_approval, an_attempt, begun, created

GRANTS = Path(schema.__file__).with_name("grants.sql").read_text(encoding="utf-8")
PEOPLE = {"rita": "plan_runner", "olga": "plan_operator", "kim": "plan_keeper", "abel": "plan_auditor"}


@tool(effect="write")
def note(text: str) -> dict[str, str]:
    """Note a text."""
    return {"text": text}


@pytest.fixture
async def stores(postgres_server: PostgresServer, postgres_database: str) -> AsyncIterator[dict[str, PlanStore]]:
    """A store as its owner and as a person of each role."""
    name = postgres_database.rpartition("/")[2]
    async with PlanStore(postgres_database) as owner:
        await owner.upgrade()
        for _ in range(2):  # again after an upgrade
            await postgres_server._execute(GRANTS, name)
        for person, role in PEOPLE.items():
            logs_in = f"CREATE ROLE {person} LOGIN PASSWORD '{PASSWORD}' IN ROLE {role}"
            await postgres_server._execute(f"DROP ROLE IF EXISTS {person}; {logs_in}", name)
        opened = {person: PlanStore(postgres_server.url(name, user=person)) for person in PEOPLE}
        yield opened | {"owner": owner}
        await asyncio.gather(*(store.close() for store in opened.values()))


@pytest.fixture
async def connections(
    stores: dict[str, PlanStore], postgres_server: PostgresServer, postgres_database: str
) -> AsyncIterator[dict[str, Any]]:
    """A direct database connection for each person."""
    name = postgres_database.rpartition("/")[2]
    opened = {person: await asyncpg.connect(postgres_server.url(name, user=person)) for person in PEOPLE}
    yield opened
    for connection in opened.values():
        await connection.close()


async def _refused(connection: Any, statement: str) -> bool:
    try:
        await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        return True
    return False


async def test_each_role_can_do_its_work(stores: dict[str, PlanStore]):
    rita, olga, abel = stores["rita"], stores["olga"], stores["abel"]
    plan = ExecutionPlan(description="记下")
    plan.add_step("note", "Note it", {"text": "你好"})
    plan.options.require_approval = False
    done = await asyncio.to_thread(run_plan, plan, tools=ToolRegistry([note]), store=rita, offline=True)
    assert done.status is PlanStatus.COMPLETED

    waiting = await created(rita)
    gate = await rita.gates.open(a_gate(waiting), timeout_ms=0)
    await olga.gates.answer(gate.id, an_answer(gate))
    await olga.add_approval(an_approval(run_id=waiting.id))
    await olga.standing.add(standing := a_standing_approval())
    await olga.standing.revoke(standing.id, by="olga")
    assert await olga.codes.count_try("olga") == 0.0
    assert await olga.codes.use("olga", 1)

    stopped = await begun(rita)
    recorder = await rita.ledger.recorder(stopped)
    await recorder.intent(an_attempt(stopped, at=recorder.now(), effect="write"))
    await rita.ledger.release(stopped.id)
    await olga.outcomes.resolve(stopped.id, "check", ResolutionRecord("done", "olga", "os_user"))
    await olga.cancel(stopped.id, "够了")
    assert (await rita.run(stopped.id)).status is PlanStatus.CANCELLED

    for run in (done, waiting, stopped):
        found = await abel.verify(run.id)
        assert found.ok, str(found.problem)
        assert (await abel.export(run.id))["head"] == found.digest


async def test_a_keeper_can_delete_entries_only_by_pruning_and_erasing(stores: dict[str, PlanStore], connections: dict[str, Any]):
    kim, old, personal = stores["kim"], await a_complete_run(stores["rita"]), await a_complete_run(stores["rita"])
    with pytest.raises(asyncpg.RaiseError, match="rows of audit cannot be changed or deleted"):
        await connections["kim"].execute("DELETE FROM audit")
    before = await kim.now() + timedelta(hours=1)
    assert await kim.retention.prune([old.id], ended_before=before, by="kim") == {}
    fields = ("inputs.host", "steps.check.result", "steps.drain.error", "notes")
    await kim.retention.erase(personal.id, fields, files={}, stage=lambda _files: None, by="kim")
    assert (await stores["abel"].verify(personal.id)).ok
    assert await stores["abel"].retention.problem() is None


async def test_no_role_can_do_more_than_its_work(stores: dict[str, PlanStore], connections: dict[str, Any]):
    run = await begun(stores["rita"])
    first = {table.name: f"{name} = {name}" for table in metadata.sorted_tables for name in [next(iter(table.columns)).name]}
    for table, change in first.items():
        for statement in (f"INSERT INTO {table} DEFAULT VALUES", f"DELETE FROM {table}", f"UPDATE {table} SET {change}"):
            assert await _refused(connections["abel"], statement), statement
        assert await _refused(connections["olga"], f"DELETE FROM {table}"), table
        assert await _refused(connections["olga"], f"UPDATE {table} SET {change}"), table
    for table in ("plans", "runs", "leases", "attempts", "step_runs", "gates", "versions", "revisions"):
        assert await _refused(connections["olga"], f"INSERT INTO {table} DEFAULT VALUES"), table
    for table in ("plans", "versions", "policy_history", "tombstones", "tombstone_signatures", "standing_approvals"):
        assert await _refused(connections["kim"], f"DELETE FROM {table}"), table
        assert await _refused(connections["kim"], f"UPDATE {table} SET {first[table]}"), table
    for table in ("audit", "attempts", "receipts", "tombstones", "tombstone_signatures"):
        assert await _refused(connections["rita"], f"DELETE FROM {table}"), table
        assert await _refused(connections["rita"], f"UPDATE {table} SET {first[table]}"), table
    for person in PEOPLE:
        for statement in ("ALTER TABLE audit DISABLE TRIGGER ALL", "TRUNCATE audit CASCADE", "DROP TABLE used_codes", "CREATE TABLE x ()"):
            assert await _refused(connections[person], statement), (person, statement)
    with pytest.raises(StoreError, match="does not let this user do that"):
        await stores["olga"].ledger.update(run)
    assert (await stores["abel"].verify(run.id)).ok


async def test_a_keeper_changes_rows_only_by_erasing_and_adds_no_other_entries(stores: dict[str, PlanStore], connections: dict[str, Any]):
    run = await a_complete_run(stores["rita"])
    kim = connections["kim"]
    entry = "tenant_id, agent_id, org_id, task_id, at, 'run_ended', step_id, item, attempt, call_kind, by, known_by, message, row_id"
    forged = (
        f"UPDATE receipts SET result = '1' WHERE run_id = '{run.id}'",
        f"UPDATE runs SET message = 'all is well' WHERE id = '{run.id}'",
        f"UPDATE approvals SET note = 'yes' WHERE run_id = '{run.id}'",
        f"UPDATE gates SET text = NULL WHERE run_id = '{run.id}'",
        f"INSERT INTO audit SELECT run_id, number + 1000, {entry}, row_digest, salt, digest FROM audit WHERE run_id = '{run.id}'",
    )
    for _ in range(2):  # also once there is a tombstone
        for statement in forged:
            with pytest.raises(asyncpg.RaiseError, match="this role"):
                await kim.execute(statement)
        await stores["kim"].retention.erase(run.id, ["inputs.host"], files={}, stage=lambda _: None, by="kim")
    assert (await stores["abel"].verify(run.id)).ok
