"""Check, format and approve plans from Python. A plan may be an ExecutionPlan, a path, the text of a document, or `store:NAME`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from plan_adapter import validation
from plan_adapter.gates.approval import answer_to, os_user
from plan_adapter.loading import PlanSource, plan_of
from plan_adapter.model.approvals import Approval, ApprovalRequest, Decision, StandingApproval
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.problems import Problem
from plan_adapter.model.record import PlanRun
from plan_adapter.text import formatting
from plan_adapter.tools.registry import Tools, as_registry
from plan_adapter.validation import ValidatedPlan, bind_inputs

if TYPE_CHECKING:
    from plan_adapter.model.rounds import RoundRecord
    from plan_adapter.store.store import PlanStore
    from plan_adapter.text.formatting import StepCallRecord


def validate(plan: PlanSource, tools: Tools, *, store: "PlanStore | None" = None) -> ValidatedPlan:
    """Return `plan` as a ValidatedPlan. Raises InvalidPlanError with every problem."""
    return validation.validate(plan_of(plan, store=store, twin=_LOADER), as_registry(tools))


def find_problems(plan: PlanSource, tools: Tools, *, store: "PlanStore | None" = None) -> list[Problem]:
    """Return every problem that prevents `plan` from running with `tools`, in document order. Does not raise for a wrong document."""
    return [problem for problem in lint(plan, tools, store=store) if problem.severity == "error"]


def lint(plan: PlanSource, tools: Tools, *, store: "PlanStore | None" = None) -> list[Problem]:
    """Return every problem of `find_problems`, plus warnings about things that can run but are probably wrong."""
    registry = as_registry(tools)
    try:
        loaded = plan_of(plan, store=store, twin=_LOADER)
    except InvalidPlanError as error:
        return error.problems
    return validation.lint(loaded, registry)


def format_plan(
    plan_or_run: PlanSource | PlanRun,
    *,
    standing: StandingApproval | None = None,
    calls: "Mapping[str, Sequence[StepCallRecord]] | None" = None,
    rounds: "Mapping[str, Sequence[RoundRecord]] | None" = None,
    store: "PlanStore | None" = None,
) -> str:
    """Return a plan with its dependencies, implied ones marked, or a run with the results of its steps, as Markdown.

    `standing` is the standing approval that the run used, because the run's record does not contain it. `calls` are the run's calls by
    step, and `rounds` those of its goals.
    """
    known = plan_or_run if isinstance(plan_or_run, PlanRun) else plan_of(plan_or_run, store=store, twin=_LOADER)
    return formatting.format_plan(known, standing=standing, calls=calls, rounds=rounds)


def approve(
    plan: PlanSource,
    *,
    tools: Tools,
    by: str | None = None,
    inputs: Mapping[str, object] | None = None,
    note: str = "",
    valid_for: timedelta | None = None,
    store: "PlanStore | None" = None,
) -> Approval:
    """Return an approval of `plan` as it is now, with these inputs and tool definitions. Pass it to `run_plan`.

    `by` is the person who approves, by default the account of this process. Only one run can use the approval. `valid_for` limits it in
    time. `store` is where a stored plan is loaded from; nothing is written. Raises InvalidPlanError.
    """
    return _answer_plan("approve", plan, tools=tools, by=by, inputs=inputs, note=note, valid_for=valid_for, store=store)


def reject(
    plan: PlanSource,
    *,
    tools: Tools,
    by: str | None = None,
    inputs: Mapping[str, object] | None = None,
    note: str = "",
    valid_for: timedelta | None = None,
    store: "PlanStore | None" = None,
) -> Approval:
    """Return a rejection of `plan`. A run that receives it is recorded as cancelled, with the reason rejected."""
    return _answer_plan("reject", plan, tools=tools, by=by, inputs=inputs, note=note, valid_for=valid_for, store=store)


_LOADER = "aload_plan"
"""What to await in an event loop, before these functions, to load what is in the store."""


def _answer_plan(
    decision: Decision,
    plan: PlanSource,
    *,
    tools: Tools,
    by: str | None,
    inputs: Mapping[str, object] | None,
    note: str,
    valid_for: timedelta | None,
    store: "PlanStore | None",
) -> Approval:
    if valid_for is not None and not isinstance(valid_for, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]  # a caller may not check
        raise TypeError(f"valid_for is {valid_for!r}: give a timedelta, as in timedelta(minutes=30)")
    bound = bind_inputs(validate(plan, tools, store=store), inputs)
    request = ApprovalRequest(bound.approval_digest, bound.validated.plan.name, bound.validated.plan.description, text="")
    answer = answer_to(request, decision=decision, by=by or os_user(), known_by="unverified", note=note)
    return answer if valid_for is None else replace(answer, expires_at=answer.at + valid_for)
