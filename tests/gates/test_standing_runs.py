"""Tests of scheduled runs of a plan with a signed standing approval file beside it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from plan_adapter import PlanRun, PlanStore, compile_plan
from plan_adapter.engine import flow_runs
from plan_adapter.gates.standing_files import sign_standing, signature_path, standing_path, write_signed_standing
from plan_adapter.local.settings import Settings
from plan_adapter.model.status import RunReason
from plan_adapter.plans import validate
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus, RunContext, dump_plan, load_plan
from tests.gates.test_attacks import standing
from tests.gates.test_starts import SCHEDULE
from tests.gates.world import FixedApprover, World
from tests.identity.conftest import Key, allowed, ana, bo, settings
from tests.store.conftest import on_both_databases

__all__ = ["allowed", "ana", "bo", "settings"]


async def signed_plan(world: World, ana: Key) -> Path:
    """Return the file of the ordinary plan; beside it is a standing approval for two runs, signed by ana."""
    path = world.folder / "strike.yaml"
    path.write_text(dump_plan(world.plan()), encoding="utf-8")
    write_signed_standing(sign_standing(await standing(world), key=ana.path), standing_path(path))
    return path


async def scheduled(world: World, path: Path, *, store: PlanStore | None = None, tenant: str | None = None) -> PlanRun:
    run_request = world.run_request(FixedApprover("reject"), schedule=SCHEDULE, plan_file=path, context=RunContext(tenant_id=tenant))
    bound = world.bound(load_plan(path))
    return await execute_plan(bound, run_request=run_request, store=store or world.store, offline=True)


async def test_a_signed_file_approves_scheduled_runs_up_to_its_limit(world: World, ana: Key, settings: Settings) -> None:
    world.settings = settings
    path = await signed_plan(world, ana)
    ends = [(await scheduled(world, path)).reason for _ in range(3)]
    assert ends == [None, None, RunReason.REJECTED]
    assert [known.runs for known in await world.store.standing.find(include_ended=True)] == [2]


async def removed(_world: World, path: Path, _ana: Key) -> None:
    standing_path(path).unlink()


async def unsigned(_world: World, path: Path, _ana: Key) -> None:
    signature_path(standing_path(path)).unlink()


async def narrowed(world: World, path: Path, ana: Key) -> None:
    write_signed_standing(sign_standing(await standing(world, schedules=("nightly/other",)), key=ana.path), standing_path(path))


@pytest.mark.parametrize("change", [removed, unsigned, narrowed])
async def test_a_changed_or_deleted_file_covers_no_further_run(
    change: Callable[[World, Path, Key], Awaitable[None]], world: World, ana: Key, settings: Settings
) -> None:
    world.settings = settings
    path = await signed_plan(world, ana)
    assert (await scheduled(world, path)).status is PlanStatus.COMPLETED
    await change(world, path, ana)
    assert (await scheduled(world, path)).reason is RunReason.REJECTED
    assert world.struck == ["a"]


@on_both_databases
async def test_concurrent_runs_with_a_new_file_share_its_uses(world: World, ana: Key, settings: Settings) -> None:
    world.settings = settings
    path = await signed_plan(world, ana)
    async with PlanStore(world.url) as second, PlanStore(world.url) as third:
        runs = await asyncio.gather(*(scheduled(world, path, store=store) for store in (world.store, second, third)))
    assert sorted(str(run.status) for run in runs) == ["cancelled", "completed", "completed"]
    assert len(world.struck) == 2


async def test_a_signed_file_covers_the_runs_of_a_tenant(world: World, ana: Key, settings: Settings) -> None:
    world.settings = settings
    path = await signed_plan(world, ana)
    assert (await scheduled(world, path, tenant="acme")).status is PlanStatus.COMPLETED


@pytest.mark.usefixtures("prefect_server")
async def test_a_compiled_plan_finds_the_signed_file_beside_its_document(
    world: World, ana: Key, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await signed_plan(world, ana)
    monkeypatch.setenv("PLAN_ADAPTER_ALLOWED_SIGNERS", str(settings.allowed_signers))

    async def of_schedule() -> flow_runs.Origin:
        return flow_runs.Origin("a schedule", schedule=SCHEDULE)

    monkeypatch.setattr(flow_runs, "read_origin", of_schedule)
    flow = compile_plan(validate(load_plan(path), world.tools()), store=world.store)
    run = await asyncio.wait_for(flow(), 60)
    assert (run.status, world.struck) == (PlanStatus.COMPLETED, ["a"])
    assert [row.known_by for row in await world.store.approvals(run.id)] == ["ssh_signature"]
