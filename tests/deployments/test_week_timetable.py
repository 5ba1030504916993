"""Tests of the runbook week-timetable: it has no problems, its test cases pass, and models pursue its goal over HTTP."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from deployments.timetable import week
from plan_adapter import PlanStore, ToolRegistry
from plan_adapter.documents import plan_schema
from plan_adapter.plans import lint
from plan_adapter.store import PlanStatus, load_plan
from plan_adapter.testing import Case, CaseRunner, load_cases
from tests.agent.goal_players import Answer, Seen, reads, writes
from tests.agent.server import ScriptedServer
from tests.deployments.conftest import RUNBOOKS
from tests.timetable.conftest import configured, forget_model_servers, full, store, timetable
from tests.timetable.pursuit import Person, pursue

__all__ = ["configured", "forget_model_servers", "full", "store", "timetable"]

RUNBOOK = RUNBOOKS.parent / "timetable" / "week-timetable.yaml"
TOOLS = ToolRegistry([*ToolRegistry.with_builtins(), *week.TOOLS])


def test_the_runbook_has_no_problems_and_matches_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_MODEL", "m")
    assert lint(load_plan(RUNBOOK), TOOLS) == []
    document = yaml.safe_load(RUNBOOK.read_text(encoding="utf-8"))
    assert list(Draft202012Validator(plan_schema()).iter_errors(document)) == []


@pytest.mark.parametrize("case", load_cases(RUNBOOK.with_suffix(".test.yaml"), tools=TOOLS), ids=lambda case: case.name)
def test_the_test_cases_of_the_runbook_pass(case: Case) -> None:
    with CaseRunner() as runner:
        result = runner.run(case)
    assert result.passed, result.report()


def by_subject(seen: Seen) -> Answer:
    """Place one task per round in a free slot, and then group the tasks by subject."""
    tasks, free = seen.result("list_tasks"), seen.result("find_free")
    if tasks is None:
        return reads("list_tasks", status="pending")
    if free is None:
        return reads("find_free")
    count = sum(evidence["name"] == "place" and evidence["success"] for evidence in seen.evidence)
    if count < len(tasks):
        return writes("place", task=tasks[count]["state_id"], **free[count + len(seen.refusals)])
    if not seen.proof("min_context_switch"):
        return writes("min_context_switch")
    return seen.end(f"{seen.proof('place')}, {seen.proof('min_context_switch')}: 全部安排好了")


async def test_a_model_fills_the_week_one_confirmed_change_at_a_time(
    timetable: Path, store: PlanStore, configured: Callable[[ScriptedServer], ScriptedServer]
) -> None:
    answers = iter([("reject", "星期一第二节不行")])  # to the first change; every other one is confirmed
    person = Person(answer=lambda _: next(answers, True))
    inputs = {"wish": "把所有待办任务排进这一周，同一科目放在一起", "may_reorder": True}
    done = await pursue(by_subject, store, configured, plan=load_plan(RUNBOOK), person=person, tools=TOOLS, inputs=inputs)
    assert done.run.status is PlanStatus.COMPLETED, done.run.message
    assert (done.run.outputs["pending"], len(person.asked), week.switches()) == (0, 7, 1)
    assert "Round 3 of the goal “把所有待办任务排进这一周" in person.asked[0].text


@pytest.mark.parametrize("may_reorder", [False, True])
async def test_the_order_changes_only_in_a_run_that_allows_it(
    full: Path, store: PlanStore, configured: Callable[[ScriptedServer], ScriptedServer], *, may_reorder: bool
) -> None:
    def reorders(seen: Seen) -> Answer:
        if proof := seen.proof("min_context_switch", "swap"):
            return seen.end(f"{proof}: 同一科目放在一起了")
        return writes("swap", one=4, other=5) if seen.refusals else writes("min_context_switch")

    before = week.get_order()
    inputs = {"wish": "同一科目放在一起", "may_reorder": may_reorder}
    done = await pursue(reorders, store, configured, plan=load_plan(RUNBOOK), tools=TOOLS, inputs=inputs)
    assert done.run.status is PlanStatus.COMPLETED, done.run.message
    refused = any("`min_context_switch` needs the permission `allow_reorder`" in str(request["messages"]) for request in done.decisions)
    assert (refused, week.get_order() == before) == (not may_reorder, not may_reorder)
    assert (done.run.outputs["moved"] != [], done.run.outputs["restored"]) == (True, not may_reorder)
