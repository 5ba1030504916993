"""`PlanSession`: drafts, approves and runs one plan at a time, for an agent that embeds this package."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from plan_adapter.agent.model import Model
from plan_adapter.agent.planner import Asker, Budget, Planner
from plan_adapter.checks import approve, find_problems, reject
from plan_adapter.gates.approval import Approver
from plan_adapter.loading import PlanSource, plan_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Approval
from plan_adapter.model.drafts import Draft, PlanRequest
from plan_adapter.model.errors import DraftError, NotApprovedError, RunConflictError
from plan_adapter.model.hooks import Hooks
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import counted
from plan_adapter.model.record import PlanRun, PlanSummary, RunContext
from plan_adapter.model.status import PlanStatus
from plan_adapter.runner import acancel_run, aresume_run, arevise_run, arun_plan, draft_revision
from plan_adapter.runs.replan import Replanner, revision_note
from plan_adapter.runs.secret_lookup import model_redactor
from plan_adapter.store.store import PlanStore
from plan_adapter.text.formatting import format_plan
from plan_adapter.tools.registry import Tools, as_registry


@dataclass
class PlanSession:
    """Drafts, shows and runs plans with `tools` only, and collects their approvals. Belongs to one event loop.

    An agent never approves. `approve` is for the person it works for, and covers the plan exactly as it is at that moment, including its
    inputs. Without such an approval, `approver` is asked. If `store` is None, the store of the settings is opened for each call. With
    `offline`, plans run without Prefect.
    """

    model: Model
    tools: Tools
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

    def __post_init__(self) -> None:
        """Raise TypeError or ToolDefinitionError for tools that are none."""
        self.tools = as_registry(self.tools)

    async def draft(self, task: str | PlanRequest) -> ExecutionPlan:
        """Draft a valid plan for `task`, make it the current plan, and return it. Plans that were executed stay in the store.

        Raises DraftError or ModelError; the current plan then stays the same.
        """
        request = PlanRequest(task) if isinstance(task, str) else task
        keep, redactor = None if self.store is None else self.store.drafts, await model_redactor(Settings(), request.available_secrets)
        planner = Planner(self.model, self.tools, asker=self.asker, budget=self.budget, keep=keep, redactor=redactor)
        draft = await planner.drafted(request)
        if draft.plan is None:
            raise DraftError(draft.failure or "no valid plan for the task", draft)
        self.clear()
        self.current_draft, self.current_plan = draft, draft.plan
        return draft.plan

    def use(self, plan: PlanSource) -> None:
        """Make `plan`, from any source that `load_plan` takes, the current plan."""
        loaded = plan_of(plan, store=self.store, twin="aload_plan")
        self.clear()
        self.current_plan = loaded

    def approve(
        self, *, by: str | None = None, inputs: Mapping[str, object] | None = None, note: str = "", valid_for: timedelta | None = None
    ) -> Approval:
        """Return an approval of the current plan by the person `by`, or else the account of this process.

        The next `execute` with these inputs uses it up.
        """
        self._approval = approve(self._require_plan(), tools=self.tools, by=by, inputs=inputs, note=note, valid_for=valid_for)
        return self._approval

    def reject(self, *, by: str | None = None, note: str = "") -> None:
        """Record that the person `by` rejects the current plan. The next `execute` then records a rejected run."""
        self._approval = reject(self._require_plan(), tools=self.tools, by=by, note=note)

    async def execute(self, *, inputs: Mapping[str, object] | None = None) -> PlanRun:
        """Run the current plan and return its record, however its steps ended.

        Raises NotApprovedError, before any step is run, if nobody approved exactly this plan with these inputs.
        """
        plan, approval = self._require_plan(), self._approval
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
        """Draft a plan, ask the session's approver and run the plan, in one call. Raises NotApprovedError without an approver."""
        if self.approver is None:
            raise NotApprovedError("nobody can approve what a model drafts: pass an approver to the session")
        await self.draft(task)
        return await self.execute(inputs=inputs)

    async def resume(self) -> PlanRun:
        """Resume the session's run and return its record. See `aresume_run`."""
        approval, self._approval = self._approval, None
        self.run = await aresume_run(
            self._require_run().id,
            tools=self.tools,
            approval=approval,
            approver=self.approver,
            store=self.store,
            hooks=self.hooks,
            offline=self.offline,
        )
        return self.run

    async def revise(self, words: str, *, by: str | None = None) -> ExecutionPlan:
        """Replan the remaining steps of the session's run, from its record and the `words` of the person `by`, and return the new version.

        Completed steps are kept. The new version becomes the current plan and needs an approval: `resume` uses the one from `approve`,
        given with the run's inputs, or asks for one. Raises DraftError, which leaves the run unchanged, and everything that `arevise_run`
        raises.
        """
        run, replanner = self._require_run(), Replanner(self.model, as_registry(self.tools).names(), asker=self.asker, budget=self.budget)
        draft = await draft_revision(run.id, words, replanner=replanner, tools=self.tools, by=by, store=self.store)
        if draft.plan is None:
            raise DraftError(draft.failure or "no valid new version from these words", draft)
        self.run = await arevise_run(run.id, draft.plan, tools=self.tools, by=by, note=revision_note(draft, words), store=self.store)
        self.current_draft, self.current_plan, self._approval = draft, draft.plan, None
        return draft.plan

    async def cancel(self, reason: str = "cancelled") -> PlanRun:
        """Cancel the session's run and return its record. See `acancel_run`."""
        self.run = await acancel_run(self._require_run().id, reason=reason, store=self.store, offline=self.offline)
        return self.run

    def problems(self) -> list[Problem]:
        """Return every problem that keeps the current plan from running. The plan may have been edited."""
        return find_problems(self._require_plan(), self.tools)

    def summary(self) -> PlanSummary:
        """Return the progress of the run. Before the run, return the plan with every step pending."""
        if self.run is not None:
            return self.run.summary()
        plan, count = self._require_plan(), len(self._require_plan().steps)
        return PlanSummary(plan.id, plan.description, self._status(), count, 0, 0, count, 0, 0, 0.0, f"0 of {counted(count, 'step')} done")

    def format(self) -> str:
        """Return the run in Markdown, or the plan if nothing has run yet."""
        return format_plan(self.run if self.run is not None else self._require_plan())

    def clear(self) -> None:
        """Forget the plan, the approval and the run. The store keeps its records."""
        self.current_plan = self.current_draft = self.run = self._approval = None

    def _status(self) -> PlanStatus:
        if self._approval is None:
            return PlanStatus.PENDING_APPROVAL
        return PlanStatus.APPROVED if self._approval.decision == "approve" else PlanStatus.CANCELLED

    def _require_plan(self) -> ExecutionPlan:
        if self.current_plan is None:
            raise RunConflictError("there is no current plan: draft one, or set one with `use`")
        return self.current_plan

    def _require_run(self) -> PlanRun:
        if self.run is None:
            raise RunConflictError("nothing has run yet: call `execute` first")
        return self.run
