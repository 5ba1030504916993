"""An interrupted write has an unknown outcome. It is not repeated; the run waits until a person records what happened."""

import asyncio

import pytest

from plan_adapter import ExecutionPlan, ToolRegistry, tool
from plan_adapter.errors import RunConflictError
from plan_adapter.runs import aresolve_step, aresume_run, arun_plan


async def test_a_person_records_the_outcome_and_the_run_resumes() -> None:
    paid: list[int] = []

    @tool(effect="write")
    async def pay(amount: int) -> str:
        """Pay through a bank that sometimes answers too late."""
        paid.append(amount)
        await asyncio.sleep(60)
        return "paid"

    @tool(effect="read")
    def thank(receipt: str) -> str:
        """Say thank you."""
        return f"thank you for {receipt}"

    plan = ExecutionPlan(description="Pay an invoice")
    plan.options.require_approval = False
    plan.add_step("pay", "Pay it", {"amount": 5}, id="pay", timeout_ms=50)
    plan.add_step("thank", "Say thank you", {"receipt": "${{ steps.pay.result }}"}, id="thank")
    tools = ToolRegistry([pay, thank])

    run = await arun_plan(plan, tools=tools, offline=True)
    assert (run.status, run.reason, run.step("pay").outcome) == ("failed", "unknown", "unknown")

    run = await aresume_run(run.id, tools=tools, offline=True)  # does not repeat the payment
    assert (run.reason, paid) == ("unknown", [5])

    run = await aresolve_step(run.id, "pay", "done", by="ana", result="receipt 17", note="it is on the bank statement")
    run = await aresume_run(run.id, tools=tools, offline=True)
    assert (run.status, run.step("thank").result, paid) == ("completed", "thank you for receipt 17", [5])

    with pytest.raises(RunConflictError):
        await aresolve_step(run.id, "pay", "again", by="ana")
