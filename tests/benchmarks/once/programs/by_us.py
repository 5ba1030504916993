"""This package: a plan whose charge is a write with a gate, run without a server, and continued after a crash.

Besides the places in the work, the process dies at the crash points of this package: the places inside it where a process must be able
to die. A write without a receipt is unknown, and the person who is asked looks into the world.
"""

import asyncio
from pathlib import Path

import trials

from plan_adapter import PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.local import crash_points
from plan_adapter.runs import aanswer_gate, acontinue_run, alist_runs, aopen_gates, aresolve_step, astart_run
from plan_adapter.store import PlanStatus

PLAN = """
name: pay
description: Charge an order
inputs: {order: {type: string}}
options: {require_approval: false}
steps:
  - {id: check, tool_name: check, description: Read the order, parameters: {order: "${{ inputs.order }}"}}
  - id: charge
    tool_name: charge
    description: Charge it
    parameters: {order: "${{ inputs.order }}"}
    depends_on: [check]
    requires_approval: true
  - {id: tell, tool_name: tell, description: Tell the customer, parameters: {order: "${{ inputs.order }}"}, depends_on: [charge]}
"""
TOOLS = ToolRegistry([tool(effect="read")(trials.check), tool(effect="write")(trials.charge), tool(effect="read")(trials.tell)])
INPUTS, BY = {"order": trials.ORDER}, "ana"


def work(trial: trials.Trial) -> None:
    """Start the order, or resume it."""
    crash_points.listener = lambda point, detail: trials.reach_inside(f"{point} {detail}".strip())
    asyncio.run(_work(trial, trial.folder))


async def _work(trial: trials.Trial, folder: Path) -> None:
    async with PlanStore(f"sqlite:///{folder / 'plans.db'}") as store:
        found = await alist_runs(store=store)
        if not found:
            run = await astart_run(PLAN, tools=TOOLS, inputs=INPUTS, store=store, offline=True, by=BY)
        elif found[0].status is PlanStatus.COMPLETED:
            return
        else:
            run = await _continued(found[0], store)
        while run.status is not PlanStatus.COMPLETED:
            for gate in await aopen_gates(run.id, store=store):
                trial.ask()
                await aanswer_gate(gate, "approve", by=BY, store=store)
            if run.reason == "unknown":
                answer = "done" if trial.report_unknown() else "again"
                await aresolve_step(run.id, "charge", answer, by=BY, store=store)
            run = await _continued(run, store)


async def _continued(run: PlanRun, store: PlanStore) -> PlanRun:
    return await acontinue_run(run.id, tools=TOOLS, store=store, offline=True, by=BY)


if __name__ == "__main__":
    trials.serve(work)
