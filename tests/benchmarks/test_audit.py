"""Benchmark of `plan audit` over 10,000 runs. Absolute times depend on the machine, so they are printed and not asserted."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import Connection, Table, insert, literal, select

from plan_adapter.model.status import PlanStatus, StepStatus
from plan_adapter.store.database.tables import approvals, attempts, audit, leases, receipts, runs, step_runs
from plan_adapter.store.store import PlanStore
from tests.benchmarks.test_command_line import measured
from tests.sql import Sql
from tests.store.builders import a_plan, a_receipt, an_attempt, begun, ended

pytestmark = pytest.mark.benchmark

RECORDED, COPIES = 100, 99
EVER = ("--from", "2020-01-01", "--to", "2099-12-31", "-o", "pack", "--force")
OF_RUN = (runs, leases, audit, step_runs, attempts, receipts, approvals)
IDS = {"run_id", "attempt_id"}
"""The columns that a copy changes, besides `id`."""


async def a_completed_run(store: PlanStore, number: int) -> None:
    """Record a run of three steps, each with one call that writes, which somebody other than the requester approved."""
    plan = a_plan(f"Check site {number}")
    await store.save(plan, author="li")
    run = await begun(store, plan, requested_by="bo")
    recorder = await store.ledger.recorder(run)
    for step in plan.steps:
        await recorder.intent(attempt := an_attempt(run, step.id, at=recorder.now(), effect="write"))
        recorder.receipt(a_receipt(attempt, {"状态": "好"}, at=recorder.now()))
        recorder.step_ended(ended(run, step.id, StepStatus.COMPLETED, at=recorder.now()))
    await recorder.flush()
    run.status, run.completed_at = PlanStatus.COMPLETED, recorder.now()
    await store.ledger.update(run)


def copy_runs(connection: Connection) -> None:
    """Copy every row of every run, under other ids. Copies do not verify, because digests cover the ids."""
    names = select(runs.c.id).subquery()
    originals = list(connection.scalars(select(names.c.id)))
    for number in range(COPIES):
        for table in OF_RUN:
            columns = [_copied(table, column.name, f"-{number}") for column in table.c]
            of_run = table.c.id if table is runs else table.c.run_id
            connection.execute(insert(table).from_select([*table.c.keys()], select(*columns).where(of_run.in_(originals))))


def _copied(table: Table, name: str, suffix: str) -> object:
    if name in IDS or name == "id":
        return table.c[name] + suffix
    return literal("copy") if table is runs and name == "name" else table.c[name]


async def fill(url: str) -> None:
    """Record runs of as many plans, each saved as a version, and copy them."""
    async with PlanStore(url) as store:
        await store.upgrade()
        for number in range(RECORDED):
            await a_completed_run(store, number)
    await Sql(url).run(copy_runs)


def test_duration_of_an_audit_of_10_000_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    asyncio.run(fill(url))
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", url)
    for name, options in (
        ("a sample of 25", ()),
        ("all, records not checked", ("--sample", "all", "--no-verify")),
        ("a sample of 25 of 100, whose records are intact", ("--plan", "site")),
        ("the same, records not checked", ("--plan", "site", "--no-verify")),
    ):
        wall, cpu = measured(["audit", *EVER, *options], tmp_path)
        print(f"\nplan audit over 10,000 runs, {name}: {wall:.2f} s, of it {cpu:.2f} s CPU (aim: under 10 s)")
