"""Tests of stored runs: another process reads back what one process wrote."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from plan_adapter.model.errors import RunConflictError
from plan_adapter.model.host_process import HostProcess
from plan_adapter.model.record import RunContext
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import a_gate, a_plan, a_receipt, a_run, an_attempt, begun, created, ended, validated

WHOSE: dict[str, Any] = {"agent_id": "agent-7", "org_id": "org-1", "tenant_id": "租户", "task_id": "task-9"}


async def test_a_new_run_is_read_back_unchanged(store: PlanStore):
    run = await created(store, **WHOSE, metadata={"来源": "测试"}, flow_run_id="f-1")
    assert await store.run(run.id) == run
    assert await store.ledger.run_of_flow("f-1") == run
    assert await store.ledger.run_of_flow("f-2") is None
    assert (await store.ledger.definitions(run.id))[0]["name"] == "note"


async def test_an_updated_run_is_read_back_unchanged(store: PlanStore):
    run = await created(store)
    now = await store.now()
    run.status, run.reason, run.message = PlanStatus.PARTIAL, RunReason.STEP_FAILED, "`drain` 失败了: \x00"
    run.outputs, run.flow_run_id, run.started_at, run.completed_at = {"ok": [False, "\x00"]}, "f-1", now, now + timedelta(days=40)
    run.total_duration_ms, run.approved_at, run.approved_by, run.rejection_note = 40 * 86_400_000, now, "安娜", "no"
    await store.ledger.update(run)
    run.message = "`drain` 失败了: \\x00"  # no database keeps a NUL in text
    assert await store.run(run.id) == run


async def test_a_run_in_progress_shows_its_running_and_pending_steps(store: PlanStore):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    first = an_attempt(run, "check", at=recorder.now())
    await recorder.intent(first)
    shown = await store.run(run.id)
    assert [step.status for step in shown.steps] == [StepStatus.RUNNING, StepStatus.PENDING, StepStatus.PENDING]
    assert (shown.status, shown.reason, shown.steps[0].started_at, shown.steps[0].attempts) == (
        PlanStatus.EXECUTING,
        None,
        first.started_at,
        1,
    )

    recorder.receipt(a_receipt(first, at=recorder.now(), error="超时"))
    await recorder.intent(an_attempt(run, "check", number=2, at=recorder.now()))
    step = (await store.run(run.id)).steps[0]
    assert (step.status, step.attempts, step.retry_count, step.outcome) == (StepStatus.RUNNING, 2, 1, None)


async def test_an_ended_step_shows_its_end_time_and_the_result_of_its_last_receipt(store: PlanStore):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    first, second = (an_attempt(run, "check", number=number, at=recorder.now()) for number in (1, 2))
    await recorder.intent(first)
    recorder.receipt(a_receipt(first, at=recorder.now(), error="no"))
    await recorder.intent(second)
    recorder.receipt(a_receipt(second, {"状态": 200}, at=recorder.now()))
    step = ended(
        run, "check", StepStatus.COMPLETED, at=recorder.now(), outcome=Outcome.SUCCEEDED, attempts=2, retry_count=1, duration_ms=31,
        started_at=first.started_at, result={"状态": 200},
    )  # fmt: skip
    recorder.step_ended(step)
    recorder.step_ended(ended(run, "drain", StepStatus.FAILED, at=recorder.now(), outcome=Outcome.FAILED, error="exit code 1: \ud800"))
    recorder.step_ended(ended(run, "restart", StepStatus.SKIPPED, at=recorder.now(), reason="`drain` failed"))
    await recorder.flush()
    run.step("drain").error = "exit code 1: \\ud800"
    assert (await store.run(run.id)).steps == run.steps
    listed = (await store.runs())[0]
    assert [step.status for step in listed.steps] == [step.status for step in run.steps]
    assert listed.steps[0].result is None


async def test_the_result_of_a_for_each_step_is_the_list_of_item_results_in_order(store: PlanStore):
    run = await begun(store, a_plan(steps=("each", "none"), lists=("each", "none")))
    recorder = await store.ledger.recorder(run)
    attempts = {item: an_attempt(run, "each", item=item, at=recorder.now()) for item in (2, 0, 10, 1)}
    await asyncio.gather(*(recorder.intent(attempt) for attempt in attempts.values()))
    for item, attempt in attempts.items():
        recorder.receipt(a_receipt(attempt, {"item": item}, at=recorder.now()))
    recorder.step_ended(ended(run, "each", StepStatus.COMPLETED, at=recorder.now()))
    recorder.step_ended(ended(run, "none", StepStatus.COMPLETED, at=recorder.now()))
    await recorder.flush()
    assert [step.result for step in (await store.run(run.id)).steps] == [[{"item": item} for item in (0, 1, 2, 10)], []]
    assert sorted(attempt.item for attempt in await store.attempts(run.id) if attempt.item is not None) == [0, 1, 2, 10]


async def test_attempts_and_receipts_are_read_back_unchanged(store: PlanStore):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    attempt = an_attempt(run, at=recorder.now(), effect="write", parameters={"列": [1, 2.5, None, "\x00"]})
    receipt = a_receipt(attempt, {"body": "正文\x00\ud800", "n": 2**70}, at=recorder.now() + timedelta(seconds=1))
    await recorder.intent(attempt)
    recorder.receipt(receipt)
    await recorder.flush()
    assert await store.attempts(run.id) == [attempt]
    assert await store.receipts(run.id) == [receipt]


async def test_a_result_of_several_megabytes_is_stored(store: PlanStore):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    attempt = an_attempt(run, at=recorder.now())
    await recorder.intent(attempt)
    recorder.receipt(a_receipt(attempt, ["汉字" * 1000] * 2000, at=recorder.now()))
    await recorder.flush()
    assert (await store.receipts(run.id))[0].result == ["汉字" * 1000] * 2000


async def test_runs_are_listed_newest_first_and_filtered(store: PlanStore):
    made = [await created(store, a_plan(f"plan {number}")) for number in range(3)]
    other = await created(store, a_plan("other"), **WHOSE, name="other", status=PlanStatus.COMPLETED)
    assert [run.id for run in await store.runs()] == [other.id, *(run.id for run in reversed(made))]
    assert [run.id for run in await store.runs(2)] == [other.id, made[2].id]
    assert [run.id for run in await store.runs(status=PlanStatus.COMPLETED)] == [other.id]
    assert [run.id for run in await store.runs(names=["other"])] == [other.id]
    assert [run.id for run in await store.runs(names=["plan 1", "other"], status=PlanStatus.COMPLETED)] == [other.id]
    assert [run.id for run in await store.runs(digest=made[1].digest)] == [made[1].id]
    for name, value in WHOSE.items():
        assert [run.id for run in await store.runs(context=RunContext(**{name: value}))] == [other.id]
    assert await store.runs(context=RunContext(agent_id="nobody")) == []


async def test_the_tag_filter_applies_before_the_limit(store: PlanStore):
    both, one, other = [
        await created(store, a_plan(name).model_copy(update={"tags": tags}))
        for name, tags in (("both", ["web", "生产"]), ("one", ["web"]), ("other", ['a","web']))
    ]
    await created(store, a_plan("none, but web"))
    assert [run.id for run in await store.runs(1, tags=["web"])] == [one.id]
    assert [run.id for run in await store.runs(tags=["web"])] == [one.id, both.id]
    assert [run.id for run in await store.runs(tags=["生产", "web"])] == [both.id]
    assert [run.id for run in await store.runs(tags=['a","web'])] == [other.id]
    assert await store.runs(tags=["we"]) == await store.runs(tags=["web", 'a","web']) == []


async def test_a_run_is_found_by_an_unambiguous_prefix_of_its_id(store: PlanStore):
    first = await created(store, id="aaaa1111-0000")
    second = await created(store, id="aaaa2222-0000")
    assert (await store.run("aaaa1")).id == first.id
    assert (await store.run("AAAA2")).id == second.id
    with pytest.raises(RunConflictError, match="aaaa1111-0000, aaaa2222-0000"):
        await store.run("aaaa")
    for missing in ("bbbb", "%%%%", "____"):
        with pytest.raises(RunConflictError, match="no run"):
            await store.run(missing)
    for short in ("", "%", "aaa"):
        with pytest.raises(RunConflictError, match="at least 4"):
            await store.run(short)


async def test_every_row_carries_the_context_of_its_run(store: PlanStore, sql: Sql):
    run = await begun(store, **WHOSE)
    recorder = await store.ledger.recorder(run)
    attempt = an_attempt(run, at=recorder.now())
    await recorder.intent(attempt)
    recorder.command_started(attempt, HostProcess.this())
    recorder.receipt(a_receipt(attempt, at=recorder.now()))
    recorder.step_ended(ended(run, "check", StepStatus.COMPLETED, at=recorder.now()))
    await recorder.flush()
    assert await store.ledger.acquire_key(run, "web-1") == []
    await store.ledger.release(run.id)
    run.status = PlanStatus.PENDING_APPROVAL
    await store.ledger.update(run)
    plan = a_plan(steps=("check", "drain", "verify"))
    await store.revisions.revise(run.id, validated(plan), "e" * 64, by="安娜", note="")
    await store.gates.open(a_gate(run), timeout_ms=0)

    from plan_adapter.store.database.tables import metadata

    for table in metadata.sorted_tables:
        if table.name in (
            "versions",
            "triggered_runs",
            "gate_messages",
            "standing_approvals",
            "used_codes",
            "drafts",
            "model_calls",
            "policy_history",
            "totp_history",
            "tombstones",
            "tombstone_signatures",
        ):  # tables without a run
            continue
        rows = await sql.rows(table.select())
        assert rows, table.name
        assert all({name: row[name] for name in WHOSE} == WHOSE for row in rows), table.name


async def test_the_audit_log_shows_events_in_order(store: PlanStore):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    attempt = an_attempt(run, at=recorder.now())
    await recorder.intent(attempt)
    recorder.command_started(attempt, HostProcess.this())
    recorder.receipt(a_receipt(attempt, at=recorder.now()))
    recorder.step_ended(ended(run, "check", StepStatus.COMPLETED, at=recorder.now()))
    await recorder.flush()
    await store.ledger.request_cancel(run.id, "够了")
    run.status, run.completed_at = PlanStatus.CANCELLED, recorder.now() + timedelta(seconds=1)
    await store.ledger.update(run)
    entries = await store.audit(run.id)
    assert [entry.kind for entry in entries] == [
        "run_created", "approved", "approval_used", "run_started", "attempt_started", "command_started", "attempt_succeeded",
        "step_completed", "cancel_requested", "run_ended",
    ]  # fmt: skip
    assert (entries[4].step_id, entries[4].message, entries[8].message) == ("check", "note (read)", "够了")


async def test_when_a_run_resumes_incomplete_steps_are_pending_again(store: PlanStore):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    for name in ("check", "drain"):
        attempt = an_attempt(run, name, at=recorder.now())
        await recorder.intent(attempt)
        recorder.receipt(a_receipt(attempt, {"step": name}, at=recorder.now(), error="no" if name == "drain" else None))
    recorder.step_ended(ended(run, "check", StepStatus.COMPLETED, at=recorder.now()))
    recorder.step_ended(ended(run, "drain", StepStatus.FAILED, at=recorder.now(), error="no"))
    recorder.step_ended(ended(run, "restart", StepStatus.SKIPPED, at=recorder.now(), reason="`drain` failed"))
    await recorder.flush()
    run.status = PlanStatus.PARTIAL
    await store.ledger.update(run)

    again = await store.run(run.id)
    again.status = PlanStatus.EXECUTING
    await store.ledger.claim(again)
    shown = await store.run(run.id)
    assert [step.status for step in shown.steps] == [StepStatus.COMPLETED, StepStatus.PENDING, StepStatus.PENDING]
    assert shown.steps[0].result == {"step": "check"}
    assert len(await store.attempts(run.id)) == len(await store.receipts(run.id)) == 2

    recorder = await store.ledger.recorder(again)
    await recorder.intent(an_attempt(run, "drain", number=2, at=recorder.now()))
    assert (await store.run(run.id)).steps[1].status is StepStatus.RUNNING
    recorder.step_ended(ended(again, "drain", StepStatus.COMPLETED, at=recorder.now(), error=None))
    recorder.step_ended(ended(again, "check", StepStatus.COMPLETED, at=recorder.now(), carried=True))
    await recorder.flush()
    shown = await store.run(run.id)
    assert [(step.status, step.carried) for step in shown.steps[:2]] == [(StepStatus.COMPLETED, True), (StepStatus.COMPLETED, False)]


async def test_a_cancel_request_is_visible_to_other_processes_and_keeps_its_first_reason(store: PlanStore, store_url: str):
    run = await begun(store)
    assert await store.ledger.cancel_request(run.id) is None
    async with PlanStore(store_url) as other:
        await other.ledger.request_cancel(run.id, "太慢")
        await other.ledger.request_cancel(run.id, "again")
    assert await store.ledger.cancel_request(run.id) == "太慢"
    run.status = PlanStatus.CANCELLED
    await store.ledger.update(run)
    await store.ledger.claim(run)
    assert await store.ledger.cancel_request(run.id) is None


async def test_an_unknown_run_cannot_be_written(store: PlanStore):
    run = a_run(a_plan())
    for write in (store.ledger.update, store.ledger.claim):
        with pytest.raises(RunConflictError, match=f"there is no run {run.id}"):
            await write(run)


async def test_a_run_without_an_owner_is_cancelled_at_once(store: PlanStore):
    run = await created(store)
    await store.cancel(run.id, "不需要了")
    found = await store.run(run.id)
    assert (found.status, found.reason, found.message) == (PlanStatus.CANCELLED, RunReason.CANCELLED, "不需要了")
    with pytest.raises(RunConflictError, match="has ended"):
        await store.cancel(run.id, "again")


async def test_a_run_with_an_owner_is_only_asked_to_stop(store: PlanStore):
    run = await begun(store)
    await store.cancel(run.id, "enough")
    assert (await store.run(run.id)).status is PlanStatus.EXECUTING
    assert await store.ledger.cancel_request(run.id) == "enough"
