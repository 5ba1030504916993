"""Tests of a stalled process: it cannot touch the gates of a run that another process took over."""

import os

import pytest

from plan_adapter.model.errors import LeaseLostError
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.status import PlanStatus
from plan_adapter.store import leases
from plan_adapter.store.store import PlanStore
from tests.store.builders import a_gate, created


async def test_a_stalled_process_cannot_open_or_close_gates_of_a_run_taken_over(
    store: PlanStore, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "GRACE_SECONDS", 0.0)
    run = await created(store)
    run.status = PlanStatus.EXECUTING
    async with PlanStore(store_url) as stalled:
        stalled.ledger.lease_seconds = 0.0
        stalled_process = HostProcess.of(os.getppid())
        with monkeypatch.context() as patch:
            patch.setattr(HostProcess, "this", lambda: stalled_process)
            await stalled.ledger.claim(run)
            gate = await stalled.gates.open(a_gate(run, "restart"), timeout_ms=0)

        await store.ledger.claim(run)
        again = await store.gates.open(a_gate(run, "restart"), timeout_ms=0)
        assert (again.id, again.openings) == (gate.id, 2)

        with monkeypatch.context() as patch:
            patch.setattr(HostProcess, "this", lambda: stalled_process)
            with pytest.raises(LeaseLostError):
                await stalled.gates.open(a_gate(run, "drain"), timeout_ms=0)
            assert (await stalled.gates.close(gate.id, "cancelled")).end is None
            assert (await stalled.gates.open(a_gate(run), timeout_ms=0)).end is None  # any process may open the gate of the plan
    assert (await store.gates.close(gate.id, "cancelled")).end == "cancelled"
    assert (await store.verify(run.id)).ok
