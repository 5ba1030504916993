"""The model behind the goals of a run."""

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

from plan_adapter.agent.configured import NO_MODEL, model_of
from plan_adapter.errors import InvalidPlanError
from plan_adapter.goals import GoalModel
from plan_adapter.runs.secrets import model_redactor
from plan_adapter.runs.session import RunRequest
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import ValidatedPlan
from plan_adapter.validation.findings import Findings


def refuse_without_model(validated: ValidatedPlan, run_request: RunRequest, *, done: Collection[str] = ()) -> None:
    """Raise InvalidPlanError if the plan has goals and no model is configured here. `done` are the steps that a resume does not call."""
    if run_request.goal_model is not None or run_request.settings.model:
        return
    findings = Findings()
    for at, step in validated.plan.places.items():
        if step.goal is not None and step.id not in done:
            findings.add("no-model", f"{at}.goal", "a model has to pursue the goal", NO_MODEL)
    if problems := findings.sorted(validated.plan):
        raise InvalidPlanError(problems)


@asynccontextmanager
async def goal_model_of(validated: ValidatedPlan, run_request: RunRequest) -> AsyncGenerator[GoalModel | None]:
    """Yield the model that pursues the goals of a run: that of the request, else that of the settings. None without goals or a model.

    Raises ModelError if the settings do not say how to reach it.
    """
    settings = run_request.settings
    if not validated.goal_tools or run_request.goal_model is not None or not settings.model:
        yield run_request.goal_model
        return
    from plan_adapter.agent.goals import PromptedGoalModel  # a run without goals starts without it

    model = model_of(settings)
    try:
        redactor = await model_redactor(settings, validated.secrets)
        tools = ToolRegistry(validated.used_tools.values())
        yield PromptedGoalModel(
            model,
            tools,
            redactor=redactor,
            answer_tokens=settings.draft_answer_tokens,
            effort=settings.goal_effort,
            temperature=settings.goal_temperature,
        )
    finally:
        await model.aclose()
