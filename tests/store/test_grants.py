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
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.status import PlanStatus
from plan_adapter.store.database import schema_revision
from plan_adapter.store.database.tables import metadata
from plan_adapter.store.outcomes import ResolutionRecord
from plan_adapter.store.store import PlanStore
from tests.postgres import PASSWORD, PostgresServer
from tests.store.builders import a_complete_run, a_gate, a_standing_approval, an_answer, an_approval, an_attempt, begun, created

GRANTS = Path(schema_revision.__file__).with_name("grants.sql").read_text(encoding="utf-8")
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
    message = await olga.gate_messages.claim(gate.id, "slack", shown="")
    assert message is not None
    await olga.gate_messages.postpone(message, seconds=0.0)
    await olga.gate_messages.record(message, shown="0", reference="C1:1.5")
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


OF_RUNS = ("receipts", "commands", "attempts", "approvals", "step_runs", "leases", "concurrency_keys", "revisions", "gates")


async def test_a_keeper_deletes_rows_of_a_run_only_by_pruning(stores: dict[str, PlanStore], connections: dict[str, Any]):
    kim, living = stores["kim"], await begun(stores["rita"])
    recorder = await stores["rita"].ledger.recorder(living)
    await recorder.intent(attempt := an_attempt(living, at=recorder.now()))
    recorder.command_started(attempt, HostProcess.this())
    await recorder.flush()
    ended = [await a_complete_run(stores["rita"]) for _ in range(2)]
    erased = await kim.retention.erase(ended[0].id, ["inputs.host"], files={}, stage=lambda _: None, by="kim")
    assert erased.rows
    refused = 0
    for run in (living, *ended):
        for table in OF_RUNS:
            found = await connections["kim"].fetchval(f"SELECT count(*) FROM {table} WHERE run_id = '{run.id}'")
            refused += found
            for _ in range(bool(found)):
                with pytest.raises(asyncpg.RaiseError, match=f"this role deletes rows of {table} only by pruning"):
                    await connections["kim"].execute(f"DELETE FROM {table} WHERE run_id = '{run.id}'")
        for statement in _forged_tombstones(run.id):
            with pytest.raises(asyncpg.RaiseError, match="this role adds only the next tombstone of a run that has ended"):
                await connections["kim"].execute(statement)
    assert refused > len(OF_RUNS)
    before = await kim.now() + timedelta(hours=1)
    ids = [run.id for run in ended]
    assert await kim.retention.prune([*ids, living.id], ended_before=before, by="kim") == {living.id: "in use"}
    assert await stores["abel"].retention.are_pruned(ids) == set(ids)
    assert (await stores["abel"].verify(living.id)).ok


def _forged_tombstones(run_id: str) -> list[str]:
    """Return statements that add a tombstone: of a run in a state that it is not in, and a copy of its tombstone."""
    last = f"(SELECT {{}} FROM audit WHERE run_id = '{run_id}' ORDER BY number DESC LIMIT 1)"
    made = (
        "INSERT INTO tombstones SELECT (SELECT coalesce(max(number), 0) + 1 FROM tombstones), tenant_id, agent_id, org_id, task_id, id, "
        f"'pruned', name, digest, 'cancelled', now(), {last.format('number')}, '', {last.format('digest')}, '[]', '{{}}', 'kim', "
        f"'os_user', now(), '' FROM runs WHERE id = '{run_id}'"
    )
    columns = "run_id, kind, name, plan_digest, status, completed_at, entries, first_digest, last_digest, fields, replaced, by, known_by"
    copied = (
        "INSERT INTO tombstones SELECT (SELECT max(number) + 1 FROM tombstones), tenant_id, agent_id, org_id, task_id, "
        f"'{run_id}', {columns.partition(', ')[2]}, at, digest FROM tombstones LIMIT 1"
    )
    return [made, copied]


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
    stale = (  # a tombstone allows nothing after its transaction
        f"UPDATE receipts SET result = '\"[erased]\"' WHERE run_id = '{run.id}'",
        f"UPDATE audit SET message = '[erased]' WHERE run_id = '{run.id}' AND message <> ''",
        f"INSERT INTO audit SELECT run_id, number + 1000, {entry.replace('run_ended', 'erased')}, row_digest, salt, digest FROM audit "
        f"WHERE run_id = '{run.id}' AND (kind = 'erased' OR number = 1)",
    )
    for _ in range(2):  # also once there is a tombstone
        for statement in (*forged, *stale):
            with pytest.raises(asyncpg.RaiseError, match=r"this role|rows of audit cannot be changed"):
                await kim.execute(statement)
        await stores["kim"].retention.erase(run.id, ["inputs.host"], files={}, stage=lambda _: None, by="kim")
    assert (await stores["abel"].verify(run.id)).ok
