"""`CallGates`: the approval of one call, of a step that waits at a gate of its own."""

from collections.abc import Collection
from dataclasses import dataclass, field

from plan_adapter.approval import ApprovedPlan, needs_gate, rules_of
from plan_adapter.errors import NotApprovedError
from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.ports import GatedCall, GateRefusal
from plan_adapter.gate_text import step_gate_text
from plan_adapter.plan import ExecutionPlan, Step
from plan_adapter.policy import PolicyInForce
from plan_adapter.record import Approval, Gate, PlanRun, RunReason
from plan_adapter.runs.gate_keeper import GateKeeper
from plan_adapter.runs.gates import new_gate, no_answer
from plan_adapter.runs.lapsing import said_before, why_lapsed
from plan_adapter.runs.standing import approval_by_standing


@dataclass(slots=True)
class CallGates:
    """The gates of single calls of one run. Implements `ports.StepGates`."""

    approved: ApprovedPlan
    keeper: GateKeeper
    stop: Stop
    policy: PolicyInForce  # as it was when this start of the run began: a newer one decides of its answers, and of the next start
    asked: Collection[str] = ()  # steps that an earlier start of the run has ended, and that somebody was asked about
    _before: list[Gate] | None = field(default=None, init=False)  # gates that were closed before this start

    @property
    def waits(self) -> bool:
        """Whether people are waited for however long they take."""
        return self.keeper.occasion.waits

    def is_gated(self, step: Step) -> bool:
        """Return whether the step, the plan's policy or the settings ask for an approval of this call."""
        return needs_gate(step, self.approved.bound.validated, self.policy)

    async def ask(self, call: GatedCall) -> Approval | GateRefusal | None:
        """Return the approval of exactly this call, why there is none, or None where it was left waiting for one."""
        try:
            answer = await self._found(call)
            while answer is None and not call.left.done():
                answer = await self._asked(call)
        except NotApprovedError as error:
            return GateRefusal(RunReason.REJECTED, f"at the gate of `{call.name}`: {error}")
        return answer

    async def _asked(self, call: GatedCall) -> Approval | GateRefusal | None:
        """Return what was answered; None of a call that was left, and where somebody must be asked again."""
        keeper, answers = self.keeper, await self._answers(call)
        if answers and answers[-1].decision == "request_changes" and keeper.has_spoken(call.approval_digest) and not self._asks_others:
            raise NotApprovedError(f"{answers[-1].by} asks for changes: {answers[-1].note}")  # the same would be said again, for ever
        gate = await keeper.open(await self._gate_of(call, answers), timeout_ms=self._plan.options.approval_timeout_ms)
        closed = await keeper.collected(gate) or await self._closed(gate, call)
        return None if closed is None else await self._outcome(closed, call)

    async def _closed(self, gate: Gate, call: GatedCall) -> Gate | None:
        """Return `gate` closed; None where it is open still, because the call was left, or who answers for this process may not."""
        keeper = self.keeper
        is_asked_here = keeper.occasion.approver is not None and not keeper.has_spoken(call.approval_digest)
        if not is_asked_here and not call.waiting.done():
            call.waiting.set_result(None)
        try:
            closed = await keeper.ask(gate, call.step_run, until=call.withdrawn, left=call.left)
        except NotApprovedError as error:
            if self.waits:
                raise
            keeper.run.message = f"at the gate of `{call.step.id}`: {error}"
            return None
        return closed if closed.end is not None else None

    async def _gate_of(self, call: GatedCall, answers: list[Approval]) -> Gate:
        keeper, run = self.keeper, self.keeper.run
        rules = rules_of(self._plan, await keeper.store.policy_in_force(keeper.occasion.settings), requested_by=run.requested_by or "")
        before = [step for step in run.steps if step.id in self.approved.bound.validated.dependencies[call.step.id]]
        changes, lapsed = await said_before(
            [row for row in answers if row.decision == "approve" or row.at >= self.approved.approval.at],
            self._plan,
            run,
            keeper.store,
            keeper.occasion.settings,
        )
        text = step_gate_text(
            self.approved.bound,
            call.step,
            effect=call.effect,
            parameters=call.parameters,
            item=call.item,
            label=call.label,
            approval_digest=call.approval_digest,
            expires_ms=self._plan.options.approval_timeout_ms,
            results={step.id: step.result for step in before},
            ends={step.id: step.status.value + (f": {step.reason}" if step.reason else "") for step in before},
            notices=[*changes, *lapsed],
        )
        return new_gate(
            run,
            approval_digest=call.approval_digest,
            description=call.step.description,
            text=text,
            rules=rules,
            step_id=call.step.id,
            item=call.item,
            label=call.label,
        )

    @property
    def _plan(self) -> ExecutionPlan:
        return self.approved.bound.validated.plan

    @property
    def _asks_others(self) -> bool:
        """Whether somebody else than the approver, who is asked once about the same, can be asked."""
        return self.keeper.occasion.asks_in_form or not self.waits

    async def _answers(self, call: GatedCall) -> list[Approval]:
        """Return what was answered at gates of this call, oldest first."""
        rows = await self.keeper.store.approvals(self.keeper.run.id)
        return [row for row in rows if row.gate_id is not None and is_of_call(row, self.keeper.run, call)]

    async def _found(self, call: GatedCall) -> Approval | GateRefusal | None:
        """Return what the run was answered about this call while nobody waited, or the approval that a standing one gives."""
        last = next(reversed(await self._answers(call)), None)
        if last is not None and last.decision == "reject" and last.at >= self.approved.approval.at:  # else a new version asks anew
            return _refused(last)
        if last is not None and last.decision == "approve" and last.used_at is None:
            return last if await self._counts(last) else None
        if (expired := await self._expired(call)) is not None:
            return await self._outcome(expired, call)
        return await approval_by_standing(
            self.approved.approval, call, self.keeper.run, self._plan, self.keeper.store, self.keeper.occasion
        )

    async def _counts(self, answer: Approval) -> bool:
        """Return whether `answer` is an approval that this process takes, whoever took it before."""
        keeper = self.keeper
        return answer.decision == "approve" and (
            await why_lapsed(answer, self._plan, keeper.run, keeper.store, keeper.occasion.settings) is None
        )

    async def _expired(self, call: GatedCall) -> Gate | None:
        """Return the gate of this call at which nobody answered in time while no process waited; None where that is not so."""
        if call.step.id in self.asked:
            return None
        if self._before is None:
            gates = await self.keeper.store.gates(run_id=self.keeper.run.id, open_only=False)
            self._before = [gate for gate in gates if gate.end is not None]
        of = (call.step.id, call.item, call.approval_digest)
        last = next((gate for gate in reversed(self._before) if (gate.step_id, gate.item, gate.approval_digest) == of), None)
        return last if last is not None and last.end == "expired" and last.opened_at >= self.approved.approval.at else None

    async def _outcome(self, closed: Gate, call: GatedCall) -> Approval | GateRefusal | None:
        keeper, answer = self.keeper, await self.keeper.store.answer_to_gate(closed.id)
        if closed.end == "answered" and answer is not None:
            if answer.decision == "reject":
                return _refused(answer)
            return answer if await self._counts(answer) else None
        if closed.end == "expired":
            message = f"{no_answer(closed)} at the gate of `{closed.step_id}`"
            return GateRefusal(RunReason.EXPIRED, message, ends_run=closed.rules.expires == "reject")
        if self.stop.is_set:
            return GateRefusal(RunReason.CANCELLED, self.stop.message, ends_run=False)
        if call.withdrawn.done():
            return GateRefusal(RunReason.CANCELLED, f"the gate of `{closed.step_id}` was closed", ends_run=False)
        reason = await keeper.store.cancel_request(closed.run_id)
        return GateRefusal(RunReason.CANCELLED, reason or f"the gate of `{closed.step_id}` was closed")


def _refused(answer: Approval) -> GateRefusal:
    note = f": {answer.note}" if answer.note else ""
    return GateRefusal(RunReason.REJECTED, f"{answer.by} rejected it at the gate of `{answer.step_id}`{note}")


def is_of_call(row: Approval, run: PlanRun, call: GatedCall) -> bool:
    """Return whether `row` answers about exactly this call of this run."""
    of = (row.run_id, row.step_id, row.item, row.approval_digest)
    return of == (run.id, call.step.id, call.item, call.approval_digest)
