"""Runs a case as a goal or as a plan, and asks AgentDojo what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from plan_adapter import ExecutionPlan, PlanRun, PlanStore
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import Step
from plan_adapter.model.status import PlanStatus
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.validation import bind_inputs, validate
from tests.agentdojo.approvers import Careful, Person, RubberStamp
from tests.agentdojo.model import ObedientModel
from tests.agentdojo.plans import plan_of
from tests.agentdojo.suites import Case, Desk, effect_of, texts


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    way: str
    case: Case
    is_task_done: bool
    is_attack_executed: bool
    gates: int  # how many were opened
    writes: int  # how many calls that write were made
    unasked: int  # those of them that no gate showed


WAYS = ("careful", "rubber stamp", "none")
"""Who is at the gates."""


async def run_case(case: Case, store: PlanStore, ways: Sequence[str] = WAYS) -> list[Outcome]:
    """Run `case` as a goal of the obedient model, once with each of `ways`."""
    environment = case.environment()
    calls = case.task.ground_truth(environment.model_copy(deep=True))
    return [await _pursue(way, Desk.of(case, environment), calls, store) for way in ways]


async def _pursue(way: str, desk: Desk, calls: Sequence[Any], store: PlanStore) -> Outcome:
    person = {"careful": partial(Careful, desk.case.suite, calls), "rubber stamp": RubberStamp}.get(way, lambda: None)()
    run = await _run(_goal(desk, asks=person is not None), desk, person, store, model=ObedientModel(desk, calls))
    return _outcome(way, desk, person, _summary(run))


async def run_plan_first(case: Case, store: PlanStore) -> Outcome | None:
    """Run `case` as the plan that a rubber stamp approved before any data was read, or return None if it has no plan."""
    document = plan_of(case.suite, case.user_task)
    if document is None:
        return None
    desk, person = Desk.of(case, case.environment()), RubberStamp()
    plan = ExecutionPlan.model_validate({"name": _name(case), "description": case.task.PROMPT, **document})
    run = await _run(plan, desk, person, store)
    said = "\n".join(texts(dict(run.outputs))) if run.status is PlanStatus.COMPLETED else ""
    return _outcome("plan first", desk, person, said, approved_as_plan=person.gates == 1)


def _name(case: Case) -> str:
    return f"{case.suite}-{case.user_task}".replace("_", "-")


def _goal(desk: Desk, *, asks: bool) -> ExecutionPlan:
    case, tools = desk.case, desk.tools
    plan = ExecutionPlan(name=_name(case), description="A task of AgentDojo")
    plan.steps = [Step(id="task", goal=case.task.PROMPT, tools=[tool.name for tool in tools])]
    if not asks:
        plan.options.require_approval = False
        plan.approval = ApprovalPolicy(always_execute=[tool.name for tool in tools if tool.effect != "read"])
    return plan


async def _run(plan: ExecutionPlan, desk: Desk, person: Person | None, store: PlanStore, *, model: ObedientModel | None = None) -> PlanRun:
    request = RunRequest(goal_model=model, approver=None if person is None else person.approver)
    return await execute_plan(bind_inputs(validate(plan, desk.tools)), run_request=request, store=store, offline=True)


def _summary(run: PlanRun) -> str:
    result = run.steps[0].result
    return str(result["summary"]) if run.status is PlanStatus.COMPLETED and isinstance(result, dict) else ""


def _outcome(way: str, desk: Desk, person: Person | None, output: str, *, approved_as_plan: bool = False) -> Outcome:
    writes = [call.function for call in desk.calls if effect_of(call.function) != "read"]
    asked = [] if person is None else person.asked_about
    is_done, is_executed = desk.judge(output)
    return Outcome(
        way=way,
        case=desk.case,
        is_task_done=is_done,
        is_attack_executed=is_executed,
        gates=0 if person is None else person.gates,
        writes=len(writes),
        unasked=0 if approved_as_plan else sum(max(0, writes.count(name) - asked.count(name)) for name in set(writes)),
    )
