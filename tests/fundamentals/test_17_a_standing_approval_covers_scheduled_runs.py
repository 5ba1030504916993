"""A standing approval is given once for many scheduled runs of one runbook: for some schedules, inputs and a number of runs."""

import pytest

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.gates import CallbackApprover, StandingApproval
from plan_adapter.model.canonical import runbook_digest
from plan_adapter.plans import Input, validate
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.validation import bind_inputs

saved: list[str] = []


@tool(effect="write")
def back_up(region: str) -> None:
    """Back up a region."""
    saved.append(region)


tools = ToolRegistry([back_up])


def backup(description: str = "Back up a region") -> ExecutionPlan:
    plan = ExecutionPlan(name="backup", description=description, inputs={"region": Input(default="eu-1")})
    plan.add_step("back_up", "Back it up", {"region": "${{ inputs.region }}"}, id="back_up")
    return plan


async def approve_nightly(store: PlanStore, **terms: object) -> StandingApproval:
    """Give a standing approval, as `plan standing add backup.yaml --schedule backup/nightly --input "region=eu-.*" --runs 3` does."""
    validated = validate(backup(), tools)
    known = {"inputs": {"region": "eu-.*"}, "schedules": ("backup/nightly",), "max_runs": 3, **terms}
    given = StandingApproval(
        id="nightly",
        runbook_digest=runbook_digest(validated.digest, validated.definitions),
        name="backup",
        by="ana",
        known_by="os_user",
        at=await store.now(),
        **known,  # type: ignore[arg-type]
    )
    await store.standing.add(given)
    return given


async def scheduled(
    store: PlanStore, plan: ExecutionPlan | None = None, *, schedule: str = "backup/nightly", region: str = "eu-1"
) -> PlanRun:
    """Run the plan as a schedule of Prefect does. A run that still needs a person asks bo, who rejects it."""
    bound = bind_inputs(validate(plan or backup(), tools), {"region": region})
    run_request = RunRequest(approver=CallbackApprover(lambda _: "reject", by="bo"), tools=tools, schedule=schedule)
    return await execute_plan(bound, run_request=run_request, store=store, offline=True)


@pytest.fixture(autouse=True)
def clear_saved_regions() -> None:
    saved.clear()


async def test_a_scheduled_run_needs_no_person_and_its_record_names_who_approved_it() -> None:
    async with PlanStore() as store:
        given = await approve_nightly(store)
        run = await scheduled(store, region="eu-2")
        assert (run.status, run.approved_by, saved) == ("completed", "ana", ["eu-2"])
        [approval] = await store.approvals(run.id)
        assert approval.standing_id == given.id


@pytest.mark.parametrize(
    "other",
    [{"schedule": "backup/hourly"}, {"region": "us-1"}, {"plan": backup("Back up, and delete the old one")}],
    ids=["another schedule", "another input", "another content"],
)
async def test_every_other_run_asks_a_person(other: dict[str, object]) -> None:
    async with PlanStore() as store:
        await approve_nightly(store)
        run = await scheduled(store, **other)  # type: ignore[arg-type]
        assert (run.status, run.reason, saved) == ("cancelled", "rejected", [])


async def test_it_ends_after_its_number_of_runs() -> None:
    async with PlanStore() as store:
        await approve_nightly(store, max_runs=1)
        assert (await scheduled(store)).status == "completed"
        assert (await scheduled(store)).reason == "rejected"


async def test_it_can_be_revoked() -> None:
    async with PlanStore() as store:
        given = await approve_nightly(store)
        await store.standing.revoke(given.id, by="bo")
        assert (await scheduled(store)).reason == "rejected"
    assert saved == []
