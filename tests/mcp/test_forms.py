"""Tests of an agent's runs with a Prefect server, whose UI shows what they wait for."""

import pytest

from plan_adapter.engine.gate_forms import open_forms
from tests.mcp.harness import DEPLOY, Harness

pytestmark = pytest.mark.usefixtures("prefect_server")


async def test_a_waiting_run_is_a_paused_flow_run_with_a_form_and_resumes_there(harness: Harness) -> None:
    async with harness.agent(offline=False) as agent:
        run_id = (await agent.call("run_plan", document=DEPLOY, inputs={"version": "1"}))["run"]
        assert harness.started == [run_id]
        waiting = await harness.execute(run_id, offline=False)
        (form,) = [form for form in await open_forms() if form.run_id == run_id]
        assert (form.flow_run_id, form.is_unattended, harness.deployed) == (waiting.flow_run_id, True, [])
        shown = await agent.call("show_run", run=run_id)
        assert (shown["status"], len(shown["gates"])) == ("pending_approval", 1)
        assert f"plan resume {run_id}`" in shown["next"]  # not `--offline`: there is a flow run
        await harness.answer(run_id)
        await agent.call("resume_run", run=run_id, wait_seconds=0)
        done = await harness.execute(run_id, offline=False)
    assert (done.status, done.flow_run_id, harness.started, harness.deployed) == ("completed", waiting.flow_run_id, [run_id, run_id], ["1"])
