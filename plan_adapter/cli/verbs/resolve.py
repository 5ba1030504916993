"""`plan resolve`."""

import json as json_module
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from plan_adapter.cli import output
from plan_adapter.cli.answering import AnswerOptions, GateSelector, answer_with_proof, item_of, refuse_item, refuse_name_alone
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.records import run_json, run_status_line
from plan_adapter.cli.remote import answer_remotely
from plan_adapter.cli.sources import open_store
from plan_adapter.gates.approval import os_user
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.readable import call_name
from plan_adapter.text.commands import resolve_command, resume_command, rollback_command, rollback_hint

if TYPE_CHECKING:
    from pydantic import JsonValue

    from plan_adapter.model.record import PlanRun
    from plan_adapter.store.store import PlanStore


async def resolve(
    run: str,
    step: str,
    resolution: Literal["done", "again", "abort"],
    /,
    *,
    item: str | None = None,
    digest: str | None = None,
    result: str | None = None,
    note: str = "",
    rollback: bool = False,
    end: bool = False,
    sign: bool = False,
    code: str | None = None,
    by: str | None = None,
    api: bool = False,
    json: bool = False,
) -> int:
    """Record the outcome of a write that was interrupted: it was `done`, run it `again`, or `abort` the run.

    `again` is refused while a command of the call still runs on this host. A process that waits for the outcome continues now; otherwise
    type what it prints. `done` also works for a step that failed or has not
    run: somebody did it by hand.

    Args:
        run: The id of a run, its beginning or end, `last`, or the id of a flow run.
        step: The step whose outcome is unknown.
        resolution: done, again or abort.
        item: The item of the step's `for_each`: its label (`web-2`) or its number from 1.
        digest: The digest that `plan gates` prints, or at least its first 8 characters: the answer applies only to that attempt.
        result: With `done`: the step's result as JSON, which later steps can refer to; default: null.
        note: How you know; it is recorded with your name.
        rollback: The outcome is that of the step's rollback.
        end: First end the command of the call if it outlived its run and still runs on this host: SIGTERM, then SIGKILL.
        sign: Sign the answer, and the result, with your SSH key.
        code: Your one-time code.
        by: Who is answering (with `--sign` or `--code`); default: your account.
        api: Answer through Prefect's API: for a machine that cannot reach the store.
        json: Print the run as a JSON object; with `--api` the form that you answered.
    """
    # These import SQLAlchemy.
    from plan_adapter.execution.rollback_units import is_rolled_back
    from plan_adapter.runs.reconcile import hint_of, is_rollback_due

    if result is not None and resolution != "done":
        raise UsageError("--result goes with `done` only")
    refuse_item(item)
    settings, selector = Settings(), GateSelector(run, step, item, digest, "rollback" if rollback else "step")
    options = AnswerOptions(resolution, note=note, sign=sign, code=code, by=by, result=_parse_result(result))
    if api and end:
        raise UsageError("--end ends processes of this host: leave --api out, on the host where the command runs")
    if api:
        return await answer_remotely(selector, options, settings, show=False, as_json=json)
    async with open_store(settings) as store:
        rollback_due = await is_rollback_due(await store.run(run), store)  # the resolution replaces the status message
        found, ended = await _record_resolution(selector, options, store, settings, ends=end)
        has_owner = await store.ledger.owner(found.id) is not None
        unknown = [] if has_owner else await store.outcomes.unknown(found.id)
        hint = await hint_of(found, store) if resolution == "abort" and not has_owner else None
        is_of_run = rollback and is_rolled_back(await store.get(found.digest), await store.ledger.history(found.id), found.rollback)
        commands = await store.outcomes.commands(found.id)
    if json:
        output.json_line("run", run_json(found, steps=False))
        return ExitCode.DONE
    output.line(line := run_status_line(found))
    if end and (ended is None or ended not in line):
        has_command = any((command.attempt.step_id, command.attempt.kind) == (step, selector.kind) for command in commands)
        nothing = "no command of the call was running on this host" if has_command else "no command of the call is recorded"
        output.note(ended or f"{nothing}, so none was ended")
    for command in [command for command in commands if command.state != "ended"]:
        output.note(f"the command of `{command.call}` {command.in_words}")
    if has_owner:
        output.note("the waiting process " + ("ends the run" if resolution == "abort" else "continues now"))
    elif unknown:
        command = resolve_command(found.id, (unknown[0].step_id, unknown[0].item), label=unknown[0].label, kind=unknown[0].kind)
        output.note(f"another outcome is unknown: `{command}`")
    elif hint is not None:
        output.note(hint)
    elif resolution == "abort":
        return ExitCode.DONE
    elif rollback:
        command = rollback_command(found) if is_of_run else resume_command(found)
        output.note(f"`{command}` continues the rollback")
    else:
        output.note(rollback_hint(found) if rollback_due else f"`{resume_command(found)}` resumes the run")
    return ExitCode.DONE


async def _record_resolution(
    selector: GateSelector, options: AnswerOptions, store: "PlanStore", settings: Settings, *, ends: bool
) -> "tuple[PlanRun, str | None]":
    """Record the outcome of a step. Return the run as it is then, and with `ends` which command was ended first.

    Raises NotApprovedError if the answer is refused.
    """
    # These import SQLAlchemy.
    from plan_adapter.runs.resolve import end_command, resolution_request, verify_resolution

    assert selector.step is not None
    assert options.decision in ("done", "again", "abort")
    run = await store.run(selector.run)
    item, label = await item_of(selector, run, store)
    request = await resolution_request(run, selector.step, options.decision, store, settings, item=item, label=label, kind=selector.kind)
    if not selector.matches_digest(request.approval_digest):
        call = call_name(selector.step, None, kind=selector.kind)
        reason = f"you answered about {selector.digest}, and another attempt of `{call}` waits now; `plan gates` lists what waits"
        await store.ledger.record_refusal(
            run.id, f"{options.decision} is refused: {reason}", by=options.by or os_user(), step_id=selector.step, call_kind=selector.kind
        )
        raise NotApprovedError(reason)
    refuse_name_alone(options.by, sign=options.sign, code=options.code, known_by=request.gate_policy.known_by)
    answer = answer_with_proof(options, request, settings)
    resolution = await verify_resolution(answer, request, store, settings)
    ended = await end_command(run, selector.step, store, item=item, kind=selector.kind) if ends else None
    if ended is not None:
        resolution = replace(resolution, note="; ".join(text for text in (resolution.note, ended) if text))
    await store.outcomes.resolve(run.id, selector.step, resolution, item=item, kind=selector.kind)
    return await store.run(run.id), ended


def _parse_result(text: str | None) -> "JsonValue":
    if text is None:
        return None
    try:
        return json_module.loads(text)
    except ValueError as error:
        raise UsageError(f"--result is not JSON ({error}); quote a string, as in '\"v3\"'") from None
