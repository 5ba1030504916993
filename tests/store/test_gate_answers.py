"""Tests of gate answers: the first of any number of concurrent answers counts, and what it approves."""

import asyncio
import re
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from plan_adapter.model.approvals import Gate
from plan_adapter.model.errors import NotApprovedError, RunConflictError
from plan_adapter.model.options import Input
from plan_adapter.store.outcomes import ResolutionRecord, outcome_digest
from plan_adapter.store.store import PlanStore
from tests.processes import Program
from tests.store.builders import DIGEST_OF_CALL, a_gate, an_answer, an_attempt, begun, created

FIELD = {"n": Input(type="integer", default=3, description="how many 台")}


@pytest.mark.parametrize("decision", ["approve", "reject", "request_changes"])
async def test_the_first_answer_closes_the_gate_and_is_recorded(store: PlanStore, decision: str):
    run = await begun(store)
    gate = await store.gates.open(a_gate(run, "drain", item=3), timeout_ms=60_000)
    assert await store.gates.answer_to(gate.id) is None
    given = an_answer(
        gate, decision=decision, signature="-----BEGIN", known_by="ssh_signature", run_id="r-other", step_id="check", item=None
    )
    closed = await store.gates.answer(gate.id, given)
    assert (closed.end, closed.attended) == ("answered", None)
    assert closed.closed_at is not None
    kept = replace(given, at=closed.closed_at, run_id=run.id, step_id="drain", item=3, gate_id=gate.id)
    assert await store.gates.answer_to(gate.id) == kept
    assert kept in await store.approvals(run.id)
    assert await store.gates.find(run_id=run.id) == []
    assert await store.gates.find(run_id=run.id, open_only=False) == [closed]


async def test_a_later_answer_is_refused_and_the_error_names_the_first(store: PlanStore):
    gate = await store.gates.open(a_gate(await begun(store), "drain"), timeout_ms=0)
    await store.gates.answer(gate.id, an_answer(gate, decision="reject", by="ana\u202e"))
    with pytest.raises(RunConflictError, match=r"the gate of step `drain` is closed: ana\\u202e answered at 20.*: reject"):
        await store.gates.answer(gate.id, an_answer(gate))
    assert len(await store.approvals(DIGEST_OF_CALL)) == 1


CHANGED = (
    r"^the answer is to other content \(eeeeeeeeeeee…\) than the gate asks about \(dddddddddddd…\): look at the gate again, then answer it$"
)


async def test_an_answer_to_other_content_leaves_the_gate_open(store: PlanStore):
    gate = await store.gates.open(a_gate(await created(store)), timeout_ms=0)
    with pytest.raises(NotApprovedError, match=CHANGED):
        await store.gates.answer(gate.id, an_answer(gate, approval_digest="e" * 64))
    assert await store.gates.get(gate.id) == gate
    assert await store.approvals(gate.run_id) == []


async def test_an_answer_after_the_deadline_is_refused_and_expires_the_gate(store: PlanStore):
    gate = await store.gates.open(a_gate(await created(store)), timeout_ms=1)
    assert gate.expires_at is not None
    while await store.now() < gate.expires_at:
        await asyncio.sleep(0.001)
    with pytest.raises(RunConflictError, match=r"^the gate of the plan is closed: nobody answered until [-0-9]{10}T[0-9:]{8}\+00:00$"):
        await store.gates.answer(gate.id, an_answer(gate))
    closed = await store.gates.get(gate.id)
    assert (closed.end, await store.gates.answer_to(gate.id), await store.approvals(gate.run_id)) == ("expired", None, [])
    assert await store.gates.expire(gate.id) == closed
    assert await store.gates.close(gate.id, "cancelled") == closed


async def test_an_approval_at_a_plan_gate_is_used_by_its_run_only(store: PlanStore):
    run, other = await created(store), await created(store)
    gate = await store.gates.open(a_gate(run), timeout_ms=0)
    await store.gates.answer(gate.id, an_answer(gate))
    kept = await store.gates.answer_to(gate.id)
    assert kept is not None
    assert await store.ledger.find_approval(gate.approval_digest) is None
    with pytest.raises(NotApprovedError, match=f"belongs to run {run.id}"):
        await store.ledger.use_approval(kept, run_id=other.id)
    with pytest.raises(NotApprovedError, match=f"belongs to run {run.id}"):
        await store.ledger.use_approval(replace(kept, run_id=None), run_id=other.id)
    used = await store.ledger.use_approval(kept, run_id=run.id)
    assert used == replace(kept, used_at=used.used_at)
    assert await store.ledger.use_approval(kept, run_id=run.id) == used


@pytest.mark.parametrize(
    ("decision", "message"), [("reject", "安娜 rejected it"), ("request_changes", "安娜 asked for changes: 看起来不错")]
)
async def test_an_unapproved_gate_approves_nothing(store: PlanStore, decision: str, message: str):
    run = await created(store)
    gate = await store.gates.open(a_gate(run), timeout_ms=0)
    await store.gates.answer(gate.id, an_answer(gate, decision=decision))
    kept = await store.gates.answer_to(gate.id)
    assert kept is not None
    with pytest.raises(NotApprovedError, match=message):
        await store.ledger.use_approval(kept, run_id=run.id)
    with pytest.raises(NotApprovedError, match=message):
        await store.ledger.use_approval(replace(kept, decision="approve"), run_id=run.id)


@pytest.mark.parametrize("decision", ["reject", "request_changes"])
async def test_a_later_answer_to_the_same_run_replaces_an_approval_at_a_gate(store: PlanStore, decision: str):
    run = await created(store)
    gate = await store.gates.open(a_gate(run), timeout_ms=0)
    await store.gates.answer(gate.id, an_answer(gate))
    kept = await store.gates.answer_to(gate.id)
    assert kept is not None
    again = await store.gates.open(a_gate(run), timeout_ms=0)
    assert again.id != gate.id
    await store.gates.answer(again.id, an_answer(again, decision=decision))
    with pytest.raises(NotApprovedError, match="followed by a rejection"):
        await store.ledger.use_approval(kept, run_id=run.id)


async def test_an_answer_is_recorded_only_through_its_gate(store: PlanStore):
    run = await created(store)
    gate = await store.gates.open(a_gate(run), timeout_ms=0)
    forged = an_answer(gate, gate_id=gate.id, run_id=run.id)
    with pytest.raises(RunConflictError, match="it is recorded by answering that gate"):
        await store.add_approval(forged)
    with pytest.raises(NotApprovedError, match="the store has no approval"):
        await store.ledger.use_approval(forged, run_id=run.id)


async def test_an_approval_answers_one_gate(store: PlanStore):
    run = await begun(store)
    drain, check = [await store.gates.open(a_gate(run, step_id), timeout_ms=0) for step_id in ("drain", "check")]
    await store.gates.answer(drain.id, given := an_answer(drain))
    with pytest.raises(NotApprovedError, match=f"^the approval {given.id} was already recorded: each answer needs a new approval$"):
        await store.gates.answer(check.id, given)
    assert await store.gates.find(run_id=run.id) == [check]


@pytest.mark.parametrize(
    ("fields", "given", "refused", "message"),
    [
        (
            {"kind": "question", "fields": FIELD},
            {"result": {"n": 1}},
            {},
            "this gate asks a question, not for an approval: answer it with `",
        ),
        ({}, {}, {"result": {"n": 1}}, "this gate asks for an approval, not for a result: answer it with `"),
        ({"kind": "question", "fields": FIELD}, {"decision": "reject"}, {}, "this gate asks a question, not for an approval: answer"),
        (
            {"kind": "outcome", "item": 1},
            None,
            {},
            "this gate asks how `drain[2]` ended and takes no approval: answer it with `plan resolve ",
        ),
        (
            {"kind": "outcome", "call_kind": "rollback", "label": "web-2", "item": 1},
            None,
            {"decision": "reject"},
            "this gate asks how `rollback drain[web-2]` ended and takes no approval: answer it with `plan resolve ",
        ),
    ],
    ids=["a question", "an approval", "a question that is rejected", "an outcome", "the outcome of a rollback"],
)
async def test_an_answer_of_the_wrong_kind_leaves_the_gate_open(
    store: PlanStore, fields: dict[str, Any], given: dict[str, Any] | None, refused: dict[str, Any], message: str
):
    run = await begun(store)
    gate = await store.gates.open(a_gate(run, "drain", **fields), timeout_ms=0)
    assert gate.fields == fields.get("fields", {})
    with pytest.raises(NotApprovedError, match="^" + re.escape(message)):
        await store.gates.answer(gate.id, an_answer(gate, **refused))
    assert await store.gates.get(gate.id) == gate
    if given is not None:
        assert (await store.gates.answer(gate.id, an_answer(gate, **given))).end == "answered"


@pytest.mark.parametrize(
    ("fields", "end", "message"),
    [
        ({"item": 1}, "cancelled", r"the gate of step `drain\[2\]` is closed: its run was cancelled at \S+\+00:00"),
        (
            {"item": 1, "label": "web-2"},
            "superseded",
            r"the gate of step `drain\[web-2\]` is closed: a new version replaced it at \S+; answer that one",
        ),
        (
            {"kind": "outcome", "call_kind": "rollback"},
            "done",
            r"the gate of step `rollback drain` is closed: `done` was recorded at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00",
        ),
        ({}, "answered", "the gate of step `drain` is closed: it was answered"),
    ],
)
async def test_an_answer_at_a_closed_gate_is_told_how_it_ended(store: PlanStore, fields: dict[str, Any], end: Any, message: str):
    gate = await store.gates.open(a_gate(await begun(store), "drain", **fields), timeout_ms=0)
    await store.gates.close(gate.id, end)
    with pytest.raises(RunConflictError) as refused:
        await store.gates.answer(gate.id, an_answer(gate))
    assert re.fullmatch(message, str(refused.value))


async def test_a_resolution_closes_the_outcome_gate_of_its_call_only(store: PlanStore):
    run, other = await begun(store), await begun(store)
    recorder = await store.ledger.recorder(run)
    unknown = [an_attempt(run, step_id, at=recorder.now(), effect="write") for step_id in ("check", "drain")]
    asked = list[Gate]()
    for attempt in unknown:
        await recorder.intent(attempt)
        fields = {"kind": "outcome", "approval_digest": outcome_digest(attempt.id)}
        asked.append(await store.gates.open(a_gate(run, attempt.step_id, **fields), timeout_ms=0))
    elsewhere = await store.gates.open(a_gate(other, "check", kind="outcome", approval_digest=outcome_digest(unknown[0].id)), timeout_ms=0)
    receipt = await store.outcomes.resolve(run.id, "check", ResolutionRecord("done", "安娜", "os_user"))
    closed = await store.gates.get(asked[0].id)
    assert (closed.end, closed.closed_at) == ("done", receipt.ended_at)
    assert await store.gates.find(run_id=run.id) == [asked[1]]
    assert await store.gates.find(run_id=other.id) == [elsewhere]
    with pytest.raises(RunConflictError, match="is executed by process"):  # nobody asks about it any more
        await store.outcomes.resolve(run.id, "check", ResolutionRecord("done", "安娜", "os_user"))
    assert (await store.verify(run.id)).ok


async def test_a_snapshot_says_whether_a_gate_of_the_run_is_open(store: PlanStore):
    run, other = await begun(store), await begun(store)
    await store.gates.open(a_gate(other, "drain"), timeout_ms=0)
    assert not (await store.ledger.snapshot(run.id)).has_open_gates
    gates = [await store.gates.open(a_gate(run, step_id), timeout_ms=0) for step_id in ("drain", "check")]
    for gate in gates:
        assert (await store.ledger.snapshot(run.id)).has_open_gates
        await store.gates.close(gate.id, "cancelled")
    assert not (await store.ledger.snapshot(run.id)).has_open_gates


@pytest.mark.parametrize("place", [(None, None), ("drain", None), ("drain", 1)])
async def test_the_newest_request_for_changes_stands_at_the_reopened_gate(store: PlanStore, place: tuple[str | None, int | None]):
    step_id, item = place
    run, other = await begun(store), await begun(store)
    fields = {"item": item, "approval_digest": DIGEST_OF_CALL}
    for note in ("first", "second"):
        gate = await store.gates.open(a_gate(run, step_id, **fields), timeout_ms=0)
        await store.gates.answer(gate.id, an_answer(gate, decision="request_changes", note=note))
    assert await store.gates.change_requests() == {}  # no gate is open
    await store.gates.open(a_gate(other, step_id, **fields), timeout_ms=0)
    await store.gates.open(a_gate(run, "check", **fields), timeout_ms=0)
    again = await store.gates.open(a_gate(run, step_id, **fields), timeout_ms=0)
    assert [(gate_id, request.note) for gate_id, request in (await store.gates.change_requests()).items()] == [(again.id, "second")]
    older = an_answer(again, decision="request_changes", note="older", run_id=run.id, step_id=step_id, item=item)
    await store.add_approval(replace(older, at=run.created_at))
    await store.gates.answer(again.id, an_answer(again, decision="reject", note="a rejection asks for no changes"))
    last = await store.gates.open(a_gate(run, step_id, **fields), timeout_ms=0)
    assert [(gate_id, request.note) for gate_id, request in (await store.gates.change_requests()).items()] == [(last.id, "second")]
    await store.gates.open(a_gate(run, step_id, **fields | {"approval_digest": "e" * 64}), timeout_ms=0)
    assert await store.gates.change_requests() == {}


CONTRADICTORY = ("approve", "reject", "request_changes")


async def test_one_of_fifty_concurrent_contradictory_answers_wins(store: PlanStore, store_url: str):
    gate = await store.gates.open(a_gate(await created(store)), timeout_ms=60_000)
    stores = [store, *(PlanStore(store_url) for _ in range(4))]
    answers = [an_answer(gate, by=f"人 {number}", decision=CONTRADICTORY[number % 3]) for number in range(50)]
    given = (stores[number % 5].gates.answer(gate.id, answer) for number, answer in enumerate(answers))
    outcomes = await asyncio.gather(*given, return_exceptions=True)
    won = [answer for answer, outcome in zip(answers, outcomes, strict=True) if not isinstance(outcome, BaseException)]
    kept = await store.gates.answer_to(gate.id)
    assert kept is not None
    assert [answer.id for answer in won] == [kept.id]
    assert len(await store.approvals(gate.run_id)) == 1
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert {(type(error), f"{kept.by} answered at " in str(error), f": {kept.decision}" in str(error)) for error in refused} == {
        (RunConflictError, True, True)
    }
    await asyncio.gather(*(store.close() for store in stores[1:]))


ANSWERING = """
import asyncio, sys
from plan_adapter.model.errors import RunConflictError
from plan_adapter.store.store import PlanStore
from tests.store.builders import an_answer

async def main():
    async with PlanStore(sys.argv[1]) as store:
        gate = await store.gates.get(sys.argv[2])
        print("ready", flush=True)
        sys.stdin.readline()
        decisions = ["approve", "reject", "request_changes"]
        given = [store.gates.answer(gate.id, an_answer(gate, by=sys.argv[3], decision=decisions[n % 3])) for n in range(13)]
        outcomes = await asyncio.gather(*given, return_exceptions=True)
        won = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
        assert all(type(o) is RunConflictError and "answered at" in str(o) for n, o in enumerate(outcomes) if n not in won), outcomes
        print(len(won))

asyncio.run(main())
"""


async def test_one_of_the_contradictory_answers_from_four_processes_wins(store: PlanStore, store_url: str):
    gate = await store.gates.open(a_gate(await created(store)), timeout_ms=60_000)
    processes = [Program(ANSWERING, store_url, gate.id, f"person {n}", stdin=subprocess.PIPE, stdout=subprocess.PIPE) for n in range(4)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won = [int(process.communicate()[0]) for process in processes]
    assert sorted(won) == [0, 0, 0, 1]
    kept = await store.gates.answer_to(gate.id)
    assert kept is not None
    assert kept.by == f"person {won.index(1)}"
    assert len(await store.approvals(gate.run_id)) == 1
