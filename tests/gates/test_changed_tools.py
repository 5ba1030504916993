"""Tests of tool drift: when a tool's definition differs from the approved one, the gate reopens, shows the change and asks again."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanRun, ToolRegistry, approve, tool
from plan_adapter.errors import InvalidPlanError, NotApprovedError, RunConflictError
from plan_adapter.model.approvals import Gate
from plan_adapter.model.options import ApprovalPolicy, Effect
from plan_adapter.model.status import RunReason
from plan_adapter.runs import arevise_run
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus
from tests.gates.world import FixedApprover, Silent, World
from tests.store.conftest import on_both_databases


class Shop:
    """Tools that record their calls; `ship` fails while `is_broken`."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.is_broken = True

    def tools(
        self, *, effect: str = "idempotent_write", force: bool = False, permissions: tuple[str, ...] = (), guard: str = "write"
    ) -> ToolRegistry:
        """Return the tools, with the given definition of `ship` and effect of `guard`."""

        def build(name: str) -> str:
            """Build."""
            self.called.append(f"build {name}")
            return f"{name}-1"

        def ask(name: str) -> str:
            """Ask before this."""
            self.called.append(f"guard {name}")
            return name

        def ship(name: str, force: bool = False, token: str = "s3cret-default") -> str:
            """Ship."""
            if self.is_broken:
                raise ValueError("no place")
            self.called.append(f"ship {name}")
            return f"{name} is there"

        def ship_plainly(name: str) -> str:
            """Ship."""
            return ship(name)

        shipping = tool(effect=effect, name="ship", permissions=permissions)(ship if force else ship_plainly)  # type: ignore[call-overload]
        asking = tool(effect=guard, name="guard")(ask)  # type: ignore[call-overload]
        return ToolRegistry([tool(effect="write")(build), asking, shipping])

    def plan(self, *, policy: ApprovalPolicy | None = None, timeout_ms: int = 0, asks: bool = True) -> ExecutionPlan:
        """Return a plan that builds, then ships."""
        plan = ExecutionPlan(description="Build 商店, then ship it", approval=policy, permissions=["net", "disk", "网络", "a", "b"])
        plan.add_step("build", "Build", {"name": "商店"}, id="build")
        plan.add_step("ship", "Ship", {"name": "${{ steps.build.result }}"}, id="ship", depends_on=["build"])
        plan.options.approval_timeout_ms = timeout_ms
        plan.options.require_approval = asks
        return plan


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def stopped(world: World, shop: Shop, plan: ExecutionPlan | None = None) -> PlanRun:
    """Return an approved run that built and failed to ship; `ship` works from now on."""
    plan = plan or shop.plan()
    run_request = world.run_request(approval=approve(plan, tools=shop.tools(), by="ana"))
    run = await execute_plan(world.bound(plan, tools=shop.tools()), run_request=run_request, store=world.store, offline=True)
    assert (run.status, shop.called) == (PlanStatus.PARTIAL, ["build 商店"])
    shop.is_broken = False
    return run


def resuming(world: World, run: PlanRun, tools: ToolRegistry, approver: Any = None, **given: Any) -> "asyncio.Task[PlanRun]":
    task = asyncio.ensure_future(world.resume(run.id, tools=tools, approver=approver or Silent(), **given))
    world.tasks.append(task)
    return task


@on_both_databases
async def test_the_gate_reopens_with_the_tool_drift_and_its_approval_covers_the_rest(world: World, shop: Shop) -> None:
    run = await stopped(world, shop)
    task = resuming(world, run, shop.tools(effect="write", force=True, permissions=("net",)), requested_by="li")
    gate = await with_text(world, await world.gate())
    assert "### Tools that changed\n\n- ⚠️ **MAY DO MORE THAN BEFORE:** `ship`, called by `ship`\n" in gate.text
    assert "  - effect: idempotent_write → **write**\n  - **permissions added**: `net`\n" in gate.text
    assert '  - parameter added: `force` `{"default": false, "type": "boolean", "required": false}`\n' in gate.text
    assert "parameter added: `token`" in gate.text
    assert "s3cret-default" not in gate.text
    assert "- unchanged: `build`\n" in gate.text
    assert "### What changed\n" not in gate.text  # the plan itself is unchanged
    assert "the code of `ship` has changed since attempt 1 of `ship`" in gate.text
    (replaced,) = await world.store.revisions.of_run(run.id)
    assert (replaced.digest, replaced.approval_digest, replaced.by) == (run.digest, run.approval_digest, "li")
    assert replaced.note == "tools changed: `ship` (parameters, effect, permissions)"
    assert [definition["name"] for definition in replaced.definitions or ()] == ["build", "ship"]
    await world.answer(gate)
    done = await task
    assert (done.status, shop.called) == (PlanStatus.COMPLETED, ["build 商店", "ship 商店-1"])
    assert (done.step("build").carried, done.approved_by, done.id) == (True, "ana", run.id)
    assert (await world.store.verify(run.id)).ok


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "effect_lowered": ({"effect": "write"}, {"effect": "read"}, "- `ship`, called by `ship`\n  - effect: write → **read**\n"),
    "effect_raised": ({"effect": "read"}, {"effect": "write"}, "- ⚠️ **MAY DO MORE THAN BEFORE:** `ship`, called by `ship`\n  - effect"),
    "permission_added": (
        {},
        {"permissions": ("网络",)},
        "⚠️ **MAY DO MORE THAN BEFORE:** `ship`, called by `ship`\n  - **permissions added**: `网络`",
    ),
    "permission_removed": (
        {"permissions": ("a", "b")},
        {"permissions": ("b",)},
        "- `ship`, called by `ship`\n  - permissions removed: `a`\n",
    ),
    "parameter_added": ({}, {"force": True}, "  - parameter added: `force` "),
    "parameter_removed": ({"force": True}, {}, "  - parameter removed: `force` "),
}


@pytest.mark.parametrize(("before", "after", "shown"), CHANGES.values(), ids=CHANGES)
async def test_the_gate_shows_each_change_of_a_tool_definition(
    before: dict[str, Any], after: dict[str, Any], shown: str, world: World, shop: Shop
) -> None:
    run, gate = await detached(world, shop, shop.tools(**before))
    task = resuming(world, run, shop.tools(**after))
    fresh = await another_gate(world, gate)
    assert shown in fresh.text
    assert (await world.store.gates.get(gate.id)).end == "superseded"
    shop.is_broken = False
    await world.answer(fresh)
    assert (await task).status is PlanStatus.COMPLETED


async def detached(world: World, shop: Shop, tools: ToolRegistry) -> tuple[PlanRun, Gate]:
    bound = world.bound(shop.plan(), tools=tools)
    run = await execute_plan(bound, run_request=world.run_request(), store=world.store, offline=True, record_pending=True)
    return run, await world.gate()


async def another_gate(world: World, than: Gate) -> Gate:
    """Return the gate that replaced `than`, with its text."""
    while (gate := await world.gate()).id == than.id:
        await world.store.changed(0.5)
    return await with_text(world, gate)


async def with_text(world: World, gate: Gate) -> Gate:
    return await world.store.gates.get(gate.id)


async def test_rejecting_the_changed_tools_ends_the_run(world: World, shop: Shop) -> None:
    run = await stopped(world, shop)
    ended = await world.resume(run.id, tools=shop.tools(effect="write"), approver=FixedApprover("reject", note="no 不行"))
    assert (ended.status, ended.reason, ended.rejection_note) == (PlanStatus.CANCELLED, RunReason.REJECTED, "no 不行")
    assert shop.called == ["build 商店"]
    with pytest.raises(RunConflictError, match="was rejected"):
        await world.resume(run.id, tools=shop.tools(), approver=FixedApprover())


async def test_an_unanswered_tool_drift_gate_ends_the_run_as_expired(world: World, shop: Shop) -> None:
    run = await stopped(world, shop, shop.plan(timeout_ms=50))
    ended = await world.resume(run.id, tools=shop.tools(effect="write"), approver=Silent())
    assert (ended.status, ended.reason, shop.called) == (PlanStatus.CANCELLED, RunReason.EXPIRED, ["build 商店"])


@pytest.mark.parametrize(("by", "did"), [("runner", "started this run"), ("li", "changed this run")])
async def test_neither_the_starter_nor_the_resumer_may_approve_tool_drift(by: str, did: str, world: World, shop: Shop) -> None:
    run = await stopped(world, shop, shop.plan(policy=ApprovalPolicy(self_approval=False)))
    with pytest.raises(NotApprovedError, match=f"{by} {did} and may not approve it"):
        await world.resume(run.id, tools=shop.tools(effect="write"), approver=FixedApprover(by=by), requested_by="li")
    assert shop.called == ["build 商店"]
    # An approval given in advance is refused as well.
    given = replace(approve(shop.plan(policy=ApprovalPolicy(self_approval=False)), tools=shop.tools(effect="write"), by=by), by=by)
    with pytest.raises(NotApprovedError, match=f"{by} {did} and may not approve it"):
        await world.resume(run.id, tools=shop.tools(effect="write"), approval=given, requested_by="li")
    done = await world.resume(run.id, tools=shop.tools(effect="write"), approver=FixedApprover(by="ana"), requested_by="li")
    assert done.status is PlanStatus.COMPLETED


async def test_tool_drift_without_an_approver_changes_nothing_or_leaves_the_run_at_its_gate(world: World, shop: Shop) -> None:
    run = await stopped(world, shop)
    before = await world.store.export(run.id)
    other = shop.tools(effect="write", permissions=("net",))
    with pytest.raises(
        NotApprovedError, match=r"tools of run .* have changed since it was approved: `ship` \(effect, permissions\); pass an approver"
    ):
        await world.resume(run.id, tools=other)
    old = approve(shop.plan(), tools=shop.tools(), by="ana")
    with pytest.raises(NotApprovedError, match="covers other content"):
        await world.resume(run.id, tools=other, approval=old)
    assert await world.store.export(run.id) == before

    async def start_again() -> PlanRun:
        return await execute_resume(
            run.id, tools=other, run_request=world.run_request(), store=world.store, offline=True, record_pending=True
        )

    waiting = await start_again()
    assert (waiting.status, waiting.step("ship").status) == (PlanStatus.PENDING_APPROVAL, "failed")  # unchanged until the run resumes
    gate = await world.gate()
    assert (await start_again()).status is PlanStatus.PENDING_APPROVAL
    assert (await world.gate()).id == gate.id
    await world.answer(gate)
    assert (await world.resume(run.id, tools=other)).status is PlanStatus.COMPLETED
    assert shop.called == ["build 商店", "ship 商店-1"]


async def test_an_advance_approval_of_the_new_content_is_accepted(world: World, shop: Shop) -> None:
    run = await stopped(world, shop)
    other = shop.tools(effect="write")
    done = await world.resume(run.id, tools=other, approval=approve(shop.plan(), tools=other, by="bo"))
    assert (done.status, done.approved_by) == (PlanStatus.COMPLETED, "bo")


async def test_returning_to_the_approved_tools_needs_no_new_approval(world: World, shop: Shop) -> None:
    run = await stopped(world, shop)
    task = resuming(world, run, shop.tools(effect="write"))
    await world.gate()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    done = await world.resume(run.id, tools=shop.tools())
    assert (done.status, len(await world.store.revisions.of_run(run.id))) == (PlanStatus.COMPLETED, 2)


async def test_the_approver_sees_every_change_since_the_last_approval(world: World, shop: Shop) -> None:
    run = await stopped(world, shop)
    first = resuming(world, run, shop.tools(permissions=("net",)))
    gate = await world.gate()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    task = resuming(world, run, shop.tools(permissions=("net", "disk")))
    fresh = await another_gate(world, gate)
    assert "**permissions added**: `disk`, `net`\n" in fresh.text
    await world.answer(fresh)
    assert (await task).status is PlanStatus.COMPLETED


@pytest.mark.parametrize("answered", [True, False])
async def test_the_approver_sees_every_change_since_a_person_last_answered(answered: bool, world: World, shop: Shop) -> None:
    run, gate = await world.detached(_checks("one", "c"))
    if answered:
        await world.answer(gate, "request_changes", note="more")
    await arevise_run(run.id, _checks("rm -rf", "c", effect="write"), tools=world.tools(), by="li", store=world.store)
    await arevise_run(run.id, _checks("rm -rf", "cc", effect="write"), tools=world.tools(), by="li", store=world.store)
    text = await _asked_again(world, run)
    assert "MAY DO MORE THAN BEFORE: `b`, read → write" in text
    assert "- `b.parameters.target`: `one` → `rm -rf`\n" in text
    assert "- `c.parameters.target`: `c` → `cc`\n" in text
    assert "unchanged" not in text
    if answered:  # the next version is compared with the last one that somebody answered, not with the first
        await world.answer(await world.gate(), "request_changes", note="another c")
        await arevise_run(run.id, _checks("rm -rf", "d", effect="write"), tools=world.tools(), by="li", store=world.store)
        assert "- `c.parameters.target`: `cc` → `d`\n- unchanged: `b`\n" in await _asked_again(world, run)


async def _asked_again(world: World, run: PlanRun) -> str:
    """Return the text of the gate that a resume without an approver leaves open."""
    await execute_resume(run.id, tools=world.tools(), run_request=world.run_request(), store=world.store, offline=True, record_pending=True)
    return (await with_text(world, await world.gate())).text


def _checks(first: str, second: str, *, effect: Effect = "read") -> ExecutionPlan:
    plan = ExecutionPlan(description="Look twice")
    plan.add_step("strike" if effect == "write" else "look", "b", {"target": first}, id="b", effect=effect)
    plan.add_step("look", "c", {"target": second}, id="c")
    return plan


async def test_a_plan_without_approval_resumes_and_records_the_changed_tools(world: World, shop: Shop) -> None:
    run = await stopped(world, shop, shop.plan(asks=False))
    done = await world.resume(run.id, tools=shop.tools(effect="write"))
    assert (done.status, [row.note for row in await world.store.revisions.of_run(run.id)]) == (
        PlanStatus.COMPLETED,
        ["tools changed: `ship` (effect)"],
    )


@pytest.mark.parametrize("changed", ["ship", "guard"])
async def test_a_call_approval_is_valid_while_its_tool_is_unchanged(changed: str, world: World, shop: Shop) -> None:
    plan, shop.is_broken = shop.plan(), False
    guard = plan.add_step("guard", "Ask first", {"name": "门"}, id="guard", depends_on=["build"], requires_approval=True)
    plan.step("ship").depends_on.append(guard.id)
    work = execute_plan(world.bound(plan, tools=shop.tools()), run_request=world.run_request(Silent()), store=world.store, offline=True)
    task = asyncio.ensure_future(work)
    world.tasks.append(task)
    await world.answer(await world.gate())
    gate = await world.gate(step="guard")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    # Reopen the gate, as if the process had died instead of cancelling, and answer it.
    await world.sql('UPDATE gates SET closed_at = NULL, "end" = NULL, owner = NULL WHERE id = :gate', gate=gate.id)
    await world.answer(gate)
    again = resuming(
        world, await world.store.run(gate.run_id), shop.tools(**{changed: "read"} if changed == "guard" else {"effect": "read"})
    )
    await world.answer(await world.gate())
    if changed == "guard":
        await world.answer(await world.gate(step="guard"))
    done = await again
    assert (done.status, shop.called) == (PlanStatus.COMPLETED, ["build 商店", "guard 门", "ship 商店-1"])
    asked = [row for row in await world.store.gates.find(run_id=done.id, open_only=False) if row.step_id == "guard"]
    assert len(asked) == (2 if changed == "guard" else 1)


async def test_the_gate_of_a_revised_plan_also_shows_changed_tools(world: World, shop: Shop) -> None:
    run = await stopped(world, shop)
    plan = shop.plan()
    plan.step("build").rollback = None
    plan.description = "Build 商店, then ship it twice"
    await arevise_run(run.id, plan, tools=shop.tools(effect="write"), by="li", store=world.store)
    text = (await with_text(world, await world.gate())).text
    assert "### What changed\n" in text
    assert "- ⚠️ **MAY DO MORE THAN BEFORE:** `ship`, called by `ship`\n  - effect: idempotent_write → **write**\n" in text


async def test_an_altered_record_is_not_mistaken_for_tool_drift(world: World, shop: Shop) -> None:
    run = await stopped(world, shop)
    await world.sql("UPDATE runs SET definitions = replace(definitions, 'idempotent_write', 'write') WHERE id = :run", run=run.id)
    with pytest.raises(NotApprovedError, match="its record was altered"):
        await world.resume(run.id, tools=shop.tools(effect="write"), approver=FixedApprover())
    assert shop.called == ["build 商店"]


async def test_a_tool_that_now_needs_an_ungranted_permission_is_not_called(world: World, shop: Shop) -> None:
    plan = shop.plan()
    plan.permissions = []
    run, locked = await stopped(world, shop, plan), shop.tools(permissions=("net",))
    with pytest.raises(InvalidPlanError, match="`ship` needs the permission `net`, which the plan does not give"):
        await world.resume(run.id, tools=locked, approver=FixedApprover())
    assert shop.called == ["build 商店"]
    plan.permissions = ["net"]
    await arevise_run(run.id, plan, tools=locked, by="li", store=world.store)
    text = (await with_text(world, await world.gate())).text
    assert '- `permissions`: nothing → `["net"]`\n' in text
    assert "- permissions that its tools get: `net`\n" in text
    done = await world.resume(run.id, tools=locked, approver=FixedApprover(by="ana"))
    assert (done.status, shop.called) == (PlanStatus.COMPLETED, ["build 商店", "ship 商店-1"])
