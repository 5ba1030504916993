"""The approvals of a run: what it waits for, who answered what, and what to type next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from plan_adapter.cli.records import gate_place
from plan_adapter.gates.approval import refusal, requires_approval, why_nobody_may_answer
from plan_adapter.gates.identity import identity_of_account
from plan_adapter.gates.quorum import progress_line
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import ANSWERED, TAKE_BACK, Approval, Decision, Delegation, Gate, StandingApproval
from plan_adapter.model.language import later, tr
from plan_adapter.model.readable import call_name, duration, listed, moment, one_line, prose
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, RunOutcome, RunReason
from plan_adapter.text.commands import (
    command_at_gate,
    new_run_hint,
    resume_command,
    resume_command_after_gate,
    rollback_command,
    rolled_back_hint,
    ways_to_answer,
)
from plan_adapter.text.run_facts import outcome_in_words

if TYPE_CHECKING:
    from plan_adapter.execution.history import Unit
    from plan_adapter.model.plan import ExecutionPlan
    from plan_adapter.store.revisions import Revision
    from plan_adapter.store.store import PlanStore

RELEASED = later("its worker was released; the run continues once somebody answers")
ATTENDED = {
    True: later("a process is waiting"),
    False: later("no process is waiting"),
    None: later("a process on another host may be waiting"),
}


@dataclass(frozen=True, slots=True)
class ApprovalState:
    """The open gates of a run, its answers, and the versions of its plan that were replaced."""

    run: PlanRun
    gates: Sequence[Gate]
    answers: Sequence[Approval]
    replaced: "Sequence[Revision]"
    now: datetime
    offline: bool = False  # whether a run that has not started will run without Prefect
    tools: Sequence[str] = ()  # the values of `--tools` with which it was started, where this process knows them
    stopped: str | None = None  # what to type, if the run has stopped with an unknown outcome
    standing_approvals: "Mapping[str, StandingApproval]" = field(
        default_factory=dict[str, "StandingApproval"]
    )  # those that gave it answers, by id
    labels: "Mapping[Unit, str]" = field(default_factory=dict[tuple[str, int | None], str])  # of items
    is_needed: bool = True  # whether the plan needs an approval, under the policy of today
    stale: str | None = None  # why the last approval of the plan is stale, if a resume would ask again
    can_ask_again: bool = False  # whether a resume of the run, which has expired, asks again
    closed: Sequence[Gate] = ()  # its closed gates at steps, oldest first, if it waits for a resume
    all_gates: Sequence[Gate] = ()
    plan: "ExecutionPlan | None" = None  # if only a new run can go on

    @property
    def answer(self) -> Approval | None:
        """The last answer about the plan as it is now."""
        of_plan = [row for row in self.answers if row.step_id is None and row.approval_digest == self.run.approval_digest]
        return of_plan[-1] if of_plan else None

    @property
    def used_standing_approval(self) -> "StandingApproval | None":
        """The standing approval that approved the plan as it is now, if one did."""
        return None if self.answer is None else self.standing_approvals.get(self.answer.standing_id or "")

    @property
    def requested_changes(self) -> Approval | None:
        """The last answer, if it asks for changes and no new version has come since."""
        last = next((row for row in reversed(self.answers) if row.gate_id is not None), None)
        if last is None or last.decision != "request_changes" or (self.replaced and self.replaced[-1].at > last.at):
            return None
        return last

    @property
    def unapplied(self) -> list[str]:
        """How gates of steps were closed, for each that the run applies only when it resumes, such as `rejected at restart`."""
        last = {(gate.step_id, gate.item): gate for gate in self.closed if gate.kind != "outcome"}
        unused = {row.gate_id: row for row in self.answers if row.used_at is None}
        ends = list[str]()
        for gate in last.values():
            if (row := unused.get(gate.id)) is not None:
                how = answered_in_words(row.decision, is_question=gate.kind == "question")
                ends.append(tr("{answered} at {gate}", answered=how, gate=one_line(gate_place(gate))))
            elif gate.end == "expired" and gate is self.closed[-1]:
                ends.append(tr("expired at {gate}", gate=one_line(gate_place(gate))))
        return ends

    def lines(self) -> list[str]:
        """Return a Markdown section; empty if nobody was ever asked."""
        lines = [f"- {text}" for text in [*self.events(), *(gate_line(gate, self.now) for gate in self.gates)]]
        return ["", "## Approvals", "", *lines] if lines else []

    def events(self) -> list[str]:
        """Return the answers, who let others answer, and the versions that were replaced, oldest first, as Markdown."""
        events = [(row.at, _version_line(row)) for row in self.replaced]
        events += [
            (row.at, _answer_line(row, self.standing_approvals, self.labels))
            for row in self.answers
            if row.known_by != "not_required" or row.step_id
        ]
        for gate in self.all_gates:
            events += [(row.at, _delegation_line(row, gate)) for row in gate.gate_policy.delegations]
            given = () if gate.end == "answered" else gate.agreements  # otherwise the answer names them
            approvals = [replace(row.as_approval, step_id=gate.step_id, item=gate.item) for row in given]
            events += [(row.at, _answer_line(row, self.standing_approvals, self.labels)) for row in approvals]
        return [text for _, text in sorted(events, key=lambda pair: pair[0])]

    def hint(self) -> str | None:
        """Return the hint with the commands to type now, or None if there is nothing to do."""
        asks_for_outcome = any(gate.kind == "outcome" for gate in self.gates)
        stopped = None if asks_for_outcome else self.stopped  # the gate's own command covers it
        return "; ".join(part for part in (self._waiting_hint(), stopped) if part) or self._ended_hint()

    def _ended_hint(self) -> str | None:
        run = self.run
        if not run.status.has_ended or run.status is PlanStatus.COMPLETED:
            return None
        if run.reason is RunReason.EXPIRED and self.can_ask_again:
            return tr("`{command}` asks again; completed steps are kept", command=resume_command(run, tools=self.tools))
        if run.reason in (RunReason.REJECTED, RunReason.EXPIRED):
            return tr("this is final: `plan run` starts a new run")
        if run.rollback is not None and run.rollback.can_continue:
            return tr("`{command}` rolls back the rest", command=rollback_command(run, tools=self.tools))
        if run.rollback is not None or any(step.rolled_back for step in run.steps):
            return rolled_back_hint(run)
        if run.needs_new_run:
            return new_run_hint(run, self.plan)
        return tr("`{command}` resumes the run; completed steps are kept", command=resume_command(run, tools=self.tools))

    def _waiting_hint(self) -> str | None:
        run = self.run
        if self.gates and (reason := why_nobody_may_answer(self.gates[0].gate_policy)) is not None:
            return tr("nobody may answer: {why}; `{command}` ends the run", why=reason, command=f"plan cancel {run.id}")
        if self.gates:
            accepted = [(gate, gate.gate_policy.known_by) for gate in self.gates[:5]]
            commands = ", ".join(command_at_gate(*each) or tr("answer {ways}", ways=ways_to_answer(*each)) for each in accepted)
            is_unattended = all(gate.attended is False and not gate.is_released for gate in self.gates)
            then = tr(", then `{command}`", command=self._resume_command) if is_unattended else ""
            asked = {gate.kind for gate in self.gates}
            waits = tr("waiting for an approval") if asked == {"approval"} else tr("waiting for an answer")
            waits = tr("waiting for the outcome of a write") if asked == {"outcome"} else waits
            refusal_reason = caller_refusal(self.gates[0])
            who = "" if refusal_reason is None else f"; {refusal_reason}"
            return f"{waits}{who}: {commands}{then}{tr('; `plan gates` lists everything that waits')}"
        if run.status is not PlanStatus.PENDING_APPROVAL:
            return None
        if self.answer is None:
            if self.is_needed:
                return tr("nobody has been asked yet: `{command}` asks for the approval", command=self._resume_command)
            return tr("the plan needs no approval, but no process is running it: `{command}`", command=self._resume_command)
        if self.requested_changes is not None:
            return changes_hint(run, tools=self.tools)
        if self.stale is not None:
            by, command = prose(self.answer.by), self._resume_command
            return tr("the approval by {who} is stale: {why}; `{command}` asks again", who=by, why=self.stale, command=command)
        if self.unapplied:
            return tr(
                "{answers}, but the run has no process: `{command}` resumes it, with what was answered",
                answers=listed(self.unapplied, 5),
                command=self._resume_command,
            )
        return tr("the gate was answered, but the run has no process: `{command}`", command=self._resume_command)

    @property
    def _resume_command(self) -> str:
        was_asked = bool(self.gates) or any(row.gate_id is not None for row in self.answers)
        if was_asked:
            return resume_command_after_gate(self.run, tools=self.tools)
        return resume_command(self.run, offline=self.offline, tools=self.tools)


def changes_hint(run: PlanRun, *, tools: Sequence[str] = ()) -> str:
    """Return the hint for a gate at which somebody asked for changes."""
    revise, resume = f"plan revise {run.id} FILE", resume_command_after_gate(run, tools=tools)
    return tr("`{revise}` submits a new version; `{resume}` asks about this one again", revise=revise, resume=resume)


async def approval_state_of(
    run: PlanRun, store: "PlanStore", settings: Settings, *, offline: bool = False, tools: Sequence[str] = ()
) -> ApprovalState:
    """Return the approvals of `run`, and what to type about unknown outcomes.

    `tools`: the values of `--tools` with which it was started, where they are known.
    """
    from plan_adapter.runs.answers import why_stale  # imports SQLAlchemy
    from plan_adapter.runs.reconcile import hint_of
    from plan_adapter.runs.resume import can_ask_again

    all_gates, answers, stopped = (
        await store.gates.find(run_id=run.id, open_only=False),
        await store.approvals(run.id),
        await hint_of(run, store),
    )
    gates = [gate for gate in all_gates if gate.closed_at is None]
    used_ids = {row.standing_id for row in answers if row.standing_id is not None}
    standing = (
        {approval.id: approval for approval in await store.standing.find(include_ended=True) if approval.id in used_ids} if used_ids else {}
    )
    labels = await store.ledger.labels(run.id) if any(row.item is not None for row in answers) else {}
    revisions = await store.revisions.of_run(run.id)
    state = ApprovalState(run, gates, answers, revisions, await store.now(), offline, tools, stopped, standing, labels, all_gates=all_gates)
    if run.reason is RunReason.EXPIRED:
        return replace(state, can_ask_again=await can_ask_again(run, store))
    if run.status is not PlanStatus.PENDING_APPROVAL or gates:
        return replace(state, plan=await plan_to_run_again(run, store))
    state = replace(state, closed=[gate for gate in all_gates if gate.step_id is not None])
    plan = await store.get(run.digest)
    if state.answer is None:
        return replace(state, is_needed=requires_approval(plan, await store.policy.effective(settings)))
    return replace(state, stale=await why_stale(state.answer, plan, run, store, settings))


async def plan_to_run_again(run: PlanRun, store: "PlanStore") -> "ExecutionPlan | None":
    """Return the plan of `run` if a resume would call nothing, so that only a new run can go on, or None."""
    return await store.get(run.digest) if run.needs_new_run else None


class ListedState(NamedTuple):
    """The state of a run in a list. `is_waiting`: a person has to do something."""

    text: str
    is_waiting: bool = False


async def states_of(runs: Sequence[PlanRun], store: "PlanStore", settings: Settings) -> dict[str, ListedState]:
    """Return how each run ended or what it waits for, by id."""
    gates = dict[str, list[Gate]]()
    if any(run.completed_at is None for run in runs):
        for gate in await store.gates.find():
            gates.setdefault(gate.run_id, []).append(gate)
    listed_states = dict[str, ListedState]()
    for run in runs:
        open_gates = gates.get(run.id, [])
        is_idle = run.status is PlanStatus.PENDING_APPROVAL and not open_gates
        listed_states[run.id] = listed_state(run, open_gates, await approval_state_of(run, store, settings) if is_idle else None)
    return listed_states


def listed_state(run: PlanRun, gates: Sequence[Gate], state: ApprovalState | None) -> ListedState:
    """Return how `run` ended, or what it waits for. `gates` are its open gates. `state` is read only if it is pending and has none."""
    if run.completed_at is None and gates:
        waits = tr("Waiting for approval")
        if gates[0].step_id is not None:
            waits = tr("Waiting at {gate}", gate=gate_place(gates[0]))
            waits = waits if len(gates) == 1 else tr("Waiting at {count} gates", count=len(gates))
        is_unattended = all(gate.attended is False and not gate.is_released for gate in gates)
        return ListedState(waits + (tr(" (no process waits)") if is_unattended else ""), is_waiting=True)
    if run.status is PlanStatus.PENDING_APPROVAL and state is not None:
        answer = state.requested_changes or state.answer
        if state.stale is not None:
            parts = [tr("the approval is stale")]
        elif answer is None:
            parts = [tr("nobody was asked") if state.is_needed else tr("needs no approval"), tr("not resumed yet")]
        else:
            parts = [*(state.unapplied[:3] or [answered_in_words(answer.decision)]), tr("not resumed yet")]
        return ListedState(tr("Waiting ({why})", why=", ".join(parts)), is_waiting=True)
    if run.outcome is None and run.status is PlanStatus.EXECUTING:
        return ListedState(tr("Running") + (f" ({one_line(run.message)})" if run.message else ""))  # it waits for a run window or a key
    needs_person = run.outcome in (RunOutcome.INTERRUPTED, RunOutcome.UNKNOWN_OUTCOME)
    return ListedState(outcome_in_words(run), is_waiting=needs_person)


def _answer_line(row: Approval, standing: "Mapping[str, StandingApproval]", labels: "Mapping[Unit, str]") -> str:
    answered, note = answered_in_words(row.decision, is_question=row.result is not None), _note_suffix(row.notes)
    if row.step_id is not None:
        step = prose(call_name(row.step_id, row.item, labels.get((row.step_id, row.item))))
        answered = tr("{answered} step {step}", answered=answered, step=step)
    who = " and ".join(f"{prose(given.by)} ({given.known_by})" for given in (*row.agreements, row))
    if row.standing_id is None:
        return tr("{answered} by {who} at {when}", answered=answered, who=who, when=moment(row.at)) + note
    given, used = standing.get(row.standing_id), moment(row.at)
    if given is None:
        by = tr("{answered} by the standing approval `{id}`, which {who} gave", answered=answered, id=row.standing_id, who=who)
    else:
        by = tr(
            "{answered} by the standing approval `{id}` of {plan}, which {who} gave at {when}",
            answered=answered,
            id=row.standing_id,
            plan=prose(given.name),
            who=who,
            when=moment(given.at),
        )
    return tr("{answered}; used at {when}", answered=by, when=used) + note


def _delegation_line(row: Delegation, gate: Gate) -> str:
    by, to, when = f"{prose(row.by)} ({row.known_by})", prose(row.to), moment(row.at)
    if row.decision == TAKE_BACK:
        at = tr("the plan") if gate.step_id is None else tr("step {step}", step=prose(gate_place(gate)))
        return tr("{by} took back at {when} that {to} may answer at {gate}", by=by, to=to, when=when, gate=at) + _note_suffix(row.note)
    if gate.step_id is None:
        return tr("{by} let {to} answer instead at {when}", by=by, to=to, when=when) + _note_suffix(row.note)
    step = prose(gate_place(gate))
    return tr("{by} let {to} answer at step {step} instead at {when}", by=by, to=to, step=step, when=when) + _note_suffix(row.note)


def answered_in_words(decision: Decision, *, is_question: bool = False) -> str:
    """Return the verb that reports an answer at a gate."""
    return tr("answered") if is_question else tr(ANSWERED[decision])


def _version_line(row: "Revision") -> str:
    who, when = prose(row.by), moment(row.at)
    return tr("version {number} was replaced by {who} at {when}", number=row.number, who=who, when=when) + _note_suffix(row.note)


def gate_line(gate: Gate, now: datetime) -> str:
    """Return a line of Markdown about an open gate: its question, since when and until when it waits, and who may answer."""
    asked, names = _asked_in_words(gate), gate.gate_policy.approvers
    since = tr("**{asked}** since {when} ({age})", asked=asked, when=moment(gate.opened_at), age=age(now, gate.opened_at))
    if gate.expires_at is not None:
        since += tr(", until {when} ({left})", when=moment(gate.expires_at), left=time_left(gate.expires_at, now))
    if names is not None:
        since += tr("; only {names} may answer", names=listed([prose(name) for name in names], 5) or tr("nobody"))
    if gate.gate_policy.quorum > 1:
        since += f"; {prose(progress_line(gate.gate_policy, gate.agreements))}"
    return f"{since}; {tr(RELEASED if gate.is_released else ATTENDED[gate.attended])}"


def _asked_in_words(gate: Gate) -> str:
    """Return the wait at an open gate in words, with its step."""
    if gate.step_id is None:
        return tr("waits for an approval of the plan")
    place = prose(gate_place(gate))
    match gate.kind:
        case "approval":
            return tr("waits for an approval of step {step}", step=place)
        case "question":
            return tr("waits for an answer to the question of step {step}", step=place)
        case "outcome":
            return tr("waits for the outcome of step {step}", step=place)


def _note_suffix(note: str) -> str:
    return f": {prose(note)}" if note else ""


def caller_refusal(gate: Gate) -> str | None:
    """Return why the caller may not approve at `gate`, and who may instead; None if they may, perhaps with a proof."""
    return refusal(replace(gate.gate_policy, known_by=None), identity_of_account(), decision="approve")


def time_left(expires_at: datetime | None, now: datetime) -> str:
    """Return the time left to answer, in words."""
    if expires_at is None:
        return tr("no limit")
    return tr("in {time}", time=age(expires_at, now)) if expires_at > now else tr("expired")


def age(later: datetime, earlier: datetime) -> str:
    """Return the time between the two in words, at least one second: in whole minutes after two minutes, in whole hours after two days."""
    seconds = max(1, round((later - earlier).total_seconds()))
    unit = 1 if seconds < 120 else 60 if seconds < 2 * 86_400 else 3600
    return duration(1000 * (seconds // unit * unit))
