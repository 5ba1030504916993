"""Tests of revising a run's plan: the run stays the same, and started steps stay unchanged."""

from dataclasses import replace

import pytest

from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.errors import NotApprovedError, RunConflictError
from plan_adapter.model.status import PlanStatus, RunReason, StepStatus
from plan_adapter.store.database import tables
from plan_adapter.store.outcomes import ResolutionRecord
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import (
    DIGEST,
    a_gate,
    a_plan,
    a_receipt,
    an_answer,
    an_approval,
    an_attempt,
    begun,
    created,
    dead_owner,
    ended,
    validated,
)

NEW = "e" * 64


async def test_a_new_version_replaces_the_old_one_in_the_same_run(store: PlanStore):
    run = await created(store, requested_by="bo")
    gate = await store.gates.open(a_gate(run), timeout_ms=0)
    plan = a_plan("检查两次", steps=("check", "again"), lists=("again",))
    plan.metadata = {"owner": "ana"}
    revised = await store.revisions.revise(run.id[:12], validated(plan), NEW, by="安娜", note="两次")
    assert revised == await store.run(run.id)
    assert (revised.id, revised.inputs, revised.created_at, revised.requested_by) == (run.id, run.inputs, run.created_at, "bo")
    assert (revised.digest, revised.approval_digest, revised.description) == (plan_digest(plan), NEW, "检查两次")
    assert [(step.id, step.status, step.depends_on) for step in revised.steps] == [
        ("check", StepStatus.PENDING, ()),
        ("again", StepStatus.PENDING, ("check",)),
    ]
    assert (revised.status, revised.metadata) == (PlanStatus.PENDING_APPROVAL, {"owner": "ana"})
    assert (await store.get(revised.digest)).description == "检查两次"
    assert (await store.gates.get(gate.id)).end == "superseded"
    (first,) = await store.revisions.of_run(run.id)
    assert (first.number, first.digest, first.approval_digest, first.by, first.note) == (1, run.digest, DIGEST, "安娜", "两次")
    await store.revisions.revise(run.id, validated(a_plan("三次")), "f" * 64, by="bo", note="")
    assert [(revision.number, revision.digest) for revision in await store.revisions.of_run(run.id)] == [
        (1, run.digest),
        (2, revised.digest),
    ]
    entries = [(entry.kind, entry.by, entry.message) for entry in await store.audit(run.id) if entry.kind == "revised"]
    assert entries == [("revised", "安娜", "两次"), ("revised", "bo", None)]


async def test_an_approval_of_the_old_version_does_not_approve_the_new_one(store: PlanStore):
    run = await created(store)
    gate = await store.gates.open(a_gate(run), timeout_ms=0)
    await store.gates.answer(gate.id, an_answer(gate))
    kept = await store.gates.answer_to(gate.id)
    assert kept is not None
    await store.ledger.use_approval(kept, run_id=run.id)
    revised = await store.revisions.revise(run.id, validated(a_plan("new")), NEW, by="ana", note="")
    assert (revised.approved_at, revised.approved_by, revised.is_approved) == (None, None, False)
    await store.ledger.claim(replace(revised, status=PlanStatus.EXECUTING))
    recorder = await store.ledger.recorder(revised)
    with pytest.raises(NotApprovedError, match="was approved with other content"):
        await recorder.intent(an_attempt(run, at=recorder.now()))
    await store.ledger.use_approval(an_approval(approval_digest=NEW), run_id=run.id)
    await recorder.intent(an_attempt(run, at=recorder.now()))


async def test_a_stopped_run_resumes_with_a_new_version_and_carries_completed_steps(store: PlanStore):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    attempt = an_attempt(run, "check", at=recorder.now())
    await recorder.intent(attempt)
    recorder.receipt(a_receipt(attempt, "checked", at=recorder.now()))
    recorder.step_ended(ended(run, "check", StepStatus.COMPLETED, at=recorder.now()))
    recorder.step_ended(ended(run, "restart", StepStatus.SKIPPED, at=recorder.now(), reason="`drain` failed"))
    await recorder.flush()
    run.status, run.reason, run.message, run.completed_at = PlanStatus.PARTIAL, RunReason.STEP_FAILED, "no", recorder.now()
    await store.ledger.update(run)
    revised = await store.revisions.revise(run.id, validated(a_plan(steps=("check", "drain", "restart", "verify"))), NEW, by="ana", note="")
    assert (revised.status, revised.reason, revised.message, revised.completed_at) == (PlanStatus.PENDING_APPROVAL, None, None, None)
    assert [step.status for step in revised.steps] == [StepStatus.COMPLETED, *[StepStatus.PENDING] * 3]
    assert revised.steps[0].result == "checked"


async def test_steps_that_may_have_had_an_effect_cannot_be_changed(store: PlanStore):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    for name, effect in (("check", "read"), ("drain", "idempotent_write"), ("restart", "write")):
        attempt = an_attempt(run, name, at=recorder.now(), effect=effect)
        await recorder.intent(attempt)
        if name == "check":
            recorder.receipt(a_receipt(attempt, "checked", at=recorder.now()))
    await recorder.flush()
    await store.ledger.release(run.id)
    changed = a_plan(steps=("check", "other"))
    changed.steps[0].description = "something else"
    words = r"have succeeded \(check\) or may have been done \(drain, restart\); start a new run"
    with pytest.raises(RunConflictError, match=words):
        await store.revisions.revise(run.id, validated(changed), NEW, by="ana", note="")
    assert (await store.run(run.id)).approval_digest == DIGEST
    assert await store.revisions.of_run(run.id) == []
    other = a_plan("other words", steps=("check", "drain", "restart", "verify"))
    await store.revisions.revise(run.id, validated(other), NEW, by="ana", note="")


@pytest.mark.parametrize("item", [None, 1], ids=["step", "item"])
async def test_a_failed_step_can_be_changed_or_removed_unless_its_outcome_is_unknown(store: PlanStore, item: int | None):
    run = await begun(store, a_plan(lists=("check",) if item is not None else ()))
    recorder = await store.ledger.recorder(run)
    failed = an_attempt(run, "check", at=recorder.now(), effect="write", item=item)
    for attempt in (failed, an_attempt(run, "drain", at=recorder.now(), effect="write")):
        await recorder.intent(attempt)
    recorder.receipt(a_receipt(failed, error="坏了", at=recorder.now()))
    await recorder.intent(an_attempt(run, "restart", at=recorder.now()))  # an interrupted read
    await recorder.flush()
    await store.ledger.release(run.id)
    await store.outcomes.resolve(run.id, "drain", ResolutionRecord("abort", "安娜", "os_user"))
    with pytest.raises(RunConflictError, match=r"may have been done \(drain\);"):
        await store.revisions.revise(run.id, validated(a_plan("new", steps=("verify",))), NEW, by="ana", note="")
    kept = a_plan("new", steps=("check", "drain"))
    kept.steps[0].description = "别的"
    revised = await store.revisions.revise(run.id, validated(kept), NEW, by="ana", note="")
    assert [step.id for step in revised.steps] == ["check", "drain"]
    assert (await store.verify(run.id)).problem is None


async def test_a_completed_or_running_run_cannot_be_revised(store: PlanStore, sql: Sql):
    completed, executed = await created(store, status=PlanStatus.COMPLETED), await begun(store)
    for run, words in ((completed, "has completed: start a new run"), (executed, "is executed by process")):
        with pytest.raises(RunConflictError, match=words):
            await store.revisions.revise(run.id, validated(a_plan("new")), NEW, by="ana", note="")
    dead = tables.leases.update().where(tables.leases.c.run_id == executed.id).values(owner=str(dead_owner()))
    await sql.change(dead)
    assert (await store.revisions.revise(executed.id, validated(a_plan("new")), NEW, by="ana", note="")).reason is None


async def test_a_version_without_changes_is_refused(store: PlanStore):
    run = await created(store)
    with pytest.raises(RunConflictError, match="nothing would change"):
        await store.revisions.revise(run.id, validated(a_plan()), DIGEST, by="ana", note="")


async def test_a_run_read_before_its_revision_cannot_be_claimed(store: PlanStore):
    run = await created(store)
    await store.cancel(run.id, "no")
    await store.revisions.revise(run.id, validated(a_plan("new")), NEW, by="ana", note="")
    assert await store.ledger.cancel_request(run.id) is None
    with pytest.raises(RunConflictError, match="was changed by another process: it is pending_approval now"):
        await store.ledger.claim(run)
