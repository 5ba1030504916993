"""Tests of operator requests: each applies once, and a start that has not seen it cannot claim the run."""

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, event

from plan_adapter.errors import RunConflictError
from plan_adapter.record import PlanRun
from plan_adapter.store.operator_requests import OperatorRequest, skipped_steps_of
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import begun, created

WHY = "它没有用\x00"


async def request(store: PlanStore, run: PlanRun, *steps: str, kind: str = "skip") -> OperatorRequest:
    digest = await store.operator_requests.digest_of(run.id, kind, steps)  # type: ignore[arg-type]
    return OperatorRequest(kind, steps, WHY, "安娜", "os_user", digest)  # type: ignore[arg-type]


async def test_the_newest_request_for_a_step_applies_and_each_request_applies_once(store: PlanStore):
    run = await created(store)
    assert await store.operator_requests.skipped_steps(run.id) == {}
    first = await request(store, run, "check", "drain")
    await store.operator_requests.record(run.id, first)
    skipped_steps = "skipped by 安娜: 它没有用\\x00"  # no database keeps a NUL in text
    assert await store.operator_requests.skipped_steps(run.id) == {"check": skipped_steps, "drain": skipped_steps}
    await store.operator_requests.record(run.id, await request(store, run, "check", kind="run_from"))
    assert await store.operator_requests.skipped_steps(run.id) == {"drain": skipped_steps}
    with pytest.raises(RunConflictError, match="another request about run"):
        await store.operator_requests.record(run.id, first)
    with pytest.raises(RunConflictError, match=r"no step of run .* is called `nowhere`; no step of run .* is called `无处`"):
        await store.operator_requests.digest_of(run.id, "skip", ["check", "nowhere", "无处"])
    assert await store.operator_requests.digest_of(run.id, "skip", ["check"]) != await store.operator_requests.digest_of(
        run.id, "skip", ["drain"]
    )
    assert (await store.verify(run.id)).ok


async def test_a_run_read_before_the_request_cannot_be_claimed(store: PlanStore):
    run = await created(store)
    seen = replace(run)
    changed = await store.operator_requests.record(run.id, await request(store, run, "check"))
    with pytest.raises(RunConflictError, match="was changed by another process"):
        await store.ledger.claim(seen)
    await store.ledger.claim(replace(run, updated_at=changed))


async def test_a_run_in_progress_accepts_a_rollback_request_but_no_skip(store: PlanStore):
    run = await begun(store)
    with pytest.raises(RunConflictError, match="is executed by"):
        await store.operator_requests.record(run.id, await request(store, run, "check"))
    await store.operator_requests.record(run.id, await request(store, run, kind="rollback"))
    asked = (await store.audit(run.id))[-1]
    assert (asked.kind, asked.step_id, asked.by, asked.known_by) == ("rollback_requested", None, "安娜", "os_user")
    assert (await store.verify(run.id)).ok


async def test_operator_requests_are_found_without_reading_the_audit_log(tmp_path: Path) -> None:
    """A long run has tens of thousands of audit entries, and SQLite uses an index only if it covers the whole query."""
    url = f"sqlite:///{tmp_path}/plans.db"
    async with PlanStore(url) as store:
        await store.now()

        def ways(connection: Connection) -> list[str]:
            asked = list[str]()
            event.listen(connection, "before_cursor_execute", lambda *given: asked.append(given[2]))
            assert skipped_steps_of(connection, "r-1") == {}
            plans = [connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", ("r-1",)).all() for statement in list(asked)]
            return [str(row[-1]) for plan in plans for row in plan]

        assert await Sql(url).run(ways) == ["SEARCH audit USING COVERING INDEX ix_audit_operator_requests (run_id=? AND kind=?)"]
