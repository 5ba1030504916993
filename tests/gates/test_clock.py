"""The database's clock decides: a host whose own is a day off opens no gate longer, and closes none earlier."""

import datetime as datetimes
import time
from datetime import datetime, timedelta, tzinfo

import pytest

from plan_adapter import NotApprovedError, PlanStatus, RunConflictError, approve
from plan_adapter.gates import approval
from plan_adapter.runs.start import execute_plan
from plan_adapter.status import RunReason
from tests.gates.world import World

pytestmark = pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)  # SQLite's clock is that of its host


@pytest.fixture(params=[timedelta(days=-1), timedelta(days=1)], ids=["behind", "ahead"], autouse=True)
def shifted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> timedelta:
    """Set this host's clock a day back, or forward, for everything in this process that asks for it."""
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


async def test_a_gate_is_open_until_its_time_is_over_and_an_answer_carries_the_databases_time(world: World) -> None:
    going = world.start(world.plan(timeout_ms=60_000))
    gate = await world.gate()
    before = await world.now()
    assert gate.expires_at is not None
    assert abs((gate.expires_at - before).total_seconds() - 60) < 30
    given = world.approval(gate)
    assert abs((given.at - before).total_seconds()) > 80_000  # this host is wrong, and the store does not care
    await world.store.gates.answer(gate.id, given)
    run = await going
    assert (run.status, world.struck) == (PlanStatus.COMPLETED, ["a"])
    [kept] = await world.store.approvals(run.id)
    assert before <= kept.at <= await world.now()


async def test_a_gate_expires_by_the_databases_clock(world: World) -> None:
    run = await world.start(world.plan(timeout_ms=300))
    assert (run.status, run.reason, world.struck) == (PlanStatus.CANCELLED, RunReason.EXPIRED, [])
    [gate] = await world.store.gates.find(run_id=run.id, open_only=False)
    with pytest.raises(RunConflictError, match="nobody answered until"):
        await world.answer(gate)


async def test_an_approval_that_has_expired_for_the_database_approves_nothing(world: World, shifted: timedelta) -> None:
    valid_for = timedelta(hours=1) - shifted  # until an hour from now by this host's clock, seen by the database
    given = approve(world.plan(), tools=world.tools(), by="ana", valid_for=valid_for - timedelta(hours=2))
    with pytest.raises(NotApprovedError, match="expired"):
        await execute_plan(world.bound(), run_request=world.run_request(approval=given), store=world.store, offline=True)
    assert world.struck == []
