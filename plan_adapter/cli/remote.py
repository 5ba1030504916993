"""`plan gates`, `approve`, `reject` and `resolve` with `--api`: the run verifies the answer on a machine that reaches the store."""

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from plan_adapter.approvals import ApprovalRequest, Decision, GatePolicy
from plan_adapter.cli import output
from plan_adapter.cli.answers import (
    AnswerOptions,
    Place,
    approval_decision,
    confirm,
    decision_word,
    must_be_bound,
    other_content,
    proofs,
    refuse_unnamed,
    with_result,
)
from plan_adapter.cli.approval_state import age, time_left
from plan_adapter.cli.asking import is_at_terminal
from plan_adapter.cli.codes import ExitCode, UsageError
from plan_adapter.cli.questions import refuse_other_kind
from plan_adapter.cli.records import ASKS
from plan_adapter.cli.servers import running_server
from plan_adapter.commands import SHOWN_DIGITS, answer_command
from plan_adapter.engine.connection import Server
from plan_adapter.errors import NotApprovedError, RunConflictError
from plan_adapter.gates.terminal import gate_summary
from plan_adapter.readable import call_name, means_item
from plan_adapter.record import LEAST_ID_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plan_adapter.engine.gate_forms import OpenForm
    from plan_adapter.options import Input
    from plan_adapter.settings import Settings

REFUSAL_SECONDS = 3.0
"""How long to wait for the run to refuse an answer; later refusals show on its page."""
POLL_SECONDS = 0.25


async def list_remotely(settings: "Settings", *, limit: int, as_json: bool) -> int:
    """Print the forms that wait for an answer, newest first."""
    async with running_server(settings) as server:
        from plan_adapter.engine.gate_forms import open_forms  # imports Prefect

        found = (await open_forms())[::-1][:limit]
    now = datetime.now(UTC)
    if as_json:
        for form in found:
            output.json_line(_form_json(form, server))
    elif found:
        columns = ("RUN", "PLAN", "STEP", "DIGEST", "SINCE", "UNTIL", "KNOWN BY")
        output.table(columns, [_row(form, now) for form in found])
        output.note(f"forms of the server {server.api_url}; `{_command(found[0])}` answers the first one")
    else:
        output.note(f"nothing waits for an answer on {server.api_url}")
    return ExitCode.DONE


async def answer_remotely(place: Place, words: AnswerOptions, settings: "Settings", *, show: bool, as_json: bool) -> int:
    """Answer in the form of a gate. Raises UsageError if no form matches, NotApprovedError if the run refuses the answer at once."""
    async with running_server(settings) as server:
        from plan_adapter.engine.gate_forms import answer_form, fields_of, open_forms, text_of  # imports Prefect

        form = _the_one(await open_forms(), place, None if show else words)
        page = server.run_url(form.flow_run_id)
        command = _command(form) if form.kind == "outcome" else _command(form, approval_decision(words))
        if not show and not place.is_of(form.approval_digest):
            raise NotApprovedError(other_content(place, form, command, was_asked=None, api=True))
        is_named = form.step_id is None or place.step is not None or show or place.digest is not None
        if not is_named:
            refuse_unnamed(form.run_id, command, is_asked=not as_json)
        request = _request(form, await text_of(form), await fields_of(form) if form.kind == "question" else {})
        if show:
            _show_text(form, request, server, as_json=as_json)
            return ExitCode.DONE
        if not as_json:
            output.note(gate_summary(request) + (f"\nall of it: {page}" if page else "") + "\n")
        refuse_other_kind(request, words.decision, words.fields, api=True)
        if words.decision != "approve" and any(field.is_required for field in request.fields.values()):
            raise UsageError(
                f"the form of a question takes a rejection only with all its fields: reject on the page {page}, or in the store"
            )
        words = await with_result(words, request, is_asked=not as_json)
        is_unbound = place.digest is None and words.decision == "approve"
        if is_unbound and (as_json or not is_at_terminal()):
            raise NotApprovedError(must_be_bound(form, command, api=True))
        if not is_named or is_unbound:
            await confirm("this plan" if form.step_id is None else f"step {_step(form)}", words, form)
        try:
            await answer_form(form, proofs(words, request, settings))
        except RunConflictError as error:
            raise UsageError(str(error)) from error
        refused = None if form.is_left else await _refusal(form)
    if refused is not None:
        raise NotApprovedError(f"the run refused this answer: {refused}")
    if as_json:
        output.json_line({**_form_json(form, server), "decision": words.decision})
    else:
        what = form.name if form.step_id is None else f"step {_step(form)} of {form.name}"
        output.line(f"{decision_word(form, words.decision)} {what}: run {form.run_id}")
        left = f"no process is waiting: `plan resume {form.run_id}`, on a machine with the store, verifies the answer and continues"
        output.note(left if form.is_left else "the run has received the answer and is verifying it")
    return ExitCode.DONE


def _the_one(forms: "list[OpenForm]", place: Place, words: AnswerOptions | None) -> "OpenForm":
    """Return the form that `place` names, among those that `words` can answer."""
    gives_outcome = words is not None and words.decision in ("done", "again", "abort")
    if len(place.run) < LEAST_ID_CHARACTERS:
        raise UsageError(f"`{place.run}` is too short for the id of a run: give at least {LEAST_ID_CHARACTERS} of its characters")
    of_run = [form for form in forms if form.run_id.startswith(place.run.lower()) or form.flow_run_id == place.run.lower()]
    of_step = [form for form in of_run if place.step is None or form.step_id == place.step]
    of_step = [form for form in of_step if not gives_outcome or form.kind != "outcome" or form.call_kind == place.kind]
    fitting = [form for form in of_step if place.item is None or means_item(place.item, form.item, form.label)]
    if words is not None:
        asking, fitting = fitting, [form for form in fitting if (form.kind == "outcome") == gives_outcome]
        if asking and not fitting:
            asks = "asks for an approval, not for an outcome"
            if not gives_outcome:
                asks = f"asks for the outcome of step {_step(asking[0])}, not for an approval"
            raise UsageError(f"this form {asks}: `{_command(asking[0])}`")
    if not fitting:
        raise UsageError(f"run `{place.run}` has no form that waits for an answer; `plan gates --api` lists those that do")
    if of_plan := [form for form in fitting if form.step_id is None]:
        return of_plan[0]
    if len(fitting) > 1:
        listed = "".join(f"\n  {_command(form)}" for form in fitting)
        raise UsageError(f"{len(fitting)} forms of run `{place.run}` wait; say which one:{listed}")
    return fitting[0]


async def _refusal(form: "OpenForm") -> str | None:
    """Return why the run refuses the answer; None if it does not within a few seconds."""
    from plan_adapter.engine.gate_forms import open_forms  # imports Prefect

    deadline = time.monotonic() + REFUSAL_SECONDS
    while time.monotonic() < deadline:
        for now in await open_forms():
            if now.gate_id == form.gate_id and now.keyset != form.keyset:
                return now.refused or "it asks again"
        await asyncio.sleep(POLL_SECONDS)
    return None


def _show_text(form: "OpenForm", request: ApprovalRequest, server: Server, *, as_json: bool) -> None:
    if as_json:
        output.json_line({**_form_json(form, server), "text": request.text})
    else:
        output.line(request.text.rstrip("\n"))
        output.note(f"`{_command(form)}` {'answers' if form.kind == 'question' else 'approves exactly this'}")


def _request(form: "OpenForm", text: str, fields: "Mapping[str, Input]") -> ApprovalRequest:
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
        rules=GatePolicy(known_by=form.known_by),
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
        "item": form.item,
        "label": form.label,
        "name": form.name,
        "digest": form.approval_digest,
        "command": _command(form),
        "opened_at": form.opened_at,
        "expires_at": form.expires_at,
        "known_by": form.known_by,
        "flow_run_id": form.flow_run_id,
        "link": server.run_url(form.flow_run_id),
        "refused": form.refused,
    }


def _row(form: "OpenForm", now: datetime) -> tuple[str, ...]:
    since = "-" if form.opened_at is None else age(now, form.opened_at)
    until = time_left(form.expires_at, now)
    known = " or ".join(form.known_by) if form.known_by is not None else "any way"
    step = (_step(form) + ASKS[form.kind]) if form.step_id is not None else "the plan"
    return (form.run_id, form.name, step, form.approval_digest[:SHOWN_DIGITS], since, until, known)


def _step(form: "OpenForm") -> str:
    return call_name(str(form.step_id), form.item, form.label, kind=form.call_kind)


def _command(form: "OpenForm", decision: Decision = "approve") -> str:
    return answer_command(form, decision, api=True)
