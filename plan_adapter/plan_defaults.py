"""`Plans`: the functions of the Python API with defaults that a program sets once, such as its tools and its store."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pydantic import JsonValue

from plan_adapter import checks, runner, waiting_runs
from plan_adapter.gates.approval import Approver
from plan_adapter.loading import PlanSource
from plan_adapter.model.approvals import Approval, Gate, GateAnswer, Resolution
from plan_adapter.model.hooks import Hooks
from plan_adapter.model.record import PlanRun, RunContext
from plan_adapter.model.status import PlanStatus
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import Tools, as_registry
from plan_adapter.twins import sync_twin
from plan_adapter.validation import ValidatedPlan

if TYPE_CHECKING:
    from prefect import Flow

T = TypeVar("T")

Runs: TypeAlias = list[PlanRun]  # in the class, `list` is a method


@dataclass(frozen=True, kw_only=True, slots=True)
class Plans:
    """The functions that check, approve and run plans, with their repeated arguments set once. An argument of a call replaces the default.

    Each method does what the function of its name does: `plans.run` is `run_plan`, `plans.answer` is `answer_gate`. A method whose name
    begins with `a` is awaited (`plans.arun`), and its twin without the `a` is for code without an event loop.

    `by` is who approves, starts, answers and changes runs. If `store` is None, the settings name the store. With `offline`, runs do not use
    Prefect. Raises TypeError or ToolDefinitionError for `tools` that are none.
    """

    tools: Tools
    store: PlanStore | None = None
    hooks: Hooks | None = None
    by: str | None = None
    approver: Approver | None = None
    context: RunContext | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        """Make a registry of `tools`."""
        object.__setattr__(self, "tools", as_registry(self.tools))

    def validate(self, plan: PlanSource) -> ValidatedPlan:
        """Return `plan` as a ValidatedPlan. See `plan_adapter.plans.validate`."""
        return checks.validate(plan, self.tools, store=self.store)

    def approve(
        self,
        plan: PlanSource,
        *,
        by: str | None = None,
        inputs: Mapping[str, object] | None = None,
        note: str = "",
        valid_for: timedelta | None = None,
    ) -> Approval:
        """Return an approval of `plan` as it is now, for one run. See `plan_adapter.approve`."""
        return checks.approve(
            plan, tools=self.tools, by=_either(by, self.by), inputs=inputs, note=note, valid_for=valid_for, store=self.store
        )

    def reject(
        self,
        plan: PlanSource,
        *,
        by: str | None = None,
        inputs: Mapping[str, object] | None = None,
        note: str = "",
        valid_for: timedelta | None = None,
    ) -> Approval:
        """Return a rejection of `plan`. See `plan_adapter.gates.reject`."""
        return checks.reject(
            plan, tools=self.tools, by=_either(by, self.by), inputs=inputs, note=note, valid_for=valid_for, store=self.store
        )

    def compile(
        self,
        plan: ValidatedPlan | PlanSource,
        *,
        approval: Approval | None = None,
        approver: Approver | None = None,
        hooks: Hooks | None = None,
        context: RunContext | None = None,
    ) -> "Flow[..., Any]":
        """Return `plan` as a Prefect flow. See `plan_adapter.compile_plan`."""
        return runner.compile_plan(
            plan,
            tools=self.tools,
            approval=approval,
            approver=_either(approver, self.approver),
            store=self.store,
            hooks=_either(hooks, self.hooks),
            context=_either(context, self.context),
        )

    async def arun(
        self,
        plan: PlanSource,
        *,
        inputs: Mapping[str, object] | None = None,
        approval: Approval | None = None,
        approver: Approver | None = None,
        hooks: Hooks | None = None,
        context: RunContext | None = None,
        offline: bool | None = None,
        by: str | None = None,
    ) -> PlanRun:
        """Run `plan` and return the record of the run, however its steps ended. See `plan_adapter.run_plan`."""
        return await runner.arun_plan(
            plan,
            tools=self.tools,
            inputs=inputs,
            approval=approval,
            approver=_either(approver, self.approver),
            store=self.store,
            hooks=_either(hooks, self.hooks),
            context=_either(context, self.context),
            offline=bool(_either(offline, self.offline)),
            by=_either(by, self.by),
        )

    run = sync_twin(arun)

    async def astart(
        self,
        plan: PlanSource,
        *,
        inputs: Mapping[str, object] | None = None,
        hooks: Hooks | None = None,
        context: RunContext | None = None,
        offline: bool | None = None,
        by: str | None = None,
    ) -> PlanRun:
        """Start a run, and return it when it waits only for answers, or has ended. See `plan_adapter.runs.start_run`."""
        return await waiting_runs.astart_run(
            plan,
            tools=self.tools,
            inputs=inputs,
            hooks=_either(hooks, self.hooks),
            context=_either(context, self.context),
            store=self.store,
            offline=bool(_either(offline, self.offline)),
            by=_either(by, self.by),
        )

    start = sync_twin(astart)

    async def aresume(
        self,
        run_id: str,
        *,
        approval: Approval | None = None,
        approver: Approver | None = None,
        hooks: Hooks | None = None,
        offline: bool | None = None,
        by: str | None = None,
        here: bool = False,
    ) -> PlanRun:
        """Resume a run and return its record. See `plan_adapter.resume_run`."""
        return await runner.aresume_run(
            run_id,
            tools=self.tools,
            approval=approval,
            approver=_either(approver, self.approver),
            store=self.store,
            hooks=_either(hooks, self.hooks),
            offline=bool(_either(offline, self.offline)),
            by=_either(by, self.by),
            here=here,
        )

    resume = sync_twin(aresume)

    async def acontinue_(self, run_id: str, *, hooks: Hooks | None = None, offline: bool | None = None, by: str | None = None) -> PlanRun:
        """Resume a run whose gates were answered, and wait for nobody. See `plan_adapter.runs.continue_run`."""
        return await waiting_runs.acontinue_run(
            run_id,
            tools=self.tools,
            hooks=_either(hooks, self.hooks),
            store=self.store,
            offline=bool(_either(offline, self.offline)),
            by=_either(by, self.by),
        )

    continue_ = sync_twin(acontinue_)

    async def aget(self, run_id: str) -> PlanRun:
        """Return a run with its steps. See `plan_adapter.runs.get_run`."""
        return await waiting_runs.aget_run(run_id, store=self.store)

    get = sync_twin(aget)

    async def alist(
        self, *, name: str | None = None, status: PlanStatus | None = None, context: RunContext | None = None, limit: int = 50
    ) -> Runs:
        """Return the newest runs that match every filter. See `plan_adapter.runs.list_runs`."""
        return await waiting_runs.alist_runs(
            name=name, status=status, context=_either(context, self.context), limit=limit, store=self.store
        )

    async def agates(self, run_id: str | None = None) -> "list[Gate]":
        """Return the gates that wait for an answer, of one run or of all. See `plan_adapter.runs.open_gates`."""
        return await waiting_runs.aopen_gates(run_id, store=self.store)

    gates = sync_twin(agates)

    async def aanswer(
        self,
        gate: Gate | str,
        decision: GateAnswer,
        *,
        by: str | None = None,
        digest: str | None = None,
        note: str = "",
        values: Mapping[str, JsonValue] | None = None,
        result: JsonValue = None,
        code: str | None = None,
        signature: str | None = None,
        to: str = "",
    ) -> PlanRun:
        """Answer at a gate, and return its run. See `plan_adapter.runs.answer_gate`. Raises TypeError if nothing says `by` whom."""
        if (name := _either(by, self.by)) is None:
            raise TypeError("`by` is missing: pass the name of the person who answers")
        return await waiting_runs.aanswer_gate(
            gate,
            decision,
            by=name,
            digest=digest,
            note=note,
            values=values,
            result=result,
            code=code,
            signature=signature,
            to=to,
            store=self.store,
        )

    answer = sync_twin(aanswer)

    async def acancel(
        self,
        run_id: str,
        *,
        reason: str = "cancelled",
        rollback: bool = False,
        hooks: Hooks | None = None,
        offline: bool | None = None,
        by: str | None = None,
    ) -> PlanRun:
        """Cancel a run and return its current record. See `plan_adapter.runs.cancel_run`."""
        return await runner.acancel_run(
            run_id,
            reason=reason,
            rollback=rollback,
            tools=self.tools,
            hooks=_either(hooks, self.hooks),
            store=self.store,
            offline=bool(_either(offline, self.offline)),
            by=_either(by, self.by),
        )

    cancel = sync_twin(acancel)

    async def arollback(
        self, run_id: str, *, reason: str = "rolled back", hooks: Hooks | None = None, offline: bool | None = None, by: str | None = None
    ) -> PlanRun:
        """Roll back the completed steps of a run that did not complete. See `plan_adapter.runs.rollback_run`."""
        return await self.acancel(run_id, reason=reason, rollback=True, hooks=hooks, offline=offline, by=by)

    rollback = sync_twin(arollback)

    async def arevise(self, run_id: str, plan: PlanSource, *, by: str | None = None, note: str = "") -> PlanRun:
        """Make `plan` the new version of a run's plan. See `plan_adapter.runs.revise_run`."""
        return await runner.arevise_run(run_id, plan, tools=self.tools, by=_either(by, self.by), note=note, store=self.store)

    revise = sync_twin(arevise)

    async def aresolve(
        self,
        run_id: str,
        step_id: str,
        resolution: Resolution,
        *,
        by: str | None = None,
        item: int | None = None,
        result: JsonValue = None,
        note: str = "",
        rollback: bool = False,
        end_command: bool = False,
    ) -> PlanRun:
        """Record the outcome of a write that was interrupted. See `plan_adapter.runs.resolve_step`."""
        return await runner.aresolve_step(
            run_id,
            step_id,
            resolution,
            by=_either(by, self.by),
            item=item,
            result=result,
            note=note,
            rollback=rollback,
            end_command=end_command,
            store=self.store,
        )

    resolve = sync_twin(aresolve)

    list = sync_twin(alist)  # last: inside the class, it hides the built-in `list`


def _either(given: T | None, default: T | None) -> T | None:
    """Return `given`, or the default if the caller passed nothing."""
    return default if given is None else given
