"""`plan cancel`."""

from plan_adapter.cli import output
from plan_adapter.cli.answers import AnswerOptions, CallerIdentity
from plan_adapter.cli.asking import is_at_terminal
from plan_adapter.cli.codes import ExitCode, UsageError, has_unknown_rollback
from plan_adapter.cli.foreground import ForegroundRun, RunOptions
from plan_adapter.cli.records import run_end, run_json
from plan_adapter.cli.servers import show_end
from plan_adapter.cli.sources import open_store, tools_of
from plan_adapter.plan import PlanStatus
from plan_adapter.settings import Settings

ASKED = "the process that executes it has been asked to end it"


async def cancel(
    run: str,
    /,
    *,
    reason: str = "cancelled with `plan cancel`",
    rollback: bool = False,
    tools: list[str] | None = None,
    offline: bool = False,
    sign: bool = False,
    code: str | None = None,
    by: str | None = None,
    json: bool = False,
) -> int:
    """Cancel a run: the process that executes it ends its steps and records the reason; one that nobody executes is ended at once.

    With `--rollback` what its steps did is undone, as far as they declare how; also of a run that has ended failed, partial or cancelled.
    Without it a rollback that is under way, or was asked for, is ended: what is being undone is, and nothing further.
    Where nobody knows whether something was undone, the person at the terminal is asked, and in a flow run also its form.

    Args:
        run: The id of a run, or its beginning.
        reason: What is recorded as the reason.
        rollback: Undo what was done, in the reverse order of dependencies.
        tools: With `--rollback`, `package.module:name` of a tool or registry that the plan uses; may be repeated.
        offline: With `--rollback`, undo without Prefect, also what was done in a flow run.
        sign: With `--rollback`: sign with your SSH key that you ask for it, for a policy that wants to know you so.
        code: With `--rollback`: your one-time code.
        by: With `--rollback`: who asks for it, with `--sign` or `--code`; the operating system's user if it is not given.
        json: Print the run as a JSON object; with `--rollback` events, too.
    """
    from plan_adapter.approval import os_user
    from plan_adapter.runner import acancel_run

    words = AnswerOptions("approve", sign=sign, code=code, by=by)
    said = f"{reason} (by {by or os_user()})"
    if rollback:
        return await _roll_back(run, said, tools or [], words, offline=offline, json=json)
    if sign or code:
        raise UsageError("--sign, --code and --by say who asks for a rollback: they go with --rollback")
    async with open_store(Settings()) as store:
        is_left = all(gate.attended is False for gate in await store.gates(run_id=(await store.run(run, with_steps=False)).id))
        found = await acancel_run(run, reason=said, store=store)
        if is_left and found.status is PlanStatus.CANCELLED:
            await show_end(found.id, store, Settings())
    if json:
        output.json_line(run_json(found, steps=False))
    else:
        output.line(run_end(found))
    if found.status is PlanStatus.EXECUTING:
        output.note(ASKED)
    return ExitCode.DONE


async def _roll_back(run: str, reason: str, tools: list[str], words: AnswerOptions, *, offline: bool, json: bool) -> int:
    from plan_adapter.execution.rollback import units_to_undo
    from plan_adapter.execution.standing import aborted_steps, after_abort
    from plan_adapter.runner import undo_run

    settings, registry = Settings(), tools_of(tools)
    async with open_store(settings) as store:
        found = await store.run(run)
        wanted = RunOptions(yes=False, detach=json or not is_at_terminal(), json=json)
        foreground = ForegroundRun(None, wanted, store=store, tools=registry)
        occasion = foreground.request(settings, speaker=CallerIdentity(words, settings))
        code = await foreground.complete(undo_run(found, reason=reason, tools=registry, occasion=occasion, store=store, offline=offline))
        if await store.holder(found.id) is not None:
            output.note(f"{ASKED}, and to undo what was done")
            return ExitCode.DONE
        if code == ExitCode.INTERRUPTED:
            return code
        past = await store.past(found.id)
        plan = await store.get((await store.run(found.id, with_steps=False)).digest)  # that of the version that was approved
        left, doubtful = units_to_undo(plan, past), aborted_steps(plan, past)
        if not left and not past.has_rollbacks:
            output.note("nothing was undone: no step that has completed declares a rollback")
        if doubtful:
            output.note(after_abort(found.id, doubtful, past.labels, is_undone=past.has_rollbacks))
        if await has_unknown_rollback(found.id, store):
            return ExitCode.UNKNOWN
        return ExitCode.FAILED if left or doubtful else ExitCode.DONE
