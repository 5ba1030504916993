"""Tests that an answer counts only for the content that was read."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from plan_adapter import PlanRun, ToolRegistry
from plan_adapter.cli.answering import AnswerOptions, GateSelector, answer_in_store, find_gate
from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.gates.approval import os_user
from plan_adapter.model.approvals import Gate
from plan_adapter.model.errors import NotApprovedError, RunConflictError
from plan_adapter.model.status import PlanStatus
from plan_adapter.runner import arevise_run
from plan_adapter.runs.resume import execute_resume
from tests.gates.world import World
from tests.store.conftest import on_both_databases

ANSWERS = {
    "approve": AnswerOptions("approve"),
    "reject": AnswerOptions("reject"),
    "changes": AnswerOptions("request_changes", note="other"),
}


async def revised(world: World, run: PlanRun, text: str = "another look") -> tuple[PlanRun, Gate]:
    """Revise the plan of the run as another user; return the run and the gate of the new version."""
    plan = world.plan()
    plan.steps[0] = plan.steps[0].model_copy(update={"description": text})
    new = await arevise_run(run.id, plan, tools=world.tools(), by="mallory", store=world.store)
    return new, await world.gate()


async def answer(world: World, selector: GateSelector, options: AnswerOptions = ANSWERS["approve"]) -> int:
    """Answer as `plan approve` does in a process without a terminal."""
    return await answer_in_store(selector, options, world.store, world.settings, as_json=True)


async def resumed(world: World, run_id: str, *, tools: ToolRegistry | None = None, **given: Any) -> PlanRun:
    """Resume a run, which waits at its gate if it is not approved."""
    tools = tools or world.tools()
    return await execute_resume(
        run_id, tools=tools, run_request=world.run_request(), store=world.store, offline=True, record_pending=True, **given
    )


async def assert_nothing_was_answered(world: World, gate: Gate, *, refusals: int = 1) -> None:
    """Assert that the gate is open without an answer, no tool was called, and the audit log holds the refusals."""
    assert (await world.store.gates.get(gate.id)).end is None
    assert [row for row in await world.store.approvals(gate.run_id) if row.gate_id is not None] == []
    assert world.struck == []
    assert [entry.by for entry in await world.store.audit(gate.run_id) if entry.kind == "refused"] == [os_user()] * refusals


def other_digests(run: PlanRun, gate: Gate, old: Gate) -> dict[str, str]:
    """Return digests that differ from the digest of `gate`, by kind."""
    now = gate.approval_digest
    last = "0" if now[-1] != "0" else "1"
    return {
        "previous_digest": old.approval_digest,
        "first_12_characters_of_previous_digest": old.approval_digest[:12],
        "first_8_characters_of_previous_digest": old.approval_digest[:8],
        "digest_of_the_plan_alone": run.digest,
        "other_last_character": now[:-1] + last,
        "other_first_character": ("0" if now[0] != "0" else "1") + now[1:],
        "last_12_characters": now[-12:],
        "zeros": "0" * 64,
    }


KINDS = [
    "previous_digest",
    "first_12_characters_of_previous_digest",
    "first_8_characters_of_previous_digest",
    "digest_of_the_plan_alone",
    "other_last_character",
    "other_first_character",
    "last_12_characters",
    "zeros",
]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_to_other_content_is_refused(world: World, kind: str) -> None:
    run, old = await world.detached()
    run, gate = await revised(world, run)
    given = other_digests(run, gate, old)[kind]
    is_old = old.approval_digest.startswith(given)
    why = (
        "content of the gate changed.*now asks about"
        if is_old
        else f"no gate of this run has a digest beginning with {given}; the open one is"
    )
    for options in ANSWERS.values():
        with pytest.raises(NotApprovedError, match=f"{why} {gate.approval_digest[:12]}"):
            await answer(world, GateSelector(run.id, digest=given), options)
    await assert_nothing_was_answered(world, gate, refusals=len(ANSWERS))


@pytest.mark.parametrize(
    "given", ["", "a", "deadbee", "g" * 12, "0" * 65, "12 34 56 78", "%%%%%%%%", "abcdef12\n", "abcdef1*", "０１２３４５６７"]
)
async def test_a_malformed_digest_is_refused_before_anything_is_read(given: str) -> None:
    with pytest.raises(UsageError, match="at least 8 characters of an approval digest"):
        GateSelector("0192f0c4", digest=given)


@pytest.mark.parametrize("length", [8, 12, 63, 64])
@pytest.mark.parametrize("is_upper", [False, True])
async def test_the_digest_that_was_shown_is_accepted(world: World, length: int, is_upper: bool) -> None:
    run, _ = await world.detached()
    run, gate = await revised(world, run)
    given = gate.approval_digest[:length]
    assert await answer(world, GateSelector(run.id, digest=given.upper() if is_upper else given)) == 0
    (approval,) = await world.store.approvals(run.id)
    assert approval.approval_digest == gate.approval_digest == (await world.store.run(run.id)).approval_digest


async def changed_tools(world: World, run: PlanRun) -> Gate:
    """Resume the run with other tools; return the gate that asks for their approval."""
    await resumed(world, run.id, tools=world.tools(effect="idempotent_write"))
    return await world.gate()


@pytest.mark.parametrize("change", ["a_revision", "two_revisions", "changed_tools"])
async def test_yes_does_not_approve_changed_content(world: World, change: str) -> None:
    run, _ = await world.detached()
    if change == "changed_tools":
        gate = await changed_tools(world, run)
    else:
        run, gate = await revised(world, run)
    if change == "two_revisions":
        run, gate = await revised(world, run, "and another")
    command = f"plan approve {run.id} --digest {gate.approval_digest[:12]}"
    with pytest.raises(NotApprovedError, match=f"changed since the run was created.*{command}"):
        await answer(world, GateSelector(run.id, yes=True))
    await assert_nothing_was_answered(world, gate)
    assert await answer(world, GateSelector(run.id, digest=gate.approval_digest[:12])) == 0


@on_both_databases
async def test_an_answer_overtaken_by_a_revision_does_not_count_for_the_new_version(world: World) -> None:
    run, old = await world.detached()
    _, read = await find_gate(GateSelector(run.id), world.store)
    run, gate = await revised(world, run)
    for stale in (read, replace(read, id=gate.id)):  # the old gate, and the new one with the content of the old one
        with pytest.raises((NotApprovedError, RunConflictError)):
            await world.store.gates.answer(stale.id, world.approval(stale))
    assert old.id == read.id != gate.id
    assert (await world.store.gates.get(gate.id)).end is None
    assert await world.store.approvals(run.id) == []


@pytest.mark.parametrize("round_", range(2))
@on_both_databases
async def test_an_answer_that_races_with_a_revision_never_counts_for_the_new_version(world: World, round_: int) -> None:
    run, gate = await world.detached()
    racing = answer(world, GateSelector(run.id, digest=gate.approval_digest)), revised(world, run, f"round {round_}")
    answered, _ = await asyncio.gather(*(racing if round_ % 2 else racing[::-1]), return_exceptions=True)
    now = await world.gate()
    assert now.approval_digest != gate.approval_digest
    given = {row.approval_digest for row in await world.store.approvals(run.id)}
    assert given <= {gate.approval_digest}
    assert not isinstance(answered, AssertionError)
    waiting = await resumed(world, run.id)
    assert (waiting.status, world.struck) == (PlanStatus.PENDING_APPROVAL, [])


async def test_an_answer_to_a_step_counts_only_for_the_call_that_was_shown(world: World) -> None:
    going = world.start(world.plan(gated=True))
    gate = await world.gate(step="strike")
    for given in ("0" * 12, (await world.store.run(gate.run_id)).approval_digest[:12]):
        with pytest.raises(NotApprovedError, match=f" strike --digest {gate.approval_digest[:12]}"):
            await answer(world, GateSelector(gate.run_id, "strike", digest=given))
    await assert_nothing_was_answered(world, gate, refusals=2)
    assert await answer(world, GateSelector(gate.run_id, digest=gate.approval_digest[:12])) == 0  # names the step, too
    assert ((await going).status, world.struck) == (PlanStatus.COMPLETED, ["a"])
