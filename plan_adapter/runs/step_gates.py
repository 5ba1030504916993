"""Step gates and outcome gates, as the execution of a run uses them."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from plan_adapter.execution.items import recorded_items
from plan_adapter.execution.ports import GatedCall, GateRefusal, RecordedResolution, UnknownOutcome
from plan_adapter.gates.approval import (
    ApprovedPlan,
    gate_policy_of,
    gated_steps,
    group_notices,
    needs_gate,
    read_answer,
    why_nobody_may_answer,
)
from plan_adapter.gates.gate import changes_text, expiry_message, new_gate
from plan_adapter.gates.identity import identity_of_author
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.model.approvals import Approval, Gate, GateKind
from plan_adapter.model.errors import ApprovalRequiredError, NotApprovedError, RunConflictError
from plan_adapter.model.language import tr
from plan_adapter.model.options import Input
from plan_adapter.model.plan import ExecutionPlan, Step, new_id
from plan_adapter.model.readable import call_name, redacted
from plan_adapter.model.record import AUTHOR, GroupItem, PlanRun
from plan_adapter.model.rounds import RoundRecord, rounds_of
from plan_adapter.model.status import RunReason
from plan_adapter.runs.answers import earlier_answer_notices, why_stale
from plan_adapter.runs.frozen import frozen_now
from plan_adapter.runs.gate_policies import gate_policy_at
from plan_adapter.runs.keeper import GateKeeper
from plan_adapter.runs.plan_approval import gate_context
from plan_adapter.runs.standing import approve_call_by_standing
from plan_adapter.store.outcomes import outcome_digest
from plan_adapter.text.call_text import outcome_text, step_gate_text
from plan_adapter.text.run_facts import run_facts

RESULT_FIELD = {"result": Input(description="What the call returned, as JSON")}
"""The field of an outcome gate for the result of a call that something uses."""


@dataclass(slots=True)
class CallGates:
    """The step gates of one run. Implements `ports.StepGates`."""

    approved: ApprovedPlan
    keeper: GateKeeper
    policy: EffectivePolicy  # as of this start; answers are checked against the current policy
    asked_before: Collection[str] = ()  # steps that had a gate and ended in an earlier start
    _closed_gates: list[Gate] | None = field(default=None, init=False)  # gates closed before this start
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    @property
    def waits(self) -> bool:
        """Whether to wait for answers, however long they take."""
        return self.keeper.run_request.waits

    def is_gated(self, step: Step) -> bool:
        """Return whether the step, the plan's policy or the settings require an approval of this call."""
        return needs_gate(step, self.approved.bound.validated, self.policy)

    async def ask(self, call: GatedCall) -> Approval | GateRefusal | None:
        """Return the approval of exactly this call, or why there is none. None if the call was left waiting for an approval."""
        try:
            answers = await self._answers(call)
            answer = await self._find_answer(call, answers)
            while answer is None and not call.left.done():
                answer, answers = await self._ask_at_gate(call, answers), None
        except NotApprovedError as error:
            return GateRefusal(RunReason.REJECTED, f"at the gate of `{call.name}`: {error}")
        return answer

    async def _ask_at_gate(self, call: GatedCall, answers: list[Approval] | None) -> Approval | GateRefusal | None:
        """Return the answer at the call's gate, or why there is none. None if the call was left or has to be asked about again.

        `answers` are the earlier answers about the call; None: read them now.
        """
        keeper, answers = self.keeper, await self._answers(call) if answers is None else answers
        if answers and answers[-1].decision == "request_changes" and keeper.has_answered(call.approval_digest) and not self._asks_others:
            raise ApprovalRequiredError(changes_text(answers[-1]))  # asking again would never end
        gate = await keeper.open(await self._draft_gate(call, answers), timeout_ms=self._plan.gate_timeout_ms(call.step))
        closed = await keeper.collect_answer(gate) or await self._wait_until_closed(gate, call)
        return None if closed is None else await self._answer_at(closed, call)

    async def _wait_until_closed(self, gate: Gate, call: GatedCall) -> Gate | None:
        """Return `gate` closed, or None if it is still open: the call was left, or this process's approver is not allowed to answer."""
        keeper = self.keeper
        if not keeper.can_ask(gate) and not call.waiting.done():
            call.waiting.set_result(None)
        try:
            closed = await keeper.ask(gate, call.step_run, until=call.withdrawn, left=call.left, waiting=call.waiting)
        except NotApprovedError as error:
            if self.waits:
                raise
            keeper.run.message = f"at the gate of `{call.step.id}`: {error}"
            return None
        return closed if closed.end is not None else None

    async def _draft_gate(self, call: GatedCall, answers: list[Approval]) -> Gate:
        keeper, run = self.keeper, self.keeper.run
        policy = await keeper.store.policy.effective(keeper.run_request.settings)
        kind: GateKind = "approval" if call.step.ask is None else "question"
        gate_policy = await gate_policy_at(self._plan, run, keeper.store, policy, step_id=call.step.id, kind=kind)
        before = [step for step in run.steps if step.id in self.approved.bound.validated.dependencies[call.step.id]]
        changes, stale = await earlier_answer_notices(
            [row for row in answers if row.decision == "approve" or row.at >= self.approved.approval.at],
            self._plan,
            run,
            keeper.store,
            keeper.run_request.settings,
        )
        frozen = await frozen_now(self._plan, keeper.store, policy)
        text = step_gate_text(
            self.approved.bound,
            call.step,
            effect=call.effect,
            parameters=call.parameters,
            item=call.item,
            label=call.label,
            approval_digest=call.approval_digest,
            expires_ms=self._plan.gate_timeout_ms(call.step),
            context=await gate_context(run, self._plan, keeper.store),
            of_items=len(recorded_items(self._plan, run, call.step.id)) or None,
            nobody=why_nobody_may_answer(gate_policy),
            quorum=gate_policy.quorum,
            results={step.id: step.result for step in before} | {step_id: end["result"] for step_id, end in call.before.items()},
            ends={step.id: tr(step.status.value) + (f": {step.reason}" if step.reason else "") for step in before}
            | {step_id: tr(str(end["status"])) for step_id, end in call.before.items()},
            notices=[*frozen.notices(started=True), *changes, *stale, *group_notices(self._plan, policy, call.step.id)],
            gated=gated_steps(self.approved.bound.validated, policy),
            rounds=await self._rounds_before(call),
            ended_items=await self._ended_items(call),
        )
        return new_gate(
            run,
            approval_digest=call.approval_digest,
            description=call.step.description if call.step.ask is None else _question_of(call),
            text=text,
            gate_policy=gate_policy,
            step_id=call.step.id,
            item=call.item,
            label=call.label,
            kind=kind,
            fields=None if call.step.ask is None else call.step.ask.fields,
        )

    async def _ended_items(self, call: GatedCall) -> Sequence[tuple[GroupItem, str]]:
        """Return the items of a group that ended before the item that is asked about, with what proves how they ended."""
        if not call.ended_items:
            return ()
        store, run = self.keeper.store, self.keeper.run
        steps = run_facts(run, await store.attempts(run.id), await store.receipts(run.id)).steps
        found = {item.label: item.detail for step in steps if step.id == call.step.id for item in step.items}
        return [(item, found.get(item.label, "")) for item in call.ended_items]

    def _is_goal(self, call: GatedCall) -> bool:
        """Return whether a model asks for the call, for a goal of the plan."""
        return self._plan.step(call.step.id).goal is not None

    async def _rounds_before(self, call: GatedCall) -> Sequence[RoundRecord]:
        """Return the rounds of a goal before the call that a model asks for. Empty for any other call."""
        if not self._is_goal(call):
            return ()
        store, run_id = self.keeper.store, self.keeper.run.id
        found = rounds_of(await store.receipts(run_id), await store.attempts(run_id), await store.approvals(run_id))
        return [record for record in found.get(call.step.id, ()) if record.round <= (call.item or 0)]

    @property
    def _plan(self) -> ExecutionPlan:
        return self.approved.bound.validated.plan

    @property
    def _asks_others(self) -> bool:
        """Whether anyone can be asked besides the approver, who is asked only once about the same content."""
        return self.keeper.run_request.asks_in_form or not self.waits

    async def _answers(self, call: GatedCall) -> list[Approval]:
        """Return the answers at gates of this call, oldest first."""
        rows = await self.keeper.store.approvals(self.keeper.run.id)
        return [row for row in rows if row.gate_id is not None and is_call_answer(row, self.keeper.run, call)]

    async def _find_answer(self, call: GatedCall, answers: list[Approval]) -> Approval | GateRefusal | None:
        """Return the answer given while no process waited, or the approval from a standing approval. None if somebody has to be asked.

        `answers` are the earlier answers about the call.
        """
        last = next(reversed(answers), None)
        if last is not None and last.decision == "reject" and last.at >= self.approved.approval.at:  # not about an earlier version
            return _rejection(last)
        if last is not None and last.decision == "approve" and (last.used_at is None or self._is_reusable(last, call)):
            return last if await self._is_current_approval(last) else None
        if (expired := await self._find_expired_gate(call)) is not None:
            return await self._answer_at(expired, call)
        if call.step.ask is not None or self._is_goal(call):  # nobody knew in advance what a model would call
            return None
        return await approve_call_by_standing(
            self.approved.approval, call, self.keeper.run, self._plan, self.keeper.store, self.keeper.run_request
        )

    def _is_reusable(self, answer: Approval, call: GatedCall) -> bool:
        """Return whether `answer`, used by an earlier start, still answers a question: that start died before it wrote the receipt."""
        return answer.result is not None and call.step.id not in self.asked_before

    async def _is_current_approval(self, answer: Approval) -> bool:
        """Return whether `answer` is an approval that is not stale in this process."""
        keeper = self.keeper
        return answer.decision == "approve" and (
            await why_stale(answer, self._plan, keeper.run, keeper.store, keeper.run_request.settings) is None
        )

    async def _find_expired_gate(self, call: GatedCall) -> Gate | None:
        """Return the gate of this call that expired while no process waited at it, or None."""
        if call.step.id in self.asked_before:
            return None
        async with self._reading:  # several calls ask at once
            if self._closed_gates is None:
                gates = await self.keeper.store.gates.find(run_id=self.keeper.run.id, open_only=False)
                self._closed_gates = [gate for gate in gates if gate.end is not None]
        key = (call.step.id, call.item, call.approval_digest)
        last = next((gate for gate in reversed(self._closed_gates) if (gate.step_id, gate.item, gate.approval_digest) == key), None)
        return last if last is not None and last.end == "expired" and last.opened_at >= self.approved.approval.at else None

    async def _answer_at(self, closed: Gate, call: GatedCall) -> Approval | GateRefusal | None:
        """Return the approval or the refusal of the call at a closed gate, or None if the call has to be asked about again."""
        keeper, answer = self.keeper, await self.keeper.answer_at(closed)
        if answer is not None:
            match answer.decision:
                case "reject":
                    return _rejection(answer)
                case "approve":
                    return answer if await self._is_current_approval(answer) else None
                case "request_changes":
                    return None
                case _:
                    assert_never(answer.decision)
        if closed.end == "expired" and closed.gate_policy.expires == "default":
            return await self._answer_with_defaults(closed, call)
        if closed.end == "expired":
            message = f"{expiry_message(closed)} at the gate of `{closed.step_id}`"
            return GateRefusal(RunReason.EXPIRED, message, ends_run=closed.gate_policy.expires == "reject")
        was_closed = f"the gate of `{closed.step_id}` was closed"
        if call.withdrawn.done():  # the run ends, and says why
            return GateRefusal(RunReason.CANCELLED, was_closed, ends_run=False)
        return GateRefusal(RunReason.CANCELLED, await keeper.store.ledger.cancel_request(closed.run_id) or was_closed)

    async def _answer_with_defaults(self, expired: Gate, call: GatedCall) -> Approval:
        """Record and return the defaults of the fields as the answer to a question that nobody answered in time."""
        answer = Approval(
            id=new_id(),
            approval_digest=call.approval_digest,
            decision="approve",
            by=AUTHOR,
            known_by="not_required",
            at=await self.keeper.store.now(),
            note=f"{expiry_message(expired)}: the defaults are the answer",
            run_id=expired.run_id,
            step_id=expired.step_id,
            item=expired.item,
            result=read_answer(expired, {}),
        )
        await self.keeper.store.add_approval(answer, identity=identity_of_author())
        return answer


def _question_of(call: GatedCall) -> str:
    """Return the question that a call asks, secrets redacted."""
    return str(redacted(call.parameters["question"]))


def _rejection(answer: Approval) -> GateRefusal:
    note = f": {answer.note}" if answer.note else ""
    return GateRefusal(RunReason.REJECTED, f"{answer.by} rejected it at the gate of `{answer.step_id}`{note}")


def is_call_answer(row: Approval, run: PlanRun, call: GatedCall) -> bool:
    """Return whether `row` is an answer about exactly this call of this run."""
    key = (row.run_id, row.step_id, row.item, row.approval_digest)
    return key == (run.id, call.step.id, call.item, call.approval_digest)


@dataclass(slots=True)
class OutcomeGates:
    """The outcome gates of one run. Implements `ports.Outcomes`."""

    approved: ApprovedPlan
    keeper: GateKeeper
    _open: int = 0

    async def ask(self, unknown_outcome: UnknownOutcome) -> RecordedResolution | None:
        """Return the resolution from a form, a terminal or `plan resolve`. None if nobody can be asked or the run ends first."""
        keeper = self.keeper
        if not keeper.can_ask_outcomes or unknown_outcome.withdrawn.done():
            return None
        gate = await keeper.open(await self._draft_gate(unknown_outcome), timeout_ms=0)
        await self._show_unknown(unknown_outcome, +1)
        try:
            closed = await keeper.collect_answer(gate) or await keeper.ask(gate, unknown_outcome.step_run, until=unknown_outcome.withdrawn)
        finally:
            await self._show_unknown(unknown_outcome, -1)
        return await self._read_resolution(closed)

    async def _draft_gate(self, unknown_outcome: UnknownOutcome) -> Gate:
        run, step, attempt = self.keeper.run, unknown_outcome.step, unknown_outcome.attempt
        bound, store = self.approved.bound, self.keeper.store
        policy = await store.policy.effective(self.keeper.run_request.settings)
        gate_policy = gate_policy_of(
            bound.validated.plan, policy, requested_by=run.requested_by or "", step_id=attempt.step_id, kind="outcome"
        )
        started = [command for command in await store.outcomes.commands(run.id) if command.attempt.id == attempt.id]
        made_by = await store.outcomes.start_of(attempt)
        notices = group_notices(bound.validated.plan, policy, attempt.step_id)
        text = outcome_text(
            bound,
            step,
            attempt,
            why=unknown_outcome.why,
            made_by=made_by,
            run_id=run.id,
            context=await gate_context(run, bound.validated.plan, store),
            commands=started,
            notices=notices,
        )
        digest = outcome_digest(attempt.id)
        return new_gate(
            run,
            approval_digest=digest,
            description=unknown_outcome.step_run.description,
            text=text,
            gate_policy=gate_policy,
            step_id=attempt.step_id,
            item=attempt.item,
            label=attempt.label,
            kind="outcome",
            call_kind=attempt.kind,
            fields=RESULT_FIELD if attempt.kind == "step" and bound.validated.uses_result_of(step.id) else None,
        )

    async def _show_unknown(self, unknown_outcome: UnknownOutcome, change: int) -> None:
        """Set the run's reason to unknown while outcome gates are open. A run that is being rolled back keeps its reason."""
        if unknown_outcome.attempt.kind == "rollback":
            return
        self._open += change
        run = self.keeper.run
        reason = RunReason.UNKNOWN if self._open else None
        if run.reason is not reason:
            run.reason = reason
            await self.keeper.store.ledger.update(run)

    async def _read_resolution(self, closed: Gate) -> RecordedResolution | None:
        if closed.end not in ("done", "again", "abort"):
            return None
        receipt = await self.keeper.answers.resolution_at(closed)
        call = call_name(closed.step_id or "", closed.item, closed.label, kind=closed.call_kind)
        if receipt is None:
            raise RunConflictError(f"the gate of `{call}` in run {closed.run_id} is closed as {closed.end}, but no receipt records that")
        note = f" ({receipt.note})" if receipt.note else ""
        return RecordedResolution(closed.end, f"{receipt.by} recorded `{closed.end}` for `{call}`{note}", receipt.result)
