"""`PlanSession`: one plan at a time, from the task to its run, for an agent that embeds this package."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from plan_adapter.agent.model import Model
from plan_adapter.agent.planner import Asker, Budget, Planner
from plan_adapter.drafts import Draft, PlanRequest
from plan_adapter.errors import DraftError, NotApprovedError, RunConflictError
from plan_adapter.formatting import format_plan
from plan_adapter.gates.approval import Approver, approve, reject
from plan_adapter.hooks import Hooks
from plan_adapter.plan import ExecutionPlan, PlanStatus
from plan_adapter.problems import Problem
from plan_adapter.record import Approval, PlanRun, PlanSummary, RunContext
from plan_adapter.runner import acancel_run, aresume_run, arevise_run, arun_plan, draft_revision
from plan_adapter.runs.replan import Replanner, note_of
from plan_adapter.runs.secrets import hidden_from_models
from plan_adapter.settings import Settings
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import find_problems


@dataclass
class PlanSession:
    """Drafts, shows, has approved and runs plans with `tools`, and with no others. Belongs to one event loop.

    An agent never approves: `approve` is for the person whom it serves, by name, and binds to the plan exactly as it is then, its inputs
    included; `approver` is asked where nobody did. `store` None is the store of the settings, opened for each call. `offline` runs
    without Prefect.
    """

    model: Model
    tools: ToolRegistry
    store: PlanStore | None = None
    asker: Asker | None = None
    approver: Approver | None = None
    hooks: Hooks | None = None
    context: RunContext | None = None
    budget: Budget | None = None
    offline: bool = False
    current_plan: ExecutionPlan | None = field(default=None, init=False)
    current_draft: Draft | None = field(default=None, init=False)
    run: PlanRun | None = field(default=None, init=False)
    _approval: Approval | None = field(default=None, init=False)

    async def draft(self, task: str | PlanRequest) -> ExecutionPlan:
        """Return a valid plan for `task`, which is the current one from then on; one that is executed stays in the store.

        Raises DraftError, and then the current plan stays what it was, and ModelError.
        """
        request = PlanRequest(task) if isinstance(task, str) else task
        keep, hide = None if self.store is None else self.store.drafts, await hidden_from_models(Settings(), request.available_secrets)
        planner = Planner(self.model, self.tools, asker=self.asker, budget=self.budget, keep=keep, hide=hide)
        draft = await planner.drafted(request)
        if draft.plan is None:
            raise DraftError(draft.failure or "no plan came of the task", draft)
        self.clear()
        self.current_draft, self.current_plan = draft, draft.plan
        return draft.plan

    def use(self, plan: ExecutionPlan) -> None:
        """Make a plan of another origin the current one."""
        self.clear()
        self.current_plan = plan

    def approve(
        self, *, by: str, inputs: Mapping[str, object] | None = None, note: str = "", valid_for: timedelta | None = None
    ) -> Approval:
        """Return the approval of the current plan by a person called `by`, which the next `execute` with these inputs uses up."""
        self._approval = approve(self._plan(), tools=self.tools, by=by, inputs=inputs, note=note, valid_for=valid_for)
        return self._approval

    def reject(self, *, by: str, note: str = "") -> None:
        """Note that a person called `by` does not want the current plan: the next `execute` records a run that was rejected."""
        self._approval = reject(self._plan(), tools=self.tools, by=by, note=note)

    async def execute(self, *, inputs: Mapping[str, object] | None = None) -> PlanRun:
        """Run the current plan and return its record, however its steps ended.

        Raises NotApprovedError where nobody approved exactly this plan with these inputs, before anything is run.
        """
        plan, approval = self._plan(), self._approval
        self._approval = None
        self.run = await arun_plan(
            plan,
            tools=self.tools,
            inputs=inputs,
            approval=approval,
            approver=self.approver,
            store=self.store,
            hooks=self.hooks,
            context=self.context,
            offline=self.offline,
        )
        return self.run

    async def execute_directly(self, task: str | PlanRequest, *, inputs: Mapping[str, object] | None = None) -> PlanRun:
        """Draft a plan, have the session's approver asked, and run it, in one call; raises NotApprovedError without an approver."""
        if self.approver is None:
            raise NotApprovedError("nobody is there to approve what a model drafts: give the session an approver")
        await self.draft(task)
        return await self.execute(inputs=inputs)

    async def resume(self) -> PlanRun:
        """Go on with the session's run, and return its record; see `aresume_run`."""
        approval, self._approval = self._approval, None
        self.run = await aresume_run(
            self._run().id,
            tools=self.tools,
            approval=approval,
            approver=self.approver,
            store=self.store,
            hooks=self.hooks,
            offline=self.offline,
        )
        return self.run

    async def revise(self, words: str, *, by: str) -> ExecutionPlan:
        """Have what is left of the session's run planned anew, by its record and the words of a person called `by`; return the new version.

        What is done stays. The version is the current plan from then on, and waits for an approval: `resume` uses that of `approve`, given
        with the run's inputs, or asks. Raises DraftError, and then the run stays as it is, and what `arevise_run` raises.
        """
        run, replanner = self._run(), Replanner(self.model, self.tools.names(), asker=self.asker, budget=self.budget)
        draft = await draft_revision(run.id, words, replanner=replanner, tools=self.tools, by=by, store=self.store)
        if draft.plan is None:
            raise DraftError(draft.failure or "no plan came of the words", draft)
        self.run = await arevise_run(run.id, draft.plan, tools=self.tools, by=by, note=note_of(draft, words), store=self.store)
        self.current_draft, self.current_plan, self._approval = draft, draft.plan, None
        return draft.plan

    async def cancel(self, reason: str = "cancelled") -> PlanRun:
        """Cancel the session's run, and return its record; see `acancel_run`."""
        self.run = await acancel_run(self._run().id, reason=reason, store=self.store, offline=self.offline)
        return self.run

    def problems(self) -> list[Problem]:
        """Return everything that keeps the current plan, which may have been edited, from being run."""
        return find_problems(self._plan(), self.tools)

    def summary(self) -> PlanSummary:
        """Return how far the run is; before it is run, the plan with every step pending."""
        if self.run is not None:
            return self.run.summary()
        plan, count = self._plan(), len(self._plan().steps)
        return PlanSummary(plan.id, plan.description, self._status(), count, 0, 0, count, 0, 0, 0.0)

    def format(self) -> str:
        """Return the run, else the plan, in Markdown."""
        return format_plan(self.run if self.run is not None else self._plan())

    def clear(self) -> None:
        """Forget plan, approval and run; the store keeps what it has."""
        self.current_plan = self.current_draft = self.run = self._approval = None

    def _status(self) -> PlanStatus:
        if self._approval is None:
            return PlanStatus.PENDING_APPROVAL
        return PlanStatus.APPROVED if self._approval.decision == "approve" else PlanStatus.CANCELLED

    def _plan(self) -> ExecutionPlan:
        if self.current_plan is None:
            raise RunConflictError("there is no current plan: draft one, or give one with `use`")
        return self.current_plan

    def _run(self) -> PlanRun:
        if self.run is None:
            raise RunConflictError("nothing was run yet")
        return self.run
