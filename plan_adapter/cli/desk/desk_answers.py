"""`record_answer`: record an answer of a person who signed in, whether they gave it on a page or in a chat."""

from plan_adapter.cli.answering import STAYS_RELEASED, wake_released_run, what_happens_next, why_cancelled
from plan_adapter.cli.servers import show_end_in_prefect
from plan_adapter.gates.gate import request_of
from plan_adapter.gates.identity import Identity
from plan_adapter.gates.quorum import progress_in_words
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import DELEGATE, Answer, Decision, Gate
from plan_adapter.model.errors import RunConflictError
from plan_adapter.runs.answers import GateAnswers
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
        return f"Recorded: {answer.to} answers instead of {answer.by}."
    if gate.kind == "outcome":
        return "Recorded. " + ("The waiting process continues now." if gate.attended else "`plan resume` resumes the run.")
    if closed.end is None:
        policy = await answers.policy_of(request_of(closed))
        return f"Recorded: {progress_in_words(policy, closed.agreements)}."
    decision: Decision = answer.decision if answer.decision in ("reject", "request_changes") else "approve"
    if decision == "reject" and gate.step_id is None and gate.attended is False:
        await show_end_in_prefect(run.id, store, settings)
    next_text, approval = what_happens_next(gate, run, decision), await store.gates.answer_to(gate.id)
    if decision != "request_changes" and gate.gate_policy.release and approval is not None:
        is_awake = await wake_released_run(closed, approval, settings)
        next_text = next_text if is_awake or not gate.is_released else STAYS_RELEASED
    return f"Recorded. Next: {next_text}."
