"""`plan gates`, `approve`, `reject` and `resolve` with `--api`: the run itself, on a machine with the store, verifies the answer."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
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
    record_refusal,
    refuse_name_alone,
    refuse_unnamed_step,
    unconfirmed_message,
    why_closed,
    with_result,
    wrong_digest_message,
)
from plan_adapter.cli.approval_state import age, time_left
from plan_adapter.cli.asking import refuse_mismatched_answer
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.records import FIND_LIMIT, NO_FORM, QUESTION_SUFFIXES
from plan_adapter.cli.servers import running_server
from plan_adapter.cli.sources import open_store
from plan_adapter.engine.connection import Server
from plan_adapter.gates.approval import os_user
from plan_adapter.gates.gate import request_of
from plan_adapter.gates.identity import why_answer_refused
from plan_adapter.gates.terminal import gate_summary
from plan_adapter.model.approvals import Answer, ApprovalRequest, Decision, Gate, GatePolicy, Resolution
from plan_adapter.model.errors import ContentChangedError, NotApprovedError, RunConflictError, RunNotFoundError, StoreError
from plan_adapter.model.language import tr
from plan_adapter.model.readable import call_name, item_number, listed, means_item, one_line
from plan_adapter.model.record import LAST, names_run, why_too_short
from plan_adapter.text.commands import SHOWN_DIGITS, answer_command, command_at_gate, ways_to_answer
from plan_adapter.text.gate_text import without_picture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plan_adapter.engine.gate_forms import OpenForm
    from plan_adapter.local.settings import Settings
    from plan_adapter.model.options import Input
    from plan_adapter.store.store import PlanStore

VERDICT_SECONDS = 8.0
"""How long to wait until the run has verified an answer. A page that has waited for long notices an answer only after five seconds."""
POLL_SECONDS = 0.25


@asynccontextmanager
async def _readable_store(settings: "Settings") -> "AsyncGenerator[PlanStore | None]":
    """Yield the store of the settings, or None if this machine has none or cannot read it. The server's runs may use another one."""
    if not settings.has_store:
        yield None
        return
    async with open_store(settings) as store:
        try:
            await store.now()
        except StoreError:
            yield None
        else:
            yield store


async def _closed_gates(forms: "Sequence[OpenForm]", store: "PlanStore | None") -> dict[str, Gate]:
    """Return the gates of `forms` that are closed in the store, by id. Prefect may show their forms until a process removes them."""
    if store is None or not forms:
        return {}
    try:
        is_open = {gate.id for gate in await store.gates.find(limit=FIND_LIMIT)}
    except StoreError:
        return {}
    found = [await _stored_gate(form, store) for form in forms if form.gate_id not in is_open]
    return {gate.id: gate for gate in found if gate is not None and gate.end is not None}


async def _stored_gate(form: "OpenForm", store: "PlanStore | None") -> Gate | None:
    """Return the gate of `form` as the store has it, or None if this machine cannot read it."""
    if store is None:
        return None
    try:
        return await store.gates.get(form.gate_id)
    except (RunNotFoundError, StoreError):
        return None


async def list_remotely(settings: "Settings", *, limit: int, as_json: bool) -> int:
    """Print the forms that wait for an answer, newest first."""
    async with running_server(settings) as server, _readable_store(settings) as store:
        from plan_adapter.engine.gate_forms import open_forms  # imports Prefect

        forms = await open_forms()
        closed = await _closed_gates(forms, store)
        found = [form for form in forms if form.gate_id not in closed][::-1][:limit]
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
            if form.refused is not None:
                output.line(f"{form.run_id}: the last answer was refused: {one_line(form.refused)}")
        output.note(f"forms of the server {server.api_url}; {_how_to_answer(found[0], 'answers the first one', ' the first one')}")
    else:
        output.note(f"nothing waits for an answer on {server.api_url}")
    return ExitCode.DONE


async def answer_remotely(selector: GateSelector, options: AnswerOptions, settings: "Settings", *, show: bool, as_json: bool) -> int:
    """Answer in the form of a gate.

    Raises UsageError if no form matches, RunConflictError if the gate is closed, and NotApprovedError if the answer is refused: before it
    is sent, as far as the form or the store of this machine say who may answer, or by the run soon afterwards.
    """
    async with running_server(settings) as server, _readable_store(settings) as store:
        from plan_adapter.engine.gate_forms import answer_form, form_fields, form_text, open_forms  # imports Prefect

        form = await _find_open_form(await open_forms(), selector, None if show else options, store)
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
        await _refuse_early(form, request, options, store, settings)
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
        answer = answer_with_proof(options, request, settings, in_form=True)
        try:
            await answer_form(form, answer)
        except RunConflictError as error:
            raise UsageError(str(error)) from error
        verdict = _Verdict() if form.is_unattended else await _wait_for_verdict(form, store)
        if verdict.closed is not None and store is not None:
            await _refuse_late(verdict.closed, answer, store)
    if (again := verdict.shown) is not None and (again.refused is not None or again.progress is None):
        raise NotApprovedError(f"the run refused this answer: {again.refused or 'it asks again'}")
    line, next_text = _report(verdict, form, options.decision)
    if as_json:
        given = {"decision": options.decision, "verified": verdict.is_recorded, "next": next_text}
        output.json_line("answer", {**_form_json(again or form, server), **given})
    else:
        output.line(line)
        output.note(next_text)
    return ExitCode.DONE


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The fate of an answer in a form, as far as it is known. At most one field is set."""

    closed: Gate | None = None  # the gate, as the store has it
    shown: "OpenForm | None" = None  # the form that the run shows next: why the answer was refused, or which approvals are missing
    page_end: str | None = None  # the state in which the page of the form has ended, without the store

    @property
    def is_recorded(self) -> bool:
        """Whether the run has recorded the answer, unless the form that is shown says that it was refused."""
        return self.closed is not None or self.shown is not None


def _report(verdict: _Verdict, form: "OpenForm", decision: "Decision | Resolution") -> tuple[str, str]:
    """Return the line that reports an answer in `form`, and what follows."""
    what = form.name if form.step_id is None else f"step {_step_name(form)} of {form.name}"
    sent = "answer" if form.kind == "question" and decision == "approve" else decision
    line = f"sent `{sent}` to the form of {what}: run {form.run_id}"
    if verdict.closed is not None:
        return f"{decision_word(form, decision)} {what}: run {form.run_id}", "the run has verified the answer"
    if verdict.page_end is not None:
        return line, f"its page in Prefect has ended as {verdict.page_end}"
    if verdict.shown is not None:
        return f"one approval of {what}: run {form.run_id}", tr("recorded: {progress}", progress=verdict.shown.progress)
    if form.is_unattended:
        command = f"`plan resume {form.run_id}`, on a machine with the store"
        return line, f"no process is waiting: {command}, verifies the answer and continues"
    command = f"`plan show {form.run_id}`, on a machine with the store"
    if_refused = "`plan gates --api` lists the form again, with the reason, if it was refused"
    return line, f"the run still has to verify the answer: {command}, says whether it counts; {if_refused}"


async def _find_open_form(
    forms: "list[OpenForm]", selector: GateSelector, options: AnswerOptions | None, store: "PlanStore | None"
) -> "OpenForm":
    """Return the form that `selector` names. Raises RunConflictError if its gate is closed in the store, else the same as `_find_form`."""
    closed = await _closed_gates(forms, store)
    try:
        return _find_form([form for form in forms if form.gate_id not in closed], selector, options)
    except UsageError:
        if store is None or not closed:
            raise
        with suppress(UsageError):
            gate = closed[_find_form([form for form in forms if form.gate_id in closed], selector, options).gate_id]
            why, command = await why_closed(gate, store), f"plan show {gate.run_id}"
            raise RunConflictError(f"run {gate.run_id}: {why}; Prefect still shows its form; `{command}` says what to do next") from None
        raise


async def _refuse_early(
    form: "OpenForm", request: ApprovalRequest, options: AnswerOptions, store: "PlanStore | None", settings: "Settings"
) -> None:
    """Raise NotApprovedError if the gate policy refuses the answer whatever the run finds: as the store has it, else as the form does."""
    gate = await _stored_gate(form, store)
    if gate is not None and store is not None:
        from plan_adapter.runs.answers import GateAnswers  # imports SQLAlchemy

        request = request_of(gate)
        with suppress(StoreError):
            request = replace(request, gate_policy=await GateAnswers(store, settings).policy_of(request))
    expected = Answer(
        options.decision, options.by or os_user(), channel="form", code=options.code, signature="" if options.sign else None
    )  # as far as the gate policy looks at it
    if (why := why_answer_refused(expected, request)) is None:
        return
    known_by = request.gate_policy.known_by
    if command_at_gate(form, known_by, api=True) is None:
        why = f"{why}: answer {ways_to_answer(form, known_by)}"
    if gate is None or store is None:
        raise NotApprovedError(why)
    with suppress(StoreError):  # this machine may only read the store
        raise await record_refusal(gate.run_id, why, options, gate, store)
    raise NotApprovedError(why)


async def _refuse_late(gate: Gate, answer: Answer, store: "PlanStore") -> None:
    """Raise RunConflictError if the closed `gate` was closed by anything else than `answer`."""
    given = None if gate.kind == "outcome" else await store.gates.answer_to(gate.id)
    closed_with = (gate.end, answer.by) if given is None else (given.decision, given.by)
    if closed_with != (answer.decision, answer.by):
        raise RunConflictError(f"run {gate.run_id}: this answer came too late: {await why_closed(gate, store)}")


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


async def _wait_for_verdict(form: "OpenForm", store: "PlanStore | None") -> _Verdict:
    """Wait a few seconds for the fate of an answer. The verdict is empty if it is not known by then."""
    from plan_adapter.engine.gate_forms import end_of_page, open_forms  # imports Prefect

    deadline = time.monotonic() + VERDICT_SECONDS
    while time.monotonic() < deadline:
        gate = await _stored_gate(form, store)
        if gate is not None and gate.end is not None:
            return _Verdict(closed=gate)
        for current in await open_forms():
            if current.gate_id == form.gate_id and current.keyset != form.keyset:
                return _Verdict(shown=current)
        if gate is None and (ended := await end_of_page(form)) is not None:
            return _Verdict(page_end=ended)
        await asyncio.sleep(POLL_SECONDS)
    return _Verdict()


def _print_request(form: "OpenForm", request: ApprovalRequest, server: Server, *, as_json: bool) -> None:
    if as_json:
        output.json_line("gate", {**_form_json(form, server), "text": request.text})
    else:
        output.markdown(without_picture(request.text).rstrip("\n"))
        output.note(_how_to_answer(form, "answers" if form.kind == "question" else "approves exactly this", ""))


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


def _how_to_answer(form: "OpenForm", does: str, what: str) -> str:
    """Return which command `does` something through Prefect's API, or else in which ways the gate accepts an answer to `what`."""
    command = command_at_gate(form, form.known_by, api=True)
    return f"answer{what} {ways_to_answer(form, form.known_by)}" if command is None else f"{command} {does}"


def _elsewhere(form: "OpenForm") -> str:
    """Return how to answer a gate that has no form."""
    return f"`{answer_command(form)}` answers it, on a machine with the store"


def _step_name(form: "OpenForm") -> str:
    return call_name(str(form.step_id), form.item, form.label, kind=form.call_kind)


def _answer_command(form: "OpenForm", decision: Decision = "approve") -> str:
    return answer_command(form, decision, api=True)
