"""Resolutions of unknown outcomes that are given outside a gate, and the commands of such attempts that still run here."""

import asyncio
from collections.abc import Collection, Sequence

from plan_adapter.execution.history import RunHistory
from plan_adapter.gates.approval import gate_policy_of
from plan_adapter.gates.identity import ProofContext, verify_answer
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer, ApprovalRequest, Resolution
from plan_adapter.model.errors import NotApprovedError, RunConflictError
from plan_adapter.model.options import CallKind
from plan_adapter.model.readable import call_name, one_line
from plan_adapter.model.record import PlanRun, StartedCommand
from plan_adapter.runs.run_session import proof_options
from plan_adapter.store.outcomes import ResolutionRecord
from plan_adapter.store.store import PlanStore
from plan_adapter.text.commands import resolve_command


async def resolution_request(
    run: PlanRun,
    step_id: str,
    resolution: Resolution,
    store: PlanStore,
    settings: Settings,
    *,
    item: int | None = None,
    label: str | None = None,
    kind: CallKind = "step",
) -> ApprovalRequest:
    """Return the request that a resolution of a step, or of its rollback, answers: the content that it is bound to, and the gate policy.

    Raises RunConflictError if this resolution is not possible.
    """
    plan = await store.get(run.digest)
    return ApprovalRequest(
        approval_digest=await store.outcomes.digest_of(run.id, step_id, resolution, item=item, kind=kind),
        name=run.name,
        description="",
        text="",
        run_id=run.id,
        step_id=step_id,
        item=item,
        label=label,
        gate_policy=gate_policy_of(
            plan, await store.policy.effective(settings), requested_by=run.requested_by or "", step_id=step_id, kind="outcome"
        ),
        kind="outcome",
        call_kind=kind,
    )


async def verify_resolution(answer: Answer, request: ApprovalRequest, store: PlanStore, settings: Settings) -> ResolutionRecord:
    """Return `answer` as a resolution for the store, with its identity verified and allowed.

    Raises NotApprovedError, which is also written to the run's audit log.
    """
    assert answer.decision in ("done", "again", "abort")
    try:
        identity = await verify_answer(answer, request, ProofContext(await store.policy.effective(settings), settings, store.codes))
    except NotApprovedError as error:
        message = f"`{one_line(call_name(request.step_id or '', None, kind=request.call_kind))}` is not resolved: {error}"
        await store.ledger.record_refusal(request.run_id or "", message, by=answer.by, known_by=answer.channel)
        unit = (request.step_id or "", request.item)
        command = resolve_command(request.run_id or "", unit, answer.decision, label=request.label, kind=request.call_kind)
        has_proof = answer.code is not None or answer.signature is not None
        hint = "" if has_proof else proof_options(request.gate_policy, command, by=answer.by, decision="reject")
        raise NotApprovedError(message + hint) from error
    return ResolutionRecord(
        answer.decision,
        answer.by,
        identity.known_by,
        answer.note,
        answer.result,
        digest=request.approval_digest,
        signature=answer.signature,
    )


def refuse_running_commands(
    run: PlanRun,
    history: RunHistory,
    started: Sequence[StartedCommand],
    *,
    kinds: Collection[CallKind] = ("step", "rollback"),
    skipped: Collection[str] = (),
) -> None:
    """Raise RunConflictError if a call would be repeated while a command of it still runs on this host.

    A write with an unknown outcome is not repeated: a person is asked about it. Steps in `skipped` are not called.
    """
    for command in started:
        attempt, calls = command.attempt, history.calls(command.attempt.kind)
        unit = (attempt.step_id, attempt.item)
        receipt = calls.receipts.get(unit)
        is_repeated = unit in calls.repeatable or unit in calls.interrupted_reads or (receipt is not None and receipt.resolution == "again")
        if attempt.kind in kinds and attempt.step_id not in skipped and is_repeated and command.state == "running":
            again = resolve_command(run.id, unit, "again", label=attempt.label, kind=attempt.kind)
            raise RunConflictError(
                f"run {run.id} would call `{command.call}` a second time, but its command {command.in_words}: wait until it has ended, or "
                f"`{again} --end` ends it first"
            )


async def end_command(run: PlanRun, step_id: str, store: PlanStore, *, item: int | None, kind: CallKind) -> str | None:
    """End the processes of the commands of a call that still run on this host. Return what was done, or None if none was running.

    Raises RunConflictError, and ends nothing, while a process executes the run, and for a command of another host. Raises it as well if a
    process does not end.
    """
    if (owner := await store.ledger.owner(run.id)) is not None and not any(
        (gate.step_id, gate.item, gate.call_kind, gate.kind) == (step_id, item, kind, "outcome")
        for gate in await store.gates.find(run_id=run.id)
    ):
        raise RunConflictError(f"run {run.id} is executed by {owner}, which ends its commands itself: `plan cancel {run.id}` cancels it")
    started = await store.outcomes.commands(run.id)
    mine = [command for command in started if (command.attempt.step_id, command.attempt.kind) == (step_id, kind)]
    mine = [command for command in mine if item is None or command.attempt.item == item]
    if (elsewhere := next((command for command in mine if command.state == "elsewhere"), None)) is not None:
        raise RunConflictError(f"the command of `{elsewhere.call}` in run {run.id} {elsewhere.in_words}: end it there")
    running = [command for command in mine if command.state == "running"]
    for command in running:
        if left := await asyncio.to_thread(command.process.end_session, command.attempt.id):
            names = ", ".join(map(str, left))
            raise RunConflictError(f"the command of `{command.call}` in run {run.id} does not end: end these processes yourself: {names}")
    return "; ".join(f"ended its command, pid {command.process.pid}" for command in running) or None
