"""Finds runs whose process died or that changed in Prefect, corrects their state, and says what a person has to type."""

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Literal, assert_never

from plan_adapter.execution.rollback_status import aborted_steps, after_abort, after_aborted_rollback
from plan_adapter.execution.rollback_units import is_rolled_back, units_to_roll_back
from plan_adapter.gates.approval import gate_policy_of
from plan_adapter.gates.gate import new_gate
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Approval, Gate
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.language import tr
from plan_adapter.model.readable import call_in_words, call_name, listed, one_line
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, RunReason
from plan_adapter.runs.cancel import apply_cancellations
from plan_adapter.runs.plan_approval import end_expired, end_rejected
from plan_adapter.store.outcomes import outcome_digest
from plan_adapter.store.store import PlanStore
from plan_adapter.text.commands import (
    MAX_NAMES,
    next_after_outcome,
    resolve_command,
    resume_command,
    resume_command_after_gate,
    rollback_command,
    rollback_hint,
)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to report about a stopped run, and the command to type: `plan resolve` while an outcome is unknown."""

    message: str
    command: str
    then: str | None  # what to do after that
    effect: str = ""  # what the last command does


async def advice_on(run: PlanRun, store: PlanStore) -> Advice | None:
    """Return what to report about `run` and what to type, or None if it needs nothing: it is running, or ended with every outcome known."""
    has_died = run.reason is RunReason.INTERRUPTED
    if not _has_stopped(run):
        return None
    rollback_due = await is_rollback_due(run, store)
    running = [command for command in await store.outcomes.commands(run.id) if command.state == "running"]
    still = "".join(tr("; the command of `{call}` {state}", call=command.call, state=command.in_words) for command in running)
    if unknown := await store.outcomes.unknown(run.id):
        first = unknown[0]
        called = listed(list(dict.fromkeys(call_in_words(attempt.step_id, attempt.kind) for attempt in unknown)), MAX_NAMES)
        message = tr("the outcome of {calls} is unknown", calls=called) + still
        message = tr("its process died; {what}", what=message) if has_died else message
        is_undone = is_rolled_back(await store.get(run.digest), await store.ledger.history(run.id), run.rollback)
        then = f"`{rollback_command(run)}`" if is_undone else next_after_outcome(run, rollback_due=rollback_due)
        return Advice(message, resolve_command(run.id, (first.step_id, first.item), label=first.label, kind=first.kind), then)
    if not has_died:
        return None
    message = tr("its process died; no outcome is unknown") + still
    if running:
        first = running[0].attempt
        end = resolve_command(run.id, (first.step_id, first.item), "again", label=first.label, kind=first.kind)
        message += tr(" (wait until it has ended, or `{command}` ends it)", command=f"{end} --end")
    if rollback_due:
        return Advice(message, rollback_command(run), None, effect=tr("rolls the run back"))
    return Advice(message, resume_command(run), None, effect=tr("resumes the run"))


async def is_rollback_due(run: PlanRun, store: PlanStore) -> bool:
    """Return whether `run` is to be rolled back: a person requested it and did not withdraw that, or a rollback was due at its end."""
    requested = await store.ledger.is_rollback_requested(run.id)
    return run.rollback is not None if requested is None else requested


async def unasked_outcomes(store: PlanStore, settings: Settings, *, open_digests: Collection[str]) -> list[Gate]:
    """Return the unknown outcomes that no process asks about, oldest first, each as the gate that would ask.

    `open_digests` contains the digests of the open gates. The gates returned are not in the store.
    """
    policy, runs, found = await store.policy.effective(settings), dict[str, PlanRun](), list[Gate]()
    for attempt in await store.outcomes.unknown_of_all():
        digest = outcome_digest(attempt.id)
        if attempt.run_id not in runs:
            runs[attempt.run_id] = await store.run(attempt.run_id, with_steps=False)
        run = runs[attempt.run_id]
        if digest in open_digests or not _has_stopped(run):
            continue
        plan = await store.get(run.digest)
        gate = new_gate(
            run,
            approval_digest=digest,
            description="",
            text="",
            gate_policy=gate_policy_of(plan, policy, requested_by=run.requested_by or "", step_id=attempt.step_id, kind="outcome"),
            step_id=attempt.step_id,
            item=attempt.item,
            label=attempt.label,
            kind="outcome",
            call_kind=attempt.kind,
        )
        found.append(replace(gate, id="", opened_at=attempt.started_at, attended=False))
    return found


def _has_stopped(run: PlanRun) -> bool:
    """Return whether `run` has ended or its process is gone. While a process executes it, calls in progress are not unknown."""
    return run.completed_at is not None or run.reason is RunReason.INTERRUPTED


async def hint_of(run: PlanRun, store: PlanStore) -> str | None:
    """Return the hint for a run that stopped with an unknown outcome or whose process is gone, or None for other runs."""
    if (advice := await advice_on(run, store)) is not None:
        instruction = f"`{advice.command}` {advice.effect}"
        if advice.then is not None:
            answers = tr("done: it happened; again: it did not, call it again; abort: end the run, still unknown")
            instruction = tr(
                "check whether it happened, then record it with `{command}` ({answers}), then {then}",
                command=advice.command,
                answers=answers,
                then=advice.then,
            )
        return f"{advice.message}: {instruction}"
    if run.completed_at is None:
        return None
    history, plan = await store.ledger.history(run.id), await store.get(run.digest)
    is_undone = is_rolled_back(plan, history, run.rollback)
    if run.status is PlanStatus.CANCELLED and (units := aborted_steps(plan, history)):
        return after_abort(run, units, history.labels, is_undone=is_undone)
    if aborted := list(history.rollbacks.aborted):
        return after_aborted_rollback(run, aborted[0], history.labels, is_undone=is_undone)
    if is_undone or not await is_rollback_due(run, store):
        return None
    return rollback_hint(run) if units_to_roll_back(plan, history) else None


MAX_RUNS = 1000
"""How many of the newest runs of each status are checked."""

REACTION = timedelta(seconds=15)
"""How long a process may take to act on the answer at its gate, or to open its gate after its flow run is shown as running."""

RECENT = timedelta(days=1)
"""How long after its end a run is compared with its state in Prefect."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One inconsistency that `reconcile` found.

    `expired`: a gate expired while no process waited at it. `interrupted`: the run's process ended or shows no sign of life. `answered`: a
    gate was answered while no process waited at it, in the store or in its form in Prefect. `cancelled`: the run was cancelled in Prefect
    while no process was watching it. `shown`: Prefect showed another state than the record. `escalated`: a gate escalated while no process
    waited at it, and nobody had been told.
    """

    kind: Literal["expired", "interrupted", "answered", "cancelled", "shown", "escalated"]
    run_id: str
    name: str
    message: str
    is_corrected: bool
    command: str | None = None  # what a person can type now


async def reconcile(store: PlanStore, *, with_prefect: bool) -> list[Finding]:
    """Find inconsistencies, correct those that need no decision by a person, and return all of them, oldest first.

    No step is executed and nothing is approved. `with_prefect` also compares runs with the server in Prefect's settings and corrects their
    state there. Raises NoServerError and StoreError; earlier corrections remain.
    """
    found = [finding async for finding in _find_expired(store, with_prefect=with_prefect)]
    found += await find_interrupted(store, with_prefect=with_prefect)
    found += [finding async for finding in _find_answered(store, with_prefect=with_prefect)]
    if with_prefect:
        found += [finding async for finding in _find_escalated(store)]
        found += [finding async for finding in _find_unattended(store)]
        found += [finding async for finding in _find_wrong_states(store)]
    return found


async def find_interrupted(store: PlanStore, *, with_prefect: bool) -> list[Finding]:
    """Find the runs whose process is gone. This is the urgent and cheap part of `reconcile`.

    With `with_prefect`, runs cancelled in Prefect are ended first, so that they do not appear as interrupted.
    """
    found = [finding async for finding in _find_cancelled(store)] if with_prefect else []
    found += [finding async for finding in _find_dead_processes(store, with_prefect=with_prefect)]
    return found + [finding async for finding in _find_unstarted(store, with_prefect=with_prefect)]


async def _find_cancelled(store: PlanStore) -> AsyncGenerator[Finding]:
    waiting = await store.runs(limit=MAX_RUNS, status=PlanStatus.PENDING_APPROVAL)
    executed = await store.runs(limit=MAX_RUNS, status=PlanStatus.EXECUTING)
    unattended = [run for run in executed if run.reason is RunReason.INTERRUPTED] + waiting
    names = {run.id: run.name for run in unattended}
    for run_id, reason in (await apply_cancellations(unattended, store)).items():
        await _reconcile_in_prefect(await store.run(run_id, with_results=False), store, hint="")
        message = f"somebody cancelled it in Prefect, so it has now ended as cancelled: {one_line(reason)}"
        yield Finding("cancelled", run_id, names[run_id], message, is_corrected=True)


async def _find_expired(store: PlanStore, *, with_prefect: bool) -> AsyncGenerator[Finding]:
    now = await store.now()
    expired = [gate for gate in await store.gates.find() if gate.is_over(now)]
    if with_prefect:
        from plan_adapter.runs.forms import end_released  # imports Prefect

        await end_released(store)
    await end_expired(store)
    for gate in expired:
        yield Finding("expired", gate.run_id, gate.name, f"nobody answered at the gate of {_place(gate)} in time", is_corrected=True)


async def _find_escalated(store: PlanStore) -> AsyncGenerator[Finding]:
    """Announce the gates that escalated without a process that could: their runs released their workers, or stopped."""
    from plan_adapter.engine.reconciling import announce_escalation  # imports Prefect

    now = await store.now()
    for gate in await store.gates.find():
        since = now - gate.opened_at - timedelta(milliseconds=gate.gate_policy.escalate_after_ms)
        if not gate.gate_policy.is_escalated or not REACTION < since < RECENT:
            continue
        run = await store.run(gate.run_id, with_steps=False)
        if run.flow_run_id is not None and await announce_escalation(await store.gates.get(gate.id), run):
            message = f"the gate of {_place(gate)} has escalated while no process waited: people have been told"
            yield Finding("escalated", gate.run_id, gate.name, message, is_corrected=True)


def _place(gate: Gate) -> str:
    return "the plan" if gate.step_id is None else f"step `{call_name(gate.step_id, None, kind=gate.call_kind)}`"


async def _find_dead_processes(store: PlanStore, *, with_prefect: bool) -> AsyncGenerator[Finding]:
    for run in reversed(await store.runs(limit=MAX_RUNS, status=PlanStatus.EXECUTING)):
        if run.reason is not RunReason.INTERRUPTED:
            continue
        advice = await advice_on(run, store)
        if advice is None:
            continue
        message, command = advice.message, advice.command
        if answers := await _unused_answers(run, store):
            message += f"; answered meanwhile: {answers}"
        for finding in await _interrupted(run, store, message, command, with_prefect=with_prefect):
            yield finding


async def _find_unstarted(store: PlanStore, *, with_prefect: bool) -> AsyncGenerator[Finding]:
    """Find the runs of flow runs whose process died before it asked or called anything."""
    now = await store.now()
    for run in reversed(await store.runs(limit=MAX_RUNS, status=PlanStatus.PENDING_APPROVAL)):
        is_new = run.flow_run_id is None or run.started_at is not None or now - run.created_at <= REACTION
        if is_new or await store.gates.find(run_id=run.id, open_only=False) or await store.ledger.owner(run.id) is not None:
            continue
        message, command = tr("its process died before it began; nothing was called"), resume_command(run)
        for finding in await _interrupted(run, store, message, command, with_prefect=with_prefect, settled=REACTION):
            yield finding


async def _interrupted(
    run: PlanRun, store: PlanStore, message: str, command: str, *, with_prefect: bool, settled: timedelta = timedelta(0)
) -> list[Finding]:
    """Return the finding about a run whose process is gone, and if Prefect showed another state, that it shows this one now."""
    found = [Finding("interrupted", run.id, run.name, message, is_corrected=False, command=command)]
    if with_prefect and await _reconcile_in_prefect(run, store, hint=f"{message}; `{command}`", settled=settled) is not None:
        found.append(Finding("shown", run.id, run.name, "Prefect shows it as Interrupted now", is_corrected=True))
    return found


async def _find_answered(store: PlanStore, *, with_prefect: bool) -> AsyncGenerator[Finding]:
    for run in reversed(await store.runs(limit=MAX_RUNS, status=PlanStatus.PENDING_APPROVAL)):
        gates = await store.gates.find(run_id=run.id, open_only=False)
        if (finding := await _find_answered_steps(run, store)) is not None:
            yield finding
            continue
        if not gates or any(gate.end is None for gate in gates) or gates[-1].end != "answered":
            continue
        answer = await store.gates.answer_to(gates[-1].id)
        if answer is None or answer.approval_digest != run.approval_digest:
            continue
        match answer.decision:
            case "request_changes":
                message, command = f"{one_line(answer.by)} asks for changes, and no process waits", f"plan revise {run.id} FILE"
                yield Finding("answered", run.id, run.name, message, is_corrected=False, command=command)
            case "reject":
                if await store.now() - answer.at > REACTION:
                    await end_rejected(run, answer, store)
                    await _resume_released(gates[-1], answer, with_prefect=with_prefect)
                    message = f"{one_line(answer.by)} rejected it while no process waited, so it has now ended as rejected"
                    yield Finding("answered", run.id, run.name, message, is_corrected=True)
            case "approve":
                message = f"{one_line(answer.by)} approved it while no process waited"
                if await _resume_released(gates[-1], answer, with_prefect=with_prefect):
                    yield Finding("answered", run.id, run.name, f"{message}: its deployment resumes it", is_corrected=True)
                else:
                    yield Finding("answered", run.id, run.name, message, is_corrected=False, command=resume_command_after_gate(run))
            case _:
                assert_never(answer.decision)


async def _find_answered_steps(run: PlanRun, store: PlanStore) -> Finding | None:
    """Return a finding if `run` waits at step gates without a process and some were answered; otherwise None."""
    if run.started_at is None or any(gate.attended for gate in await store.gates.find(run_id=run.id)):
        return None
    if not (answers := await _unused_answers(run, store)):
        return None
    message = f"answered while no process waited: {answers}"
    return Finding("answered", run.id, run.name, message, is_corrected=False, command=resume_command_after_gate(run))


async def _unused_answers(run: PlanRun, store: PlanStore) -> str:
    """Return a description of the unused answers about steps; empty if there are none."""
    last = {(row.step_id, row.item): row for row in await store.approvals(run.id) if row.step_id is not None and row.gate_id}
    asked_again = {(gate.step_id, gate.item) for gate in await store.gates.find(run_id=run.id)}
    unused = [row for place, row in last.items() if row.used_at is None and place not in asked_again]
    return ", ".join(f"{row.decision} of `{row.step_id}` by {one_line(row.by)}" for row in unused)


async def _resume_released(gate: Gate, answer: Approval, *, with_prefect: bool) -> bool:
    """Resume the run, and return True, if it released its worker at `gate` and `with_prefect` allows it."""
    if not with_prefect or not gate.gate_policy.release:
        return False
    from plan_adapter.engine.gate_forms import resume_released  # imports Prefect

    await resume_released(gate, answer)
    return True


async def _find_wrong_states(store: PlanStore) -> AsyncGenerator[Finding]:
    since = await store.now() - RECENT
    for run in reversed(await store.runs(limit=MAX_RUNS)):
        has_ended = run.completed_at is not None and run.completed_at >= since
        is_executed = run.status is PlanStatus.EXECUTING and run.reason is not RunReason.INTERRUPTED
        if (has_ended or is_executed) and (shown := await _reconcile_in_prefect(run, store, hint="")) is not None:
            how = run.outcome_text if has_ended else "executed by a running process"
            yield Finding("shown", run.id, run.name, f"Prefect showed {shown}, but it is {how}", is_corrected=True)


async def _find_unattended(store: PlanStore) -> AsyncGenerator[Finding]:
    """Pause the flow runs again whose runs wait at gates without a process, and report the answers that lie in their forms."""
    from plan_adapter.engine.gate_forms import read_answer  # imports Prefect
    from plan_adapter.engine.reconciling import pause_again

    for run in reversed(await store.runs(limit=MAX_RUNS, status=PlanStatus.PENDING_APPROVAL)):
        gates = await store.gates.find(run_id=run.id)
        is_unattended = all(gate.attended is False and not gate.is_released for gate in gates)
        if run.flow_run_id is None or not gates or not is_unattended or await store.ledger.owner(run.id) is not None:
            continue
        pages: dict[str, Gate | None] = {run.flow_run_id: None}
        answers, refused = list[str](), dict[str, str]()
        for gate in gates:
            try:
                answer = await read_answer(gate)
            except NotApprovedError as error:
                answer, refused[gate.id] = None, str(error)
            if answer is not None:  # its key must stay recorded until a resume reads it
                answers.append(f"{answer.decision} of {_place(gate)} by {one_line(answer.by)}")
            elif gate.flow_run_id is not None and gate.keyset is not None:
                pages[gate.flow_run_id] = gate
        for flow_run_id, gate in pages.items():
            shown = await pause_again(
                flow_run_id,
                run,
                gate,
                refused=None if gate is None else refused.get(gate.id),
                settled=REACTION,
                is_unchanged=partial(_is_unchanged, run, store, gates),
                record_form=partial(_record_form, store, gate, flow_run_id),
            )
            if shown is not None:
                message = f"Prefect showed {shown}, but it waits for an answer and no process runs it: it is Paused again"
                yield Finding("shown", run.id, run.name, message, is_corrected=True)
        if answers:
            message = f"answered in Prefect while no process waited, and not read yet: {', '.join(answers)}"
            yield Finding("answered", run.id, run.name, message, is_corrected=False, command=resume_command_after_gate(run))


async def _record_form(store: PlanStore, gate: Gate | None, flow_run_id: str, keyset: str | None) -> None:
    if gate is not None:
        await store.gates.show(gate.id, flow_run_id=flow_run_id, keyset=keyset)


async def _is_unchanged(run: PlanRun, store: PlanStore, gates: Sequence[Gate] = ()) -> bool:
    now = await store.run(run.id, with_steps=False)
    still = {gate.id for gate in await store.gates.find(run_id=run.id) if gate.attended is False} if gates else set[str]()
    return (now.status, now.reason) == (run.status, run.reason) and all(gate.id in still for gate in gates)


async def _reconcile_in_prefect(run: PlanRun, store: PlanStore, *, hint: str, settled: timedelta = timedelta(0)) -> str | None:
    from plan_adapter.engine.reconciling import reconcile_flow_run  # imports Prefect

    return await reconcile_flow_run(run, hint=hint, is_unchanged=partial(_is_unchanged, run, store), settled=settled)
