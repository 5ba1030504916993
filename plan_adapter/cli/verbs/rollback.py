"""`plan rollback`."""

from plan_adapter.cli import output
from plan_adapter.cli.answering import AnswerOptions, CallerIdentity, refuse_name_alone
from plan_adapter.cli.asking import is_at_terminal
from plan_adapter.cli.exit_codes import ExitCode, has_unknown_rollback
from plan_adapter.cli.foreground import ForegroundRun, RunOptions
from plan_adapter.cli.sources import open_store, tools_of
from plan_adapter.cli.verbs.cancel import STOP_REQUESTED
from plan_adapter.gates.approval import os_user
from plan_adapter.local.settings import Settings


async def rollback(
    run: str,
    /,
    *,
    note: str = "rolled back with `plan rollback`",
    tools: list[str] | None = None,
    offline: bool = False,
    sign: bool = False,
    code: str | None = None,
    by: str | None = None,
    json: bool = False,
) -> int:
    """Roll back what a run has done: completed steps that declare a rollback, in reverse order of dependencies.

    A run in progress is cancelled first. This also works for a run that has ended failed, partial or cancelled. If the outcome of a
    rollback is unknown, you are asked at the terminal and in the form of the flow run.

    Args:
        run: The id of a run, its beginning or end, or `last`.
        note: Why, for the record.
        tools: `package.module:name` of a tool or registry that the plan uses; may be repeated.
        offline: Roll back without Prefect, also a run that ran in Prefect.
        sign: Sign the request with your SSH key, where the policy asks for that.
        code: Your one-time code, where the policy asks for one.
        by: Who is asking (with `--sign` or `--code`); default: your account.
        json: Print the events and the run as JSON objects.
    """
    refuse_name_alone(by, sign=sign, code=code)
    options = AnswerOptions("approve", sign=sign, code=code, by=by)
    return await _roll_back(run, f"{note} (by {by or os_user()})", tools or [], options, offline=offline, json=json)


async def _roll_back(run: str, reason: str, tools: list[str], options: AnswerOptions, *, offline: bool, json: bool) -> int:
    # These import SQLAlchemy.
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
