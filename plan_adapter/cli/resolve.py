"""`plan resolve`."""

import json as json_module
from typing import TYPE_CHECKING, Literal

from plan_adapter.cli import output
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.records import run_end, run_json
from plan_adapter.cli.sources import open_store
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from pydantic import JsonValue


async def resolve(
    run: str,
    step: str,
    resolution: Literal["done", "again", "abort"],
    /,
    *,
    item: int | None = None,
    result: str | None = None,
    note: str = "",
    json: bool = False,
) -> int:
    """Say how a write ended of which nobody knows it: it was `done`, do it `again`, or `abort` the run.

    A process that waits for this word, in a form or at its terminal, goes on at once; where none does, `plan resume` goes on.
    Of any other step that has not succeeded it can be said that it is `done`: somebody did it by hand.

    Args:
        run: The id of a run, or its beginning.
        step: The step whose outcome is unknown.
        resolution: done, again or abort.
        item: The item of the step's `for_each`, counted from 0.
        result: With `done`: the step's result as JSON, which later steps may refer to; null if it is not given.
        note: How you know; it is recorded with your name.
        json: Print the run as a JSON object.
    """
    from plan_adapter.approval import os_user
    from plan_adapter.runner import aresolve_step
    from plan_adapter.runs.doubt import hint_of

    if result is not None and resolution != "done":
        raise UsageError("--result is what a step that was done gave back: it goes with `done` only")
    async with open_store(Settings()) as store:
        found = await aresolve_step(
            run, step, resolution, by=os_user(), known_by="os_user", item=item, result=_value(result), note=note, store=store
        )
        is_executed = await store.holder(found.id) is not None
        unknown = [] if is_executed else await store.unknown(found.id)
        hint = await hint_of(found, store) if resolution == "abort" and not is_executed else None
    if json:
        output.json_line(run_json(found, steps=False))
        return ExitCode.DONE
    output.line(run_end(found))
    if is_executed:
        output.note("the process that waits for it " + ("ends the run" if resolution == "abort" else "goes on at once"))
    elif unknown:
        output.note(f"`plan resolve {found.id} {unknown[0].step_id} done|again|abort` says the next one")
    elif hint is not None:
        output.note(hint)
    elif resolution != "abort":
        goes_on = f"plan cancel {found.id} --rollback" if step.startswith("rollback ") else f"plan resume {found.id}"
        output.note(f"`{goes_on}` goes on")
    return ExitCode.DONE


async def mark_step_done(run: str, step: str, result: str | None, *, note: str) -> None:
    """Keep that somebody did a step by hand: `plan resolve RUN STEP done` in one go with what follows."""
    from plan_adapter.approval import os_user
    from plan_adapter.runner import aresolve_step

    async with open_store(Settings()) as store:
        await aresolve_step(run, step, "done", by=os_user(), known_by="os_user", result=_value(result), note=note, store=store)


def _value(text: str | None) -> "JsonValue":
    if text is None:
        return None
    try:
        return json_module.loads(text)
    except ValueError as error:
        raise UsageError(f"--result is no JSON ({error}); a text is written with quotes, as in '\"v3\"'") from None
