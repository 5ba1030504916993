"""`plan resume`."""

import asyncio
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from plan_adapter.cli.answering import Words
from plan_adapter.cli.aside import aside
from plan_adapter.cli.codes import UsageError, code_of_run
from plan_adapter.cli.going_on import asked_for
from plan_adapter.cli.holding import has_nothing_left, held, until_free
from plan_adapter.cli.performing import Performance, Wanted, begin_server, show_result
from plan_adapter.cli.resolve import mark_step_done
from plan_adapter.cli.sources import open_store, tools_of
from plan_adapter.cli.speaking import Person
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.execution.redrive import Redrive


def resume(
    run: str,
    /,
    *,
    tools: list[str] | None = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    only_failed: bool = False,
    skip: list[str] | None = None,
    because: str = "",
    mark_done: str | None = None,
    result: str | None = None,
    sign: bool = False,
    code: str | None = None,
    by: str | None = None,
    offline: bool = False,
    yes: bool = False,
    detach: bool = False,
    here: bool = False,
    wait: bool = False,
    json: bool = False,
) -> int:
    """Go on with a run that stopped: what has succeeded is carried over, the rest is run. Resuming approves nothing by itself.

    Where its tools are not those that were approved, what changed of them is asked about first.

    Args:
        run: The id of a run, or its beginning.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        from_: Only this step and what depends on it; the others are left for another time. One that was left out is wanted again.
        only_failed: Only the steps that failed and what depends on them.
        skip: A step that is left out for good, however often the run is resumed, while what depends on it goes on; may be repeated.
            Needs `--because`.
        because: Why steps are left out; it is recorded with your name.
        mark_done: A step that somebody did by hand; `--result` is what it gave back. As `plan resolve RUN STEP done`.
        result: With `--mark-done`: the step's result as JSON, which later steps may refer to; null if it is not given.
        sign: With `--skip`, `--from` and `--mark-done`: sign what you say with your SSH key, for a policy that wants to know you so.
        code: With one of these three: your one-time code.
        by: Whose word it is, with `--sign` or `--code`; the operating system's user if it is not given.
        offline: Run without Prefect.
        yes: Approve what is asked, in the name of the operating system's user, where the policy allows that.
        detach: Wait for nobody: once nothing but approvals is waited for, of the plan or of steps, leave the run and end with 6.
        here: Move the run from the folder that it was created in to the current one; that is asked about first.
        wait: Where another process has the run, wait until it has ended or its lease is free, and go on then.
        json: Print events as JSON Lines; the last line is the run.
    """
    asked = asked_for(from_, only_failed=only_failed, skip=skip or [], because=because)
    words = Words("approve", note=because, sign=sign, code=code, by=by)
    if (sign or code) and not (skip or from_ or mark_done):
        raise UsageError("--sign, --code and --by say whose word it is: they go with --skip, --from and --mark-done")
    if code and mark_done is not None and (skip or from_):
        raise UsageError("a one-time code is good for one word: give --mark-done in a command of its own")
    if mark_done is not None:
        asyncio.run(_mark_done(run, mark_done, result, words))
    elif result is not None:
        raise UsageError("--result goes with --mark-done STEP")
    wanted = Wanted(yes=yes, detach=detach, json=json)
    return asyncio.run(_resume(run, tools or [], wanted, asked, words, offline=offline, waits=wait, here=here))


async def _mark_done(run: str, step: str, result: str | None, words: Words) -> None:
    """Keep that somebody did a step by hand, if whoever says so may go on with the run, too."""
    from plan_adapter.runs.occasion import Occasion
    from plan_adapter.runs.permitting import refuse_going_on

    settings = Settings()
    async with open_store(settings) as store:
        found = await store.run(run)
        await refuse_going_on(found, await store.get(found.digest), store, Occasion())
        await mark_step_done(run, step, result, words, store, settings)


async def _resume(
    run: str, tools: list[str], wanted: Wanted, asked: "Redrive | None", words: Words, *, offline: bool, waits: bool, here: bool
) -> int:
    from plan_adapter.errors import RunConflictError
    from plan_adapter.runner import go_on

    settings = Settings()
    pending = begin_server(settings, offline=offline)
    registry = tools_of(tools)
    async with open_store(settings) as store:
        found = await store.run(run, with_steps=False)
        server = await aside(pending.wait) if pending is not None else None
        while True:
            now = await until_free(found, store) if waits else found
            if has_nothing_left(found, now):
                show_result(now, as_json=wanted.json, hint=None)
                return code_of_run(now)
            performance = Performance(server, wanted, store=store, tools=registry)
            occasion = performance.occasion(settings, speaker=Person(words, settings))
            work = go_on(
                found.id, tools=registry, occasion=occasion, store=store, offline=offline, asked=asked, record_pending=True, here=here
            )
            try:
                return await performance.complete(work)
            except RunConflictError:
                if not waits or await held(found.id, store) is None:  # else another one was quicker
                    raise
