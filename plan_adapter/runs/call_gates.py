"""`CallGates`: the approval of one call, of a step that waits at a gate of its own."""

from dataclasses import dataclass

from plan_adapter.approval import ApprovedPlan, needs_gate, rules_of
from plan_adapter.errors import NotApprovedError
from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.ports import GatedCall, GateRefusal
from plan_adapter.gate_text import step_gate_text
from plan_adapter.plan import Effect, ExecutionPlan, Step
from plan_adapter.record import Approval, Gate, PlanRun, RunReason
from plan_adapter.runs.approving import collected
from plan_adapter.runs.gates import GateKeeper, new_gate, no_answer
from plan_adapter.runs.standing import approval_by_standing


@dataclass(slots=True)
class CallGates:
    """The gates of single calls of one run. Implements `ports.StepGates`."""

    approved: ApprovedPlan
    keeper: GateKeeper
    stop: Stop

    def is_gated(self, step: Step, effect: Effect) -> bool:
        """Return whether the step, the plan's policy or the settings ask for an approval of this call."""
        return needs_gate(step, effect, self._plan, self.keeper.occasion.settings)

    async def ask(self, call: GatedCall) -> Approval | GateRefusal:
        """Return the approval of exactly this call, or why there is none."""
        try:
            return await self._found(call) or await self._asked(call)
        except NotApprovedError as error:  # a signature that is not of this answer
            return GateRefusal(RunReason.REJECTED, f"at the gate of `{call.step.id}`: {error}")

    async def _asked(self, call: GatedCall) -> Approval | GateRefusal:
        keeper, run = self.keeper, self.keeper.run
        rules = rules_of(self._plan, keeper.occasion.settings, requested_by=run.requested_by or "")
        before = [step for step in run.steps if step.id in self.approved.bound.validated.dependencies[call.step.id]]
        text = step_gate_text(
            self.approved.bound,
            call.step,
            effect=call.effect,
            parameters=call.parameters,
            item=call.item,
            approval_digest=call.approval_digest,
            expires_ms=self._plan.options.approval_timeout_ms,
            results={step.id: step.result for step in before},
            ends={step.id: step.status.value + (f": {step.reason}" if step.reason else "") for step in before},
        )
        draft = new_gate(
            run,
            approval_digest=call.approval_digest,
            description=call.step.description,
            text=text,
            rules=rules,
            step_id=call.step.id,
            item=call.item,
        )
        gate = await keeper.open(draft, timeout_ms=self._plan.options.approval_timeout_ms)
        closed = await collected(gate, keeper) or await keeper.ask(gate, call.step_run, until=call.withdrawn)
        return await self._outcome(closed, withdrawn=call.withdrawn.done())

    @property
    def _plan(self) -> ExecutionPlan:
        return self.approved.bound.validated.plan

    async def _found(self, call: GatedCall) -> Approval | GateRefusal | None:
        """Return what the run was answered about this call while nobody waited, or the approval that a standing one gives."""
        store, run = self.keeper.store, self.keeper.run
        answers = [row for row in await store.approvals(run.id) if is_of_call(row, run, call) and row.gate_id is not None]
        last = answers[-1] if answers else None
        if last is not None and last.decision == "approve" and last.used_at is None:
            await self._prove(last)
            return last
        if last is not None and last.decision != "approve" and last.at >= self.approved.approval.at:  # else a new version asks anew
            return _refused(last)
        return await approval_by_standing(self.approved.approval, call, run, store, self.keeper.occasion)

    async def _prove(self, answer: Approval) -> None:
        await self.keeper.prove(answer, await self.keeper.store.gate(answer.gate_id or ""))
        self.keeper.refuse_unfitting(answer, self._plan)

    async def _outcome(self, closed: Gate, *, withdrawn: bool) -> Approval | GateRefusal:
        answer = await self.keeper.store.answer_to_gate(closed.id)
        if closed.end == "answered" and answer is not None:
            if answer.decision == "approve":
                await self._prove(answer)
                return answer
            return _refused(answer)
        if closed.end == "expired":
            message = f"{no_answer(closed)} at the gate of `{closed.step_id}`"
            return GateRefusal(RunReason.EXPIRED, message, ends_run=closed.rules.expires == "reject")
        if self.stop.is_set:
            return GateRefusal(RunReason.CANCELLED, self.stop.message, ends_run=False)
        if withdrawn:
            return GateRefusal(RunReason.CANCELLED, f"the gate of `{closed.step_id}` was closed", ends_run=False)
        reason = await self.keeper.store.cancel_request(closed.run_id)
        return GateRefusal(RunReason.CANCELLED, reason or f"the gate of `{closed.step_id}` was closed")


def _refused(answer: Approval) -> GateRefusal:
    note = f": {answer.note}" if answer.note else ""
    verb = "asks for changes" if answer.decision == "request_changes" else "rejected it"
    return GateRefusal(RunReason.REJECTED, f"{answer.by} {verb} at the gate of `{answer.step_id}`{note}")


def is_of_call(row: Approval, run: PlanRun, call: GatedCall) -> bool:
    """Return whether `row` answers about exactly this call of this run."""
    of = (row.run_id, row.step_id, row.item, row.approval_digest)
    return of == (run.id, call.step.id, call.item, call.approval_digest)
