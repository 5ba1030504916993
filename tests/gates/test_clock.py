"""Tests of expiry: the database's clock decides, even if the host's clock is a day off."""

import datetime as datetimes
import time
from datetime import datetime, timedelta, tzinfo

import pytest

from plan_adapter import approve
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.gates import approval
from plan_adapter.model.status import RunReason
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus
from tests.gates.world import World

pytestmark = pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)  # SQLite uses the clock of its host


@pytest.fixture(params=[timedelta(days=-1), timedelta(days=1)], ids=["behind", "ahead"], autouse=True)
def shifted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> timedelta:
    """Shift this process's clock by a day, back or forward."""
    shift: timedelta = request.param
    real_time = time.time

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + shift

    monkeypatch.setattr(time, "time", lambda: real_time() + shift.total_seconds())
    monkeypatch.setattr(datetimes, "datetime", Shifted)
    monkeypatch.setattr(approval, "datetime", Shifted)
    return shift


async def test_a_gate_stays_open_until_it_expires_and_answers_carry_the_databases_time(world: World) -> None:
    task = world.start(world.plan(timeout_ms=60_000))
    gate = await world.gate()
    before = await world.now()
    assert gate.expires_at is not None
    assert abs((gate.expires_at - before).total_seconds() - 60) < 30
    given = world.approval(gate)
    assert abs((given.at - before).total_seconds()) > 80_000  # the host's time is wrong; the store ignores it
    await world.store.gates.answer(gate.id, given)
    run = await task
    assert (run.status, world.struck) == (PlanStatus.COMPLETED, ["a"])
    [kept] = await world.store.approvals(run.id)
    assert before <= kept.at <= await world.now()


async def test_a_gate_expires_by_the_databases_clock(world: World) -> None:
    run = await world.start(world.plan(timeout_ms=300))
    assert (run.status, run.reason, world.struck) == (PlanStatus.CANCELLED, RunReason.EXPIRED, [])
    [gate] = await world.store.gates.find(run_id=run.id, open_only=False)
    with pytest.raises(RunConflictError, match="nobody answered until"):
        await world.answer(gate)


async def test_an_approval_that_expired_by_the_databases_clock_is_not_valid(world: World, shifted: timedelta) -> None:
    valid_for = timedelta(hours=1) - shifted  # one hour from now by the database's clock
    given = approve(world.plan(), tools=world.tools(), by="ana", valid_for=valid_for - timedelta(hours=2))
    with pytest.raises(NotApprovedError, match="expired"):
        await execute_plan(world.bound(), run_request=world.run_request(approval=given), store=world.store, offline=True)
    assert world.struck == []
