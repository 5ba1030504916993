"""Tests of a gate that several people must approve: what each approval records, when the gate closes, and what does not count."""

import asyncio
import re
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from plan_adapter.model.approvals import AGREE, DELEGATE, Agreement, Approval, Gate, GatePolicy
from plan_adapter.model.errors import NotApprovedError, RunConflictError, RunNotFoundError
from plan_adapter.store.database import tables
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import a_delegation, a_gate, an_answer, an_attempt, begun, created

TWO = GatePolicy(approvers=("ana", "ben", "chi"), known_by=("totp",), quorum=2, requested_by="ana")


async def opened(store: PlanStore, step_id: str | None = "drain", *, policy: GatePolicy = TWO, **fields: Any) -> Gate:
    run = await begun(store) if step_id else await created(store)
    return await store.gates.open(a_gate(run, step_id, gate_policy=policy, **fields), timeout_ms=0)


def an_approval_of(gate: Gate, by: str, **fields: Any) -> Approval:
    return an_answer(gate, by=by, known_by="totp", **fields)


async def exported(store: PlanStore, given: Approval) -> dict[str, Any]:
    assert given.run_id is not None
    approvals = cast("list[dict[str, Any]]", (await store.export(given.run_id))["approvals"])
    return next(row for row in approvals if row["id"] == given.id)


async def soon(store: PlanStore, **after: int) -> datetime:
    return await store.now() + timedelta(**after)


async def passed(store: PlanStore, time: datetime) -> None:
    while await store.now() <= time:
        await asyncio.sleep(0.001)


async def test_the_first_approval_is_recorded_and_leaves_the_gate_open(store: PlanStore) -> None:
    gate = await opened(store, item=3)
    until = await soon(store, hours=1)
    given = an_approval_of(gate, "ana", note="两次", signature="-----BEGIN", expires_at=until, run_id=gate.run_id)
    left_open = await store.gates.answer(gate.id, given)
    (agreement,) = left_open.agreements
    names = ("id", "approval_digest", "by", "known_by", "note", "signature", "expires_at")
    assert agreement == Agreement(gate_id=gate.id, at=agreement.at, **{name: getattr(given, name) for name in names})
    assert gate.opened_at <= agreement.at <= await store.now()
    assert left_open == replace(gate, agreements=(agreement,))
    assert await store.gates.get(gate.id) == left_open
    assert await store.gates.find(run_id=gate.run_id) == [left_open]
    assert await store.gates.answer_to(gate.id) is None
    assert given.id not in [row.id for row in await store.approvals(gate.run_id)]
    row = await exported(store, given)
    assert (row["decision"], row["run_id"], row["step_id"], row["item"], row["by"]) == ("agree", gate.run_id, "drain", 3, "ana")
    assert (await store.verify(gate.run_id)).ok


async def test_the_last_approval_closes_the_gate_and_holds_the_others(store: PlanStore) -> None:
    gate, until = await opened(store), await soon(store, hours=1)
    (first,) = (await store.gates.answer(gate.id, an_approval_of(gate, "ana", expires_at=until))).agreements
    last = an_approval_of(gate, "ben", expires_at=until + timedelta(hours=1))
    closed = await store.gates.answer(gate.id, last)
    assert (closed.end, closed.agreements) == ("answered", (first,))
    kept = await store.gates.answer_to(gate.id)
    assert kept is not None and closed.closed_at is not None
    assert kept == replace(
        last, at=closed.closed_at, run_id=gate.run_id, step_id="drain", gate_id=gate.id, agreements=(first,), expires_at=until
    )
    assert kept.people == ["ana", "ben"]
    assert [row for row in await store.approvals(gate.run_id) if row.gate_id == gate.id] == [kept]
    with pytest.raises(RunConflictError, match="closed: ben answered at"):
        await store.gates.answer(gate.id, an_approval_of(gate, "chi"))
    assert (await store.verify(gate.run_id)).ok


async def test_of_two_approvals_without_an_expiry_the_answer_has_none(store: PlanStore) -> None:
    gate = await opened(store)
    for by in ("ben", "chi"):
        await store.gates.answer(gate.id, an_approval_of(gate, by))
    kept = await store.gates.answer_to(gate.id)
    assert kept is not None and kept.expires_at is None


@pytest.mark.parametrize("decision", ["reject", "request_changes"])
async def test_one_person_is_enough_for_any_other_answer(store: PlanStore, decision: str) -> None:
    gate = await opened(store)
    await store.gates.answer(gate.id, an_approval_of(gate, "ana", expires_at=await soon(store, hours=1)))
    until = await soon(store, hours=2)
    assert (await store.gates.answer(gate.id, an_approval_of(gate, "ben", decision=decision, expires_at=until))).end == "answered"
    kept = await store.gates.answer_to(gate.id)
    assert kept is not None and (kept.decision, kept.by, kept.expires_at) == (decision, "ben", until)


async def test_three_people_are_listed_in_the_order_of_their_approvals(store: PlanStore) -> None:
    gate = await opened(store, policy=replace(TWO, quorum=3))
    for by in ("chi", "ana"):
        await store.gates.answer(gate.id, an_approval_of(gate, by))
        await passed(store, (await store.gates.get(gate.id)).agreements[-1].at)
    closed = await store.gates.answer(gate.id, an_approval_of(gate, "ben"))
    assert (closed.end, [row.by for row in closed.agreements]) == ("answered", ["chi", "ana"])
    kept = await store.gates.answer_to(gate.id)
    assert kept is not None and kept.people == ["chi", "ana", "ben"]


async def test_approvals_of_one_gate_do_not_count_at_another(store: PlanStore) -> None:
    run = await begun(store)
    first, second = [await store.gates.open(a_gate(run, "drain", item=item, gate_policy=TWO), timeout_ms=0) for item in (0, 1)]
    other = await opened(store)
    for gate, by in ((first, "ana"), (second, "ben"), (other, "chi")):
        assert [row.by for row in (await store.gates.answer(gate.id, an_approval_of(gate, by))).agreements] == [by]
    assert [[row.by for row in gate.agreements] for gate in await store.gates.find(run_id=run.id)] == [["ana"], ["ben"]]
    assert {gate.id: [row.by for row in gate.agreements] for gate in await store.gates.find()}[other.id] == ["chi"]
    assert (await store.gates.answer(first.id, an_approval_of(first, "chi"))).end == "answered"
    assert await store.gates.answer_to(second.id) is None
    kept = await store.gates.answer_to(first.id)
    assert kept is not None and kept.people == ["ana", "chi"]


@pytest.mark.parametrize("by", ["ana", "ANA"])
async def test_the_same_person_counts_once(store: PlanStore, by: str) -> None:
    gate = await opened(store, policy=replace(TWO, approvers=("ana", "ANA", "ben")))
    await store.gates.answer(gate.id, an_approval_of(gate, "ana"))
    with pytest.raises(NotApprovedError, match=f"{by} has already approved; 1 more approval needed, by ben"):
        await store.gates.answer(gate.id, an_approval_of(gate, by))
    assert [row.by for row in (await store.gates.get(gate.id)).agreements] == ["ana"]


@pytest.mark.parametrize(("by", "known_by", "why"), [("dan", "totp", "dan"), ("ben", "os_user", "totp")])
async def test_who_may_not_approve_does_not_count(store: PlanStore, by: str, known_by: str, why: str) -> None:
    gate = await opened(store)
    with pytest.raises(NotApprovedError, match=why):
        await store.gates.answer(gate.id, an_answer(gate, by=by, known_by=known_by))
    assert (await store.gates.get(gate.id)).agreements == ()


async def test_an_approval_of_other_content_does_not_count(store: PlanStore) -> None:
    gate = await opened(store)
    with pytest.raises(NotApprovedError, match="other content"):
        await store.gates.answer(gate.id, an_approval_of(gate, "ana", approval_digest="e" * 64))
    assert (await store.gates.get(gate.id)).agreements == ()


async def test_an_approval_that_has_expired_no_longer_counts(store: PlanStore) -> None:
    gate, until = await opened(store), await soon(store, milliseconds=30)
    await store.gates.answer(gate.id, an_approval_of(gate, "ana", expires_at=until))
    await passed(store, until)
    still_open = await store.gates.answer(gate.id, an_approval_of(gate, "ben"))
    assert (still_open.end, [row.by for row in still_open.agreements]) == (None, ["ben"])


async def test_the_policy_of_now_decides(store: PlanStore) -> None:
    gate = await opened(store)
    await store.gates.answer(gate.id, an_approval_of(gate, "ana"))
    without_ana = replace(TWO, approvers=("ben", "chi"))
    still_open = await store.gates.answer(gate.id, an_approval_of(gate, "ben"), gate_policy=without_ana)
    assert (still_open.end, [row.by for row in still_open.agreements]) == (None, ["ana", "ben"])
    assert (await store.gates.answer(gate.id, an_approval_of(gate, "chi"), gate_policy=TWO)).end == "answered"


async def test_a_gate_that_opened_for_one_approval_closes_with_two_if_the_policy_now_asks_for_two(store: PlanStore) -> None:
    gate = await opened(store, policy=replace(TWO, quorum=1))
    first = await store.gates.answer(gate.id, an_approval_of(gate, "ana"), gate_policy=TWO)
    assert (first.end, [row.by for row in first.agreements]) == (None, ["ana"])
    assert await store.gates.find(run_id=gate.run_id) == [first]
    with pytest.raises(NotApprovedError, match="ana has already approved"):
        await store.gates.answer(gate.id, an_approval_of(gate, "ana"), gate_policy=TWO)
    assert (await store.gates.answer(gate.id, an_approval_of(gate, "ben"), gate_policy=TWO)).end == "answered"
    kept = await store.gates.answer_to(gate.id)
    assert kept is not None and kept.people == ["ana", "ben"]


async def test_a_weaker_policy_of_now_does_not_let_one_person_close_the_gate(store: PlanStore) -> None:
    gate = await opened(store, None)
    first = await store.gates.answer(gate.id, an_approval_of(gate, "ana"), gate_policy=replace(TWO, quorum=1))
    assert (first.end, [row.by for row in first.agreements]) == (None, ["ana"])
    assert (await store.gates.answer(gate.id, an_approval_of(gate, "ben"), gate_policy=replace(TWO, quorum=1))).end == "answered"


async def test_a_tenant_cannot_approve_for_another(store_url: str) -> None:
    async with PlanStore(store_url, tenant_id="acme") as acme, PlanStore(store_url, tenant_id="umbrella") as umbrella:
        gate = await opened(acme)
        with pytest.raises(Exception, match="there is no gate"):
            await umbrella.gates.answer(gate.id, an_approval_of(gate, "ana"))
        given = replace(an_approval_of(gate, "ana"), run_id=gate.run_id)
        assert [row.by for row in (await acme.gates.answer(gate.id, given)).agreements] == ["ana"]
        assert (await exported(acme, given))["tenant_id"] == "acme"
        assert await umbrella.gates.find() == []


async def test_a_delegation_is_recorded_with_its_place(store: PlanStore) -> None:
    gate = await opened(store, item=3)
    given = a_delegation(gate, by="ana", to="dan", signature="-----BEGIN")
    left_open = await store.gates.delegate(given)
    (kept,) = left_open.gate_policy.delegations
    assert kept == replace(given, at=kept.at)
    assert gate.opened_at <= kept.at <= await store.now()
    assert left_open.gate_policy.approvers == ("ben", "chi", "dan")
    assert await store.gates.get(gate.id) == left_open
    assert await store.gates.answer_to(gate.id) is None
    (row,) = await delegations_in(store, gate)
    assert (row["decision"], row["run_id"], row["step_id"], row["item"], row["by"]) == ("delegate", gate.run_id, "drain", 3, "ana")
    plan_gate = await opened(store, None)
    await store.gates.delegate(a_delegation(plan_gate, by="ana", to="dan"))
    (row,) = await delegations_in(store, plan_gate)
    assert (row["step_id"], row["gate_id"]) == (None, None)
    assert (await store.verify(gate.run_id)).ok


async def delegations_in(store: PlanStore, gate: Gate) -> list[dict[str, Any]]:
    approvals = cast("list[dict[str, Any]]", (await store.export(gate.run_id))["approvals"])
    return [row for row in approvals if row["decision"] == DELEGATE]


async def test_a_delegation_is_taken_back_in_the_same_table(store: PlanStore) -> None:
    gate = await opened(store, item=3)
    delegated = await store.gates.delegate(a_delegation(gate, by="ana", to="dan"))
    given = a_delegation(delegated, by="ana", to="dan", decision="take_back", note="找到了", signature="-----BEGIN")
    left_open = await store.gates.delegate(given)
    first, kept = left_open.gate_policy.delegations
    assert (first, kept) == (delegated.gate_policy.delegations[0], replace(given, at=kept.at, follows=first.id))
    assert left_open.gate_policy.approvers == TWO.approvers
    assert await store.gates.get(gate.id) == left_open
    approvals = cast("list[dict[str, Any]]", (await store.export(gate.run_id))["approvals"])
    assert [(row["decision"], row["gate_id"], row["step_id"], row["item"]) for row in approvals if row["step_id"]] == [
        ("delegate", None, "drain", 3),
        ("take_back", None, "drain", 3),
    ]
    assert [row.decision for row in await store.approvals(gate.run_id)] == ["approve"]  # that of the plan, which holds
    assert (await store.verify(gate.run_id)).ok


async def test_a_delegation_is_for_one_gate(store: PlanStore) -> None:
    """Two runs of one plan ask about the same content."""
    first, second = await opened(store), await opened(store)
    assert first.approval_digest == second.approval_digest
    await store.gates.delegate(a_delegation(second, by="ana", to="dan"))
    assert [row["by"] for row in await delegations_in(store, second)] == ["ana"]
    assert await delegations_in(store, first) == []
    assert (await store.gates.get(first.id)).gate_policy == TWO


async def test_nobody_delegates_about_other_content_or_too_late(store: PlanStore) -> None:
    gate = await opened(store)
    with pytest.raises(NotApprovedError, match=re.escape(f"the answer is to other content ({'f' * 12}…)")):
        await store.gates.delegate(a_delegation(gate, approval_digest="f" * 64))
    run = await begun(store)
    overdue = await store.gates.open(a_gate(run, "drain", gate_policy=TWO), timeout_ms=1)
    await passed(store, await soon(store, milliseconds=1))
    with pytest.raises(RunConflictError, match="nobody answered until"):
        await store.gates.delegate(a_delegation(overdue))
    assert (await store.gates.get(overdue.id)).end == "expired"
    await store.gates.close(gate.id, "cancelled")
    with pytest.raises(RunConflictError, match="its run was cancelled"):
        await store.gates.delegate(a_delegation(gate))
    assert await delegations_in(store, gate) == await delegations_in(store, overdue) == []


async def test_a_tenant_cannot_delegate_for_another(store_url: str) -> None:
    async with PlanStore(store_url, tenant_id="acme") as acme, PlanStore(store_url, tenant_id="umbrella") as umbrella:
        gate = await opened(acme)
        with pytest.raises(RunNotFoundError, match="there is no gate"):
            await umbrella.gates.delegate(a_delegation(gate))
        assert (await acme.gates.delegate(a_delegation(gate, by="ana", to="dan"))).gate_policy.approvers == ("ben", "chi", "dan")


async def test_a_gate_that_was_closed_in_time_did_not_escalate(store: PlanStore, sql: Sql) -> None:
    policy = replace(TWO, escalate_after_ms=1_800_000, escalate_to=("dan",))
    gate = await opened(store, policy=policy)
    await store.gates.close(gate.id, "cancelled")
    gates, hour = tables.gates, timedelta(hours=1)
    earlier = {"opened_at": gate.opened_at - hour, "closed_at": gate.opened_at - hour + timedelta(minutes=29)}
    await sql.change(gates.update().where(gates.c.id == gate.id).values(earlier))
    assert not (await store.gates.get(gate.id)).gate_policy.is_escalated
    await sql.change(gates.update().where(gates.c.id == gate.id).values(closed_at=gate.opened_at))
    assert (await store.gates.get(gate.id)).gate_policy.is_escalated


async def test_who_started_the_run_is_not_one_of_two_who_approve_it(store: PlanStore) -> None:
    gate = await opened(store, policy=replace(TWO, self_approval=False))
    with pytest.raises(NotApprovedError, match="ana started this run and may not approve it; only ben, chi may"):
        await store.gates.answer(gate.id, an_approval_of(gate, "ana"))


async def approved_by(store: PlanStore, gate: Gate, *people: str) -> Approval:
    for by in people:
        await store.gates.answer(gate.id, an_approval_of(gate, by))
    kept = await store.gates.answer_to(gate.id)
    assert kept is not None
    return kept


async def take_back(sql: Sql, gate: Gate) -> None:
    """Remove the approval by ana from the table of approvals, as somebody with access to the database could."""
    approvals = tables.approvals
    await sql.change(approvals.delete().where(approvals.c.run_id == gate.run_id, approvals.c.decision == AGREE, approvals.c.by == "ana"))


async def test_a_call_needs_the_approvals_of_all_when_it_begins(store: PlanStore, sql: Sql) -> None:
    gate = await opened(store, item=1)
    approval = await approved_by(store, gate, "ana", "ben")
    recorder = await store.ledger.recorder(await store.run(gate.run_id))
    known: dict[str, Any] = {"item": 1, "approval_id": approval.id, "approval_digest": gate.approval_digest}
    await take_back(sql, gate)
    expected = "step `drain` lacks approvals: 2 different people must approve, and only ben did; have it approved again"
    with pytest.raises(NotApprovedError, match=f"^{re.escape(expected)}$"):
        await recorder.intent(an_attempt(await store.run(gate.run_id), "drain", at=recorder.now(), **known))
    assert await store.attempts(gate.run_id) == []

    again = await approved_by(store, await reopened(store, gate), "ana", "chi")
    known["approval_id"] = again.id
    attempt = an_attempt(await store.run(gate.run_id), "drain", at=recorder.now(), **known)
    await recorder.intent(attempt)
    assert await store.attempts(gate.run_id) == [attempt]


async def reopened(store: PlanStore, gate: Gate) -> Gate:
    run = await store.run(gate.run_id)
    fields: dict[str, Any] = {"gate_policy": gate.gate_policy, "item": gate.item, "approval_digest": gate.approval_digest}
    return await store.gates.open(a_gate(run, gate.step_id, **fields), timeout_ms=0)


async def test_a_plan_needs_the_approvals_of_all_when_its_calls_begin(store: PlanStore, sql: Sql) -> None:
    gate = await opened(store, None)
    await store.ledger.use_approval(await approved_by(store, gate, "ana", "ben"), run_id=gate.run_id)
    run = await store.run(gate.run_id)
    recorder = await store.ledger.recorder(run)
    await recorder.intent(an_attempt(run, "check", at=recorder.now()))
    await take_back(sql, gate)
    expected = f"run {run.id} lacks approvals: 2 different people must approve, and only ben did; have it approved again"
    with pytest.raises(NotApprovedError, match=f"^{re.escape(expected)}$"):
        await recorder.intent(an_attempt(run, "drain", at=recorder.now()))

    # Two approvals of a run, of which only the newer one is complete.
    await store.ledger.use_approval(await approved_by(store, await reopened(store, gate), "ben", "chi"), run_id=run.id)
    await recorder.intent(an_attempt(run, "drain", at=recorder.now()))
    assert [attempt.step_id for attempt in await store.attempts(run.id)] == ["check", "drain"]


async def test_a_run_that_nobody_approved_is_refused_by_its_own_name(store: PlanStore) -> None:
    run = await store.run((await opened(store, None)).run_id)
    recorder = await store.ledger.recorder(run)
    with pytest.raises(NotApprovedError, match=f"run {run.id} has used no approval of its plan"):
        await recorder.intent(an_attempt(run, "check", at=recorder.now()))
