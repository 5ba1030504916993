"""Tests of secrets from Prefect blocks: Prefect stores no secret of a run in clear text."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, get_client, get_run_logger
from prefect.blocks.core import Block
from prefect.blocks.system import Secret
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    LogFilter,
    LogFilterFlowRunId,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.events.worker import EventsWorker
from pydantic import SecretStr

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.engine.connection import Server
from plan_adapter.engine.secret_blocks import SecretBlocks
from plan_adapter.local.secrets import SecretUnavailableError
from plan_adapter.model.options import Input
from plan_adapter.runs import arun_plan
from plan_adapter.tools.tool import as_tool
from tests.secrets.encodings import found_in
from tests.secrets.leaks import leak
from tests.secrets.test_canary import ApproveAll

pytestmark = pytest.mark.usefixtures("prefect_server")

CANARY = 'Zeisig/"7"+vögel=&%token'
OTHER = "Stieglitz-81726354"


class OwnVault(Block):
    """A block that reads its secret from elsewhere."""

    _block_type_slug = "own-vault"
    address: str

    async def read_secret(self) -> bytes:
        return f"{OTHER} of {self.address}".encode()


class OwnToken(Block):
    """A block with one secret among its fields."""

    _block_type_slug = "own-token"
    user: str
    token: SecretStr


@tool(effect="read")
def log_in_prefect(token: str) -> str:
    """Log the token with Prefect's own logger, and raise it."""
    get_run_logger().error("prefect is told %s", token)
    raise ValueError(f"no such token: {token}")


@flow(name="leaky", log_prints=True, persist_result=False)
def leaky(token: str) -> str:
    """Return the token."""
    return token


async def save_blocks() -> None:
    """Save the blocks that the tests use."""
    await Secret(value=SecretStr(CANARY)).asave("canary-of-tests", overwrite=True)  # pyright: ignore[reportUnknownMemberType]
    await OwnVault(address="here").asave("canary", overwrite=True)
    await OwnToken(user="ana", token=SecretStr(OTHER)).asave("canary", overwrite=True)


@pytest.mark.thorough  # 10 s: it looks up blocks of every type
async def test_any_block_with_a_secret_can_be_used() -> None:
    await save_blocks()
    blocks = SecretBlocks()
    assert await blocks.secret("canary_of.Tests") == CANARY
    assert await blocks.secret("own-vault/canary") == f"{OTHER} of here"
    assert await blocks.secret("own-token/canary") == OTHER
    assert await blocks.secret("own-token/none") is None
    assert await blocks.secret("no-such-type/canary") is None
    assert await blocks.secret("never-kept") is None


async def test_a_block_without_a_secret_is_refused() -> None:
    class Plain(Block):
        _block_type_slug = "plain-block-of-tests"
        text: str

    await Plain(text="nothing").asave("canary", overwrite=True)
    with pytest.raises(SecretUnavailableError, match="plain-block-of-tests/canary cannot be read"):
        await SecretBlocks().secret("plain-block-of-tests/canary")


async def everything_of(flow_run_id: str) -> dict[str, str]:
    """Return all that Prefect's API returns about a flow run, after its logs and three final task states have arrived."""
    await asyncio.to_thread(EventsWorker.instance().wait_until_empty)
    of_run = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))  # type: ignore[list-item]
    of_tasks = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[flow_run_id]))  # type: ignore[list-item]
    of_logs = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id]))  # type: ignore[list-item]
    async with get_client() as client, asyncio.timeout(20):
        while True:
            logs = await client.read_logs(of_logs, limit=200)
            tasks = await client.read_task_runs(task_run_filter=of_tasks)
            messages, ended = "\n".join(log.message for log in logs), [task.state is not None and task.state.is_final() for task in tasks]
            if "prefect is told" in messages and "logged" in messages and len(ended) == 3 and all(ended):
                break
            await asyncio.sleep(0.1)
        runs = await client.read_flow_runs(flow_run_filter=of_run)
        all_runs = await client.read_flow_runs(limit=50)
        artifacts = await client.read_artifacts(limit=200)
        states = [state for task in tasks for state in await client.read_task_run_states(task.id)]
    parts: dict[str, list[Any]] = {
        "logs": logs, "task runs": tasks, "states": states, "flow run": runs, "flow runs": all_runs, "artifacts": artifacts,
    }  # fmt: skip
    return {name: json.dumps([part.model_dump(mode="json") for part in found], ensure_ascii=False) for name, found in parts.items()}


@pytest.mark.parametrize(
    ("written", "inputs"),
    [("${{ secrets.canary_of_tests }}", {}), ("${{ inputs.account }}", {"account": "canary-of-tests"})],
    ids=["written", "named by an input"],
)
async def test_prefect_stores_no_secret(written: str, inputs: dict[str, str], prefect_server: Server, tmp_path: Path) -> None:
    await save_blocks()
    plan = ExecutionPlan(description="Tell Prefect", inputs={name: Input(type="secret") for name in inputs})
    plan.options.require_approval = False
    plan.options.continue_on_error = True
    for name, fields in {"leak": {"requires_approval": True}, "log_in_prefect": {}, "leaky": {}}.items():
        plan.add_step(name, f"Do {name}", {"token": written}, id=name, **fields)
    tools = ToolRegistry([leak, log_in_prefect, as_tool(leaky, effect="read")])
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        run = await arun_plan(plan, tools=tools, store=store, approver=ApproveAll(), inputs=inputs)
    assert run.flow_run_id is not None
    assert {step.id: step.error or step.result for step in run.steps if step.id != "leak"} == {
        "log_in_prefect": "ValueError: no such token: ***",
        "leaky": "***",
    }
    everything = await everything_of(run.flow_run_id)
    assert (
        "logged ***" in everything["logs"] and "prefect is told ***" in everything["logs"] and "no such token: ***" in everything["states"]
    )
    assert {name: found_in(text, CANARY) for name, text in everything.items()} == {name: [] for name in everything}
    assert prefect_server.log_path is not None
    with sqlite3.connect(f"file:{prefect_server.log_path.parent / 'prefect/prefect.db'}?mode=ro", uri=True) as database:
        rows = "\n".join(database.iterdump())
    assert "prefect is told ***" in rows
    assert found_in(rows, CANARY) == []
