"""Where a Prefect server is, people see in its UI what an agent's runs wait for."""

import pytest

from plan_adapter.engine.gate_forms import open_forms
from tests.mcp.desk import DEPLOY, Desk

pytestmark = pytest.mark.usefixtures("prefect_server")


async def test_a_waiting_run_is_a_paused_flow_run_with_a_form_and_continues_there(desk: Desk) -> None:
    async with desk.agent(offline=False) as agent:
        run_id = (await agent.call("run_plan", document=DEPLOY, inputs={"version": "1"}))["run"]
        assert desk.started == [run_id]
        waiting = await desk.work(run_id, offline=False)
        (form,) = [form for form in await open_forms() if form.run_id == run_id]
        assert (form.flow_run_id, form.is_left, desk.deployed) == (waiting.flow_run_id, True, [])
        shown = await agent.call("show_run", run=run_id)
        assert (shown["status"], len(shown["gates"])) == ("pending_approval", 1)
        assert f"plan resume {run_id}`" in shown["next"]  # not `--offline`: there is a flow run
        await desk.answer(run_id)
        await agent.call("resume_run", run=run_id, wait_seconds=0)
        done = await desk.work(run_id, offline=False)
    assert (done.status, done.flow_run_id, desk.started, desk.deployed) == ("completed", waiting.flow_run_id, [run_id, run_id], ["1"])
