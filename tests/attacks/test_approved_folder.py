"""Tests that a run executes only in the folder in which it was approved."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanRun, ToolRegistry
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.plan import new_id
from plan_adapter.model.record import RunFolder
from plan_adapter.model.status import PlanStatus
from plan_adapter.runner import arevise_run
from plan_adapter.runs import acancel_run
from plan_adapter.runs.folders import refuse_elsewhere
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import create_run, execute_plan
from plan_adapter.validation import bind_inputs, validate
from tests.gates.world import FixedApprover, World


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return folders with different scripts, by name. The process works in `approved`."""
    found = dict[str, Path]()
    for name in ("approved", "other", "文件夹"):
        found[name] = tmp_path / name
        found[name].mkdir()
        (found[name] / "deploy.sh").write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/ran\n")
        (found[name] / "deploy.sh").chmod(0o755)
    found["ran"] = tmp_path / "ran"
    monkeypatch.chdir(found["approved"])
    return found


def executed(folders: dict[str, Path]) -> list[str]:
    """Return the names of the folders whose scripts ran, in order."""
    return folders["ran"].read_text().split() if folders["ran"].exists() else []


def deploy(**options: Any) -> ExecutionPlan:
    """Return a plan with a harmless step and a step that runs the script of the folder."""
    plan = ExecutionPlan(description="Deploy")
    plan.add_step("run_command", "Look", {"argv": ["true"]}, id="look")
    plan.add_step("run_command", "Deploy", {"argv": ["./deploy.sh"]}, id="deploy", depends_on=["look"], **options)
    return plan


BUILT_IN = ToolRegistry.from_settings(())


async def waiting_run(world: World, plan: ExecutionPlan | None = None) -> PlanRun:
    """Return a run of the deployment that waits for approval."""
    bound = bind_inputs(validate(plan or deploy(), BUILT_IN))
    return await execute_plan(bound, run_request=current_request(world), store=world.store, offline=True, record_pending=True)


def current_request(world: World, approver: Any = None) -> RunRequest:
    """Return a run request with the current folder and settings of this process."""
    return RunRequest(approver=approver, settings=Settings(), requested_by="runner", tools=BUILT_IN)


async def approved_run(world: World) -> PlanRun:
    """Return a run that was approved in the folder of its creation and has not started."""
    run = await waiting_run(world)
    await world.answer(await world.gate())
    return await world.store.run(run.id)


async def resume(world: World, run_id: str, *, is_here: bool = False, approver: Any = None) -> PlanRun:
    """Resume a run in the current folder."""
    run_request = current_request(world, approver)
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


def to_a_folder_with_a_chinese_name(folders: dict[str, Path], patch: pytest.MonkeyPatch) -> None:
    patch.chdir(folders["文件夹"])


def moved_away_and_replaced(folders: dict[str, Path], patch: pytest.MonkeyPatch) -> None:
    folders["approved"].rename(folders["approved"].with_name("away"))
    folders["other"].rename(folders["approved"])
    patch.chdir(folders["approved"])


def to_a_link_to_another_folder(folders: dict[str, Path], patch: pytest.MonkeyPatch) -> None:
    folders["approved"].rename(folders["approved"].with_name("away"))
    folders["approved"].symlink_to(folders["other"])
    patch.chdir(folders["approved"])


def other_files_root(folders: dict[str, Path], patch: pytest.MonkeyPatch) -> None:
    patch.setenv("PLAN_ADAPTER_FILES_ROOT", str(folders["other"]))


CHANGES = [
    to_another_folder,
    to_a_folder_below,
    to_a_folder_with_a_chinese_name,
    moved_away_and_replaced,
    to_a_link_to_another_folder,
    other_files_root,
]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_run_approved_in_one_folder_does_not_run_in_another(
    world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, change: Callable[..., None]
) -> None:
    run = await approved_run(world)
    change(folders, monkeypatch)
    with pytest.raises(NotApprovedError, match=f"run {run.id} .*which nobody approved: .*plan resume {run.id} --offline --here` asks"):
        await resume(world, run.id)
    assert executed(folders) == []
    moved = await resume(world, run.id, is_here=True)
    assert (moved.status, executed(folders)) == (PlanStatus.PENDING_APPROVAL, [])
    gate = await world.gate()
    assert gate.approval_digest != run.approval_digest
    assert "The folder of the run changed: from " in (await world.store.gates.get(gate.id)).text
    assert (await resume(world, run.id)).status is PlanStatus.PENDING_APPROVAL  # the old approval does not count
    assert executed(folders) == []
    await world.answer(gate)
    done = await resume(world, run.id)
    assert (done.status, len(executed(folders))) == (PlanStatus.COMPLETED, 1)
    assert [entry.message for entry in await world.store.audit(run.id) if entry.kind == "revised"] == [
        (await world.store.revisions.of_run(run.id))[0].note
    ]
    assert (await world.store.verify(run.id)).ok


async def test_a_link_to_the_approved_folder_is_accepted(world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run = await approved_run(world)
    link = folders["ran"].with_name("link")
    link.symlink_to(folders["approved"])
    monkeypatch.chdir(link)
    assert (await resume(world, run.id)).status is PlanStatus.COMPLETED
    assert executed(folders) == ["approved"]


async def test_completed_steps_are_kept_when_a_run_moves(world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (folders["approved"] / "deploy.sh").unlink()
    failed = await resume(world, (await approved_run(world)).id)
    assert [step.status.value for step in failed.steps] == ["completed", "failed"]
    monkeypatch.chdir(folders["other"])
    with pytest.raises(NotApprovedError, match=r"cd .*approved && plan resume"):
        await resume(world, failed.id)
    await resume(world, failed.id, is_here=True)
    await world.answer(await world.gate())
    done = await resume(world, failed.id)
    assert ([step.attempts for step in done.steps], executed(folders)) == ([1, 2], ["other"])


async def test_every_move_of_a_run_needs_a_new_approval(world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run = await approved_run(world)
    digests = [run.approval_digest]
    for name in ("other", "approved", "文件夹"):
        monkeypatch.chdir(folders[name])
        assert (await resume(world, run.id, is_here=True)).status is PlanStatus.PENDING_APPROVAL
        digests.append((await world.gate()).approval_digest)
    assert len(set(digests)) == 4
    assert executed(folders) == []


async def test_a_revision_of_a_moved_run_needs_an_approval_for_its_new_folder(
    world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await approved_run(world)
    monkeypatch.chdir(folders["other"])
    await resume(world, run.id, is_here=True)
    other = deploy()
    other.description = "Deploy otherwise"
    for plan in (other, deploy()):  # another plan, then the plan that was approved in the first folder
        await arevise_run(run.id, plan, tools=BUILT_IN, by="mallory", store=world.store)
        assert (await resume(world, run.id)).status is PlanStatus.PENDING_APPROVAL
    assert executed(folders) == []


async def test_a_step_approval_from_one_folder_does_not_count_in_another(
    world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = deploy(requires_approval=True)
    plan.options.require_approval = False
    run_request = replace(current_request(world), waits=False)
    bound = bind_inputs(validate(plan, BUILT_IN))
    run = await execute_plan(bound, run_request=run_request, store=world.store, offline=True, record_pending=True)
    await world.answer(await world.gate(step="deploy"))
    monkeypatch.chdir(folders["other"])
    moved = await execute_resume(
        run.id,
        tools=BUILT_IN,
        run_request=replace(current_request(world), waits=False),
        store=world.store,
        offline=True,
        record_pending=True,
        here=True,
    )
    assert moved.status is not PlanStatus.COMPLETED
    assert executed(folders) == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE runs SET folder = NULL WHERE id = :run",
        "UPDATE runs SET folder = REPLACE(folder, 'path', 'Path') WHERE id = :run",
        "UPDATE runs SET folder = REPLACE(folder, 'approved', 'other') WHERE id = :run",
        "UPDATE runs SET folder = REPLACE(folder, 'false', 'true') WHERE id = :run",
    ],
)
async def test_verify_detects_an_altered_folder(world: World, folders: dict[str, Path], change: str) -> None:
    run = await approved_run(world)
    assert (await world.store.verify(run.id)).ok
    await world.sql(change, run=run.id)
    assert not (await world.store.verify(run.id)).ok


async def test_a_rollback_is_refused_in_another_folder(world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = deploy(rollback={"tool_name": "run_command", "parameters": {"argv": ["./deploy.sh"]}})
    plan.add_step("run_command", "Fail", {"argv": ["false"]}, id="fail", depends_on=["deploy"], on_error="continue")
    run = await waiting_run(world, plan)
    await world.answer(await world.gate())
    failed = await resume(world, run.id)
    assert (failed.status, executed(folders)) == (PlanStatus.PARTIAL, ["approved"])
    monkeypatch.chdir(folders["other"])
    with pytest.raises(
        NotApprovedError, match=f"it can be rolled back only where it ran: `cd .*approved && plan rollback {run.id} --offline`$"
    ):
        await acancel_run(run.id, rollback=True, tools=BUILT_IN, store=world.store, offline=True)
    assert executed(folders) == ["approved"]
    monkeypatch.chdir(folders["approved"])
    await acancel_run(run.id, rollback=True, tools=BUILT_IN, store=world.store, offline=True)
    assert executed(folders) == ["approved", "approved"]


async def test_a_run_without_a_recorded_folder_resumes_anywhere(
    world: World, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = bind_inputs(validate(deploy(), BUILT_IN))
    run = replace(await create_run(bound, world.store, current_request(world)), id=new_id(), folder=None)
    await world.store.ledger.create(run, bound.validated)
    monkeypatch.chdir(folders["other"])
    done = await resume(world, run.id, approver=FixedApprover())
    assert (done.status, executed(folders)) == (PlanStatus.COMPLETED, ["other"])
    assert (await world.store.verify(run.id)).ok


async def test_a_run_with_its_folder_on_a_worker_is_not_resumed_here(world: World, folders: dict[str, Path]) -> None:
    bound = bind_inputs(validate(deploy(), BUILT_IN))
    elsewhere = RunFolder("/tmp/of-a-worker", "/tmp/of-a-worker", "1:2 1:2")
    run = replace(await create_run(bound, world.store, current_request(world)), id=new_id(), folder=elsewhere, flow_run_id=new_id())
    with pytest.raises(NotApprovedError, match=f"not on this machine; .*`prefect flow-run retry {run.flow_run_id}` .*--here` asks"):
        refuse_elsewhere(run, world.settings)
    assert executed(folders) == []
