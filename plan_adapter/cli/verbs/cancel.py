"""`plan cancel`."""

from typing import TYPE_CHECKING

from plan_adapter.cli import output
from plan_adapter.cli.answering import AnswerOptions, CallerIdentity
from plan_adapter.cli.asking import is_at_terminal
from plan_adapter.cli.exit_codes import ExitCode, UsageError, has_unknown_rollback
from plan_adapter.cli.foreground import ForegroundRun, RunOptions
from plan_adapter.cli.records import run_json, run_status_line
from plan_adapter.cli.servers import show_end_in_prefect
from plan_adapter.cli.sources import open_store, tools_of
from plan_adapter.gates.approval import os_user
from plan_adapter.local.settings import Settings
from plan_adapter.model.readable import listed
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, StepStatus

if TYPE_CHECKING:
    from plan_adapter.store.store import PlanStore

STOP_REQUESTED = "the process that runs it has been asked to stop"


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
    """Cancel a run. The process that runs it stops its steps and records the reason; a run without a process ends now.

    With `--rollback`, completed steps that declare a rollback are rolled back; this also works for a run that has ended failed, partial
    or cancelled. Without it, a rollback in progress stops after the current step. If the outcome of a rollback is unknown, you are asked
    at the terminal and in the form of the flow run.

    Args:
        run: The id of a run, its beginning or end, or `last`.
        reason: The reason to record.
        rollback: Roll back what was done, in reverse order of dependencies.
        tools: With `--rollback`, `package.module:name` of a tool or registry that the plan uses; may be repeated.
        offline: With `--rollback`, roll back without Prefect, also a run that ran in Prefect.
        sign: With `--rollback`: sign the request with your SSH key, where the policy asks for that.
        code: With `--rollback`: your one-time code, where the policy asks for one.
        by: With `--rollback`: who is asking (with `--sign` or `--code`); default: your account.
        json: Print the run as a JSON object; with `--rollback` also the events.
    """
    from plan_adapter.runner import acancel_run  # imports SQLAlchemy

    options = AnswerOptions("approve", sign=sign, code=code, by=by)
    recorded_reason = f"{reason} (by {by or os_user()})"
    if rollback:
        return await _roll_back(run, recorded_reason, tools or [], options, offline=offline, json=json)
    if sign or code:
        raise UsageError("--sign, --code and --by prove who asks for a rollback: they go with --rollback")
    async with open_store(Settings()) as store:
        is_unattended = all(gate.attended is False for gate in await store.gates.find(run_id=(await store.run(run, with_steps=False)).id))
        found = await acancel_run(run, reason=recorded_reason, store=store)
        if is_unattended and found.status is PlanStatus.CANCELLED:
            await show_end_in_prefect(found.id, store, Settings())
        notes = await _what_is_left(found, store) if found.status is PlanStatus.CANCELLED else []
    if json:
        output.json_line("run", run_json(found, steps=False))
    else:
        output.line(run_status_line(found))
    for note in notes:
        output.note(note)
    if found.status is PlanStatus.EXECUTING:
        output.note(STOP_REQUESTED)
    return ExitCode.DONE


async def _what_is_left(run: PlanRun, store: "PlanStore") -> list[str]:
    """Return notes on what a cancelled run left behind: an unknown outcome, and `finally` steps that no process ran."""
    from plan_adapter.runs.reconcile import hint_of  # imports SQLAlchemy

    finally_ids = {step.id for step in (await store.get(run.digest)).finally_}
    not_run = [f"`{step.id}`" for step in run.steps if step.id in finally_ids and step.status is StepStatus.SKIPPED]
    has_begun = any(step.attempts for step in run.steps)
    notes = (
        [f"the `finally` steps did not run, because no process executes the run: {listed(not_run, 10)}"] if not_run and has_begun else []
    )
    hint = await hint_of(run, store)
    return notes if hint is None else [*notes, hint]


async def _roll_back(run: str, reason: str, tools: list[str], options: AnswerOptions, *, offline: bool, json: bool) -> int:
    # Only for `--rollback`.
    from plan_adapter.execution.rollback_status import aborted_steps, after_abort
    from plan_adapter.execution.rollback_units import is_rolled_back, units_to_roll_back
    from plan_adapter.runs.run_rollback import rollback_run

    settings, registry = Settings(), tools_of(tools)
    async with open_store(settings) as store:
        found = await store.run(run)
        run_options = RunOptions(yes=False, detach=json or not is_at_terminal(), json=json)
        foreground = ForegroundRun(None, run_options, store=store, tools=registry, imports=tools)
        run_request = foreground.request(settings, identity=CallerIdentity(options, settings))
        exit_code = await foreground.complete(
            rollback_run(found, reason=reason, tools=registry, run_request=run_request, store=store, offline=offline)
        )
        if await store.ledger.owner(found.id) is not None:
            output.note(f"{STOP_REQUESTED} and to roll back")
            return ExitCode.DONE
        if exit_code == ExitCode.INTERRUPTED:
            return exit_code
        history = await store.ledger.history(found.id)
        ended = await store.run(found.id, with_steps=False)
        plan = await store.get(ended.digest)  # the approved version
        left, unknown = units_to_roll_back(plan, history), aborted_steps(plan, history)
        if not left and not is_rolled_back(plan, history, ended.rollback):
            output.note("nothing was rolled back: no completed step declares a rollback")
        if unknown:
            output.note(after_abort(found, unknown, history.labels, is_undone=is_rolled_back(plan, history, ended.rollback)))
        if await has_unknown_rollback(found.id, store):
            return ExitCode.UNKNOWN
        return ExitCode.FAILED if left or unknown else ExitCode.DONE
