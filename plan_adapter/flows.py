"""The flows that deployments offer: their entrypoints are `plan_adapter.flows.run_plan` and `plan_adapter.flows.reconcile`."""

import re
from typing import Any, cast

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from plan_adapter.blocks import PlanStoreDatabase
from plan_adapter.documents import load_plan
from plan_adapter.errors import PlanAdapterError
from plan_adapter.plan import ExecutionPlan
from plan_adapter.runner import compile_plan
from plan_adapter.runs.door import end_released
from plan_adapter.settings import Settings
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import validate

_STORED = re.compile(r"store:(?P<name>[^\n]+?)(?:@(?P<version>[0-9]+))?|(?:sha256:)?(?P<digest>[0-9a-f]{8,64})")


@flow(name="run-plan", persist_result=False)
async def run_plan(plan: str, inputs: dict[str, Any] | None = None, tools: list[str] | None = None, database: str | None = None) -> State:
    """Run a plan: its steps are the task runs of this flow run, and a retry of the flow run carries what has succeeded.

    Args:
        plan: A stored plan (its digest, or store:name@version), the path of a plan document, or a document's text.
        inputs: The inputs of the run, by name.
        tools: Import strings package.module:name of tools beside the built-in ones.
        database: Name of a Plan Store Database block; without one the worker's settings name the store.

    """
    try:
        async with await _open_store(database) as store:
            await end_released(store)
            registry = ToolRegistry.from_settings([*Settings().tools, *(tools or [])])
            compiled = compile_plan(validate(await _find_plan(plan, store), registry), tools=registry, store=store)
            # Called as a function: as a subflow the steps would be those of one more flow run, which a retry of this one would not find.
            return cast("State", await compiled.fn(**(inputs or {})))
    except PlanAdapterError as error:
        return Failed(message=str(error))


@flow(name="reconcile", persist_result=False)
async def reconcile(database: str | None = None) -> State:
    """Find what ended processes left behind, mend what needs nobody's word, and say in the state's message what a person must do.

    Args:
        database: Name of a Plan Store Database block; without one the worker's settings name the store.

    """
    from plan_adapter.runs.reconciling import reconcile as reconcile_runs

    async with await _open_store(database) as store:
        found = await reconcile_runs(store, with_prefect=True)
    for finding in found:
        now = "mended" if finding.is_mended else finding.command or "for a person"
        get_run_logger().info("%s %s: %s (%s)", finding.run_id, finding.name, finding.message, now)
    left = [finding for finding in found if not finding.is_mended]
    commands = "; ".join(f"`{finding.command}`" for finding in left[:5])
    return Completed(message=f"{len(found) - len(left)} mended, {len(left)} for a person" + (f": {commands}" if left else ""))


async def _open_store(block: str | None) -> PlanStore:
    if block is None:
        return PlanStore()
    return (await PlanStoreDatabase.aload(block)).get_store()


async def _find_plan(source: str, store: PlanStore) -> ExecutionPlan:
    """Return the plan that `source` means, in the words of the command line."""
    stored = _STORED.fullmatch(source.strip())
    if stored is None:
        return load_plan(source)
    version = stored["version"]
    return await store.get(stored["name"] or stored["digest"], version=int(version) if version else None)
