"""A backend in an event loop: it starts a run, shows what waits, answers as the person who signed in, and continues the run."""

import asyncio

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, tool
from plan_adapter.errors import ContentChangedError
from plan_adapter.plans import Input
from plan_adapter.runs import aanswer_gate, acontinue_run, aget_run, alist_runs, aopen_gates, astart_run


@tool
async def deploy(version: str) -> str:
    """Deploy a version."""
    return f"deployed {version}"


def release_plan() -> ExecutionPlan:
    plan = ExecutionPlan(name="release", description="Release a version", inputs={"version": Input()})
    plan.add_step(deploy, "Deploy it", version=plan.input("version"))
    return plan


async def answer(gate_id: str, *, by: str, digest: str, store: PlanStore) -> PlanRun | None:
    try:
        return await aanswer_gate(gate_id, "approve", by=by, digest=digest, store=store)
    except ContentChangedError as error:
        print("refused:", str(error).partition(":")[0])
        return None


async def main() -> None:
    async with PlanStore() as store:
        run = await astart_run(release_plan(), tools=[deploy], inputs={"version": "2.1"}, by="bo", store=store, offline=True)
        print(run.status, run.has_ended)
        (gate,) = await aopen_gates(run.id, store=store)
        assert await answer(gate.id, by="ana", digest="0" * 12, store=store) is None
        answered = await answer(gate.id, by="ana", digest=gate.approval_digest, store=store)
        assert answered is not None
        await acontinue_run(run.id, tools=[deploy], store=store, offline=True)
        run = await aget_run(run.id, store=store)
        print(run.status, run.approved_by, run.steps[0].result)
        print([one.name for one in await alist_runs(name="release", store=store)])


asyncio.run(main())
