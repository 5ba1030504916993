"""Answers that are bound to what was read, and runs that are bound to the folder they were approved in."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanRun, ToolRegistry, acancel_run
from plan_adapter.cli.answers import AnswerOptions, Place, answer_here, find_gate
from plan_adapter.cli.codes import UsageError
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.gates.approval import os_user
from plan_adapter.plan import PlanStatus, new_id
from plan_adapter.record import Gate
from plan_adapter.runner import arevise_run
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.session import RunRequest
from plan_adapter.runs.start import create_run, execute_plan
from plan_adapter.settings import Settings
from plan_adapter.validation import bind_inputs, validate
from tests.gates.world import Says, World
from tests.store.conftest import on_both_databases

WORDS = {"approve": AnswerOptions("approve"), "reject": AnswerOptions("reject"), "changes": AnswerOptions("request_changes", note="other")}


async def revised(world: World, run: PlanRun, text: str = "another look") -> tuple[PlanRun, Gate]:
    """Return the run with a new version of its plan, by somebody who was not asked, and the gate that asks about it."""
    plan = world.plan()
    plan.steps[0] = plan.steps[0].model_copy(update={"description": text})
    new = await arevise_run(run.id, plan, tools=world.tools(), by="mallory", store=world.store)
    return new, await world.gate()


async def answer(world: World, place: Place, words: AnswerOptions = WORDS["approve"]) -> int:
    """Answer as `plan approve` does in a process without a terminal."""
    return await answer_here(place, words, world.store, world.settings, as_json=True)


async def resumed(world: World, run_id: str, *, tools: ToolRegistry | None = None, **given: Any) -> PlanRun:
    """Return a run that was gone on with, and that waits where nobody has approved it."""
    tools = tools or world.tools()
    return await execute_resume(
        run_id, tools=tools, run_request=world.run_request(), store=world.store, offline=True, record_pending=True, **given
    )


async def assert_nothing_was_answered(world: World, gate: Gate, *, refusals: int = 1) -> None:
    """The gate is open, nobody has answered, nothing was called, and the audit log holds the refusals."""
    assert (await world.store.gates.get(gate.id)).end is None
    assert [row for row in await world.store.approvals(gate.run_id) if row.gate_id is not None] == []
    assert world.struck == []
    assert [entry.by for entry in await world.store.audit(gate.run_id) if entry.kind == "refused"] == [os_user()] * refusals


def other_digests(run: PlanRun, gate: Gate, old: Gate) -> dict[str, str]:
    """Return digests that are not that of `gate`, by what they are."""
    now = gate.approval_digest
    last = "0" if now[-1] != "0" else "1"
    return {
        "of_the_version_before": old.approval_digest,
        "the_beginning_of_the_version_before": old.approval_digest[:12],
        "the_least_of_the_version_before": old.approval_digest[:8],
        "of_the_plan_without_its_inputs_and_tools": run.digest,
        "with_another_last_character": now[:-1] + last,
        "with_another_first_character": ("0" if now[0] != "0" else "1") + now[1:],
        "the_end_of_it": now[-12:],
        "zeros": "0" * 64,
    }


KINDS = [
    "of_the_version_before",
    "the_beginning_of_the_version_before",
    "the_least_of_the_version_before",
    "of_the_plan_without_its_inputs_and_tools",
    "with_another_last_character",
    "with_another_first_character",
    "the_end_of_it",
    "zeros",
]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_to_other_content_is_not_taken(world: World, kind: str) -> None:
    run, old = await world.detached()
    run, gate = await revised(world, run)
    given = other_digests(run, gate, old)[kind]
    is_old = old.approval_digest.startswith(given)
    why = (
        "content of the gate changed.*now asks about"
        if is_old
        else f"no gate of this run has a digest beginning with {given}; the open one is"
    )
    for words in WORDS.values():
        with pytest.raises(NotApprovedError, match=f"{why} {gate.approval_digest[:12]}"):
            await answer(world, Place(run.id, digest=given), words)
    await assert_nothing_was_answered(world, gate, refusals=len(WORDS))


@pytest.mark.parametrize(
    "given", ["", "a", "deadbee", "g" * 12, "0" * 65, "12 34 56 78", "%%%%%%%%", "abcdef12\n", "abcdef1*", "０１２３４５６７"]
)
async def test_what_is_no_digest_is_refused_before_anything_is_read(given: str) -> None:
    with pytest.raises(UsageError, match="at least 8 characters of an approval digest"):
        Place("0192f0c4", digest=given)


@pytest.mark.parametrize("length", [8, 12, 63, 64])
@pytest.mark.parametrize("is_upper", [False, True])
async def test_the_digest_that_was_shown_is_taken(world: World, length: int, is_upper: bool) -> None:
    run, _ = await world.detached()
    run, gate = await revised(world, run)
    given = gate.approval_digest[:length]
    assert await answer(world, Place(run.id, digest=given.upper() if is_upper else given)) == 0
    (approval,) = await world.store.approvals(run.id)
    assert approval.approval_digest == gate.approval_digest == (await world.store.run(run.id)).approval_digest


async def changed_tools(world: World, run: PlanRun) -> Gate:
    """Resume the run with other tools: it waits for an approval of these."""
    await resumed(world, run.id, tools=world.tools(effect="idempotent_write"))
    return await world.gate()


@pytest.mark.parametrize("change", ["a_revision", "two_revisions", "changed_tools"])
async def test_an_approval_without_a_digest_is_not_taken_for_content_that_changed(world: World, change: str) -> None:
    run, _ = await world.detached()
    if change == "changed_tools":
        gate = await changed_tools(world, run)
    else:
        run, gate = await revised(world, run)
    if change == "two_revisions":
        run, gate = await revised(world, run, "and another")
    command = f"plan approve {run.id} --digest {gate.approval_digest[:12]}"
    with pytest.raises(NotApprovedError, match=f"changed since the run was created.*{command}"):
        await answer(world, Place(run.id))
    await assert_nothing_was_answered(world, gate)
    assert await answer(world, Place(run.id, digest=gate.approval_digest[:12])) == 0


@on_both_databases
async def test_an_answer_that_a_revision_overtakes_is_not_taken_for_the_new_version(world: World) -> None:
    run, old = await world.detached()
    _, read = await find_gate(Place(run.id), world.store)
    run, gate = await revised(world, run)
    for stale in (read, replace(read, id=gate.id)):  # the old gate, and the new one with what was read at the old one
        with pytest.raises((NotApprovedError, RunConflictError)):
            await world.store.gates.answer(stale.id, world.approval(stale))
    assert old.id == read.id != gate.id
    assert (await world.store.gates.get(gate.id)).end is None
    assert await world.store.approvals(run.id) == []


@pytest.mark.parametrize("round_", range(2))
@on_both_databases
async def test_of_an_answer_and_a_revision_at_once_the_answer_counts_for_what_was_read_or_not_at_all(world: World, round_: int) -> None:
    run, gate = await world.detached()
    racing = answer(world, Place(run.id, digest=gate.approval_digest)), revised(world, run, f"round {round_}")
    said, _ = await asyncio.gather(*(racing if round_ % 2 else racing[::-1]), return_exceptions=True)
    now = await world.gate()
    assert now.approval_digest != gate.approval_digest
    given = {row.approval_digest for row in await world.store.approvals(run.id)}
    assert given <= {gate.approval_digest}
    assert not isinstance(said, AssertionError)
    waiting = await resumed(world, run.id)
    assert (waiting.status, world.struck) == (PlanStatus.PENDING_APPROVAL, [])


async def test_the_answer_to_a_step_counts_for_the_call_that_was_shown(world: World) -> None:
    going = world.start(world.plan(gated=True))
    gate = await world.gate(step="strike")
    for given in ("0" * 12, (await world.store.run(gate.run_id)).approval_digest[:12]):
        with pytest.raises(NotApprovedError, match=f"--step strike --digest {gate.approval_digest[:12]}"):
            await answer(world, Place(gate.run_id, "strike", digest=given))
    await assert_nothing_was_answered(world, gate, refusals=2)
    assert await answer(world, Place(gate.run_id, digest=gate.approval_digest[:12])) == 0  # names the step, too
    assert ((await going).status, world.struck) == (PlanStatus.COMPLETED, ["a"])


# The folder


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return folders that each hold another script; the process works in `approved`."""
    found = dict[str, Path]()
    for name in ("approved", "other", "文件夹"):
        found[name] = tmp_path / name
        found[name].mkdir()
        (found[name] / "deploy.sh").write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/ran\n")
        (found[name] / "deploy.sh").chmod(0o755)
    found["ran"] = tmp_path / "ran"
    monkeypatch.chdir(found["approved"])
    return found


def ran(folders: dict[str, Path]) -> list[str]:
    """Return whose scripts were run."""
    return folders["ran"].read_text().split() if folders["ran"].exists() else []


def deploy(**options: Any) -> ExecutionPlan:
    """Return a plan that looks, and then runs the script of the folder."""
    plan = ExecutionPlan(description="Deploy")
    plan.add_step("run_command", "Look", {"argv": ["true"]}, id="look")
    plan.add_step("run_command", "Deploy", {"argv": ["./deploy.sh"]}, id="deploy", depends_on=["look"], **options)
    return plan


BUILT_IN = ToolRegistry.from_settings(())


async def waiting_run(world: World, plan: ExecutionPlan | None = None) -> PlanRun:
    """Return a run of the deployment that waits for an approval."""
    bound = bind_inputs(validate(plan or deploy(), BUILT_IN))
    return await execute_plan(bound, run_request=here(world), store=world.store, offline=True, record_pending=True)


def here(world: World, approver: Any = None) -> RunRequest:
    """Return the occasion of a run in the folder, and with the settings, that this process has now."""
    return RunRequest(approver=approver, settings=Settings(), requested_by="runner", tools=BUILT_IN)


async def approved_run(world: World) -> PlanRun:
    """Return a run that was approved where it was created, and has not begun."""
    run = await waiting_run(world)
    await world.answer(await world.gate())
    return await world.store.run(run.id)


async def going_on(world: World, run_id: str, *, is_here: bool = False, approver: Any = None) -> PlanRun:
    """Resume a run in this process's folder."""
    run_request = here(world, approver)
    return await execute_resume(
        run_id, tools=BUILT_IN, run_request=run_request, store=world.store, offline=True, record_pending=True, here=is_here
    )


def to_another_folder(folders: dict[str, Path], patch: pytest.MonkeyPatch) -> None:
    patch.chdir(folders["other"])


def to_a_folder_below(folders: dict[str, Path], patch: pytest.MonkeyPatch) -> None:
    below = folders["approved"] / "below"
    below.mkdir()
    (folders["other"] / "deploy.sh").rename(below / "deploy.sh")
    patch.chdir(below)


def to_a_folder_of_chinese_name(folders: dict[str, Path], patch: pytest.MonkeyPatch) -> None:
    patch.chdir(folders["文件夹"])


def moved_away_and_replaced(folders: dict[str, Path], patch: pytest.MonkeyPatch) -> None:
    folders["approved"].rename(folders["approved"].with_name("away"))
    folders["other"].rename(folders["approved"])
    patch.chdir(folders["approved"])


def to_a_link_that_leads_elsewhere(folders: dict[str, Path], patch: pytest.MonkeyPatch) -> None:
    folders["approved"].rename(folders["approved"].with_name("away"))
    folders["approved"].symlink_to(folders["other"])
    patch.chdir(folders["approved"])


def other_files_root(folders: dict[str, Path], patch: pytest.MonkeyPatch) -> None:
    patch.setenv("PLAN_ADAPTER_FILES_ROOT", str(folders["other"]))


CHANGES = [
    to_another_folder,
    to_a_folder_below,
    to_a_folder_of_chinese_name,
    moved_away_and_replaced,
    to_a_link_that_leads_elsewhere,
    other_files_root,
]


@pytest.mark.parametrize("change", CHANGES)
async def test_what_was_approved_in_one_folder_runs_in_no_other(
    world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, change: Callable[..., None]
) -> None:
    run = await approved_run(world)
    change(folders, monkeypatch)
    with pytest.raises(NotApprovedError, match=f"run {run.id} .*which nobody approved: .*plan resume {run.id} --offline --here` asks"):
        await going_on(world, run.id)
    assert ran(folders) == []
    moved = await going_on(world, run.id, is_here=True)
    assert (moved.status, ran(folders)) == (PlanStatus.PENDING_APPROVAL, [])
    gate = await world.gate()
    assert gate.approval_digest != run.approval_digest
    assert "The folder of the run changed: from " in (await world.store.gates.get(gate.id)).text
    assert (await going_on(world, run.id)).status is PlanStatus.PENDING_APPROVAL  # by the approval of before, still nothing
    assert ran(folders) == []
    await world.answer(gate)
    done = await going_on(world, run.id)
    assert (done.status, len(ran(folders))) == (PlanStatus.COMPLETED, 1)
    assert [entry.message for entry in await world.store.audit(run.id) if entry.kind == "revised"] == [
        (await world.store.revisions.of_run(run.id))[0].note
    ]
    assert (await world.store.verify(run.id)).ok


async def test_a_link_to_the_folder_is_the_folder(world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run = await approved_run(world)
    link = folders["ran"].with_name("link")
    link.symlink_to(folders["approved"])
    monkeypatch.chdir(link)
    assert (await going_on(world, run.id)).status is PlanStatus.COMPLETED
    assert ran(folders) == ["approved"]


async def test_steps_that_completed_stay_when_a_run_moves(world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (folders["approved"] / "deploy.sh").unlink()
    failed = await going_on(world, (await approved_run(world)).id)
    assert [step.status.value for step in failed.steps] == ["completed", "failed"]
    monkeypatch.chdir(folders["other"])
    with pytest.raises(NotApprovedError, match=r"cd .*approved && plan resume"):
        await going_on(world, failed.id)
    await going_on(world, failed.id, is_here=True)
    await world.answer(await world.gate())
    done = await going_on(world, failed.id)
    assert ([step.attempts for step in done.steps], ran(folders)) == ([1, 2], ["other"])


async def test_a_move_back_and_a_second_move_are_each_asked_about(
    world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await approved_run(world)
    digests = [run.approval_digest]
    for name in ("other", "approved", "文件夹"):
        monkeypatch.chdir(folders[name])
        assert (await going_on(world, run.id, is_here=True)).status is PlanStatus.PENDING_APPROVAL
        digests.append((await world.gate()).approval_digest)
    assert len(set(digests)) == 4
    assert ran(folders) == []


async def test_a_revision_of_a_moved_run_needs_an_approval_for_the_folder_it_is_in(
    world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await approved_run(world)
    monkeypatch.chdir(folders["other"])
    await going_on(world, run.id, is_here=True)
    other = deploy()
    other.description = "Deploy otherwise"
    for plan in (other, deploy()):  # away from what was approved in the first folder, and back to it
        await arevise_run(run.id, plan, tools=BUILT_IN, by="mallory", store=world.store)
        assert (await going_on(world, run.id)).status is PlanStatus.PENDING_APPROVAL
    assert ran(folders) == []


async def test_an_approval_of_a_call_in_one_folder_is_none_in_another(
    world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = deploy(requires_approval=True)
    plan.options.require_approval = False
    run_request = replace(here(world), waits=False)
    bound = bind_inputs(validate(plan, BUILT_IN))
    run = await execute_plan(bound, run_request=run_request, store=world.store, offline=True, record_pending=True)
    await world.answer(await world.gate(step="deploy"))
    monkeypatch.chdir(folders["other"])
    moved = await execute_resume(
        run.id,
        tools=BUILT_IN,
        run_request=replace(here(world), waits=False),
        store=world.store,
        offline=True,
        record_pending=True,
        here=True,
    )
    assert moved.status is not PlanStatus.COMPLETED
    assert ran(folders) == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE runs SET folder = NULL WHERE id = :run",
        "UPDATE runs SET folder = REPLACE(folder, 'path', 'Path') WHERE id = :run",
        "UPDATE runs SET folder = REPLACE(folder, 'approved', 'other') WHERE id = :run",
        "UPDATE runs SET folder = REPLACE(folder, 'false', 'true') WHERE id = :run",
    ],
)
async def test_a_folder_that_somebody_altered_is_found(world: World, folders: dict[str, Path], change: str) -> None:
    run = await approved_run(world)
    assert (await world.store.verify(run.id)).ok
    await world.sql(change, run=run.id)
    assert not (await world.store.verify(run.id)).ok


async def test_what_was_done_is_undone_in_no_other_folder(world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = deploy(rollback={"tool_name": "run_command", "parameters": {"argv": ["./deploy.sh"]}})
    plan.add_step("run_command", "Fail", {"argv": ["false"]}, id="fail", depends_on=["deploy"], on_error="continue")
    run = await waiting_run(world, plan)
    await world.answer(await world.gate())
    failed = await going_on(world, run.id)
    assert (failed.status, ran(folders)) == (PlanStatus.PARTIAL, ["approved"])
    monkeypatch.chdir(folders["other"])
    with pytest.raises(NotApprovedError, match=f"it is rolled back where it ran; `cd .*approved && plan cancel {run.id} --rollback"):
        await acancel_run(run.id, rollback=True, tools=BUILT_IN, store=world.store, offline=True)
    assert ran(folders) == ["approved"]
    monkeypatch.chdir(folders["approved"])
    await acancel_run(run.id, rollback=True, tools=BUILT_IN, store=world.store, offline=True)
    assert ran(folders) == ["approved", "approved"]


async def test_a_run_without_a_recorded_folder_resumes_anywhere(
    world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = bind_inputs(validate(deploy(), BUILT_IN))
    run = replace(await create_run(bound, world.store, here(world)), id=new_id(), folder=None)
    await world.store.ledger.create(run, bound.validated)
    monkeypatch.chdir(folders["other"])
    done = await going_on(world, run.id, approver=Says())
    assert (done.status, ran(folders)) == (PlanStatus.COMPLETED, ["other"])
    assert (await world.store.verify(run.id)).ok
