"""Tests of payloads in Prefect: parameters, names, states, logs, artifacts and task runs hold them as text."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry
from plan_adapter.engine.outgoing import markdown, paragraphs, publish_text, state_message
from plan_adapter.model.readable import call_name
from plan_adapter.model.status import PlanStatus
from plan_adapter.plans import Input
from plan_adapter.runs import arun_plan
from tests.engine.calls import task_runs
from tests.text.conftest import fail, take, tell
from tests.text.payloads import PAYLOADS, PRODUCT, nothing_was_interpreted

pytestmark = [pytest.mark.usefixtures("prefect_server"), pytest.mark.thorough]

TEXTS = [text for text in PAYLOADS.values() if "\0" not in text]


async def test_prefect_shows_payloads_in_inputs_names_and_errors_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = ExecutionPlan(name=" ".join(TEXTS), description="\n\n".join(TEXTS), inputs={"texts": Input(type="array")})
    plan.options.require_approval, plan.options.stop_on_error = False, False
    items = "${{ inputs.texts }}"
    plan.add_step("take", TEXTS[0], {"whole": "${{ item }}"}, id="take", for_each=items)
    plan.add_step("fail", "\n".join(TEXTS), {"text": "${{ item }}"}, id="fail", for_each=items, on_error="continue")
    plan.add_step("tell", TEXTS[0], {"text": "${{ item }}"}, id="tell", for_each=items)
    async with PlanStore(f"sqlite:///{tmp_path}/plans.db") as store:
        run = await arun_plan(plan, tools=ToolRegistry([take, fail, tell]), inputs={"texts": list(TEXTS)}, store=store)
        kept, labels = await store.run(run.id), (await store.ledger.history(run.id)).labels
    assert kept.inputs == {"texts": TEXTS}
    assert kept.step("take").result == [{"whole": text, "inside": "", "nested": None} for text in TEXTS]
    await _shown_as_text(run, [call_name("fail", index, labels.get(("fail", index))) for index in range(len(TEXTS))])
    assert nothing_was_interpreted(tmp_path)


async def _shown_as_text(run: PlanRun, names: list[str]) -> None:
    assert (run.status, run.flow_run_id is not None) == (PlanStatus.PARTIAL, True)
    flow_run_id = UUID(run.flow_run_id or "")
    runs = await task_runs(flow_run_id, names)
    assert PRODUCT not in "".join(runs)
    for name, text in zip(names, TEXTS, strict=True):
        state = runs[name].state
        assert state is not None and state.message == state_message(f"ValueError: {text}" if text else "ValueError")
    async with get_client() as client:
        flow_run = await client.read_flow_run(flow_run_id)
    assert flow_run.parameters == {"texts": TEXTS}
    assert flow_run.state is not None and PRODUCT not in f"{flow_run.name}{flow_run.state.message}{flow_run.parameters}"


async def test_an_artifact_contains_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ids = list[UUID]()

    @flow(persist_result=False)
    async def publish() -> None:
        from prefect.context import FlowRunContext

        context = FlowRunContext.get()
        assert context is not None and context.flow_run is not None
        ids.append(context.flow_run.id)
        await asyncio.gather(
            *(publish_text(text or "-", key=f"text {number} {text}", description=text) for number, text in enumerate(TEXTS))
        )

    await publish()
    async with get_client() as client:
        found = await client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=ids)), limit=200)
    assert sorted(str(artifact.data) for artifact in found) == sorted(markdown(text or "-") for text in TEXTS)
    assert sorted(artifact.description or "" for artifact in found) == sorted(paragraphs(text) for text in TEXTS)
    assert nothing_was_interpreted(tmp_path)
