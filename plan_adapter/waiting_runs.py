"""Start runs, list and answer their gates, and resume them, from a program in which nobody waits, such as a web backend.

A function whose name begins with `a` is awaited. Its twin without the `a` is for code without an event loop.
"""

from collections.abc import Mapping
from dataclasses import replace

from pydantic import JsonValue

from plan_adapter.gates.gate import request_of
from plan_adapter.gates.identity import DIGEST_BEGINNING
from plan_adapter.loading import PlanSource, aplan_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import (
    DELEGATE,
    GATE_ANSWERS,
    TAKE_BACK,
    Answer,
    Decision,
    DelegationKind,
    Gate,
    GateAnswer,
    Resolution,
)
from plan_adapter.model.errors import InvalidAnswerError, NotApprovedError
from plan_adapter.model.hooks import Hooks
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.record import PlanRun, RunContext
from plan_adapter.model.status import PlanStatus
from plan_adapter.runner import acancel_run
from plan_adapter.runs.answers import GateAnswers
from plan_adapter.runs.plan_approval import end_expired, end_overdue, end_rejected
from plan_adapter.runs.resume import execute_resume
from plan_adapter.runs.run_session import RunRequest, opened_store
from plan_adapter.runs.start import execute_plan
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import Tools, as_registry
from plan_adapter.twins import sync_twin
from plan_adapter.validation import bind_inputs, validate


async def astart_run(
    plan: PlanSource,
    *,
    tools: Tools,
    inputs: Mapping[str, object] | None = None,
    hooks: Hooks | None = None,
    context: RunContext | None = None,
    store: PlanStore | None = None,
    offline: bool = False,
    by: str | None = None,
) -> PlanRun:
    """Start a run of `plan`, and return it as soon as it waits only for answers, or has ended.

    A plan that needs an approval is not executed yet: its gate is open. `aopen_gates` lists the gates, `aanswer_gate` answers one, and
    `acontinue_run` then resumes the run. With Prefect, the gates also have forms there. `by` is who starts the run, and is not verified;
    the default is the operating system's user.

    Raises InvalidPlanError; NotApprovedError if `by` is not an operator of the plan; NoServerError; and StoreError.
    """
    registry = as_registry(tools)
    request = replace(_detached(hooks, by, offline=offline), context=context or RunContext(), tools=registry)
    bound = bind_inputs(validate(await aplan_of(plan, store=store), registry), inputs)
    return await execute_plan(bound, run_request=request, store=store, offline=offline, record_pending=True)


start_run = sync_twin(astart_run)


async def acontinue_run(
    run_id: str,
    *,
    tools: Tools,
    hooks: Hooks | None = None,
    store: PlanStore | None = None,
    offline: bool = False,
    by: str | None = None,
) -> PlanRun:
    """Resume a run whose gates were answered, and return it as soon as it waits only for other answers, or has ended.

    Completed steps are kept, and answers are used once. `by` is who resumes the run, and is not verified. Raises NotApprovedError if `by`
    is not an operator of the plan; RunConflictError if the run has completed, was rejected, or is executed by a process.
    """
    registry, request = as_registry(tools), _detached(hooks, by, offline=offline)
    return await execute_resume(run_id, tools=registry, run_request=request, store=store, offline=offline, record_pending=True)


continue_run = sync_twin(acontinue_run)


async def aget_run(run_id: str, *, store: PlanStore | None = None) -> PlanRun:
    """Return a run with its steps, by its id or the beginning or end of it. Raises RunConflictError if there is none, or several."""
    async with opened_store(store, Settings()) as opened:
        return await end_overdue(await opened.run(run_id), opened)


get_run = sync_twin(aget_run)


async def alist_runs(
    *,
    name: str | None = None,
    status: PlanStatus | None = None,
    context: RunContext | None = None,
    limit: int = 50,
    store: PlanStore | None = None,
) -> list[PlanRun]:
    """Return the newest runs that match every filter, without the results of their steps. `name` is that of a plan."""
    if status is not None:
        status = _status_of(status)
    async with opened_store(store, Settings()) as opened:
        return await opened.runs(limit, names=None if name is None else [name], status=status, context=context)


list_runs = sync_twin(alist_runs)


async def aopen_gates(run_id: str | None = None, *, store: PlanStore | None = None) -> list[Gate]:
    """Return the gates that wait for an answer, the oldest first, of one run or of all.

    `gate.text` is what a person must read, as Markdown; `gate.kind` is `approval`, `question` (with `gate.fields`) or `outcome`. Gates
    that have expired are closed first.
    """
    async with opened_store(store, Settings()) as opened:
        own_id = None if run_id is None else (await opened.run(run_id)).id
        await end_expired(opened, run_id=own_id)
        return await opened.gates.find(run_id=own_id, with_texts=True)


open_gates = sync_twin(aopen_gates)


async def aanswer_gate(
    gate: Gate | str,
    decision: GateAnswer,
    *,
    by: str,
    digest: str | None = None,
    note: str = "",
    values: Mapping[str, JsonValue] | None = None,
    result: JsonValue = None,
    code: str | None = None,
    signature: str | None = None,
    to: str = "",
    store: PlanStore | None = None,
) -> PlanRun:
    """Answer at a gate, and return its run. The answer counts only for the content that was shown.

    `gate` is a gate that `aopen_gates` returned, or its id. With an id, `digest` must be the digest that the person saw
    (`gate.approval_digest`), or at least 8 characters of its beginning. `values` are the answer to a question, by field. `result` is what
    the call returned, for `done`. `request_changes` needs a `note`. `delegate` leaves the gate open and lets the person `to` answer in the
    place of `by`; `take_back` ends that, until `to` has answered.

    `by` is recorded as an unverified name, unless `code`, a one-time code, or `signature` proves it. So let your program sign people in.

    If a process waits at the gate, it continues at once. Otherwise `acontinue_run` resumes the run; a rejection of the plan ends it here. A
    deployed run that released its worker is continued by `plan reconcile`, or by the deployment `reconcile`.

    Raises ValueError for an empty `by` and a `digest` that is none; ContentChangedError if `digest` is not that of the gate now;
    InvalidAnswerError if the gate does not take this answer; NotApprovedError if the gate policy refuses the person or the proof;
    RunNotFoundError if there is no such gate; RunConflictError if it is closed. A refused answer is recorded.
    """
    if isinstance(gate, str) and digest is None:
        raise TypeError("`digest` is missing: with the id of a gate, pass the digest that the person saw")
    if digest is not None and not DIGEST_BEGINNING.fullmatch(digest):
        raise ValueError("`digest` needs at least 8 characters of an approval digest (0-9, a-f)")
    if not by.strip():
        raise ValueError("`by` is empty: pass the name of the person who answers")
    settings = Settings()
    async with opened_store(store, settings) as opened:
        shown = gate if isinstance(gate, Gate) else await opened.gates.get(gate)
        answer = Answer(
            _decision_of(shown, decision),
            by,
            note=note,
            code=code,
            signature=signature,
            result=dict(values or {}) if decision == "answer" else result,
            digest=shown.approval_digest if digest is None else digest,
            to=to,
        )
        if decision == "request_changes" and not note.strip():
            raise InvalidAnswerError("`note` is empty: say in it what to change")
        await close_gate(shown, answer, GateAnswers(opened, settings))
        return await opened.run(shown.run_id)


answer_gate = sync_twin(aanswer_gate)


async def close_gate(gate: Gate, answer: Answer, answers: GateAnswers) -> Gate:
    """Verify `answer`, close `gate` with it, and return the gate, which is still open if it needs more approvals.

    Ends a run that is rejected before it started and that no process executes. Raises NotApprovedError for an answer that is refused, which
    is recorded, and RunConflictError if another answer came first.
    """
    store = answers.store
    try:
        closed = await answers.close(gate, answer, request_of(gate))
    except NotApprovedError as error:
        decision = "answer" if gate.kind == "question" and answer.decision == "approve" else answer.decision
        refusal = f"{decision} is refused: {error}"
        await store.ledger.record_refusal(gate.run_id, refusal, by=answer.by, step_id=gate.step_id, call_kind=gate.call_kind)
        raise
    if answer.decision == "reject" and gate.step_id is None and gate.attended is False:
        run, approval = await store.run(gate.run_id), await store.gates.answer_to(closed.id)
        if run.status is PlanStatus.PENDING_APPROVAL and approval is not None:
            await end_rejected(run, approval, store)
    return closed


async def arollback_run(
    run_id: str,
    *,
    tools: Tools,
    reason: str = "rolled back",
    hooks: Hooks | None = None,
    store: PlanStore | None = None,
    offline: bool = False,
    by: str | None = None,
) -> PlanRun:
    """Roll back the completed steps of a run that is executing or did not complete, and return it. Raises the same as `acancel_run`."""
    registry = as_registry(tools)
    return await acancel_run(run_id, reason=reason, rollback=True, tools=registry, hooks=hooks, store=store, offline=offline, by=by)


rollback_run = sync_twin(arollback_run)


def _detached(hooks: Hooks | None, by: str | None, *, offline: bool) -> RunRequest:
    """Return the request of a start of a run that waits for nobody."""
    request = RunRequest(waits=False, asks_in_form=not offline, hooks=hooks or Hooks())
    return request if by is None else replace(request, requested_by=by)


def _status_of(status: str) -> PlanStatus:
    """Return the status that `status` is or names. Raises ValueError with the nearest one."""
    try:
        return PlanStatus(status)
    except ValueError:
        raise ValueError(f"no run has the status `{status}`; {did_you_mean(str(status), [*PlanStatus])}") from None


def _decision_of(gate: Gate, decision: GateAnswer) -> Decision | Resolution | DelegationKind:
    """Return `decision` as it is recorded. Raises InvalidAnswerError if this kind of gate does not take it."""
    if decision in (DELEGATE, TAKE_BACK) and gate.kind != "outcome":
        return decision
    if decision not in (known := GATE_ANSWERS[gate.kind]):
        takes, near = ", ".join(f"`{one}`" for one in known), did_you_mean(str(decision), known)
        raise InvalidAnswerError(f"this gate takes {takes}, not `{decision}`{f'; {near}' if near.startswith('did') else ''}")
    return "approve" if decision == "answer" else decision
