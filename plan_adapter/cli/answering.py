"""Answers from the command line: which gate they are for, who gives them, and what happens next."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, assert_never

from plan_adapter.cli import output
from plan_adapter.cli.approval_state import changes_hint
from plan_adapter.cli.asking import ask_to_confirm, is_at_terminal, read_field_values, refuse_mismatched_answer
from plan_adapter.cli.daemon_thread import in_daemon_thread
from plan_adapter.cli.exit_codes import ExitCode, UsageError
from plan_adapter.cli.records import gate_json, gate_place
from plan_adapter.cli.servers import available_server, lacks_store_of_server, show_end_in_prefect
from plan_adapter.engine.connection import use_server
from plan_adapter.gates.approval import answer_to, os_user, text_to_sign
from plan_adapter.gates.gate import request_of
from plan_adapter.gates.identity import DIGEST_BEGINNING, Identity, ProofContext, verify_answer
from plan_adapter.gates.quorum import progress_in_words
from plan_adapter.gates.signatures import default_key, sign
from plan_adapter.gates.terminal import gate_summary
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import DELEGATE, Answer, Approval, ApprovalRequest, Decision, DelegationKind, Gate, Resolution
from plan_adapter.model.errors import ContentChangedError, NoServerError, NotApprovedError, RunConflictError
from plan_adapter.model.language import tr
from plan_adapter.model.options import CallKind
from plan_adapter.model.plan import GOAL
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import code, listed, means_item, one_line
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, RunReason
from plan_adapter.text.commands import (
    SHOWN_DIGITS,
    Question,
    answer_command,
    options_of_proofs,
    resume_command,
    resume_command_after_gate,
    show_command,
    take_back_command,
)
from plan_adapter.text.gate_text import without_picture

if TYPE_CHECKING:
    from pydantic import JsonValue

    from plan_adapter.runs.answers import GateAnswers
    from plan_adapter.store.store import PlanStore

DECISION_WORDS: dict[Decision | Resolution, str] = {
    "approve": "approved",
    "reject": "rejected",
    "request_changes": "changes requested for",
    "done": "recorded `done` for",
    "again": "recorded `again` for",
    "abort": "recorded `abort` for",
}


STAYS_RELEASED = "the run's worker was released, and Prefect cannot be reached from here: `plan reconcile` continues the run"
"""What happens next at a run that released its worker, if Prefect cannot be told of the answer."""


def decision_word(asked: Question, decision: Decision | Resolution) -> str:
    """Return the verb that reports this answer: `approved`, or `answered` for a question."""
    return "answered" if asked.kind == "question" and decision == "approve" else DECISION_WORDS[decision]


_CONFIRM_VERBS: dict[Decision | Resolution, str] = {
    "approve": "Approve",
    "reject": "Reject",
    "request_changes": "Ask for changes to",
    "done": "Record `done` for",
    "again": "Record `again` for",
    "abort": "Record `abort` for",
}


@dataclass(frozen=True, slots=True)
class GateSelector:
    """The gate that a command names."""

    run: str  # an id, its beginning, its end, `last`, or the id of a flow run
    step: str | None = None  # None: the gate of the plan, or the only open gate of a step, once confirmed at a terminal
    item: str | None = None  # its label or its number from 1
    digest: str | None = None  # the beginning of an approval digest: the answer applies only to that content
    kind: CallKind = "step"  # of the call whose outcome is recorded
    yes: bool = False  # approve what waits, without `digest` and without being asked

    def __post_init__(self) -> None:
        """Raise UsageError for a digest that is too short."""
        if self.digest is not None and not DIGEST_BEGINNING.fullmatch(self.digest):
            raise UsageError("--digest needs at least 8 characters of an approval digest (0-9, a-f), as `plan gates` prints it")

    def matches_digest(self, approval_digest: str) -> bool:
        """Return whether the answer applies to this content."""
        return self.digest is None or approval_digest.startswith(self.digest.casefold())


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """An answer, and the options that prove who gives it."""

    decision: Decision | Resolution
    note: str = ""
    sign: bool = False
    code: str | None = None
    by: str | None = None  # None: the operating system's user
    result: "JsonValue" = None  # with `done`: what the call returned; at a question: the answer, by field
    fields: tuple[str, ...] | None = None  # the answer to a question, each `name=value`; None: not the answer to a question

    def __post_init__(self) -> None:
        """Raise UsageError for options that no gate would accept."""
        if self.decision == "request_changes" and not self.note.strip():
            raise UsageError("--changes needs --note: say what to change")


def refuse_name_alone(by: str | None, *, sign: bool, code: str | None, known_by: Sequence[str] | None = None) -> None:
    """Raise UsageError for a name without a proof. `known_by` are the proofs that the gate accepts; None: any."""
    if by is None or sign or code:
        return
    options = options_of_proofs(known_by)
    if not options:
        accepted = " or ".join(known_by or ())
        raise UsageError(f"--by alone proves nothing, and no option of this command gives {accepted}, which this gate needs")
    how = {"--sign": "--sign", "--code": "--code with that person's one-time code"}
    raise UsageError(f"--by alone proves nothing: add {', or '.join(how[option] for option in options)}")


async def answer_in_store(selector: GateSelector, options: AnswerOptions, store: "PlanStore", settings: Settings, *, as_json: bool) -> int:
    """Answer at a gate in the store, and print what happens next. Raises NotApprovedError if the answer is refused."""
    from plan_adapter.runs.answers import GateAnswers  # imports SQLAlchemy

    run, gate = await find_gate(selector, store)
    if options.decision == "approve" and (reason := await why_cancelled(run, store, settings)) is not None:
        raise UsageError(f"too late to approve: run {run.id} was cancelled in Prefect: {reason}")
    request = request_of(gate)
    refuse_mismatched_answer(request, options.decision, options.fields)
    request = replace(request, gate_policy=await GateAnswers(store, settings).policy_of(request))
    refuse_name_alone(options.by, sign=options.sign, code=options.code, known_by=request.gate_policy.known_by)
    is_named = gate.step_id is None or selector.step is not None or selector.digest is not None
    may_ask = may_confirm(selector, as_json=as_json)
    if not selector.matches_digest(gate.approval_digest):
        was_asked = any(
            selector.matches_digest(asked_gate.approval_digest) for asked_gate in await store.gates.find(run_id=run.id, open_only=False)
        )
        raise await record_refusal(
            run.id, wrong_digest_message(selector, gate, command_of(gate, options), was_asked=was_asked), options, gate, store, changed=True
        )
    if not is_named:
        refuse_unnamed_step(run.id, command_of(gate, options), may_ask=may_ask)
    if not as_json and not (is_named and needs_no_text(selector, options)):
        output.note(gate_summary(request) + "\n")
    options = await with_result(options, request, may_ask=not as_json)
    names_no_content = selector.digest is None and options.decision == "approve"
    if not is_named or (names_no_content and may_ask):
        await confirm(_gate_phrase(gate), options, gate)
    elif names_no_content:
        why, command = await _why_digest_required(gate, run, store), command_of(gate, options)
        if not selector.yes and options.fields is None:
            raise UsageError(unconfirmed_message(gate, command, takes_yes=why is None))
        if why is not None:
            raise await record_refusal(run.id, digest_required_message(why, gate, command), options, gate, store)
    closed = await _submit_answer(options, gate, request, GateAnswers(store, settings))
    given = None if closed.end is None else await store.gates.answer_to(gate.id)
    approval = closed.agreements[-1].as_approval if given is None else given
    if closed.end is None:
        next_text = tr("recorded: {progress}", progress=progress_in_words(request.gate_policy, closed.agreements))
    else:
        next_text = await take_effect(gate, run, closed, approval, store, settings)
    print_answer(closed, approval, next_text, as_json=as_json)
    return ExitCode.DONE


@dataclass(frozen=True, slots=True)
class Instead:
    """The person who is to answer instead of whoever types a command, or with `take_back` no longer is."""

    to: str
    decision: DelegationKind = DELEGATE


async def delegate_in_store(
    selector: GateSelector, options: AnswerOptions, instead: Instead, store: "PlanStore", settings: Settings, *, as_json: bool
) -> int:
    """Let another person answer at a gate in the store, or take that back, and print who may. Raises NotApprovedError if it is refused."""
    from plan_adapter.runs.answers import GateAnswers  # these import SQLAlchemy
    from plan_adapter.runs.known_people import why_unknown
    from plan_adapter.waiting_runs import close_gate

    run, gate = await find_gate(selector, store)
    request = request_of(gate)
    if not selector.matches_digest(gate.approval_digest):
        raise ContentChangedError(wrong_digest_message(selector, gate, command_of(gate, options), was_asked=False))
    answers = GateAnswers(store, settings)
    refuse_name_alone(options.by, sign=options.sign, code=options.code, known_by=(await answers.policy_of(request)).known_by)
    open_gate = await close_gate(gate, answer_with_proof(options, request, settings, instead=instead), answers)
    given = open_gate.gate_policy.delegations[-1]
    if given.decision == DELEGATE and (warning := await why_unknown(given.to, gate, store, settings)) is not None:
        output.note(f"{warning}; if it is misspelt, `{take_back_command(gate, given.to)}` takes it back")
    if as_json:
        output.json_line(
            "answer", {**gate_json(open_gate), "decision": given.decision, "by": given.by, "known_by": given.known_by, "to": given.to}
        )
        return ExitCode.DONE
    what = gate.name if gate.step_id is None else f"step {gate_place(gate)} of {gate.name}"
    if given.decision == DELEGATE:
        output.line(f"{given.to} may answer at {what}, instead of {given.by} ({given.known_by}): run {run.id}")
    else:
        output.line(f"{given.to} may no longer answer at {what} in the place of {given.by} ({given.known_by}): run {run.id}")
    output.note(f"`{answer_command(open_gate)}` is what {given.to if given.decision == DELEGATE else given.by} types")
    return ExitCode.DONE


def wrong_digest_message(selector: GateSelector, asked: Question, command: str, *, was_asked: bool | None, api: bool = False) -> str:
    """Return why the answer does not count for what the gate asks about, and what to type.

    `was_asked`: whether a gate of the run ever asked about the content that was answered; None: unknown on this machine.
    """
    now = asked.approval_digest[:SHOWN_DIGITS]
    if was_asked:
        why = f"the content of the gate changed: you answered about {selector.digest}, and the gate now asks about {now}"
    else:
        gates = "open gate of this run" if was_asked is None else "gate of this run"
        why = f"no {gates} has a digest beginning with {selector.digest}; the open one is {now}"
    return f"{why}; `{show_command(asked, api=api)}` prints it, then `{command}` answers"


def digest_required_message(why: str, asked: Question, command: str, *, api: bool = False) -> str:
    """Return why the approval needs `--digest`, and what to type."""
    return f"{why}, so name what you approve: `{show_command(asked, api=api)}` prints it, then `{command}` approves it"


def unconfirmed_message(asked: Question, command: str, *, takes_yes: bool, api: bool = False) -> str:
    """Return why an approval without `--digest` and `--yes` is refused where nobody can confirm it, and what to type."""
    or_yes = "; `--yes` instead of `--digest` approves it unread" if takes_yes else ""
    shows = f"`{show_command(asked, api=api)}` prints it"
    return f"nobody can confirm here, so nothing was approved: `{command}` approves exactly what waits now, and {shows}{or_yes}"


def needs_no_text(selector: GateSelector, options: AnswerOptions) -> bool:
    """Return whether a person need not be shown what they answer: they name its digest, or do not approve it."""
    return selector.digest is not None or options.decision != "approve"


def may_confirm(selector: GateSelector, *, as_json: bool) -> bool:
    """Return whether the user can be asked to confirm the answer."""
    return is_at_terminal() and not as_json and not selector.yes


async def with_result(options: AnswerOptions, request: ApprovalRequest, *, may_ask: bool) -> AnswerOptions:
    """Return `options` with the answer to a question, by field, if they give one. Raises what `read_field_values` raises."""
    if options.fields is None:
        return options
    return replace(options, result=await read_field_values(options.fields, request.fields, may_ask=may_ask))


async def _why_digest_required(gate: Gate, run: PlanRun, store: "PlanStore") -> str | None:
    """Return why this gate takes an approval that nobody confirms only with its digest, or None if it does not."""
    if gate.kind == "approval" and _is_call_of_model(gate, run):
        return "a model asks for this call, which `--yes` does not confirm"
    return "the content of the gate has changed since the run was created" if await _content_has_changed(gate, store) else None


def _is_call_of_model(gate: Gate, run: PlanRun) -> bool:
    return gate.step_id is not None and gate.item is not None and run.step(gate.step_id).tool_name == GOAL


async def _content_has_changed(gate: Gate, store: "PlanStore") -> bool:
    """Return whether this gate has asked about other content before, or the plan was revised."""
    gates = await store.gates.find(run_id=gate.run_id, open_only=False)
    same_place = [other for other in gates if (other.step_id, other.item) == (gate.step_id, gate.item)]
    if any(other.kind != "outcome" and other.approval_digest != gate.approval_digest for other in same_place):
        return True
    return gate.step_id is None and bool(await store.revisions.of_run(gate.run_id))


async def record_refusal(
    run_id: str, reason: str, options: AnswerOptions, gate: Gate, store: "PlanStore", *, changed: bool = False
) -> NotApprovedError:
    """Record the refusal in the audit log, and return it as an error. `changed`: the answer was about other content."""
    await store.ledger.record_refusal(
        run_id, f"{options.decision} is refused: {reason}", by=options.by or os_user(), step_id=gate.step_id, call_kind=gate.call_kind
    )
    return (ContentChangedError if changed else NotApprovedError)(reason)


def approval_decision(options: AnswerOptions) -> Decision:
    """Return the decision in `options`. The outcome of a call is recorded with `plan resolve`, never at a gate for approval."""
    match options.decision:
        case "approve" | "reject" | "request_changes":
            return options.decision
        case "done" | "again" | "abort":
            raise AssertionError(f"{options.decision} answers no gate for approval")
        case _:
            assert_never(options.decision)


def _gate_phrase(gate: Gate) -> str:
    return "this plan" if gate.step_id is None else f"step {gate_place(gate)}"


def command_of(gate: Gate, options: AnswerOptions) -> str:
    """Return the command that gives this answer to exactly this gate."""
    return answer_command(gate, approval_decision(options))


def refuse_unnamed_step(run_id: str, command: str, *, may_ask: bool) -> None:
    """Raise UsageError unless the user can confirm at a terminal that they mean the only step that waits.

    Somebody who repeats the command that approved the plan must not approve a step by accident.
    """
    if not may_ask:
        raise UsageError(f"run {run_id} waits only at a step", hint=f"to answer there, name it: `{command}`")


async def confirm(what: str, options: AnswerOptions, asked: Question) -> None:
    """Ask the user at the terminal to confirm. Raises UsageError if they do not."""
    verb = "Answer" if asked.kind == "question" and options.decision == "approve" else _CONFIRM_VERBS[options.decision]
    if not await ask_to_confirm(f"{verb} {what}?"):
        raise UsageError("nothing was answered")


def print_answer(gate: "Gate", approval: "Approval", next_text: str, *, as_json: bool) -> None:
    """Print the answer, and what happens next. A gate that is still open needs more approvals."""
    if as_json:
        answer: dict[str, Any] = {"decision": approval.decision, "by": approval.by, "known_by": approval.known_by, "note": approval.note}
        if gate.kind == "question":
            answer["answer"] = approval.result
        fields: dict[str, Any] = {**gate_json(gate), **answer, "next": next_text}
        output.json_line("answer", fields)
        return
    what = gate.name if gate.step_id is None else f"step {gate_place(gate)} of {gate.name}"
    said = decision_word(gate, approval.decision) if gate.end is not None else "one approval of"
    output.line(f"{said} {what}, by {approval.by} ({approval.known_by}): run {gate.run_id}")
    output.note(next_text)


def what_happens_next(gate: Gate, run: PlanRun, decision: Decision) -> str:
    """Return a sentence about what happens after `decision` at `gate`. `run` and `gate` are as they were before the answer."""
    match decision:
        case "approve":
            return "the waiting process continues now" if gate.attended else _next_without_process(gate, run)
        case "reject":
            if gate.attended is False and gate.step_id is None:
                return f"`plan show {run.id}` shows the details"
            if _is_call_of_model(gate, run):
                return "the model reads your reason and continues" if gate.attended else _next_without_process(gate, run)
            return "the waiting process ends the run" if gate.attended else _next_without_process(gate, run, then="ends the run")
        case "request_changes":
            if gate.attended is False:
                return changes_hint(run)
            if gate.step_id is None:
                return f"`plan revise {run.id} FILE` submits a new version, which is then asked about"
            return (
                f"the waiting process asks again, with your note; to change the plan, end it with `plan cancel {run.id}`, then "
                f"`plan revise {run.id} FILE` and `{resume_command_after_gate(run)}`: completed steps are kept"
            )
        case _:
            assert_never(decision)


def _next_without_process(gate: Gate, run: PlanRun, *, then: str = "resumes the run") -> str:
    if gate.attended is None:
        return "the waiting process, on another host, gets the answer now"
    if gate.is_released:
        return "the run continues on its own: a worker picks it up"
    return f"no process is waiting: `{resume_command_after_gate(run)}` {then}"


async def show_gate(selector: GateSelector, store: "PlanStore", *, as_json: bool) -> int:
    """Print everything that a gate asks about, and answer nothing."""
    _, gate = await find_gate(selector, store)
    if as_json:
        output.json_line("gate", {**gate_json(gate), "text": gate.text})
    else:
        output.markdown(without_picture(gate.text).rstrip("\n"))
        output.note(f"`{answer_command(gate)}` {'answers' if gate.kind == 'question' else 'approves exactly this'}")
    return ExitCode.DONE


async def find_gate(selector: GateSelector, store: "PlanStore") -> tuple[PlanRun, Gate]:
    """Return the run, and the open gate that `selector` names: the gate of the plan, if it is open and no step is named.

    Closes expired gates first. Raises RunConflictError if no gate is open, UsageError if several steps wait.
    """
    from plan_adapter.runs.plan_approval import end_overdue  # imports SQLAlchemy

    try:
        run = await end_overdue(await store.run(selector.run), store)
    except RunConflictError as error:
        if not lacks_store_of_server(Settings()):
            raise
        raise UsageError(f"{error} in this machine's store", hint="`--api` answers through Prefect's API instead") from error
    open_gates = [gate for gate in await store.gates.find(run_id=run.id) if _matches(gate, selector)]
    matching = [gate for gate in open_gates if gate.kind != "outcome"]
    plan_gates = [gate for gate in matching if gate.step_id is None]
    if not matching and open_gates:
        raise UsageError(f"run {run.id} waits for the outcome of a call, not for an approval: `{answer_command(open_gates[0])}`")
    if not matching:
        raise RunConflictError(await _why_no_gate(run, selector, store), ended=run.reason)
    if plan_gates:
        return run, plan_gates[0]
    if len(matching) > 1:
        commands = "".join(f"\n  {answer_command(gate)}" for gate in matching)
        raise UsageError(f"{len(matching)} steps of run {run.id} wait; say which one:{commands}")
    return run, matching[0]


def _matches(gate: Gate, selector: GateSelector) -> bool:
    is_step = selector.step is None or gate.step_id == selector.step
    return is_step and (selector.item is None or means_item(selector.item, gate.item, gate.label))


def refuse_item(item: str | None) -> None:
    """Raise UsageError for item 0: items are counted from 1."""
    if item in ("0", ":0"):
        raise UsageError("items are counted from 1: the first is `--item 1`")


async def item_of(selector: GateSelector, run: PlanRun, store: "PlanStore") -> tuple[int | None, str | None]:
    """Return the index (from 0) and the label of the item that `selector` names.

    Raises UsageError if the step has no such item.
    """
    from plan_adapter.execution.items import recorded_items  # only for a step with items

    if selector.item is None:
        return None, None
    step_id = selector.step or ""
    declared = recorded_items(await store.get(run.digest), run, step_id)  # also those that were not started
    labels = {item: label for item, label in enumerate(declared) if label is not None}
    labels |= {item: label for (name, item), label in (await store.ledger.labels(run.id)).items() if name == step_id and item is not None}
    number = selector.item.removeprefix(":")
    by_number = int(number) - 1 if number.isdecimal() and number.isascii() else None
    by_label = next((item for item, label in labels.items() if label == selector.item), None)
    if by_number is None and by_label is None:
        known = f"; its items: {listed([code(label) for _, label in sorted(labels.items())], 20)}" if labels else ""
        raise UsageError(f"no item of `{step_id}` is called `{one_line(selector.item)}`{known}; a number counts from 1")
    if by_label is not None and by_number != by_label and by_number in labels:
        raise UsageError(
            f"`--item {selector.item}` is ambiguous for `{step_id}`: item {by_label + 1} has that label, and item {selector.item} is "
            f"`{labels[by_number]}`; write `--item :{by_label + 1}` or `--item :{by_number + 1}`"
        )
    item = by_number if by_label is None else by_label
    return item, None if item is None else labels.get(item)


async def _why_no_gate(run: PlanRun, selector: GateSelector, store: "PlanStore") -> str:
    """Return why no gate is open, and what to type. Raises UsageError for an unknown step."""
    from plan_adapter.cli.foreground import next_command_of  # only where no gate is open

    steps = [step.id for step in run.steps]
    if selector.step is not None and selector.step not in steps:
        raise UsageError(f"run {run.id} has no step `{selector.step}`", hint=did_you_mean(selector.step, steps))
    gates = await store.gates.find(run_id=run.id, open_only=False)
    if selector.step is not None and any(gate.step_id is None and gate.end is None for gate in gates):
        plan_gate = next(gate for gate in gates if gate.step_id is None and gate.end is None)
        return f"step `{selector.step}` of run {run.id} does not wait yet; the plan itself does: `{answer_command(plan_gate)}`"
    if run.status in (PlanStatus.FAILED, PlanStatus.PARTIAL) and run.reason not in (RunReason.REJECTED, RunReason.EXPIRED):
        return f"run {run.id} does not wait for an answer; it is {run.outcome_text}: {await next_command_of(run, store)}"
    closed = [gate for gate in gates if gate.end is not None and gate.kind != "outcome" and _matches(gate, selector)]
    if closed:
        why = f"run {run.id}: {await why_closed(closed[-1], store)}"
        if run.status is not PlanStatus.PENDING_APPROVAL:
            return why
        answer = await store.gates.answer_to(closed[-1].id)
        is_changes = answer is not None and answer.decision == "request_changes"
        return f"{why}; " + (changes_hint(run) if is_changes else f"`{resume_command_after_gate(run)}` resumes it")
    if run.status is PlanStatus.PENDING_APPROVAL:
        if not gates:
            return f"nobody has been asked about run {run.id} yet: `{resume_command(run)}` asks"
        waiting = [f"`{answer_command(gate)}`" for gate in gates if gate.end is None][:5]
        where = "the plan" if selector.step is None else f"step `{selector.step}`"
        item = "" if selector.item is None else f", item `{one_line(selector.item)}`,"
        return f"{where}{item} of run {run.id} does not wait for this answer; " + (
            f"what waits: {', '.join(waiting)}" if waiting else f"`{resume_command_after_gate(run)}` resumes the run"
        )
    return f"run {run.id} does not wait for an approval: it is {run.outcome_text}"


async def why_closed(gate: Gate, store: "PlanStore") -> str:
    """Return how the closed `gate` was closed, as the store says it to a late answer."""
    try:  # a closed gate refuses every answer, and the error says why
        await store.gates.answer(gate.id, answer_to(request_of(gate), decision="reject", by="", known_by="unverified"))
    except (RunConflictError, NotApprovedError) as error:
        return str(error)
    raise AssertionError(f"gate {gate.id} was not closed")


async def why_cancelled(run: PlanRun, store: "PlanStore", settings: Settings) -> str | None:
    """Return the reason if `run` was cancelled in Prefect while no process was running it.

    None also if Prefect cannot be reached.
    """
    if run.flow_run_id is None:
        return None
    from plan_adapter.runs.cancel import apply_cancellation  # imports SQLAlchemy

    try:
        server = await in_daemon_thread(lambda: available_server(settings))
    except NoServerError:  # the record takes precedence; `plan reconcile` reports it later
        return None
    if server is None:
        return None
    with use_server(server):
        return await apply_cancellation(run, store)


async def _submit_answer(options: AnswerOptions, gate: Gate, request: ApprovalRequest, answers: "GateAnswers") -> Gate:
    """Answer at the gate, and return it: closed, or open if it needs more approvals.

    Raises NotApprovedError if the answer is refused, RunConflictError if the gate is closed already.
    """
    from plan_adapter.runs.plan_approval import end_overdue  # these import SQLAlchemy
    from plan_adapter.waiting_runs import close_gate

    store = answers.store
    try:
        return await close_gate(gate, answer_with_proof(options, request, answers.settings), answers)
    except RunConflictError as error:
        run = await end_overdue(await store.run(gate.run_id), store)
        if (await store.gates.get(gate.id)).end == "superseded":
            why = f"the content of the gate changed meanwhile: {error}"
            raise await record_refusal(run.id, why, options, gate, store, changed=True) from error
        raise RunConflictError(str(error), ended=run.reason) from error


def answer_with_proof(
    options: AnswerOptions, request: ApprovalRequest, settings: Settings, *, instead: Instead | None = None, in_form: bool = False
) -> Answer:
    """Return the answer with the proof of who gave it; with `instead`, who answers in their place.

    `in_form`: it is given in a form, which proves no account.

    Raises NotApprovedError if it cannot be signed.
    """
    by = options.by or os_user()
    channel = "os_user" if by == os_user() else "unverified"
    answer = Answer(
        decision=options.decision if instead is None else instead.decision,
        by=by,
        note=options.note,
        channel="form" if in_form else channel,
        code=options.code,
        result=options.result,
        digest=request.approval_digest,
        to="" if instead is None else instead.to.strip(),
    )
    if not options.sign:
        return answer
    return replace(answer, signature=sign(text_to_sign(answer, request), key=default_key(settings)))


async def take_effect(gate: Gate, run: PlanRun, closed: Gate, answer: Approval, store: "PlanStore", settings: Settings) -> str:
    """Show in Prefect that a gate was answered, wake a run that released its worker, and return what happens next.

    `run` and `gate` are as they were before the answer, and `closed` is the gate as it is now.
    """
    if answer.decision == "reject" and gate.step_id is None and gate.attended is False:
        await show_end_in_prefect(run.id, store, settings)
    is_woken = answer.decision != "request_changes" and gate.gate_policy.release
    if is_woken and not await wake_released_run(closed, answer, settings) and gate.is_released:
        return STAYS_RELEASED
    return what_happens_next(gate, run, answer.decision)


async def wake_released_run(gate: Gate, approval: Approval, settings: Settings) -> bool:
    """Resume a run that released its worker, and return whether a Prefect server could be told."""
    try:
        server = await in_daemon_thread(lambda: available_server(settings))
        if server is None:
            return False
        from plan_adapter.engine.gate_forms import resume_released  # imports Prefect

        with use_server(server):
            await resume_released(gate, approval)
    except NoServerError as error:
        output.note(f"plan: the run cannot be continued from here: {error}")
        return False
    return True


@dataclass(slots=True)
class CallerIdentity:
    """The person who runs a command, with the proof they gave. Implements `runs.session.Requester`."""

    options: AnswerOptions
    settings: Settings

    @property
    def by(self) -> str:
        """Their name; default: their account."""
        return self.options.by or os_user()

    @property
    def channel(self) -> Literal["os_user", "unverified"]:
        """How their name is known without a proof."""
        return "os_user" if self.by == os_user() else "unverified"

    @property
    def has_proof(self) -> bool:
        """Whether they gave a proof."""
        return self.options.sign or self.options.code is not None

    async def prove(self, because: str, request: ApprovalRequest, store: "PlanStore", /) -> tuple[Identity, str | None]:
        """Return their identity, and their signature if any.

        Raises NotApprovedError if the gate policy refuses the proof.
        """
        answer = answer_with_proof(replace(self.options, decision="approve", note=because), request, self.settings)
        proof_context = ProofContext(await store.policy.effective(self.settings), self.settings, store.codes)
        return await verify_answer(answer, request, proof_context), answer.signature
