"""The entrypoint of deployed runbooks: `plan_adapter.deployed.plan_<digest>` is the flow of the stored plan with that digest.

A flow run with a record, because it waited or is retried, gets the plan of its record, even if a newer version has been deployed since.
"""

import asyncio
import atexit
import gc
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prefect import Flow

from plan_adapter.engine.deployments import read_flow_run_source
from plan_adapter.engine.flow import failing_flow
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import InvalidPlanError, NotStoredError, PlanAdapterError, StoreSettingsError, ToolDefinitionError
from plan_adapter.model.readable import one_line
from plan_adapter.runner import compile_plan
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import validate

_FLOW_NAME = re.compile(r"plan_([0-9a-f]{64})")

# A worker starts a process for each flow run. Without this, Python spends 0.2 s of CPU time on garbage before the process ends, a tenth of
# what a run of 20 steps costs (tests/benchmarks/test_deployments.py).
atexit.register(gc.freeze)


def __getattr__(name: str) -> Flow[..., Any]:
    match = _FLOW_NAME.fullmatch(name)
    if match is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with ThreadPoolExecutor(1) as thread:  # Prefect may load a flow where an event loop runs
        return thread.submit(asyncio.run, _load_flow(match[1])).result()


async def _load_flow(digest: str) -> Flow[..., Any]:
    """Return the flow of the plan. If this worker cannot run it, the flow fails with the reason."""
    flow_run_id = os.environ.get("PREFECT__FLOW_RUN_ID")
    try:
        async with PlanStore(Settings().store_url) as store:
            run = None if flow_run_id is None else await store.ledger.run_of_flow(flow_run_id)
            plan = await store.get(digest if run is None else run.digest)
        tools = ToolRegistry.from_settings(Settings().tools)
        return compile_plan(validate(plan, tools), tools=tools)
    except PlanAdapterError as error:
        if flow_run_id is None:
            raise
        source = await read_flow_run_source(flow_run_id)
        if isinstance(error, NotStoredError):  # the store answers, and has no such plan
            error = StoreSettingsError(
                f"{error}; the runbook was deployed with another store: set PLAN_ADAPTER_DATABASE_URL for the worker, or deploy again"
            )
        if isinstance(error, InvalidPlanError) and any(problem.code == "unknown-tool" for problem in error.problems):
            error = ToolDefinitionError(f"{error}{_install_hint(source.tool_packages)}")
        return failing_flow(source.parameters, error)


def _install_hint(packages: Mapping[str, str]) -> str:
    needs = ", ".join(f"`{one_line(tool)}` was in {one_line(package)}" for tool, package in packages.items())
    return f"; install the missing tools where the worker runs: when the runbook was deployed, {needs}" if needs else ""
