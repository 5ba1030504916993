"""Plans, runs, attempts and receipts for tests of the store."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from plan_adapter.model.approvals import Approval, Delegation, DelegationKind, Gate, GatePolicy, StandingApproval, followed_by
from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.plan import ExecutionPlan, Step, new_id
from plan_adapter.model.record import Attempt, PlanRun, Receipt, StepRun
from plan_adapter.model.status import Outcome, PlanStatus, StepStatus
from plan_adapter.store.store import PlanStore

DIGEST = "d" * 64
DIGEST_OF_CALL = "c" * 64


def a_plan(
    description: str = "检查网站", steps: tuple[str, ...] = ("check", "drain", "restart"), *, lists: tuple[str, ...] = ()
) -> ExecutionPlan:
    """Return a plan of steps that follow each other; those of `lists` have a `for_each`."""
    made = [
        Step(
            id=name,
            tool_name="note",
            description=f"步骤 {name}",
            depends_on=list(steps[index - 1 : index]) if index else [],
            for_each="${{ [1, 2, 3] }}" if name in lists else None,
            metadata={"owner": "运维"},
        )
        for index, name in enumerate(steps)
    ]
    return ExecutionPlan(name="site", description=description, steps=made)


def validated(plan: ExecutionPlan) -> Any:
    """Return a stand-in for a validated plan with the fields that a store reads."""
    dependencies = {step.id: tuple(step.depends_on) for step in plan.steps}
    return SimpleNamespace(
        plan=plan,
        digest=plan_digest(plan),
        steps={step.id: step for step in plan.steps},
        order=tuple(dependencies),
        dependencies=dependencies,
        reduced=dependencies,
        definitions=({"name": "note", "effect": "read", "parameters": {}, "permissions": []},),
        secrets=frozenset[str](),
    )


def a_run(plan: ExecutionPlan, **fields: Any) -> PlanRun:
    """Return a new run of `plan`."""
    now = datetime.now(UTC)
    steps = [
        StepRun(
            id=step.id,
            index=step.index,
            tool_name=step.tool_name or "",
            description=step.description,
            depends_on=tuple(step.depends_on),
            max_retries=step.max_retries,
            metadata=dict(step.metadata),
        )
        for step in plan.steps
    ]
    known: dict[str, Any] = {
        "id": new_id(),
        "plan_id": plan.id,
        "name": plan.name,
        "description": plan.description,
        "digest": plan_digest(plan),
        "approval_digest": DIGEST,
        "inputs": {"host": "web-1", "备注": "你好"},
        "steps": steps,
        "created_at": now,
        "updated_at": now,
        "status": PlanStatus.PENDING_APPROVAL,
    }
    return PlanRun(**known | fields)


async def created(store: PlanStore, plan: ExecutionPlan | None = None, **fields: Any) -> PlanRun:
    """Return a run that waits for its approval."""
    plan = plan or a_plan()
    run = a_run(plan, **fields)
    await store.ledger.create(run, validated(plan))
    return run


async def begun(store: PlanStore, plan: ExecutionPlan | None = None, **fields: Any) -> PlanRun:
    """Return a run that this process executes, approved."""
    run = await created(store, plan, **fields)
    await store.ledger.use_approval(an_approval(run_id=run.id, approval_digest=run.approval_digest), run_id=run.id)
    run.status, run.started_at = PlanStatus.EXECUTING, await store.now()
    await store.ledger.claim(run)
    return run


def dead_owner() -> HostProcess:
    """Return the owner mark of an ended process on this host: no process id is so high."""
    return replace(HostProcess.this(), pid=2**22 + 1)


def an_attempt(run: PlanRun, step_id: str = "check", *, at: datetime, number: int = 1, item: int | None = None, **fields: Any) -> Attempt:
    """Return the intent of one attempt."""
    known: dict[str, Any] = {
        "id": new_id(),
        "run_id": run.id,
        "step_id": step_id,
        "item": item,
        "number": number,
        "tool_name": "note",
        "effect": "read",
        "parameters": {"text": "重启 web-1"},
        "idempotency_key": "k" * 64,
        "started_at": at,
    }
    return Attempt(**known | fields)


def a_receipt(attempt: Attempt, result: Any = None, *, at: datetime, error: str | None = None) -> Receipt:
    """Return the receipt of `attempt`, failed if `error` is given."""
    return Receipt(
        attempt_id=attempt.id,
        run_id=attempt.run_id,
        step_id=attempt.step_id,
        item=attempt.item,
        number=attempt.number,
        outcome=Outcome.FAILED if error else Outcome.SUCCEEDED,
        result=result,
        error=error,
        ended_at=at,
        duration_ms=12,
    )


def ended(run: PlanRun, step_id: str, status: StepStatus, *, at: datetime, **fields: Any) -> StepRun:
    """Return the ended step of `run` as the engine records it."""
    step = run.step(step_id)
    step.status, step.completed_at = status, at
    for name, value in fields.items():
        setattr(step, name, value)
    return step


def an_approval(**fields: Any) -> Approval:
    """Return an approval of DIGEST by ana."""
    known: dict[str, Any] = {
        "id": new_id(),
        "approval_digest": DIGEST,
        "decision": "approve",
        "by": "安娜",
        "known_by": "unverified",
        "at": datetime.now(UTC),
        "note": "看起来不错",
    }
    return Approval(**known | fields)


def a_gate(run: PlanRun, step_id: str | None = None, **fields: Any) -> Gate:
    """Return a gate of `run` or of one of its steps, to be opened."""
    known: dict[str, Any] = {
        "id": new_id(),
        "run_id": run.id,
        "step_id": step_id,
        "item": None,
        "approval_digest": run.approval_digest if step_id is None else DIGEST_OF_CALL,
        "name": run.name,
        "description": run.description,
        "text": "重启 `web-1`",
        "gate_policy": GatePolicy(approvers=("安娜", "bo"), known_by=("totp",), requested_by="bo"),
        "opened_at": datetime.now(UTC),
    }
    return Gate(**known | fields)


def an_answer(gate: Gate, **fields: Any) -> Approval:
    """Return an answer by 安娜 to what `gate` asks."""
    return an_approval(**{"approval_digest": gate.approval_digest} | fields)


def a_delegation(gate: Gate, *, by: str = "安娜", to: str = "bo", decision: DelegationKind = "delegate", **fields: Any) -> Delegation:
    """Return the delegation by which 安娜 lets bo answer at `gate`, or takes that back."""
    content: dict[str, Any] = {"gate_id": gate.id, "approval_digest": gate.approval_digest, "decision": decision}
    content["follows"] = followed_by(gate.gate_policy.delegations, decision=decision, by=by, to=to)
    known: dict[str, Any] = {"id": new_id(), "known_by": "totp", "at": datetime.now(UTC), "note": "休假"}
    return Delegation(by=by, to=to, **content | known | fields)


def a_standing_approval(**fields: Any) -> StandingApproval:
    """Return a standing approval by 安娜 without limits."""
    known: dict[str, Any] = {
        "id": new_id(),
        "runbook_digest": "b" * 64,
        "name": "site",
        "by": "安娜",
        "known_by": "ssh_signature",
        "at": datetime.now(UTC),
        "inputs": {"host": "web-[0-9]+", "备注": "你好", "n": 2},
        "schedules": ("site/nightly",),
        "steps": ("restart",),
        "note": "每晚",
    }
    return StandingApproval(**known | fields)


async def a_complete_run(store: PlanStore) -> PlanRun:
    """Return an ended run with rows in every audited table."""
    run = await created(store, requested_by="bo")
    gate = await store.gates.open(a_gate(run), timeout_ms=0)
    await store.gates.answer(gate.id, an_answer(gate, decision="request_changes", note="两次"))
    plan = a_plan("检查两次", steps=("check", "drain", "restart"))
    run = await store.revisions.revise(run.id, validated(plan), "e" * 64, by="安娜", note="两次")
    await store.ledger.use_approval(an_approval(run_id=run.id, approval_digest="e" * 64), run_id=run.id)
    run.status, run.started_at = PlanStatus.EXECUTING, await store.now()
    await store.ledger.claim(run)
    recorder = await store.ledger.recorder(run)
    for name, error in (("check", None), ("drain", "exit code 1\x00\ud800")):
        await recorder.intent(attempt := an_attempt(run, name, at=recorder.now(), effect="write"))
        recorder.receipt(a_receipt(attempt, {"状态": name}, at=recorder.now(), error=error))
        status = StepStatus.FAILED if error else StepStatus.COMPLETED
        recorder.step_ended(ended(run, name, status, at=recorder.now(), error=error))
    recorder.step_ended(ended(run, "restart", StepStatus.SKIPPED, at=recorder.now(), reason="`drain` failed"))
    await recorder.flush()
    open_gate = await store.gates.open(a_gate(run, "restart"), timeout_ms=0)
    await store.gates.close(open_gate.id, "cancelled")
    await store.ledger.request_cancel(run.id, "够了")
    run.status, run.completed_at = PlanStatus.CANCELLED, recorder.now() + timedelta(seconds=1)
    await store.ledger.update(run)
    return run
