"""Tests of a goal that edits a working copy of the week: approved and rejected saves, the order guard, and a killed process."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.timetable import week
from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.gates import CallbackApprover
from plan_adapter.model.approvals import ApprovalRequest
from plan_adapter.model.status import RunReason
from plan_adapter.runs import aresume_run
from plan_adapter.store import PlanStatus
from tests.agent.goal_players import Answer, Seen, reads, writes
from tests.agent.server import ScriptedServer
from tests.processes import Program
from tests.timetable import editing
from tests.timetable.pursuit import Person, placed, pursue

Configure = Callable[[ScriptedServer], ScriptedServer]

PLAN = """
name: 编辑
description: 在副本中安排高数作业
options: {require_approval: false}
approval: {always_execute: [put]}
steps:
  - {id: open, tool_name: open_week, description: 打开副本}
  - id: schedule
    goal: 把高数作业安排到星期二
    done_when: 高数作业在星期二有一个时段
    tools: [find_slot, put]
    depends_on: [open]
  - id: guard
    tool_name: compare_order
    description: 比较顺序
    parameters: {baseline: "${{ steps.open.result }}"}
    done_when: "${{ result.kept }}"
    depends_on: [schedule]
  - {id: save, tool_name: save_week, description: 保存, requires_approval: true, depends_on: [guard]}
"""


def edits(seen: Seen) -> Answer:
    """Put the task into the first free slot of the day."""
    if proof := seen.proof("put"):
        return seen.end(f"{proof}: 已安排")
    free = seen.result("find_slot")
    return reads("find_slot", day=2) if free is None else writes("put", task=3, **free[0])


async def test_the_week_changes_only_when_a_person_approves_the_save(timetable: Path, store: PlanStore, configured: Configure) -> None:
    asked = list[dict[str, Any]]()

    def answer(request: ApprovalRequest) -> bool:
        asked.append({"text": request.text, "placed": placed()})
        return True

    done = await pursue(edits, store, configured, plan=PLAN, person=Person(answer=answer), tools=editing.TOOLS)
    assert (done.run.status, placed()) == (PlanStatus.COMPLETED, {"高数作业": (2, 1)})
    assert [request["placed"] for request in asked] == [{}], "the model's edit asks nobody and changes only the copy"
    assert "save_week" in asked[0]["text"].replace("\\", "")
    assert done.run.step("save").result is True


async def test_a_rejected_save_leaves_the_week_unchanged(timetable: Path, store: PlanStore, configured: Configure) -> None:
    done = await pursue(edits, store, configured, plan=PLAN, person=Person(answer=lambda _: ("reject", "不要")), tools=editing.TOOLS)
    assert (done.run.reason, placed()) == (RunReason.REJECTED, {})


async def test_a_save_does_not_overwrite_a_concurrent_change(timetable: Path, store: PlanStore, configured: Configure) -> None:
    def answer(_: ApprovalRequest) -> bool:
        week.place(7, 5, 5)
        return True

    done = await pursue(edits, store, configured, plan=PLAN, person=Person(answer=answer), tools=editing.TOOLS)
    assert placed() == {"英语听力": (5, 5)}
    assert "changed after the working copy was made" in (done.run.step("save").error or "")


def breaks_order(seen: Seen) -> Answer:
    """Move a task to the end of the week, and move it back if ending the goal is refused."""
    match [evidence["name"] for evidence in seen.evidence].count("put"):
        case 0:
            return writes("put", task=3, day=7, slot=6)
        case 1 if "out of order" in str(seen.refusals):
            return writes("put", task=3, day=1, slot=3)
        case _:
            return seen.end(seen.proof("put"))


@pytest.mark.parametrize(("permissions", "place"), [("[]", (1, 3)), ("[allow_reorder]", (7, 6))])
async def test_a_goal_must_restore_the_order_unless_the_plan_allows_reordering(
    timetable: Path, store: PlanStore, configured: Configure, permissions: str, place: tuple[int, int]
) -> None:
    week.place(3, 1, 2)
    week.place(4, 2, 1)
    week.place(5, 2, 2)
    plan = PLAN.replace("\napproval:", f"\npermissions: {permissions}\napproval:").replace('    done_when: "${{ result.kept }}"\n', "")
    done = await pursue(breaks_order, store, configured, plan=plan, tools=editing.TOOLS)
    assert (done.run.status, placed()["高数作业"]) == (PlanStatus.COMPLETED, place)
    refused = "safety: `keeps_order`: out of order: 高数作业" in str(done.decisions[-1]["messages"])
    assert refused is (place == (1, 3))


STEPS = """
name: 编辑
description: 在副本中安排
options: {require_approval: false}
steps:
  - {id: open, tool_name: open_week, description: 打开副本}
  - {id: first, tool_name: put, description: 安排, parameters: {task: 3, day: 2, slot: 1}, depends_on: [open]}
  - {id: pause, tool_name: pause, description: 等待, depends_on: [first]}
  - {id: second, tool_name: put, description: 安排, parameters: {task: 4, day: 2, slot: 2}, depends_on: [pause]}
  - {id: save, tool_name: save_week, description: 保存, requires_approval: true, depends_on: [second]}
"""

PROGRAM = """
import asyncio, os, signal, sys
from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.runs import arun_plan
from plan_adapter.store import load_plan
from tests.timetable import editing

@tool(effect="read")
def pause() -> None:
    \"\"\"Die.\"\"\"
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(arun_plan(load_plan(sys.argv[1]), tools=ToolRegistry([editing.TOOLS, pause]), store=PlanStore(sys.argv[2]), offline=True))
"""


@tool(effect="read")
def pause() -> None:
    """Do nothing."""


async def test_a_run_resumed_after_its_process_was_killed_keeps_its_working_copy(timetable: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(STEPS, encoding="utf-8")
    url, before = f"sqlite:///{tmp_path / 'plans.db'}", timetable.read_bytes()
    assert Program(PROGRAM, tmp_path / "plan.yaml", url).wait() == -signal.SIGKILL
    assert timetable.read_bytes() == before

    async with PlanStore(url) as store:
        (killed,) = await store.runs()
        resumed = await aresume_run(
            killed.id,
            tools=ToolRegistry([editing.TOOLS, pause]),
            approver=CallbackApprover(lambda _: True, by="ana"),
            store=store,
            offline=True,
        )
    assert (resumed.status, resumed.step("first").carried) == (PlanStatus.COMPLETED, True)
    assert placed() == {"高数作业": (2, 1), "英语阅读": (2, 2)}
