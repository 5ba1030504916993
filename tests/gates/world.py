"""Shared helpers for gate tests: a store with tools that record their calls, runs that wait at a gate, and approvers."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.execution.history import RunHistory
from plan_adapter.gates.approval import PendingGate, answer_to
from plan_adapter.gates.gate import GateForms
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer, Approval, ApprovalRequest, Decision, Gate
from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import new_id
from plan_adapter.plans import Input
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import Backend, RunRequest, RunSession
from plan_adapter.runs.start import create_run, execute_plan, execute_run
from plan_adapter.validation import BoundPlan, bind_inputs, validate
from tests.sql import Sql


class Silent:
    """An approver that never answers."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")


@dataclass
class FixedApprover:
    """An approver that always gives the same answer; `change` modifies it."""

    decision: Decision = "approve"
    by: str = "ana"
    known_by: str = "os_user"
    note: str = ""
    change: Callable[[Approval], Approval] = field(default=lambda approval: approval)

    async def ask(self, request: ApprovalRequest) -> Approval:
        return self.change(answer_to(request, decision=self.decision, by=self.by, known_by=self.known_by, note=self.note))


@dataclass
class FormAnswers:
    """A form that submits `answers` one after the other; `replies` holds the error of each, or None if it was accepted."""

    answers: tuple[Answer, ...]
    replies: list[str | None] = field(default_factory=list)
    private: bool = True  # whether the server requires authentication

    async def ask(self, asking: PendingGate) -> None:
        for answer in self.answers:
            self.replies.append(await asking.submit(answer))
        await asyncio.shield(asking.closed)

    async def collected(self, _gate: Gate) -> None:
        return None

    async def publish(self, _gate: Gate) -> None:
        return None

    async def resume_released(self, _gate: Gate, _approval: Approval) -> None:
        return None

    async def is_private(self) -> bool:
        return self.private


@dataclass
class World:
    """A store and the tools of one test; `struck` holds the target of every call of `strike`."""

    store: PlanStore
    url: str
    folder: Path
    struck: list[str] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)
    tasks: list["asyncio.Task[PlanRun]"] = field(default_factory=list)
    built: dict[tuple[str, type], tuple[Any, ...]] = field(default_factory=dict)  # tools by effect and schema

    def tools(self, *, effect: str = "write", schema: type = str) -> ToolRegistry:
        """Return the tools; `effect` and `schema` change the definition of `strike`."""

        def strike(target: Any) -> str:
            """Strike a target."""
            self.struck.append(target)
            return f"{target}!"

        def look(target: str) -> str:
            """Look at a target."""
            return target

        strike.__annotations__["target"] = schema
        if (effect, schema) not in self.built:
            self.built[effect, schema] = (tool(effect=effect)(strike), tool(effect="read")(look))  # type: ignore[call-overload]
        return ToolRegistry(self.built[effect, schema])

    def plan(self, *, gated: bool = False, policy: ApprovalPolicy | None = None, timeout_ms: int = 0) -> ExecutionPlan:
        """Return a plan that looks and strikes; with `gated`, the strike needs the approval instead of the plan."""
        plan = ExecutionPlan(description="Strike 目标", inputs={"target": Input(default="a")}, approval=policy)
        plan.add_step("look", "Look first", {"target": "${{ inputs.target }}"}, id="look")
        plan.add_step("strike", "Strike it", {"target": "${{ steps.look.result }}"}, id="strike", requires_approval=gated)
        plan.options.require_approval = not gated
        plan.options.approval_timeout_ms = timeout_ms
        return plan

    def bound(
        self, plan: ExecutionPlan | None = None, *, inputs: dict[str, Any] | None = None, tools: ToolRegistry | None = None
    ) -> BoundPlan:
        """Return `plan` bound to `inputs` and `tools`."""
        return bind_inputs(validate(plan or self.plan(), tools or self.tools()), inputs)

    def run_request(self, approver: Any = None, **given: Any) -> RunRequest:
        """Return the run request with `approver`."""
        return RunRequest(approver=approver, **{"settings": self.settings, "requested_by": "runner", "tools": self.tools(), **given})

    def start(self, plan: ExecutionPlan | None = None, *, approver: Any = None, **given: Any) -> "asyncio.Task[PlanRun]":
        """Start a run of `plan` offline; nobody answers unless `approver` does."""
        bound, run_request = self.bound(plan, tools=given.get("tools")), self.run_request(approver or Silent(), **given)
        work = execute_plan(bound, run_request=run_request, store=self.store, offline=True)
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    def start_with_form(self, plan: ExecutionPlan, answers: "FormAnswers") -> "asyncio.Task[PlanRun]":
        """Start a run that asks in a form, where `answers` are submitted one after the other."""

        async def work() -> PlanRun:
            bound, run_request = self.bound(plan), self.run_request(asks_in_form=True)
            run = await create_run(bound, self.store, run_request)
            forms = GateForms(answers.ask, answers.collected, lambda *_: None, answers.publish, answers.resume_released, answers.is_private)
            return await execute_run(RunSession(bound, run, self.store, run_request, RunHistory(), Backend(forms=forms)))

        self.tasks.append(asyncio.ensure_future(work()))
        return self.tasks[-1]

    async def resume(self, run_id: str, *, approver: Any = None, tools: ToolRegistry | None = None, **given: Any) -> PlanRun:
        """Resume a run, by default without an approver."""
        run_request = self.run_request(approver, **given)
        return await execute_resume(run_id, tools=tools or self.tools(), run_request=run_request, store=self.store, offline=True)

    async def gate(self, *, step: str | None = None, count: int = 1) -> Gate:
        """Wait for `count` open gates of `step` and return the newest."""
        while True:
            found = [gate for gate in await self.store.gates.find() if gate.step_id == step]
            if len(found) >= count:
                return found[-1]
            raise_if_over(self.tasks)
            await self.store.changed(0.5)

    async def detached(self, plan: ExecutionPlan | None = None) -> tuple[PlanRun, Gate]:
        """Return a run that waits for an approval without a process, and its gate."""
        run_request = self.run_request()
        run = await execute_plan(self.bound(plan), run_request=run_request, store=self.store, offline=True, record_pending=True)
        return run, await self.gate()

    async def answer(
        self, gate: Gate, decision: Decision = "approve", *, by: str = "ana", known_by: str = "os_user", **changed: Any
    ) -> Gate:
        """Answer `gate` as another process would."""
        return await self.store.gates.answer(gate.id, replace(self.approval(gate, decision, by=by, known_by=known_by), **changed))

    def approval(self, gate: Gate, decision: Decision = "approve", *, by: str = "ana", known_by: str = "os_user") -> Approval:
        """Return an answer to `gate`."""
        request = ApprovalRequest(gate.approval_digest, gate.name, "", "", run_id=gate.run_id, step_id=gate.step_id, item=gate.item)
        return answer_to(replace(request, gate_id=gate.id), decision=decision, by=by, known_by=known_by)

    async def sql(self, statement: str, **values: Any) -> None:
        """Change the database directly, as its owner could."""
        await Sql(self.url).change(statement, **values)

    async def end(self, task: "asyncio.Task[PlanRun]") -> PlanRun:
        """Reject every gate that is still open, and return the ended run."""
        while not task.done():
            for gate in await self.store.gates.find():
                with suppress(RunConflictError):
                    await self.answer(gate, "reject", by="zoe")
            await asyncio.wait({task}, timeout=0.5)
        return task.result()

    async def now(self) -> datetime:
        """Return the time of the database."""
        return await self.store.now()

    async def close(self) -> None:
        """Cancel all runs that are still active."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def raise_if_over(tasks: Sequence["asyncio.Task[PlanRun]"]) -> None:
    """Fail if every run has ended, because no gate can open then."""
    if tasks and all(run.done() for run in tasks):
        raise AssertionError(f"every run has ended: {[run.result().reason for run in tasks]}")


def another(approval: Approval, **changes: Any) -> Approval:
    """Return a copy of `approval` with `changes` and a new id."""
    return replace(approval, id=new_id(), **changes)
