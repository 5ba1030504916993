"""The flows to deploy: `plan_adapter.flows.run_plan`, `.draft_plan`, `.pursue_goal` and `.reconcile` are their entrypoints."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, cast

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from plan_adapter.agent.configured import model_of
from plan_adapter.agent.model import Model, ModelAnswer, Question
from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.agent.planner import Budget, Planner
from plan_adapter.agent.summary import summarize
from plan_adapter.blocks import LanguageModel, PlanStoreDatabase
from plan_adapter.engine.draft_flow import ask_model_question, current_flow_run, publish_draft, publish_summary, run_as_task
from plan_adapter.engine.outgoing import log_line, state_message
from plan_adapter.loading import aload_plan
from plan_adapter.local.settings import Settings
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.drafts import Draft, PlanRequest
from plan_adapter.model.errors import ModelError, PlanAdapterError, StoreError
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.runner import compile_plan
from plan_adapter.runs.forms import end_released
from plan_adapter.runs.reconcile import Finding, find_interrupted
from plan_adapter.runs.reconcile import reconcile as reconcile_runs
from plan_adapter.runs.secret_lookup import model_redactor
from plan_adapter.store.store import PlanStore
from plan_adapter.text.draft_text import cost_of, draft_text
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import validate

CHECK_INTERVAL_SECONDS = 15.0
"""Seconds between two checks while `reconcile` watches. Prefect has to show within 60 s that a host has died: a lease of 20 s and its grace
of 15 s leave 25 s. A separate flow run per check would cost 4 s of CPU time to import Prefect."""

_STORED_PLAN = re.compile(r"store:(?P<name>[^\n]+?)(?:@(?P<version>[0-9]+))?|(?:sha256:)?(?P<digest>[0-9a-f]{8,64})")


@flow(name="run-plan", persist_result=False, validate_parameters=False)  # validation reports bad inputs without a traceback
async def run_plan(plan: str, inputs: dict[str, Any] | None = None, tools: list[str] | None = None, database: str | None = None) -> State:
    """Run a plan. Its steps are the task runs of this flow run. A retry of the flow run carries completed steps.

    Args:
        plan: A stored plan (`store:name`, `store:name@version` or its digest), the path of a plan document, or the text of one.
        inputs: The inputs of the run, by name.
        tools: Import strings (package.module:name) of tools in addition to the built-in ones.
        database: Name of a Plan Store Database block. By default the worker's settings name the store.
    """
    if inputs is not None and not isinstance(inputs, dict):  # pyright: ignore[reportUnnecessaryIsInstance]  # a deployment may skip validation
        return Failed(message='`inputs` is not a mapping: give the inputs by name, as in {"environment": "prod"}')
    try:
        async with await _open_store(database) as store:
            await end_released(store)
            registry = ToolRegistry.from_settings([*Settings().tools, *(tools or [])])
            compiled = compile_plan(validate(await _find_plan(plan, store), registry), tools=registry, store=store)
            # Not as a subflow: its steps would belong to another flow run, and a retry of this one would not find them.
            return cast("State", await compiled.fn(**(inputs or {})))
    except PlanAdapterError as error:
        return Failed(message=state_message(str(error)))


@flow(name="draft-plan", persist_result=False)
async def draft_plan(
    task: str,
    context: dict[str, Any] | None = None,
    constraints: list[str] | None = None,
    max_steps: int | None = None,
    available_tools: list[str] | None = None,
    available_secrets: list[str] | None = None,
    permissions: list[str] | None = None,
    tools: list[str] | None = None,
    model: str | None = None,
    database: str | None = None,
) -> State:
    """Draft a plan for a task, and store it with all its rounds. Each question to the model is a task run.

    A retry of the flow run asks only the questions that have no answer yet. Drafting runs no step: pass the plan's digest to `run-plan`,
    where a person approves it.

    Args:
        task: What the plan should do, in words.
        context: Facts that the plan may need, by name.
        constraints: Rules that the plan has to follow, one sentence each.
        max_steps: The maximum number of steps.
        available_tools: Names of built-in tools that the plan may use in addition to `tools`. If they include
            names from `tools`, the plan may use only those from `tools`.
        available_secrets: Names of the secrets that the plan may use.
        permissions: Permissions that the plan gives to its tools.
        tools: Import strings (package.module:name) of tools or registries.
        model: Name of a Language Model block. By default the worker's settings name the model.
        database: Name of a Plan Store Database block. By default the worker's settings name the store.
    """
    request, registry = _draft_request(task, context, constraints, max_steps, available_tools, available_secrets, permissions, tools)
    language_model = await _open_model(model)
    try:
        async with await _open_store(database) as store:
            draft = await _draft(request, registry, language_model, store)
    finally:
        await language_model.aclose()
    if draft.plan is None:
        return Failed(message=state_message(draft.failure or "no valid plan for the task"))
    return Completed(
        message=state_message(
            f"plan {plan_digest(draft.plan)} by {draft.model}: {cost_of(draft)}; `plan show --draft {draft.id}` shows everything"
        )
    )


@flow(name="pursue-goal", persist_result=False)
async def pursue_goal(
    goal: str,
    context: dict[str, Any] | None = None,
    constraints: list[str] | None = None,
    max_steps: int | None = None,
    available_tools: list[str] | None = None,
    available_secrets: list[str] | None = None,
    permissions: list[str] | None = None,
    tools: list[str] | None = None,
    model: str | None = None,
    database: str | None = None,
) -> State:
    """Pursue a goal: draft a plan for it, wait for a person to approve the plan, run it, and summarize the outcome.

    The steps of the plan are the task runs of this flow run, and the summary is an artifact of it. A retry of the flow run keeps the plan
    that was drafted and carries completed steps.

    Args:
        goal: What is wanted, in words.
        context: Facts that the plan may need, by name.
        constraints: Rules that the plan has to follow, one sentence each.
        max_steps: The maximum number of steps.
        available_tools: Names of built-in tools that the plan may use in addition to `tools`. If they include
            names from `tools`, the plan may use only those from `tools`.
        available_secrets: Names of the secrets that the plan may use.
        permissions: Permissions that the plan gives to its tools.
        tools: Import strings (package.module:name) of tools or registries.
        model: Name of a Language Model block. By default the worker's settings name the model.
        database: Name of a Plan Store Database block. By default the worker's settings name the store.
    """
    request, registry = _draft_request(goal, context, constraints, max_steps, available_tools, available_secrets, permissions, tools)
    language_model = await _open_model(model)
    try:
        async with await _open_store(database) as store:
            flow_run_id = str(current_flow_run())
            draft = await _earlier_draft(store, flow_run_id) or await _draft(request, registry, language_model, store)
            if draft.plan is None:
                return Failed(message=state_message(draft.failure or "no valid plan for the goal"))
            compiled = compile_plan(validate(draft.plan, registry), tools=registry, store=store)
            state = cast("State", await compiled.fn())  # not as a subflow, as in `run_plan`
            await _summarize(request, language_model, store, flow_run_id)
            return state
    except PlanAdapterError as error:
        return Failed(message=state_message(str(error)))
    finally:
        await language_model.aclose()


def _draft_request(
    task: str,
    context: dict[str, Any] | None,
    constraints: list[str] | None,
    max_steps: int | None,
    available_tools: list[str] | None,
    available_secrets: list[str] | None,
    permissions: list[str] | None,
    tools: list[str] | None,
) -> tuple[PlanRequest, ToolRegistry]:
    """Return the draft request from the parameters of a flow, and the tools to plan with."""
    request = PlanRequest(
        task=task,
        context=context or {},
        constraints=tuple(constraints or ()),
        max_steps=max_steps,
        available_secrets=tuple(available_secrets or ()),
        permissions=tuple(permissions or ()),
    )
    return request, ToolRegistry.for_drafts([*Settings().tools, *(tools or [])], available_tools or [])


async def _draft(request: PlanRequest, registry: ToolRegistry, model: Model, store: PlanStore) -> Draft:
    """Return the draft of this flow run, published as an artifact. Each question to the model is a task run."""
    planner = Planner(
        model,
        registry,
        asker=ask_model_question,
        budget=Budget.of(Settings()),
        keep=store.drafts,
        redactor=await model_redactor(Settings(), request.available_secrets),
        ask_model=_ask_as_task_run,
    )
    draft = await planner.drafted(request, draft_id=current_flow_run())
    await publish_draft(draft_text(draft))
    return draft


async def _earlier_draft(store: PlanStore, draft_id: str) -> Draft | None:
    """Return the draft of an earlier try of this flow run, or None if that has no plan. A new draft would need another approval."""
    try:
        draft = await store.drafts.get(draft_id)
    except StoreError:  # there is none
        return None
    return draft if draft.plan is not None else None


async def _summarize(request: PlanRequest, model: Model, store: PlanStore, flow_run_id: str) -> None:
    """Publish a summary of this flow run as an artifact, if the run has started and ended."""
    run = await store.ledger.run_of_flow(flow_run_id)
    if run is None or not run.status.has_ended or run.started_at is None:
        return
    summary = await summarize(request.task, run, model, await model_redactor(Settings(), request.available_secrets))
    if summary.failure:
        get_run_logger().warning("the model wrote no summary: %s", log_line(summary.failure))
    await publish_summary(summary.text, flow_run_id)


async def _ask_as_task_run(model: Model, question: Question) -> ModelAnswer:
    return await run_as_task(f"ask {model.name}", lambda: model.ask(question))


@flow(name="reconcile", persist_result=False)
async def reconcile(database: str | None = None, watch_seconds: int = 0) -> State:
    """Find runs whose process died and correct their state in Prefect. The state's message lists the commands for a person to type.

    Args:
        database: Name of a Plan Store Database block. By default the worker's settings name the store.
        watch_seconds: How long to keep checking for runs whose process died, every 15 seconds. 0 means one check.
    """
    checks = int(watch_seconds / CHECK_INTERVAL_SECONDS)
    async with await _open_store(database) as store:
        found = await reconcile_runs(store, with_prefect=True)
        _log_findings(found)
        for _ in range(checks):
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            newly_found = await find_interrupted(store, with_prefect=True)
            _log_findings([finding for finding in newly_found if finding not in found])
            found = [finding for finding in found if finding.is_corrected or finding.kind != "interrupted"] + newly_found
    uncorrected = [finding for finding in found if not finding.is_corrected]
    commands = "; ".join(f"`{finding.command}`" for finding in uncorrected[:5])
    return Completed(
        message=state_message(
            f"{len(found) - len(uncorrected)} corrected, {len(uncorrected)} left for a person" + (f": {commands}" if uncorrected else "")
        )
    )


def _log_findings(found: Sequence[Finding]) -> None:
    for finding in found:
        now = "corrected" if finding.is_corrected else finding.command or "left for a person"
        get_run_logger().info("%s", log_line(f"{finding.run_id} {finding.name}: {finding.message} ({now})"))


async def _open_model(block: str | None) -> OpenAIModel:
    if block is not None:
        return (await LanguageModel.aload(block)).get_model()
    settings = Settings()
    if not settings.model:
        raise ModelError("no model is configured: name a Language Model block, or set PLAN_ADAPTER_MODEL where the worker runs")
    return model_of(settings)


async def _open_store(block: str | None) -> PlanStore:
    if block is None:
        return PlanStore()
    return (await PlanStoreDatabase.aload(block)).get_store()


async def _find_plan(source: str, store: PlanStore) -> ExecutionPlan:
    """Return the plan that `source` names, in the same notation as on the command line."""
    match = _STORED_PLAN.fullmatch(source.strip())
    if match is None:
        return await aload_plan(source, store=store)
    version = match["version"]
    return await store.get(match["name"] or match["digest"], version=int(version) if version else None)
