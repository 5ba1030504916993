"""`record_answer`: record an answer of a person who signed in, whether they gave it on a page or in a chat."""

from plan_adapter.cli.answering import take_effect, why_cancelled
from plan_adapter.gates.gate import request_of
from plan_adapter.gates.identity import Identity
from plan_adapter.gates.quorum import progress_in_words
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import DELEGATE, TAKE_BACK, Answer, Gate
from plan_adapter.model.errors import RunConflictError
from plan_adapter.runs.answers import GateAnswers
from plan_adapter.runs.known_people import why_unknown
from plan_adapter.store.store import PlanStore
from plan_adapter.waiting_runs import close_gate


async def record_answer(answer: Answer, gate: Gate, identity: Identity | None, store: PlanStore, settings: Settings) -> str:
    """Record an answer, and return what happens next. Raises what `close_gate` raises."""
    run = await store.run(gate.run_id)
    if answer.decision == "approve" and (reason := await why_cancelled(run, store, settings)) is not None:
        raise RunConflictError(f"too late to approve: the run was cancelled in Prefect: {reason}")
    answers = GateAnswers(store, settings, signed_in=identity)
    closed = await close_gate(gate, answer, answers)
    if answer.decision == DELEGATE:
        warning = await why_unknown(answer.to, gate, store, settings)
        return f"Recorded: {answer.to} answers instead of {answer.by}." + (f" But {warning}." if warning else "")
    if answer.decision == TAKE_BACK:
        return f"Recorded: {answer.to} no longer answers instead of {answer.by}."
    if gate.kind == "outcome":
        return "Recorded. " + ("The waiting process continues now." if gate.attended else "`plan resume` resumes the run.")
    if closed.end is None:
        policy = await answers.policy_of(request_of(closed))
        return f"Recorded: {progress_in_words(policy, closed.agreements)}."
    approval = await store.gates.answer_to(gate.id)
    assert approval is not None, "it closed the gate"
    return f"Recorded. Next: {await take_effect(gate, run, closed, approval, store, settings)}."
