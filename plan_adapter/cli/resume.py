"""`plan resume`."""

import asyncio

from plan_adapter.cli.aside import aside
from plan_adapter.cli.codes import code_of_run
from plan_adapter.cli.performing import Performance, Wanted, begin_server, show_result
from plan_adapter.cli.sources import open_store, tools_of
from plan_adapter.cli.waiting import standing_of
from plan_adapter.plan import PlanStatus
from plan_adapter.settings import Settings


def resume(
    run: str,
    /,
    *,
    tools: list[str] | None = None,
    offline: bool = False,
    yes: bool = False,
    detach: bool = False,
    json: bool = False,
) -> int:
    """Go on with a run that stopped: what has succeeded is carried over, the rest is run. Resuming approves nothing by itself.

    Args:
        run: The id of a run, or its beginning.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        offline: Run without Prefect.
        yes: Approve what is asked, in the name of the operating system's user, where the policy allows that.
        detach: Wait for nobody: a run that waits for an approval goes on waiting, and the command ends with 6.
        json: Print events as JSON Lines; the last line is the run.
    """
    return asyncio.run(_resume(run, tools or [], Wanted(yes=yes, detach=detach, json=json), offline=offline))


async def _resume(run: str, tools: list[str], wanted: Wanted, *, offline: bool) -> int:
    from plan_adapter.errors import NotApprovedError
    from plan_adapter.runner import go_on

    settings = Settings()
    pending = begin_server(settings, offline=offline)
    registry = tools_of(tools)
    async with open_store(settings) as store:
        found = await store.run(run)
        server = await aside(pending.wait) if pending is not None else None
        performance = Performance(server, wanted, store=store, tools=registry)
        work = go_on(found.id, tools=registry, occasion=performance.occasion(settings), store=store, offline=offline)
        try:
            return await performance.complete(work)
        except NotApprovedError:
            if performance.asks or found.status is not PlanStatus.PENDING_APPROVAL:
                raise
            show_result(found, as_json=wanted.json, hint=(await standing_of(found, store)).hint())  # it goes on waiting
            return code_of_run(found)
