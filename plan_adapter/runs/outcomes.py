"""`OutcomeGates`: people are asked how a call ended of which nobody knows it, at a gate whose answer is a receipt and approves nothing."""

from dataclasses import dataclass

from plan_adapter.approval import ApprovedPlan, rules_of
from plan_adapter.errors import RunConflictError
from plan_adapter.execution.carry import is_rollback
from plan_adapter.execution.ports import Doubt, Said
from plan_adapter.gate_text import outcome_text
from plan_adapter.readable import call_name
from plan_adapter.record import Gate, RunReason
from plan_adapter.runs.gate_keeper import GateKeeper
from plan_adapter.runs.gates import new_gate
from plan_adapter.store.outcomes import outcome_digest


@dataclass(slots=True)
class OutcomeGates:
    """The gates of one run that ask how calls ended. Implements `ports.Outcomes`."""

    approved: ApprovedPlan
    keeper: GateKeeper
    _open: int = 0

    async def ask(self, doubt: Doubt) -> Said | None:
        """Return what was said, by the form, at the terminal or by `plan resolve`; None where none of them asks, or the run ends before."""
        keeper = self.keeper
        if not keeper.can_ask_how_it_ended or doubt.withdrawn.done():
            return None
        gate = await keeper.open(await self._gate_of(doubt), timeout_ms=0)
        await self._show_doubt(doubt, +1)
        try:
            closed = await keeper.collected(gate) or await keeper.ask(gate, doubt.step_run, until=doubt.withdrawn)
        finally:
            await self._show_doubt(doubt, -1)
        return await self._said(closed)

    async def _gate_of(self, doubt: Doubt) -> Gate:
        run, step, lost = self.keeper.run, doubt.step, doubt.lost
        bound, store = self.approved.bound, self.keeper.store
        policy = await store.policy_in_force(self.keeper.occasion.settings)
        rules = rules_of(bound.validated.plan, policy, requested_by=run.requested_by or "")
        text = outcome_text(bound, step, lost, why=doubt.why, made_by=await store.start_of(lost), run_id=run.id)
        digest = outcome_digest(lost.id)
        return new_gate(
            run,
            approval_digest=digest,
            description=doubt.step_run.description,
            text=text,
            rules=rules,
            step_id=lost.step_id,
            item=lost.item,
            label=lost.label,
            kind="outcome",
        )

    async def _show_doubt(self, doubt: Doubt, change: int) -> None:
        """Let the run say that it waits because an outcome is unknown, as long as it does; one that is undone keeps its reason."""
        if is_rollback(doubt.lost.step_id):
            return
        self._open += change
        run = self.keeper.run
        reason = RunReason.UNKNOWN if self._open else None
        if run.reason is not reason:
            run.reason = reason
            await self.keeper.store.update_run(run)

    async def _said(self, closed: Gate) -> Said | None:
        if closed.end not in ("done", "again", "abort"):
            return None
        word = await self.keeper.answers.word_at(closed)
        if word is None:
            raise RunConflictError(
                f"the gate of `{closed.step_id}` in run {closed.run_id} is closed with the word {closed.end}, and no receipt holds it"
            )
        note = f" ({word.note})" if word.note else ""
        call = call_name(closed.step_id or "", closed.item, closed.label)
        return Said(closed.end, f"{word.by} says of `{call}`: {closed.end}{note}", word.result)
