"""Shared helpers for tests of gates for unknown outcomes."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.errors import UnknownOutcomeError
from plan_adapter.execution.history import RunHistory
from plan_adapter.gates.gate import GateForms
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer, ApprovalRequest, Gate
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import Backend, RunRequest, RunSession
from plan_adapter.runs.start import create_run, execute_plan, execute_run
from plan_adapter.validation import bind_inputs, validate
from tests.gates.world import FormAnswers, raise_if_over

SENDING = """
from typing import Any
from plan_adapter import ExecutionPlan, ToolRegistry, run_plan, tool
from plan_adapter.errors import UnknownOutcomeError

@tool(effect="write")
def send(order: str, token: str = "") -> str:
    "Send an order."
    raise UnknownOutcomeError("the line went dead")

@tool(effect="read")
def look(order: Any) -> Any:
    "Look at an order."
    return order

plan = ExecutionPlan(description="Send")
plan.add_step("send", "Send it", {"order": "a"}, id="send")
plan.add_step("look", "Look at it", {"order": "x"}, id="look", depends_on=["send"])
plan.options.require_approval = False
"""
"""The start of a script that runs a plan whose first call has an unknown outcome."""


@dataclass
class UnknownOutcomeWorld:
    """A store, and a tool `send` whose first `unknown_calls` calls have an unknown outcome; `sent` holds the order of every call."""

    store: PlanStore
    url: str = ""
    unknown_calls: int = 1
    sent: list[str] = field(default_factory=list[str])
    tasks: list["asyncio.Task[PlanRun]"] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)

    def tools(self) -> ToolRegistry:
        """Return the tools."""

        @tool(effect="write")
        def send(order: str, token: str = "") -> str:
            """Send an order."""
            self.sent.append(order)
            if len(self.sent) <= self.unknown_calls:
                raise UnknownOutcomeError("the line went dead")
            return f"{order}!"

        @tool(effect="read")
        def look(order: Any) -> Any:
            """Look at an order."""
            return order

        return ToolRegistry([send, look])

    def plan(self, *, policy: ApprovalPolicy | None = None, gated: bool = False, orders: list[str] | None = None) -> ExecutionPlan:
        """Return a plan that sends `orders` and looks at the result."""
        plan = ExecutionPlan(description="Send 订单", approval=policy)
        for_each = None if orders is None else "${{ " + json.dumps(orders) + " }}"
        parameters: dict[str, Any] = {"order": "a" if orders is None else "${{ item }}", "token": "hunter2"}
        plan.add_step("send", "Send it", parameters, id="send", requires_approval=gated, for_each=for_each)
        plan.add_step("look", "Look at it", {"order": "${{ steps.send.result }}"}, id="look")
        plan.options.require_approval = False
        return plan

    def run_request(self, approver: Any = None, **given: Any) -> RunRequest:
        """Return the run request with `approver`."""
        return RunRequest(approver=approver, **{"settings": self.settings, "requested_by": "runner", "tools": self.tools(), **given})

    def start(self, plan: ExecutionPlan | None = None, *, approver: Any = None) -> "asyncio.Task[PlanRun]":
        """Start an offline run of `plan` that asks `approver`."""
        bound = bind_inputs(validate(plan or self.plan(), self.tools()), {})
        work = execute_plan(bound, run_request=self.run_request(approver), store=self.store, offline=True)
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    def start_with_form(self, answers: FormAnswers, plan: ExecutionPlan | None = None) -> "asyncio.Task[PlanRun]":
        """Start a run with a form that submits `answers` one after the other."""

        async def work() -> PlanRun:
            bound, run_request = bind_inputs(validate(plan or self.plan(), self.tools()), {}), self.run_request()
            run = await create_run(bound, self.store, run_request)
            forms = GateForms(answers.ask, answers.collected, lambda *_: None, answers.publish, answers.resume_released, answers.is_private)
            return await execute_run(RunSession(bound, run, self.store, run_request, RunHistory(), Backend(forms=forms)))

        self.tasks.append(asyncio.ensure_future(work()))
        return self.tasks[-1]

    async def resume(self, run_id: str, *, approver: Any = None) -> PlanRun:
        """Resume a run offline."""
        return await execute_resume(run_id, tools=self.tools(), run_request=self.run_request(approver), store=self.store, offline=True)

    async def gate(self, *, count: int = 1) -> Gate:
        """Wait for `count` open gates and return the newest with its text."""
        while True:
            found = await self.store.gates.find()
            if len(found) >= count:
                return await self.store.gates.get(found[-1].id)
            raise_if_over(self.tasks)
            await self.store.changed(0.5)

    async def close(self) -> None:
        """Cancel all runs that are still active."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@dataclass
class Person:
    """A person at a terminal who gives `answers` one after the other, and then none."""

    answers: list[Answer]
    asked: list[ApprovalRequest] = field(default_factory=list[ApprovalRequest])

    async def ask(self, request: ApprovalRequest) -> Any:
        raise AssertionError(f"asked for an approval of {request.name}")

    async def ask_outcome(self, request: ApprovalRequest) -> Answer | None:
        self.asked.append(request)
        return self.answers.pop(0) if self.answers else None
