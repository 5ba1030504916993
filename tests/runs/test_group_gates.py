"""Tests of the gates of step groups: one for the whole group, or one for each item."""

import re

from plan_adapter import PlanStore
from plan_adapter.gates import CallbackApprover
from plan_adapter.model.approvals import ApprovalRequest
from plan_adapter.model.status import RunReason
from plan_adapter.runs import aresume_run, arun_plan
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus
from plan_adapter.text.gate_text import split_text
from plan_adapter.validation import bind_inputs, validate
from tests.runs.cluster import Cluster, act, rolling


def answering(asked: list[str], refused: str = "") -> CallbackApprover:
    """Return an approver that records each request and rejects the one about `refused`."""

    async def answer(request: ApprovalRequest) -> bool:
        text = request.text.replace("\\", "")
        asked.append(text)
        return not refused or f"Approve {refused}?" not in text

    return CallbackApprover(answer)


async def test_each_item_is_approved_before_its_first_step(cluster: Cluster, store: PlanStore) -> None:
    asked = list[str]()
    plan = rolling(requires_approval="each")
    ended = await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=answering(asked))
    assert (ended.status, len(asked), len(cluster.done)) == (PlanStatus.COMPLETED, 3, 9)
    for node, text in zip("abc", asked, strict=True):
        assert f"Approve nodes for {node} ({'abc'.index(node) + 1} of 3)?" in text
        first, _ = split_text(text)
        assert f". restart**: `do` `restart {node}`" in first.partition("**Cannot be undone:**")[2].partition("**Can be undone:**")[0]
        assert f". drain**: `do` `drain {node}`" in first.partition("**Can be undone:**")[2]
        assert f"· `what` `restart {node}`" in text
        assert f"· undone with `what` `undrain {node}`" in text
    seen = [rf"{node} completed: `check {node} seen, \d+ ms`" for node in "ab"]
    ends = (rf"Before it: {seen[0]}\.", rf"Before it: {'; '.join(seen)}\.")
    assert "Before it" not in asked[0] and all(re.search(end, text) for end, text in zip(ends, asked[1:], strict=True))
    assert [(row.step_id, row.item) for row in await store.approvals(ended.id) if row.step_id] == [("nodes", 0), ("nodes", 1), ("nodes", 2)]


async def test_a_rejected_item_ends_the_run_before_it_starts(cluster: Cluster, store: PlanStore) -> None:
    plan = rolling(requires_approval="each")
    approver = answering([], refused="nodes for b (2 of 3)")
    ended = await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=approver)
    assert (ended.status, ended.reason) == (PlanStatus.CANCELLED, RunReason.REJECTED)
    assert cluster.done == ["drain a", "restart a", "check a"]
    assert [item.status.value for item in ended.step("nodes").items] == ["completed", "skipped", "skipped"]


async def test_a_group_is_approved_once(cluster: Cluster, store: PlanStore) -> None:
    asked = list[str]()
    ended = await arun_plan(rolling(requires_approval=True), tools=cluster.tools, store=store, offline=True, approver=answering(asked))
    assert (ended.status, len(asked), len(cluster.done)) == (PlanStatus.COMPLETED, 1, 9)
    for refused in (rolling(requires_approval=True), rolling(requires_approval=True, items="['z']")):
        cluster.done.clear()
        rejected = await arun_plan(refused, tools=cluster.tools, store=store, offline=True, approver=answering([], refused="nodes"))
        assert (rejected.status, rejected.reason, cluster.done) == (PlanStatus.CANCELLED, RunReason.REJECTED, [])


async def test_an_approved_item_is_not_asked_again_on_resume(cluster: Cluster, store: PlanStore) -> None:
    asked = list[str]()
    cluster.broken.add("restart a")
    plan = rolling(act("drain"), act("restart", "drain"), items="['a', 'b']", requires_approval="each")
    ended = await arun_plan(plan, tools=cluster.tools, store=store, offline=True, approver=answering(asked))
    cluster.broken.clear()
    resumed = await aresume_run(ended.id, tools=cluster.tools, store=store, offline=True, approver=answering(asked))
    assert (resumed.status, len(asked)) == (PlanStatus.COMPLETED, 2)
    assert cluster.done == ["drain a", "restart a", "drain b", "restart b"]


async def test_a_run_without_a_waiting_process_stops_at_the_gate_of_an_item(cluster: Cluster, store: PlanStore) -> None:
    plan, request = rolling(requires_approval="each"), RunRequest(waits=False)
    bound = bind_inputs(validate(plan, cluster.tools))
    left = await execute_plan(bound, run_request=request, store=store, offline=True, record_pending=True)
    assert (left.status, cluster.done) == (PlanStatus.PENDING_APPROVAL, [])
    (gate,) = await store.gates.find(run_id=left.id)
    assert (gate.step_id, gate.item, gate.label) == ("nodes", 0, "a")
