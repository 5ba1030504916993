"""Tests of retried flow runs: changed tools are asked about, skipped steps stay skipped; and who is the operator of a flow run."""

import asyncio
from base64 import b64encode
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect import Flow, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import SetStateStatus

from plan_adapter import ExecutionPlan, compile_plan, tool
from plan_adapter.engine.internals import rerun
from plan_adapter.execution.history import ResumeOptions
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.plans import validate
from plan_adapter.runs.resume import execute_resume
from plan_adapter.store import PlanStatus
from plan_adapter.text.commands import SHOWN_DIGITS
from plan_adapter.tools.registry import ToolRegistry
from tests.engine.gates import flow_run, resume
from tests.gates.test_with_server import APPROVE, shown
from tests.gates.world import World

pytestmark = [pytest.mark.usefixtures("prefect_server"), pytest.mark.thorough]


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """Return the URL of an empty SQLite store; PostgreSQL is tested without a server."""
    return f"sqlite:///{tmp_path / 'plans.db'}"


def broken(world: World) -> ToolRegistry:
    """Return the tools of `world`, with a `strike` that fails and only reads."""

    @tool(effect="read")
    def strike(target: str) -> str:
        """Miss."""
        raise ValueError("missed")

    return ToolRegistry([strike, world.tools().get("look")])


async def test_a_retried_flow_run_with_changed_tools_asks_about_them_in_its_form(world: World) -> None:
    plan = world.plan()
    first: asyncio.Task[State] = asyncio.ensure_future(compile_plan(validate(plan, broken(world)), store=world.store)(return_state=True))
    gate, flow_run_id = await shown(world)
    await resume(flow_run_id, APPROVE)
    assert (await first).is_failed()
    run = await world.store.run(gate.run_id)
    assert (run.status, run.step("look").status) == (PlanStatus.PARTIAL, "completed")

    flow = compile_plan(validate(plan, world.tools()), store=world.store)
    again = asyncio.ensure_future(rerun(flow, await flow_run(flow_run_id), {}))
    fresh, form = await shown(world, after=gate)
    assert form == flow_run_id
    assert (
        "- ⚠️ **MAY DO MORE THAN BEFORE:** `strike`, called by `strike`\n  - effect: read → **write**\n"
        in (await world.store.gates.get(fresh.id)).text
    )
    assert world.struck == []
    # The form asks about other content than the page showed first, so its field of the decision has the digest in its name.
    decision = {f"decision_{fresh.approval_digest[:SHOWN_DIGITS]}": "approve", "approver": APPROVE["approver"]}
    assert (await resume(flow_run_id, APPROVE)).status is SetStateStatus.REJECT
    assert (await resume(flow_run_id, decision)).status is SetStateStatus.ACCEPT
    assert (await again).is_completed()
    done = await world.store.run(run.id)
    assert (done.status, done.step("look").carried, world.struck) == (PlanStatus.COMPLETED, True, ["a"])


async def test_a_retried_flow_run_keeps_skipped_steps_skipped(world: World) -> None:
    broken, looked = ["again", "first"], list[str]()

    @tool(effect="read")
    def look(name: str) -> str:
        """Look, at the last one not at first, at the wrong one never."""
        if name == "wrong" or (name == "last" and broken and broken.pop()):
            raise ValueError(name)
        looked.append(name)
        return name

    plan, tools = ExecutionPlan(description="Look around"), ToolRegistry([look])
    plan.options.require_approval, plan.options.stop_on_error = False, False
    plan.add_step("look", "Look at the wrong one", {"name": "wrong"}, id="wrong")
    plan.add_step("look", "Look behind it", {"name": "behind"}, id="behind", depends_on=["wrong"])
    plan.add_step("look", "Look at the last one", {"name": "last"}, id="last")
    flow = compile_plan(validate(plan, tools), store=world.store)
    state = await flow(return_state=True)
    assert state.is_failed() and state.state_details.flow_run_id is not None
    run = await world.store.ledger.run_of_flow(str(state.state_details.flow_run_id))
    assert run is not None
    skipped = ResumeOptions(skipped={"wrong": "没有必要"})
    resumed = await execute_resume(run.id, tools=tools, run_request=world.run_request(), store=world.store, offline=True, options=skipped)
    assert (resumed.status, looked) == (PlanStatus.PARTIAL, ["behind"])
    assert (await rerun(flow, await flow_run(state.state_details.flow_run_id), {})).is_completed()
    done = await world.store.run(run.id)
    assert (done.step("wrong").status, done.step("wrong").reason) == ("skipped", "skipped by runner: 没有必要")
    assert (done.status, looked) == (PlanStatus.COMPLETED, ["behind", "last"])
    assert (await world.store.verify(run.id)).ok


async def of_deployment(flow: Flow[..., object], *, automation: str | None) -> FlowRun:
    """Return a flow run of the deployment `nightly` of `flow`, created by an automation or by an unknown client."""
    async with get_client() as client:
        deployment = await client.create_deployment(await client.create_flow(flow), "nightly")
        named = {} if automation is None else {"Prefect-Automation-Name": b64encode(automation.encode()).decode()}
        headers = {**named, "Prefect-Automation-Id": str(uuid4())} if named else {}
        made = await client._client.post(f"/deployments/{deployment}/create_flow_run", json={}, headers=headers)
    return await flow_run(UUID(made.raise_for_status().json()["id"]))


@pytest.mark.parametrize(
    ("operators", "automation", "requested_by"),
    [
        (["Strike 目标/nightly"], None, "deployment Strike 目标/nightly"),
        (["Strike 目标/nightly"], "bo", "automation bo"),
        (["bo"], "bo", None),
        (["bo"], None, None),
    ],
    ids=["a deployment run by nobody", "a deployment run by an automation", "an automation with the name of an operator", "nobody known"],
)
async def test_the_deployment_is_the_operator_of_a_run_that_no_person_started(
    operators: list[str], automation: str | None, requested_by: str | None, world: World
) -> None:
    plan = world.plan(policy=ApprovalPolicy(operators=operators))
    plan.options.require_approval = False
    flow = compile_plan(validate(plan, world.tools()), store=world.store)
    state = await rerun(flow, await of_deployment(flow, automation=automation), {})
    if requested_by is None:
        assert (state.is_failed(), world.struck, await world.store.runs()) == (True, [], [])
        assert "Strike 目标/nightly may not run `Strike 目标`; operators: bo" in (state.message or "")
    else:
        assert (state.is_completed(), world.struck) == (True, ["a"])
        assert (await world.store.runs())[0].requested_by == requested_by
