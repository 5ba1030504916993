"""`plan revise`."""

from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.answering import find_run
from plan_adapter.cli.asking import is_at_terminal
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.differences import difference_lines, difference_title
from plan_adapter.cli.records import run_json
from plan_adapter.cli.sources import open_store, plan_of, tools_of
from plan_adapter.settings import Settings

if TYPE_CHECKING:
    from plan_adapter.plan import ExecutionPlan
    from plan_adapter.record import PlanRun
    from plan_adapter.store.store import PlanStore
    from plan_adapter.tools.registry import ToolRegistry


async def revise(
    run: str,
    plan: str | None = None,
    /,
    *,
    note: str = "",
    edit: bool = False,
    tools: list[str] | None = None,
    json: bool = False,
) -> int:
    """Put a new version of its plan into a run that has not ended, show what differs, and have it approved anew.

    The run keeps its inputs, what its steps have done, and the approvals of single steps that the new version leaves as they are.

    Args:
        run: The id of a run or its beginning, or of a flow run.
        plan: The new version: a plan document, `-` for stdin, or a stored plan.
        note: Why; it is recorded with the version.
        edit: Open the recorded plan in your editor (VISUAL, EDITOR) instead.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        json: Print the run as a JSON object, with `changes`.
    """
    from plan_adapter.approval import os_user
    from plan_adapter.errors import RunConflictError
    from plan_adapter.runner import arevise_run

    if edit == (plan is not None):
        raise UsageError("give the new version as a file, or --edit")
    registry = tools_of(tools or [])
    async with open_store(Settings()) as store:
        found = await find_run(run, store)
        old = await store.get(found.digest)
        new = await _edited(found, store, registry) if edit else await plan_of(plan or "", store)
        if new is None:
            output.note(f"run {found.id} stays as it is")
            return ExitCode.DONE
        is_attended = any(gate.attended is not False for gate in await store.gates(run_id=found.id))
        try:
            revised = await arevise_run(found.id, new, tools=registry, by=os_user(), note=note, store=store)
        except RunConflictError as error:
            raise UsageError(str(error)) from error
        is_asked = bool(await store.gates(run_id=revised.id))
    lines = difference_lines(old, new)
    if json:
        output.json_line({**run_json(revised, steps=False), "changes": lines})
    else:
        output.line("\n".join([difference_title(lines), *lines]))
        output.line(f"run {revised.id} has the new version: {revised.status}")
    _tell_next(revised, is_attended=is_attended, is_asked=is_asked)
    return ExitCode.DONE


async def _edited(run: "PlanRun", store: "PlanStore", tools: "ToolRegistry") -> "ExecutionPlan | None":
    if not is_at_terminal():
        raise UsageError("--edit needs a terminal; give the new version as a file")
    from plan_adapter.approvers.conversation import Conversation
    from plan_adapter.cli.editing import edited_plan

    return await edited_plan(run, store, tools, Conversation())


def _tell_next(run: "PlanRun", *, is_attended: bool, is_asked: bool) -> None:
    if is_attended:
        output.note("the process that waits for its approval asks about the new version")
    elif not is_asked:
        output.note(f"it needs no approval: `plan resume {run.id}` goes on")
    else:
        output.note(f"`plan approve {run.id}` approves it, then `plan resume {run.id}` goes on")
