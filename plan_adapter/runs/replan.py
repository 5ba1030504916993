"""Has a model redraft the remaining steps of a run: on request, or after a failure if the plan says `on_failure: replan`.

The draft becomes a new version of the run's plan, which is approved like any other before its steps run.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plan_adapter.execution.history import RunHistory
from plan_adapter.execution.rollback_status import aborted_steps
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.secret_lookup import model_redactor
from plan_adapter.store.store import PlanStore
from plan_adapter.text.commands import resolve_command, unit_names
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import ValidatedPlan
from plan_adapter.validation.named_secrets import name_secrets

if TYPE_CHECKING:
    from plan_adapter.agent.model import Model
    from plan_adapter.agent.planner import Asker, Budget
    from plan_adapter.model.drafts import Draft, ModelCall

MAX_REPLANS = 2
"""How many times a run is replanned automatically."""

AUTOMATIC_REPLAN = "on_failure: replan"
"""The author recorded for a version that automatic replanning made."""

AFTER_FAILURE = "Achieve the goal of the plan from the point where its run failed. Consider why it failed, and do not repeat the mistake."


@dataclass(frozen=True, slots=True)
class Replanner:
    """Drafts a new version of a run's remaining steps. `offered` names the tools it may use beside those of the plan."""

    model: "Model"
    offered: Collection[str] = ()
    secrets: tuple[str, ...] = ()  # names of secrets that it may use beside those of the plan
    asker: "Asker | None" = None
    budget: "Budget | None" = None
    on_call: "Callable[[ModelCall], None] | None" = None
    settings: Settings = field(default_factory=Settings)  # they say where the secrets to redact are

    async def draft(
        self, run: PlanRun, task: str, *, validated: ValidatedPlan, tools: ToolRegistry, history: RunHistory, store: PlanStore
    ) -> "Draft":
        """Draft a new version of `validated`, the plan of `run`, store the draft in `store`, and return it. See `Planner.drafted`."""
        # A run that is not replanned starts without the code that drafts.
        from plan_adapter.agent.planner import Planner
        from plan_adapter.agent.remaining_plan import RemainingPlan, replan_context
        from plan_adapter.model.drafts import PlanRequest

        validated = name_secrets(validated, run.inputs)
        remaining = RemainingPlan.of(validated, history)
        names = {str(definition["name"]) for definition in validated.definitions}
        redactor = await model_redactor(self.settings, {*validated.secrets, *self.secrets})
        request = PlanRequest(task, context=replan_context(run, remaining, history, redactor), available_secrets=self.secrets)
        planner = Planner(
            self.model,
            tools.subset(*sorted(names.union(self.offered))),
            asker=self.asker,
            budget=self.budget,
            keep=store.drafts,
            redactor=redactor,
            on_call=self.on_call,
        )
        return await planner.drafted(request, remaining=remaining)


async def refuse_replanning(run: PlanRun, plan: ExecutionPlan, history: RunHistory, store: PlanStore) -> None:
    """Raise RunConflictError if `run` cannot take a new version: it has completed, is executing, or has an unknown outcome."""
    if run.status is PlanStatus.COMPLETED:
        raise RunConflictError(f"run {run.id} has completed: start a new run")
    if run.status is PlanStatus.EXECUTING and (owner := await store.ledger.owner(run.id)) is not None:
        raise RunConflictError(f"run {run.id} is executed by {owner}: wait for it to end, or `plan cancel {run.id}` ends it")
    refuse_unknown_outcome_to_revise(run, plan, history)


def refuse_unknown_outcome_to_revise(run: PlanRun, plan: ExecutionPlan, history: RunHistory) -> None:
    """Raise RunConflictError if `run` has an unknown outcome, including one that an `abort` left unknown."""
    unknown = [*history.unknown, *aborted_steps(plan, history)]
    if unknown:
        raise RunConflictError(
            f"the outcome of {', '.join(unit_names(unknown, history.labels))} is unknown, and a new version of the plan could repeat "
            f"the call: `{resolve_command(run.id, unknown[0], label=history.labels.get(unknown[0]))}` records the outcome"
        )


async def wants_replanning(run: PlanRun, plan: ExecutionPlan, store: PlanStore) -> bool:
    """Return whether `run`, which a failed step has ended, is replanned automatically once more."""
    if plan.on_failure != "replan":
        return False
    return sum(revision.by == AUTOMATIC_REPLAN for revision in await store.revisions.of_run(run.id)) < MAX_REPLANS


async def draft_automatically(
    run: PlanRun, validated: ValidatedPlan, history: RunHistory, store: PlanStore, run_request: RunRequest
) -> "tuple[Draft, ToolRegistry]":
    """Draft the remaining steps with the model in the settings, and return the draft and the tools it is valid with.

    The model may use the tools of the plan and all other tools that are not built in. It cannot ask questions. Raises ModelError, and
    RunConflictError if an outcome is unknown.
    """
    # A run that is not replanned starts without the code that drafts.
    from plan_adapter.agent.configured import model_of
    from plan_adapter.agent.planner import Budget

    refuse_unknown_outcome_to_revise(run, validated.plan, history)
    tools = run_request.tools or tools_of_plan(validated)
    custom_tools = set(tools.names()) - set(ToolRegistry.with_builtins().names())
    model = model_of(run_request.settings)
    replanner = Replanner(model, custom_tools, budget=Budget.of(run_request.settings), settings=run_request.settings)
    try:
        draft = await replanner.draft(run, AFTER_FAILURE, validated=validated, tools=tools, history=history, store=store)
    finally:
        await model.aclose()
    return draft, tools


def tools_of_plan(validated: ValidatedPlan) -> ToolRegistry:
    """Return a registry with the tools that a plan uses."""
    return ToolRegistry(validated.used_tools.values())


def revision_note(draft: "Draft", task: str) -> str:
    """Return the note stored with a drafted version: the request, the model and the command that shows the draft."""
    return f"{task} (drafted by {draft.model}: `plan show --draft {draft.id}`)"
