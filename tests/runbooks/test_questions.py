"""How many questions the shipped runbooks ask: gates per 100 writes, in the cases of those whose plan needs an approval."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plan_adapter import PlanRun
from plan_adapter.testing import load_cases
from plan_adapter.testing.running import CaseRunner

RUNBOOKS = Path(__file__).parents[2] / "deployments" / "runbooks"


@dataclass
class Asked:
    """What the runs of all cases wrote, and what people were asked."""

    runs: int = 0
    writes: int = 0
    plan_gates: int = 0
    step_gates: int = 0
    without_approval: list[str] = field(default_factory=list[str])  # writes that neither a plan gate nor a step gate covered

    async def add(self, run: PlanRun, runner: CaseRunner) -> None:
        """Add a run, if its plan needed an approval."""
        attempts, approvals = await runner._store.attempts(run.id), await runner._store.approvals(run.id)
        gates = await runner._store.gates.find(run_id=run.id, open_only=False)
        writes = {(call.step_id, call.item, call.kind) for call in attempts if call.effect != "read"}
        approved = {given.step_id for given in approvals if given.decision == "approve" and given.known_by != "not_required"}
        if None not in {given.step_id for given in approvals if given.known_by != "not_required"}:
            return
        self.runs += 1
        self.writes += len(writes)
        self.plan_gates += 1
        self.step_gates += len({(gate.step_id, gate.item) for gate in gates if gate.kind == "approval" and gate.step_id is not None})
        self.without_approval += [] if None in approved else [step for step, _, _ in writes if step not in approved]


@pytest.mark.thorough
def test_half_as_many_gates_open_as_there_are_writes() -> None:
    asked = Asked()
    with CaseRunner() as runner:
        for path in sorted(RUNBOOKS.glob("*.test.yaml")):
            for case in load_cases(path):
                runner._loop.run(asked.add(runner.run(case).run, runner))
    assert (asked.runs, asked.writes, asked.plan_gates, asked.step_gates) == (58, 209, 58, 26)
    assert asked.without_approval == []
