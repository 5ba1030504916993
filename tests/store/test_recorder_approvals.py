"""Tests of approval checks in the recorder: each call needs its own approval, even in a shared commit."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from plan_adapter.model.approvals import Approval, FreezeOverride, GatePolicy
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.record import PlanRun
from plan_adapter.store import permission
from plan_adapter.store.database import tables
from plan_adapter.store.database.rows import gate_policy_text
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import DIGEST_OF_CALL, a_plan, a_receipt, a_run, a_standing_approval, an_approval, an_attempt, begun, created
from tests.store.conftest import ON_SQLITE_OR_THOROUGH

AT = datetime(2026, 6, 1, tzinfo=UTC)
A_CALL_APPROVAL = permission.CallApproval(
    claimed_at=AT,
    run_id="r1",
    step_id="drain",
    item=1,
    decision="approve",
    digest=DIGEST_OF_CALL,
    by="ana",
    expires_at=None,
    used_at=None,
    standing_id=None,
    found_standing_id=None,
    revoked_at=None,
    revoked_by=None,
    now=AT,
    is_answer=False,
    id="a1",
    rules=None,
)


async def test_nothing_starts_without_an_approval_of_the_run(store: PlanStore):
    run = await created(store)
    await store.add_approval(an_approval(run_id=run.id))  # given, and never used
    await store.add_approval(an_approval(run_id="another"))
    recorder = await store.ledger.recorder(run)
    with pytest.raises(NotApprovedError, match=f"run {run.id} has used no approval of its plan"):
        await recorder.intent(an_attempt(run, at=recorder.now()))
    assert await store.attempts(run.id) == []
    await store.ledger.use_approval(an_approval(), run_id=run.id)
    await recorder.intent(an_attempt(run, at=recorder.now()))
    assert len(await store.attempts(run.id)) == 1


async def test_a_run_that_does_not_exist_starts_nothing(store: PlanStore, sql: Sql):
    run = await created(store)
    attempt = an_attempt(replace(run, id="another"), at=AT)
    why = await sql.run(lambda connection: permission.refusals(connection, "another", [attempt]))
    assert why == {attempt.id: "there is no run another"}


async def test_an_approval_of_another_run_or_of_a_step_does_not_approve_the_plan(store: PlanStore, sql: Sql):
    run, other = await created(store), await begun(store)
    of_step = an_approval(run_id=run.id, step_id="check")
    await store.add_approval(of_step)
    await sql.change(tables.approvals.update().where(tables.approvals.c.id == of_step.id).values(used_at=await store.now()))
    recorder = await store.ledger.recorder(run)
    with pytest.raises(NotApprovedError, match="has used no approval"):
        await recorder.intent(an_attempt(run, at=recorder.now()))
    assert [approval.run_id for approval in await store.approvals(other.id)] == [other.id]


async def test_a_run_with_altered_content_starts_nothing(store: PlanStore, sql: Sql):
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    await recorder.intent(an_attempt(run, "check", at=recorder.now()))
    await sql.change(tables.runs.update().where(tables.runs.c.id == run.id).values(approval_digest="e" * 64))
    with pytest.raises(NotApprovedError, match=r"with other content \(dddddddddddd…\) than it has now \(eeeeeeeeeeee…\)"):
        await recorder.intent(an_attempt(run, "drain", at=recorder.now()))


async def test_a_gated_call_uses_its_own_approval(store: PlanStore):
    run, approval = await _approved_call(store)
    recorder = await store.ledger.recorder(run)
    attempt = an_attempt(run, "drain", item=1, at=recorder.now(), approval_id=approval.id, approval_digest=DIGEST_OF_CALL)
    await recorder.intent(attempt)
    assert await store.attempts(run.id) == [attempt]
    used = [entry for entry in await store.audit(run.id) if entry.kind == "approval_used"]
    assert [(entry.step_id, entry.item) for entry in used] == [(None, None), ("drain", 1)]


WRONG = {
    "no approval": ({"approval_id": None}, "step `drain\\[2\\]` has a gate of its own and no approval"),
    "one that does not exist": ({"approval_id": "nope"}, "has a gate of its own and no approval"),
    "other parameters": (
        {"approval_digest": "e" * 64},
        r"approved by 安娜 with other content \(cccccccccccc…\) than the call has now \(eeee",
    ),
    "no digest": ({"approval_digest": None}, "with other content"),
    "another item": ({"item": 2}, "for another run, step or item"),
    "another step": ({"step_id": "check"}, "for another run, step or item"),
}


@pytest.mark.parametrize(("fields", "message"), WRONG.values(), ids=WRONG.keys())
async def test_a_gated_call_with_a_mismatched_approval_is_refused(store: PlanStore, fields: dict[str, Any], message: str):
    run, approval = await _approved_call(store)
    recorder = await store.ledger.recorder(run)
    known = {"step_id": "drain", "item": 1, "approval_id": approval.id, "approval_digest": DIGEST_OF_CALL}
    with pytest.raises(NotApprovedError, match=message):
        await recorder.intent(an_attempt(run, at=recorder.now(), **known | fields))
    assert await store.attempts(run.id) == []
    await recorder.intent(an_attempt(run, at=recorder.now(), **known))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decision": "reject"}, "安娜 did not approve step `drain\\[2\\]`: reject"),
        ({"decision": "request_changes"}, "did not approve"),
        ({"run_id": "another"}, "for another run, step or item"),
        ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "by 安娜 expired at 2020-01-01T00:00:00"),
        ({"standing_id": "nope"}, "there is no standing approval nope"),
    ],
    ids=["rejected", "changes wanted", "another run", "expired", "made-up standing approval"],
)
async def test_a_call_with_an_invalid_approval_is_refused(store: PlanStore, fields: dict[str, Any], message: str):
    run, approval = await _approved_call(store, **fields)
    recorder = await store.ledger.recorder(run)
    gated: dict[str, Any] = {"approval_id": approval.id, "approval_digest": DIGEST_OF_CALL}
    with pytest.raises(NotApprovedError, match=message):
        await recorder.intent(an_attempt(run, "drain", item=1, at=recorder.now(), **gated))
    assert await store.attempts(run.id) == []


async def test_a_call_approval_covers_the_attempts_of_one_start_only(store: PlanStore):
    run, approval = await _approved_call(store)
    gated = {"item": 1, "approval_id": approval.id, "approval_digest": DIGEST_OF_CALL}
    recorder = await store.ledger.recorder(run)
    for number in (1, 2):
        await recorder.intent(an_attempt(run, "drain", number=number, at=recorder.now(), **gated))
    await store.ledger.release(run.id)
    again = await store.run(run.id)
    again.reason = None
    await store.ledger.claim(again)
    recorder = await store.ledger.recorder(again)
    with pytest.raises(
        NotApprovedError,
        match=r"^the approval of step `drain` by 安娜 was used up at 20\S+\+00:00, by an earlier start of the run: have it",
    ):
        await recorder.intent(an_attempt(run, "drain", number=3, at=recorder.now(), **gated))
    await recorder.intent(an_attempt(run, "restart", at=recorder.now()))


def test_a_run_with_several_approvals_is_permitted_by_a_valid_one_of_its_content() -> None:
    now, other, older = "a" * 64, "b" * 64, "c" * 64
    by_ana = permission.PlanApproval(now, now, "ana", None, None, None, None, "a1", None)
    revoked = by_ana._replace(standing_id="s1", found_standing_id="s1", revoked_at=AT, revoked_by="bo")
    permitted = partial(permission.why_plan_not_approved, "r1")
    assert permitted([revoked, by_ana]) is permitted([by_ana, revoked]) is None
    assert permitted([by_ana._replace(digest=other), by_ana]) is None
    assert permitted([]) == "there is no run r1"
    assert permitted([by_ana._replace(digest=older), by_ana._replace(digest=other)]) == (
        "run r1 was approved with other content (bbbbbbbbbbbb…) than it has now (aaaaaaaaaaaa…): "
        "the new version needs an approval of its own"
    )
    assert permitted([revoked._replace(revoked_by="cy"), revoked, by_ana._replace(digest=older)]) == (
        "the standing approval was revoked by bo at 2026-06-01T00:00:00+00:00"
    )
    assert permitted([revoked._replace(revoked_by=None)]) == ("the standing approval was revoked by somebody at 2026-06-01T00:00:00+00:00")


def test_once_an_approval_overrides_a_change_freeze_no_earlier_one_counts() -> None:
    now, older = "a" * 64, "c" * 64
    override = gate_policy_text(GatePolicy(overrides=(FreezeOverride("year-end", AT),)))
    by_ana = permission.PlanApproval(now, now, "ana", None, None, None, None, "a1", gate_policy_text(GatePolicy()))
    by_cab = by_ana._replace(by="cab", id="a2", rules=override)
    assert permission.only_override([by_ana, by_cab]) == permission.only_override([by_ana, by_ana, by_cab]) == [by_cab]
    for rows in ([by_cab, by_ana], [by_ana, by_cab._replace(digest=older)], [by_ana._replace(rules=None)], []):
        assert permission.only_override(rows) == rows


@pytest.mark.parametrize(
    ("row", "call", "message"),
    [
        ({}, {}, None),
        ({"expires_at": AT + timedelta(seconds=1)}, {}, None),
        ({"expires_at": AT}, {}, "the approval of step `drain[2]` by ana expired at 2026-06-01T00:00:00+00:00: have it approved again"),
        ({"decision": "reject"}, {}, "ana did not approve step `drain[2]`: reject"),
        ({"item": 2}, {}, "the approval by ana is for another run, step or item: have step `drain[2]` approved"),
        ({}, {"kind": "rollback"}, "the approval by ana is for another run, step or item: have step `rollback drain[2]` approved"),
        (
            {},
            {"label": "web-2", "step_id": "stop"},
            "the approval by ana is for another run, step or item: have step `stop[web-2]` approved",
        ),
        (
            {},
            {"approval_digest": "e" * 64},
            "step `drain[2]` was approved by ana with other content (cccccccccccc…) than the call has now (eeeeeeeeeeee…): "
            "have it approved again",
        ),
        (
            {},
            {"approval_digest": None},
            "step `drain[2]` was approved by ana with other content (cccccccccccc…) than the call has now (…): have it approved again",
        ),
        (None, {}, "step `drain[2]` has a gate of its own and no approval: have it approved"),
    ],
)
def test_a_refused_call_says_what_its_approval_is_for(row: dict[str, Any] | None, call: dict[str, Any], message: str | None) -> None:
    attempt = replace(an_attempt(a_run(a_plan()), "drain", item=1, at=AT, approval_digest=DIGEST_OF_CALL), **{"run_id": "r1"} | call)
    found = None if row is None else A_CALL_APPROVAL._replace(**row)
    assert permission.why_call_not_approved(attempt, found) == message


@pytest.mark.parametrize(
    ("row", "is_left"),
    [
        ({}, True),
        ({"used_at": AT}, True),  # by this start, which began then
        ({"used_at": AT - timedelta(microseconds=1)}, False),
        ({"used_at": AT, "claimed_at": None}, False),
        ({"used_at": AT - timedelta(days=1), "is_answer": True}, True),
    ],
)
def test_a_use_is_left_unless_an_earlier_start_took_it(row: dict[str, Any], is_left: bool) -> None:
    assert permission.is_use_left(A_CALL_APPROVAL._replace(**row)) is is_left


async def test_a_refused_record_does_not_affect_others_in_the_same_commit(store: PlanStore, commits: list[str]):
    run, approval = await _approved_call(store)
    recorder = await store.ledger.recorder(run)
    first = an_attempt(run, "check", at=recorder.now())
    await recorder.intent(first)
    commits.clear()
    recorder.receipt(a_receipt(first, "checked", at=recorder.now()))
    gated = {"approval_digest": DIGEST_OF_CALL, "at": recorder.now()}
    outcomes = await asyncio.gather(
        recorder.intent(an_attempt(run, "drain", item=0, approval_id=approval.id, **gated)),
        recorder.intent(an_attempt(run, "drain", item=1, approval_id=approval.id, **gated)),
        recorder.intent(an_attempt(run, "restart", at=recorder.now())),
        recorder.flush(),
        return_exceptions=True,
    )
    assert [type(outcome).__name__ for outcome in outcomes] == ["NotApprovedError", "NoneType", "NoneType", "NoneType"]
    assert len(commits) == 1
    assert [(attempt.step_id, attempt.item) for attempt in await store.attempts(run.id)] == [
        ("check", None),
        ("drain", 1),
        ("restart", None),
    ]
    assert [receipt.result for receipt in await store.receipts(run.id)] == ["checked"]


async def test_each_call_of_a_commit_needs_its_own_approval(store: PlanStore, commits: list[str]):
    run, approval = await _approved_call(store)
    other = an_approval(run_id=run.id, step_id="drain", item=2, approval_digest=DIGEST_OF_CALL)
    await store.add_approval(other)
    recorder = await store.ledger.recorder(run)
    commits.clear()
    outcomes = await asyncio.gather(
        recorder.intent(an_attempt(run, "check", at=recorder.now())),  # needs none
        recorder.intent(an_attempt(run, "drain", item=0, at=recorder.now(), approval_digest=DIGEST_OF_CALL)),
        recorder.intent(an_attempt(run, "drain", item=1, at=recorder.now(), approval_id=approval.id, approval_digest=DIGEST_OF_CALL)),
        return_exceptions=True,
    )
    assert [type(outcome).__name__ for outcome in outcomes] == ["NoneType", "NotApprovedError", "NoneType"]
    assert len(commits) == 1
    assert {row.id: row.used_at is None for row in await store.approvals(run.id) if row.step_id} == {approval.id: False, other.id: True}


PARTS = {
    "the approval of the plan is not looked for": ("why_plan_not_approved", lambda _run, _rows: None),
    "the approval of the call is not looked for": ("why_call_not_approved", lambda _attempt, _row: None),
    "the digests are not compared": ("is_same_content", lambda _approved, _current: True),
    "the use is not counted": ("count_use", lambda _connection, _approval: None),
    "a use that was counted is not looked at": ("is_use_left", lambda _row: True),
    "revoking is not looked at": ("why_revoked", lambda _row: None),
}


@pytest.mark.parametrize("store_url", ON_SQLITE_OR_THOROUGH, indirect=True)  # the check is the same code on both
@pytest.mark.parametrize("part", [None, *PARTS.values()], ids=["as it is", *PARTS])
async def test_each_part_of_the_approval_check_refuses_something(
    store: PlanStore, sql: Sql, part: tuple[str, Any] | None, monkeypatch: pytest.MonkeyPatch
):
    if part is not None:
        monkeypatch.setattr(permission, *part)
    begun_in_vain = [
        await attempt(store) for attempt in (_unapproved, partial(_changed, sql=sql), _unapproved_call, _changed_call, _used_call, _revoked)
    ]
    assert (begun_in_vain == [False] * 6) is (part is None)


async def _unapproved(store: PlanStore) -> bool:
    return await _is_begun(store, await created(store))


async def _changed(store: PlanStore, sql: Sql) -> bool:
    run = await begun(store)
    await sql.change(tables.runs.update().where(tables.runs.c.id == run.id).values(approval_digest="e" * 64))
    return await _is_begun(store, run)


async def _unapproved_call(store: PlanStore) -> bool:
    run, approval = await _approved_call(store, decision="reject")
    return await _is_begun(store, run, item=1, approval_id=approval.id, approval_digest=DIGEST_OF_CALL)


async def _changed_call(store: PlanStore) -> bool:
    run, approval = await _approved_call(store)
    return await _is_begun(store, run, item=1, approval_id=approval.id, approval_digest="e" * 64)


async def _used_call(store: PlanStore) -> bool:
    run, approval = await _approved_call(store)
    gated = {"item": 1, "approval_id": approval.id, "approval_digest": DIGEST_OF_CALL}
    assert await _is_begun(store, run, **gated)
    await store.ledger.release(run.id)
    run = await store.run(run.id)
    run.reason = None
    await store.ledger.claim(run)
    return await _is_begun(store, run, number=2, **gated)


async def _revoked(store: PlanStore) -> bool:
    await store.standing.add(standing := a_standing_approval())
    run = await created(store)
    await store.standing.use(standing.id, run_id=run.id, approval_digest=run.approval_digest)
    await store.standing.revoke(standing.id, by="bo")
    return await _is_begun(store, run)


async def _is_begun(store: PlanStore, run: PlanRun, **fields: Any) -> bool:
    recorder = await store.ledger.recorder(run)
    try:
        await recorder.intent(an_attempt(run, "drain", at=recorder.now(), **fields))
    except NotApprovedError:
        return False
    return True


async def _approved_call(store: PlanStore, **fields: Any) -> tuple[PlanRun, Approval]:
    """Return a run that this process executes, and an unused approval of item 1 of its step `drain`."""
    run = await begun(store)
    approval = an_approval(**{"run_id": run.id, "step_id": "drain", "item": 1, "approval_digest": DIGEST_OF_CALL} | fields)
    await store.add_approval(approval)
    return run, approval
