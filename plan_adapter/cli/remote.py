"""`plan gates`, `approve`, `reject` and `resolve` with `--api`: the run itself, on a machine with the store, verifies the answer."""

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from plan_adapter.cli import output
from plan_adapter.cli.answering import (
    AnswerOptions,
    GateSelector,
    answer_with_proof,
    approval_decision,
    confirm,
    decision_word,
    digest_required_message,
    may_confirm,
    needs_no_text,
    refuse_name_alone,
    refuse_unnamed_step,
    unconfirmed_message,
    with_result,
    wrong_digest_message,
)
from plan_adapter.cli.approval_state import age, time_left
from plan_adapter.cli.asking import refuse_mismatched_answer
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.records import NO_FORM, QUESTION_SUFFIXES
from plan_adapter.cli.servers import running_server
from plan_adapter.engine.connection import Server
from plan_adapter.gates.terminal import gate_summary
from plan_adapter.model.approvals import ApprovalRequest, Decision, GatePolicy
from plan_adapter.model.errors import ContentChangedError, NotApprovedError, RunConflictError
from plan_adapter.model.language import tr
from plan_adapter.model.readable import call_name, item_number, listed, means_item
from plan_adapter.model.record import LAST, names_run, why_too_short
from plan_adapter.text.commands import SHOWN_DIGITS, answer_command
from plan_adapter.text.gate_text import without_picture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plan_adapter.engine.gate_forms import OpenForm
    from plan_adapter.local.settings import Settings
    from plan_adapter.model.options import Input

REFUSAL_SECONDS = 3.0
"""How long to wait for the run to refuse an answer; later refusals show on its page."""
POLL_SECONDS = 0.25


async def list_remotely(settings: "Settings", *, limit: int, as_json: bool) -> int:
    """Print the forms that wait for an answer, newest first."""
    async with running_server(settings) as server:
        from plan_adapter.engine.gate_forms import open_forms  # imports Prefect

        found = (await open_forms())[::-1][:limit]
    now = datetime.now(UTC)
    if found and as_json:
        for form in found:
            output.json_line("gate", _form_json(form, server))
    elif found:
        columns = ("RUN", "PLAN", "STEP", "DIGEST", "SINCE", "UNTIL", "KNOWN BY")
        output.table(columns, [_row(form, now) for form in found])
        for form in found:
            if form.is_lost:
                output.line(f"{form.run_id}: {NO_FORM}: {_elsewhere(form)}")
        output.note(f"forms of the server {server.api_url}; `{_answer_command(found[0])}` answers the first one")
    else:
        output.note(f"nothing waits for an answer on {server.api_url}")
    return ExitCode.DONE


async def answer_remotely(selector: GateSelector, options: AnswerOptions, settings: "Settings", *, show: bool, as_json: bool) -> int:
    """Answer in the form of a gate. Raises UsageError if no form matches, NotApprovedError if the run refuses the answer at once."""
    async with running_server(settings) as server:
        from plan_adapter.engine.gate_forms import answer_form, form_fields, form_text, open_forms  # imports Prefect

        form = _find_form(await open_forms(), selector, None if show else options)
        refuse_name_alone(options.by, sign=options.sign, code=options.code, known_by=form.known_by)
        page = server.run_url(form.flow_run_id)
        command = _answer_command(form) if form.kind == "outcome" else _answer_command(form, approval_decision(options))
        if form.is_lost:
            raise UsageError(f"{NO_FORM}: {_elsewhere(form)}")
        if not show and not selector.matches_digest(form.approval_digest):
            raise ContentChangedError(wrong_digest_message(selector, form, command, was_asked=None, api=True))
        is_named = form.step_id is None or selector.step is not None or show or selector.digest is not None
        may_ask = may_confirm(selector, as_json=as_json)
        if not is_named:
            refuse_unnamed_step(form.run_id, command, may_ask=may_ask)
        request = _approval_request(form, await form_text(form), await form_fields(form) if form.kind == "question" else {})
        if show:
            _print_request(form, request, server, as_json=as_json)
            return ExitCode.DONE
        if not as_json and not (is_named and needs_no_text(selector, options)):
            output.note(gate_summary(request) + (f"\nthe full text: {page}" if page else "") + "\n")
        refuse_mismatched_answer(request, options.decision, options.fields, api=True)
        if options.decision != "approve" and any(field.is_required for field in request.fields.values()):
            raise UsageError(
                f"the form of a question takes a rejection only with all its fields: reject on the page {page}, or in the store"
            )
        options = await with_result(options, request, may_ask=not as_json)
        names_no_content = selector.digest is None and options.decision == "approve"
        if names_no_content and not may_ask:
            if not selector.yes and options.fields is None:
                raise UsageError(unconfirmed_message(form, command, takes_yes=False, api=True))
            raise NotApprovedError(digest_required_message("this machine cannot tell whether the content changed", form, command, api=True))
        if not is_named or names_no_content:
            await confirm("this plan" if form.step_id is None else f"step {_step_name(form)}", options, form)
        try:
            await answer_form(form, answer_with_proof(options, request, settings))
        except RunConflictError as error:
            raise UsageError(str(error)) from error
        shown_again = None if form.is_unattended else await _wait_for_next_form(form)
    if shown_again is not None and (shown_again.refused is not None or shown_again.progress is None):
        raise NotApprovedError(f"the run refused this answer: {shown_again.refused or 'it asks again'}")
    what = form.name if form.step_id is None else f"step {_step_name(form)} of {form.name}"
    if as_json:
        output.json_line("answer", {**_form_json(shown_again or form, server), "decision": options.decision})
    elif shown_again is not None:
        output.line(f"one approval of {what}: run {form.run_id}")
        output.note(tr("recorded: {progress}", progress=shown_again.progress))
    else:
        output.line(f"{decision_word(form, options.decision)} {what}: run {form.run_id}")
        next_step = f"no process is waiting: `plan resume {form.run_id}`, on a machine with the store, verifies the answer and continues"
        output.note(next_step if form.is_unattended else "the run has received the answer and is verifying it")
    return ExitCode.DONE


def _find_form(forms: "list[OpenForm]", selector: GateSelector, options: AnswerOptions | None) -> "OpenForm":
    """Return the form that `selector` names, among those that `options` can answer."""
    gives_outcome = options is not None and options.decision in ("done", "again", "abort")
    if selector.run == LAST:
        newest = max((form.run_id for form in forms), default="")  # ids sort by creation time
        run_forms = [form for form in forms if form.run_id == newest]
    elif (short := why_too_short(selector.run)) is not None:
        raise UsageError(short)
    else:
        run_forms = [form for form in forms if names_run(selector.run, form.run_id) or form.flow_run_id == selector.run.lower()]
    if len(runs := sorted({form.run_id for form in run_forms})) > 1:
        raise UsageError(f"several runs have an id that begins or ends with `{selector.run}`: {listed(runs, 5)}")
    step_forms = [form for form in run_forms if selector.step is None or form.step_id == selector.step]
    step_forms = [form for form in step_forms if not gives_outcome or form.kind != "outcome" or form.call_kind == selector.kind]
    matching = [form for form in step_forms if selector.item is None or means_item(selector.item, form.item, form.label)]
    if options is not None:
        asking, matching = matching, [form for form in matching if (form.kind == "outcome") == gives_outcome]
        if asking and not matching:
            asks = "asks for an approval, not for an outcome"
            if not gives_outcome:
                asks = f"asks for the outcome of step {_step_name(asking[0])}, not for an approval"
            raise UsageError(f"this form {asks}: `{_answer_command(asking[0])}`")
    if not matching:
        raise UsageError(f"run `{selector.run}` has no form that waits for an answer", hint="`plan gates --api` lists those that do")
    if plan_forms := [form for form in matching if form.step_id is None]:
        return plan_forms[0]
    if len(matching) > 1:
        commands = "".join(f"\n  {_answer_command(form)}" for form in matching)
        raise UsageError(f"{len(matching)} forms of run `{selector.run}` wait; say which one:{commands}")
    return matching[0]


async def _wait_for_next_form(form: "OpenForm") -> "OpenForm | None":
    """Wait a few seconds and return the form that the run shows after an answer; None if it shows none in that time.

    The form says why the answer was refused, or which approvals are missing.
    """
    from plan_adapter.engine.gate_forms import open_forms  # imports Prefect

    deadline = time.monotonic() + REFUSAL_SECONDS
    while time.monotonic() < deadline:
        for current in await open_forms():
            if current.gate_id == form.gate_id and current.keyset != form.keyset:
                return current
        await asyncio.sleep(POLL_SECONDS)
    return None


def _print_request(form: "OpenForm", request: ApprovalRequest, server: Server, *, as_json: bool) -> None:
    if as_json:
        output.json_line("gate", {**_form_json(form, server), "text": request.text})
    else:
        output.markdown(without_picture(request.text).rstrip("\n"))
        output.note(f"`{_answer_command(form)}` {'answers' if form.kind == 'question' else 'approves exactly this'}")


def _approval_request(form: "OpenForm", text: str, fields: "Mapping[str, Input]") -> ApprovalRequest:
    return ApprovalRequest(
        approval_digest=form.approval_digest,
        name=form.name,
        description="",
        text=text,
        run_id=form.run_id,
        step_id=form.step_id,
        item=form.item,
        label=form.label,
        gate_id=form.gate_id,
        gate_policy=GatePolicy(known_by=form.known_by),
        kind=form.kind,
        call_kind=form.call_kind,
        fields=fields,
    )


def _form_json(form: "OpenForm", server: Server) -> dict[str, Any]:
    return {
        "id": form.gate_id,
        "asks": form.kind,
        "run_id": form.run_id,
        "step": form.step_id,
        "call_kind": form.call_kind,
        "item": item_number(form.item),
        "label": form.label,
        "name": form.name,
        "approval_digest": form.approval_digest,
        "digest": form.approval_digest,
        "command": _answer_command(form),
        "opened_at": form.opened_at,
        "expires_at": form.expires_at,
        "known_by": form.known_by,
        "flow_run_id": form.flow_run_id,
        "link": server.run_url(form.flow_run_id),
        "refused": form.refused,
        "progress": form.progress,
        "has_form": not form.is_lost,
    }


def _row(form: "OpenForm", now: datetime) -> tuple[str, ...]:
    since = "-" if form.opened_at is None else age(now, form.opened_at)
    until = time_left(form.expires_at, now)
    known = " or ".join(form.known_by) if form.known_by is not None else "any way"
    step = (_step_name(form) + tr(QUESTION_SUFFIXES[form.kind])) if form.step_id is not None else tr("the plan")
    return (form.run_id, form.name, step, form.approval_digest[:SHOWN_DIGITS], since, until, known)


def _elsewhere(form: "OpenForm") -> str:
    """Return how to answer a gate that has no form."""
    return f"`{answer_command(form)}` answers it, on a machine with the store"


def _step_name(form: "OpenForm") -> str:
    return call_name(str(form.step_id), form.item, form.label, kind=form.call_kind)


def _answer_command(form: "OpenForm", decision: Decision = "approve") -> str:
    return answer_command(form, decision, api=True)
