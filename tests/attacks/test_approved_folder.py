"""Runs that are bound to the folder they were approved in."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanRun, ToolRegistry, acancel_run
from plan_adapter.errors import NotApprovedError
from plan_adapter.plan import new_id
from plan_adapter.record import RunFolder
from plan_adapter.runner import arevise_run
from plan_adapter.runs.folders import refuse_elsewhere
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.session import RunRequest
from plan_adapter.runs.start import create_run, execute_plan
from plan_adapter.settings import Settings
from plan_adapter.status import PlanStatus
from plan_adapter.validation import bind_inputs, validate
from tests.gates.world import Says, World


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


async def test_a_run_whose_folder_is_on_a_workers_machine_is_resumed_by_a_worker(world: World, folders: dict[str, Path]) -> None:
    bound = bind_inputs(validate(deploy(), BUILT_IN))
    elsewhere = RunFolder("/tmp/of-a-worker", "/tmp/of-a-worker", "1:2 1:2")
    run = replace(await create_run(bound, world.store, here(world)), id=new_id(), folder=elsewhere, flow_run_id=new_id())
    with pytest.raises(NotApprovedError, match=f"not on this machine; .*`prefect flow-run retry {run.flow_run_id}` .*--here` asks"):
        refuse_elsewhere(run, world.settings)
    assert ran(folders) == []
