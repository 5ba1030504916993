"""`plan resume`."""

import asyncio
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from plan_adapter.cli import output
from plan_adapter.cli.answering import AnswerOptions, CallerIdentity, refuse_name_alone
from plan_adapter.cli.daemon_thread import in_daemon_thread
from plan_adapter.cli.exit_codes import UsageError, code_of_run
from plan_adapter.cli.foreground import ForegroundRun, RunOptions, begin_server, refuse_empty_reason, show_result
from plan_adapter.cli.sources import open_store, resume_options_of, tools_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.readable import call_name, moment, one_line
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, RunReason

if TYPE_CHECKING:
    from plan_adapter.execution.history import ResumeOptions
    from plan_adapter.store.store import PlanStore

POLL_SECONDS = 1.0
"""The interval of checks: nothing announces that a process died or that its lease has expired."""


def resume(
    run: str,
    /,
    *,
    tools: list[str] | None = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    only_failed: bool = False,
    skip: list[str] | None = None,
    note: str = "",
    sign: bool = False,
    code: str | None = None,
    by: str | None = None,
    offline: bool = False,
    yes: bool = False,
    detach: bool = False,
    here: bool = False,
    wait: bool = False,
    override_freeze: str | None = None,
    json: bool = False,
) -> int:
    """Resume a run. Completed steps are kept; the rest run now.

    Resuming approves nothing by itself. If a tool's definition has changed since it was approved, the gate opens again and shows how.

    Args:
        run: The id of a run, its beginning or end, or `last`.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        from_: Run only this step and the steps that depend on it; the others wait for a later resume. Also takes back its `--skip`.
        only_failed: Run only the steps that failed and the steps that depend on them.
        skip: Skip this step now and in every later resume; the steps that depend on it still run. May be repeated. Needs `--note`.
        note: Why the steps are skipped; it is recorded with your name.
        sign: With `--skip` or `--from`: sign the request with your SSH key, where the policy asks for that.
        code: With `--skip` or `--from`: your one-time code, where the policy asks for one.
        by: Who is asking (with `--sign` or `--code`); default: your account.
        offline: Run without Prefect.
        yes: Approve gates as your account, as far as the policy allows; never changed content or the calls of a model.
        detach: Do not wait for answers: once only gates are left to wait for, leave the run waiting and exit with 6.
        here: Move the run from the folder where it was created to the current one; that needs a new approval.
        wait: If another process owns the run, wait until it has ended or its lease is free, then resume.
        override_freeze: Ask to resume during a change freeze of the store's policy, and say why. The people whom the policy names for that
            must approve the run.
        json: Print events as JSON Lines; the last line is the run.
    """
    refuse_empty_reason(override_freeze)
    resume_options = resume_options_of(from_, only_failed=only_failed, skip=skip or [], note=note)
    refuse_name_alone(by, sign=sign, code=code)
    answer_options = AnswerOptions("approve", note=note, sign=sign, code=code, by=by)
    if (sign or code) and not (skip or from_):
        raise UsageError("--sign, --code and --by prove who asks to skip or repeat a step: they go with --skip and --from")
    run_options = RunOptions(yes, detach, json, override_freeze)
    return asyncio.run(_resume(run, tools or [], run_options, resume_options, answer_options, offline=offline, wait=wait, here=here))


async def _resume(
    run: str,
    tools: list[str],
    run_options: RunOptions,
    resume_options: "ResumeOptions | None",
    answer_options: AnswerOptions,
    *,
    offline: bool,
    wait: bool,
    here: bool,
) -> int:
    from plan_adapter.runs.resume import execute_resume, owner_text, refuse_resume  # imports SQLAlchemy

    settings = Settings()
    registry = tools_of(tools)
    async with open_store(settings) as store:
        found = await store.run(run, with_steps=False)
        if not wait:
            await refuse_resume(found, store)  # before a server starts
        pending = begin_server(settings, offline=offline)
        if (found.status, found.reason) == (PlanStatus.CANCELLED, RunReason.CANCELLED):
            at, why = moment(found.completed_at), one_line(await _cancel_reason(found, store))
            output.note(f"run {found.id} was cancelled at {at}: {why}")
        server = await in_daemon_thread(pending.wait) if pending is not None else None
        while True:
            now = await wait_until_unowned(found, store) if wait else found
            if has_completed_since(found, now):
                show_result(now, as_json=run_options.json, hint=None)
                return code_of_run(now)
            foreground = ForegroundRun(server, run_options, store=store, tools=registry, imports=tools)
            run_request = foreground.request(settings, identity=CallerIdentity(answer_options, settings))
            execution = execute_resume(
                found.id,
                tools=registry,
                run_request=run_request,
                store=store,
                offline=offline,
                options=resume_options,
                record_pending=True,
                here=here,
            )
            try:
                return await foreground.complete(execution)
            except RunConflictError:
                if not wait or await owner_text(found.id, store) is None:  # if it has an owner, another process was faster
                    raise


async def _cancel_reason(run: PlanRun, store: "PlanStore") -> str:
    """Return why `run` was cancelled, and by whom if that is recorded. The run's message may be about a later `plan resolve`."""
    if (reason := await store.ledger.cancel_request(run.id)) is not None:
        return reason
    aborted = next((receipt for receipt in reversed(await store.receipts(run.id)) if receipt.is_abort), None)
    if aborted is None:
        return run.message or "no reason was given"
    unit = (aborted.step_id, aborted.item)
    return f"{aborted.by} recorded `abort` for `{call_name(*unit, (await store.ledger.labels(run.id)).get(unit), kind=aborted.kind)}`"


async def wait_until_unowned(run: PlanRun, store: "PlanStore") -> PlanRun:
    """Wait until no process owns the run, and return it as it is then. Print which process owns it meanwhile."""
    from plan_adapter.runs.resume import owner_text  # imports SQLAlchemy

    printed = None
    while (owner := await owner_text(run.id, store)) is not None:
        if owner != printed:
            output.note(f"{owner}; waiting for that process to end (Ctrl-C stops waiting, not the run)")
            printed = owner
        await store.changed(POLL_SECONDS)
    return run if printed is None else await store.run(run.id)


def has_completed_since(before: PlanRun, now: PlanRun) -> bool:
    """Return whether the run has completed since `before` was read."""
    return now.status is PlanStatus.COMPLETED and before.status is not PlanStatus.COMPLETED
