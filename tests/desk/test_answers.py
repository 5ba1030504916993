"""Tests of answers at the desk: each closes its gate once, in the name of the person who signed in."""

import asyncio
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import httpx
import pytest
from pyotp.totp import TOTP

from plan_adapter.gates.gate import new_gate
from plan_adapter.gates.totp import encrypt_seed, new_seed
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Gate, GatePolicy
from plan_adapter.model.options import ApprovalPolicy, Input, Question
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.store.store import PlanStore
from tests.desk.people import Desk, Person, running_desk, said
from tests.gates.unknown_outcome import UnknownOutcomeWorld
from tests.gates.world import FormAnswers, World
from tests.identity.conftest import make_key
from tests.store.conftest import on_both_databases

PEOPLE = ApprovalPolicy(approvers=["ana@example.org", "bo@example.org"], known_by=["proxy"])


async def closed(world: World, gate: Gate) -> tuple[str, str, str]:
    """Return the recorded answer at a gate."""
    answer = await world.store.gates.answer_to(gate.id)
    assert answer is not None
    return answer.decision, answer.by, answer.known_by


async def test_the_waiting_process_continues_with_an_answer_from_the_desk(world: World, desk: Desk) -> None:
    run = world.start(world.plan(policy=PEOPLE))
    gate, ana = await world.gate(), desk.person("ana@example.org")
    listed = said(await ana.get("/"))
    assert "1 gate waits" in listed
    assert "You may answer" in listed
    page = said(await ana.get(f"/gates/{gate.id}"))
    for text in ("Cannot be undone", "strike", "Asked by runner", "ana@example.org, bo@example.org, with proxy"):
        assert text in page
    assert (await ana.answer(gate, "approve", note="好")).headers["location"] == f"/gates/{gate.id}"
    assert (await run).is_completed
    assert world.struck == ["a"]
    assert await closed(world, gate) == ("approve", "ana@example.org", "proxy")
    after = said(await ana.get(f"/gates/{gate.id}"))
    assert "Recorded. Next: the waiting process continues now." in after
    assert "approved by ana@example.org (proxy): 好" in after
    assert "Recorded" not in said(await ana.get(f"/gates/{gate.id}"))
    assert "Nothing waits" in said(await ana.get("/"))


async def test_a_rejected_run_that_no_process_executes_ends(world: World, desk: Desk) -> None:
    run, gate = await world.detached(world.plan(policy=PEOPLE))
    await desk.person("bo@example.org").answer(gate, "reject", note="not tonight")
    ended = await world.store.run(run.id)
    assert (str(ended.outcome), ended.rejection_note) == ("Rejected", "not tonight")


async def test_changes_need_a_note_and_keep_it_in_the_form(world: World, desk: Desk) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    ana = desk.person("ana@example.org")
    refused = await ana.answer(gate, "request_changes", note=" ")
    assert (refused.status_code, "say in it what to change" in said(refused)) == (422, True)
    await ana.answer(gate, "request_changes", note="first\r\nsecond")
    answer = await world.store.gates.answer_to(gate.id)
    assert answer is not None
    assert (answer.decision, answer.note) == ("request_changes", "first\nsecond")


async def test_a_question_is_answered_with_typed_fields(world: World, desk: Desk) -> None:
    asked = Question(
        question="Which site?", fields={"site": Input(enum=["a", "b"]), "minutes": Input(type="integer", default=5, maximum=9)}
    )
    plan = ExecutionPlan(description="Ask", steps=[Step(id="decide", ask=asked)])
    plan.options.require_approval = False
    run = world.start(plan)
    gate, ana = await world.gate(step="decide"), desk.person("ana")
    assert "Which site?" in said(await ana.get(f"/gates/{gate.id}"))
    for site, minutes, message in (
        ("c", "3", "none of"),
        ("a", "ten", "is not an integer"),
        ("a", "10", "at most 9"),
        ("", "3", "no value"),
    ):
        refused = await ana.answer(gate, "answer", **{"field.site": site, "field.minutes": minutes})
        assert refused.status_code == 422
        assert message in said(refused)
        assert f'value="{minutes}"' in refused.text
    await ana.answer(gate, "answer", **{"field.site": "b", "field.minutes": ""})
    assert (await run).step("decide").result == {"site": "b", "minutes": 5}


async def test_only_those_who_may_answer_get_buttons_and_others_read_why(world: World, desk: Desk) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    page = await desk.person("eve@example.org").get(f"/gates/{gate.id}")
    assert "eve@example.org may not answer here; only ana@example.org, bo@example.org may" in said(page)
    assert "<button name" not in page.text
    assert "You may answer" not in said(await desk.person("eve@example.org").get("/"))


async def test_who_started_the_run_may_reject_but_not_approve_it(world: World, desk: Desk) -> None:
    policy = ApprovalPolicy(approvers=["runner", "ana"], self_approval=False)
    _, gate = await world.detached(world.plan(policy=policy))
    page = await desk.person("runner").get(f"/gates/{gate.id}")
    assert 'value="approve"' not in page.text
    assert 'value="reject"' in page.text
    assert "runner started this run and may not approve it; only ana may" in said(page)
    assert (await desk.person("runner").answer(gate, "approve")).status_code == 403


async def test_two_people_approve_and_the_page_counts_them(world: World, desk: Desk) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE.model_copy(update={"quorum": 2})))
    ana, bo = desk.person("ana@example.org"), desk.person("bo@example.org")
    page = said(await ana.get(f"/gates/{gate.id}"))
    assert "0 of 2 approvals" in page
    assert "it is recorded, and the gate waits for 1 more approval" in page
    await ana.answer(gate, "approve")
    assert "Recorded: 1 of 2 approvals; the gate waits for bo@example.org" in said(await ana.get(f"/gates/{gate.id}"))
    again = await ana.answer(gate, "approve")
    assert (again.status_code, "has already approved" in said(again)) == (403, True)
    await bo.answer(gate, "approve")
    answer = await world.store.gates.answer_to(gate.id)
    assert answer is not None
    assert answer.givers == "ana@example.org (proxy) and bo@example.org (proxy)"


@pytest.mark.parametrize(("decision", "sent"), [("done", 1), ("again", 2), ("abort", 1)])
async def test_an_unknown_outcome_is_recorded_in_the_name_of_the_person(decision: str, sent: int, store_url: str) -> None:
    async with PlanStore(store_url) as store:
        world = UnknownOutcomeWorld(store, store_url)
        run = asyncio.ensure_future(world.start_with_form(FormAnswers(())))
        while not (found := await store.gates.find()):
            await store.changed(0.5)
        async with running_desk(store, world.settings) as desk:
            ana = desk.person("ana@example.org")
            assert "Outcome unknown" in said(await ana.get("/"))
            refused = await ana.answer(found[0], "done", result="{")
            assert (refused.status_code, "the result is not JSON" in said(refused)) == (422, True)
            answered = await ana.answer(found[0], decision, result='{"order": "a"}' if decision == "done" else "", note="looked")
            assert answered.status_code == 303
            ended = await run
            assert "recorded by ana@example.org (proxy): looked" in said(await ana.get(f"/gates/{found[0].id}"))
        receipt = (await store.receipts(ended.id))[0]
        assert (receipt.by, receipt.known_by, len(world.sent)) == ("ana@example.org", "proxy", sent)
        await world.close()


async def test_a_gate_that_needs_a_code_takes_one_after_the_sign_in(world: World, desk: Desk) -> None:
    seed, _ = new_seed("ana")
    await world.store.codes.enroll("ana", encrypt_seed("ana", seed, world.settings), by="ana", replaces=False)
    _, gate = await world.detached(world.plan(policy=ApprovalPolicy(approvers=["ana"], known_by=["totp"])))
    ana = desk.person("ana")
    assert (await ana.answer(gate, "approve")).status_code == 403
    assert (await ana.answer(gate, "approve", code="000000")).status_code == 403
    await ana.answer(gate, "approve", code=TOTP(seed).now())
    assert await closed(world, gate) == ("approve", "ana", "totp")


async def test_without_a_sign_in_a_name_counts_only_with_a_proof(world: World) -> None:
    seed, _ = new_seed("ana")
    await world.store.codes.enroll("ana", encrypt_seed("ana", seed, world.settings), by="ana", replaces=False)
    _, gate = await world.detached(world.plan())
    async with running_desk(world.store, world.settings, None) as desk:
        ana = desk.person()
        refused = await ana.answer(gate, "approve", by="ana")
        assert (refused.status_code, "a name alone proves nothing" in said(refused)) == (403, True)
        assert 'value="ana"' in refused.text
        await ana.answer(gate, "approve", by="ana", code=TOTP(seed).now())
    assert await closed(world, gate) == ("approve", "ana", "totp")


async def test_the_text_on_the_page_is_signed_and_pasted(world: World, tmp_path: Path) -> None:
    key = make_key(tmp_path / "ana")
    (tmp_path / "allowed").write_text(f"ana {key.public}\n", encoding="utf-8")
    world.settings = Settings(allowed_signers=tmp_path / "allowed")
    _, gate = await world.detached(world.plan(policy=ApprovalPolicy(approvers=["ana"], known_by=["ssh_signature"])))
    async with running_desk(world.store, world.settings, None) as desk:
        ana = desk.person()
        page = unescape((await ana.get(f"/gates/{gate.id}")).text)
        texts = re.findall(r"<<'END'\n(.*?)END", page, re.DOTALL)
        assert [re.findall(r"decision: (\w+)", text) for text in texts] == [["approve"], ["reject"], ["request_changes"]]
        signatures = [key.signs(text).replace("\n", "\r\n") for text in texts]
        refused = await ana.answer(gate, "approve", by="ana", signature=signatures[1])
        assert (refused.status_code, "another text" in said(refused)) == (403, True)
        assert (await ana.answer(gate, "approve", by="bo", signature=signatures[0])).status_code == 403
        await ana.answer(gate, "approve", by="ana", signature=signatures[0])
    assert await closed(world, gate) == ("approve", "ana", "ssh_signature")


async def test_a_gate_that_takes_answers_from_slack_only_says_so(world: World, desk: Desk) -> None:
    _, gate = await world.detached(world.plan(policy=ApprovalPolicy(approvers=["ana"], known_by=["slack"])))
    page = await desk.person("ana").get(f"/gates/{gate.id}")
    assert "this gate takes slack, which no page can give" in said(page)
    assert "plan approve" not in said(page)


async def test_a_gate_that_no_page_can_answer_names_the_command(world: World) -> None:
    _, gate = await world.detached(world.plan(policy=ApprovalPolicy(known_by=["os_user"])))
    async with running_desk(world.store, world.settings, None) as desk:
        page = await desk.person().get(f"/gates/{gate.id}")
    assert "<button name" not in page.text
    assert f"this gate takes os_user, which no page can give: plan approve {gate.run_id}" in said(page)


@on_both_databases
async def test_fifty_people_answer_at_once_and_exactly_one_answer_wins(world: World, desk: Desk) -> None:
    _, gate = await world.detached(world.plan())
    people = [desk.person(f"person-{number}") for number in range(50)]
    forms = [await person.hidden(f"/gates/{gate.id}") for person in people]

    async def answer(person: Person, form: dict[str, str], number: int) -> httpx.Response:
        return await person.post(f"/gates/{gate.id}", **form, decision="approve" if number % 2 else "reject")

    answers = await asyncio.gather(*(answer(person, form, number) for number, (person, form) in enumerate(zip(people, forms, strict=True))))
    won = [number for number, response in enumerate(answers) if response.status_code == 303]
    assert len(won) == 1
    decision, by, _ = await closed(world, gate)
    assert (decision, by) == ("approve" if won[0] % 2 else "reject", f"person-{won[0]}")
    for number, response in enumerate(answers):
        if number != won[0]:
            assert response.status_code == 409
            assert f"{by} answered at" in said(response)
    assert len([row for row in await world.store.approvals(gate.run_id) if row.gate_id == gate.id]) == 1


async def test_an_answer_about_content_that_changed_shows_the_new_content(world: World, desk: Desk, store_url: str) -> None:
    run, gate = await world.detached(world.plan(policy=PEOPLE))
    ana = desk.person("ana@example.org")
    form = await ana.hidden(f"/gates/{gate.id}")
    new = new_gate(
        await world.store.run(run.id),
        approval_digest="e" * 64,
        description="",
        text="## Approve something else?\n",
        gate_policy=GatePolicy(),
    )
    async with PlanStore(store_url) as elsewhere:
        await elsewhere.gates.open(new, timeout_ms=0)
    response = await ana.post(f"/gates/{gate.id}", **form, decision="approve")
    assert response.status_code == 409
    assert "The content changed, so your answer was not recorded." in said(response)
    assert "Approve something else?" in said(response)
    assert await world.store.gates.answer_to(gate.id) is None
    assert (await world.store.gates.get(new.id)).end is None
    assert replace(new, opened_at=gate.opened_at).approval_digest in response.text


async def test_a_digest_of_other_content_is_refused(world: World, desk: Desk) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    refused = await desk.person("ana@example.org").answer(gate, "approve", digest="f" * 64)
    assert refused.status_code == 403
    assert "the content of the gate changed" in said(refused)
    assert (await world.store.gates.get(gate.id)).end is None


async def test_two_hundred_gates_are_listed_with_the_final_ones_first(world: World, desk: Desk) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    for number in range(199):
        text = "**It writes and cannot be undone.**" if number % 10 == 0 else "It only reads."
        await world.store.gates.open(replace(gate, id=f"{number:032x}", step_id="strike", item=number, text=text), timeout_ms=0)
    page = await desk.person("ana@example.org").get("/")
    assert "200 gates wait" in said(page)
    assert page.text.count("You may answer") == 200
    assert page.text.rindex("Cannot be undone") < page.text.index('<li class="card">')


async def test_an_approver_lets_another_person_answer(world: World, desk: Desk) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE.model_copy(update={"delegate": True})))
    ana, eve = desk.person("ana@example.org"), desk.person("eve@example.org")
    page = await ana.get(f"/gates/{gate.id}")
    assert "Let somebody else answer instead of you" in said(page)
    refused = await ana.answer(gate, "delegate", to=" ")
    assert (refused.status_code, "the name of the person who answers instead is missing" in said(refused)) == (422, True)
    assert "Let somebody else" not in said(await eve.get(f"/gates/{gate.id}"))
    assert (await eve.answer(gate, "delegate", to="eve@example.org")).status_code == 403
    await ana.answer(gate, "delegate", to="eve@example.org")
    after = said(await ana.get(f"/gates/{gate.id}"))
    assert "Recorded: eve@example.org answers instead of ana@example.org. But nobody called eve@example.org is among" in after
    assert "ana@example.org let eve@example.org answer instead; only bo@example.org, eve@example.org may" in after
    await eve.answer(gate, "approve")
    assert await closed(world, gate) == ("approve", "eve@example.org", "proxy")


async def test_an_approver_takes_a_delegation_back(world: World, desk: Desk) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE.model_copy(update={"delegate": True})))
    ana, bo, eve = desk.person("ana@example.org"), desk.person("bo@example.org"), desk.person("eve@example.org")
    await ana.answer(gate, "delegate", to="eve@example.org")
    assert "Take it back from eve@example.org" in said(await ana.get(f"/gates/{gate.id}"))
    for other in (bo, eve):
        assert "Take it back" not in said(await other.get(f"/gates/{gate.id}"))
        assert (await other.answer(gate, "approve", take_back="eve@example.org")).status_code == 403
    await ana.answer(gate, "approve", take_back="eve@example.org")
    after = said(await ana.get(f"/gates/{gate.id}"))
    assert "Recorded: eve@example.org no longer answers instead of ana@example.org." in after
    assert "Take it back" not in after
    assert (await eve.answer(gate, "approve")).status_code == 403
    assert "ana@example.org took the delegation back at" in said(await eve.get(f"/gates/{gate.id}"))
    await ana.answer(gate, "approve")
    assert await closed(world, gate) == ("approve", "ana@example.org", "proxy")


async def test_nobody_delegates_where_the_plan_does_not_say_so(world: World, desk: Desk) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    ana = desk.person("ana@example.org")
    assert "Let somebody else" not in said(await ana.get(f"/gates/{gate.id}"))
    refused = await ana.answer(gate, "delegate", to="eve@example.org")
    assert (refused.status_code, "approvers may not let others answer here" in said(refused)) == (403, True)
