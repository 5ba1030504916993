"""Tests of answers in Slack: only a signed request of a person whom the desk knows answers, and each gate once."""

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from plan_adapter.cli.desk.messages import sending_messages
from plan_adapter.cli.desk.protection import FAILED_PROOFS
from plan_adapter.cli.desk.slack import MAX_AGE_SECONDS, sign
from plan_adapter.gates.gate import new_gate
from plan_adapter.model.approvals import Gate, GatePolicy
from plan_adapter.model.options import ApprovalPolicy, Input, Question
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.store.store import PlanStore
from tests.cli.test_terminal import REAL_PLAN
from tests.desk.chat_services import (
    ANA,
    BO,
    CONVERSATION,
    EVE,
    SIGNING_SECRET,
    TOKEN,
    USERS,
    SlackCall,
    SlackService,
    body_of,
    payload,
    press,
    send,
    signed,
)
from tests.desk.people import Desk, running_desk
from tests.gates.world import World

PEOPLE = ApprovalPolicy(approvers=["ana@example.org", "bo@example.org"], known_by=["proxy", "slack"])


@pytest.fixture
async def slack() -> AsyncIterator[SlackService]:
    """Slack's API."""
    service = SlackService()
    async with service.serving():
        yield service


@pytest.fixture
async def desk(world: World, slack: SlackService) -> AsyncIterator[Desk]:
    """A desk with messages and buttons in Slack."""
    async with (
        running_desk(world.store, world.settings, slack=slack.channel) as desk,
        sending_messages([slack.channel], world.store, world.settings, address=desk.address),
    ):
        yield desk


async def asked(world: World, slack: SlackService, policy: ApprovalPolicy = PEOPLE) -> tuple[Gate, SlackCall]:
    """Return a gate that waits, and the message about it."""
    _, gate = await world.detached(world.plan(policy=policy))
    return gate, await slack.next("chat.postMessage")


async def told(slack: SlackService) -> str:
    """Return what only the person who pressed a button reads."""
    call = await slack.next("chat.postEphemeral")
    assert call.arguments["channel"] == CONVERSATION
    return call.arguments["text"]


async def both(slack: SlackService) -> tuple[str, SlackCall]:
    """Return what the person was told, and how the message was updated, in whichever order that happened."""
    calls: list[SlackCall] = [await slack.arrived.get() for _ in range(2)]
    found = {call.method: call for call in calls}
    return found["chat.postEphemeral"].arguments["text"], found["chat.update"]


def test_requests_are_signed_as_slack_documents_it() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
        b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands"
        b"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    assert sign(SIGNING_SECRET, "1531420618", body) == signature


async def test_a_button_answers_and_the_waiting_process_continues(world: World, slack: SlackService, desk: Desk) -> None:
    run = world.start(world.plan(policy=PEOPLE))
    gate = await world.gate()
    posted = await slack.next("chat.postMessage")
    assert (await press(desk.address, posted, "approve", ANA)).status_code == 200
    assert (await run).is_completed
    said, updated = await both(slack)
    assert said == "Recorded. Next: the waiting process continues now."
    assert "approved by ana@example.org (slack) at" in updated.texts
    answer = await world.store.gates.answer_to(gate.id)
    assert answer is not None
    assert (answer.decision, answer.by, answer.known_by, answer.note) == ("approve", "ana@example.org", "slack", "")
    assert world.struck == ["a"]


async def test_a_rejection_has_a_note_and_ends_the_run(world: World, slack: SlackService, desk: Desk) -> None:
    gate, posted = await asked(world, slack)
    await press(desk.address, posted, "reject", BO)
    _, updated = await both(slack)
    assert "rejected by bo@example.org (slack)" in updated.texts
    ended = await world.store.run(gate.run_id)
    assert (str(ended.outcome), ended.rejection_note) == ("Rejected", "in Slack")


@pytest.fixture
async def waiting(world: World, slack: SlackService, desk: Desk) -> AsyncIterator[tuple[Gate, SlackCall]]:
    """A gate that nobody has answered at the end of the test."""
    gate, posted = await asked(world, slack)
    yield gate, posted
    assert (await world.store.gates.get(gate.id)).end is None
    assert [row for row in await world.store.approvals(gate.run_id) if row.gate_id == gate.id] == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Slack-Signature": ""},
        {"X-Slack-Signature": "v0="},
        {"X-Slack-Signature": "é"},
        {"X-Slack-Signature": "v0=" + "0" * 64},
        {"X-Slack-Request-Timestamp": ""},
        {"X-Slack-Request-Timestamp": "now"},
        {"X-Slack-Request-Timestamp": "-1"},
        {"X-Slack-Request-Timestamp": "9" * 40},
    ],
    ids=str,
)
async def test_a_request_with_a_wrong_signature_is_refused(
    headers: dict[str, str], waiting: tuple[Gate, SlackCall], slack: SlackService, desk: Desk
) -> None:
    body = body_of(payload(waiting[1], "approve", ANA))
    sent = signed(body) | headers if headers else {}
    response = await send(desk.address, body, {name: value.encode("latin-1") for name, value in sent.items()})  # type: ignore[misc]
    assert (response.status_code, response.text) == (401, "the request is not signed by Slack, or too old")
    assert slack.arrived.empty()


async def test_a_request_that_somebody_else_signed_is_refused(waiting: tuple[Gate, SlackCall], desk: Desk) -> None:
    body = body_of(payload(waiting[1], "approve", ANA))
    assert (await send(desk.address, body, signed(body, secret="another-secret-of-another-app-00"))).status_code == 401
    assert (await send(desk.address, body, signed(body, secret=""))).status_code == 401


@pytest.mark.parametrize("seconds", [-MAX_AGE_SECONDS - 5, MAX_AGE_SECONDS + 5])
async def test_a_request_of_another_time_is_refused(seconds: int, waiting: tuple[Gate, SlackCall], desk: Desk) -> None:
    body = body_of(payload(waiting[1], "approve", ANA))
    assert (await send(desk.address, body, signed(body, at=time.time() + seconds))).status_code == 401


async def test_a_request_that_was_changed_is_refused(waiting: tuple[Gate, SlackCall], desk: Desk) -> None:
    rejects, approves = (body_of(payload(waiting[1], action, user)) for action, user in (("reject", EVE), ("approve", ANA)))
    assert (await send(desk.address, approves, signed(rejects))).status_code == 401
    assert (await send(desk.address, rejects + b" ", signed(rejects))).status_code == 401
    later = signed(approves, at=time.time() + 1)["X-Slack-Request-Timestamp"]
    assert (await send(desk.address, approves, signed(approves) | {"X-Slack-Request-Timestamp": later})).status_code == 401


async def test_two_signatures_in_one_request_are_refused(waiting: tuple[Gate, SlackCall], desk: Desk) -> None:
    body = body_of(payload(waiting[1], "approve", ANA))
    headers = [*signed(body).items(), ("X-Slack-Signature", "v0=" + "0" * 64)]
    assert (await send(desk.address, body, headers)).status_code == 401  # type: ignore[arg-type]


async def test_a_request_that_is_sent_again_is_told_who_answered(world: World, slack: SlackService, desk: Desk) -> None:
    gate, posted = await asked(world, slack)
    body = body_of(payload(posted, "approve", ANA))
    headers = signed(body)
    assert (await send(desk.address, body, headers)).status_code == 200
    await both(slack)
    assert (await send(desk.address, body, headers)).status_code == 200
    again = await told(slack)
    assert again.startswith("Your answer was not recorded: the gate of the plan is closed: ana@example.org answered at ")
    await press(desk.address, posted, "reject", BO)
    assert "ana@example.org answered at" in await told(slack)
    assert len([row for row in await world.store.approvals(gate.run_id) if row.gate_id == gate.id]) == 1


async def test_a_person_who_is_not_known_reads_why(waiting: tuple[Gate, SlackCall], slack: SlackService, desk: Desk) -> None:
    await press(desk.address, waiting[1], "approve", EVE)
    call = await slack.next("chat.postEphemeral")
    assert call.arguments["user"] == EVE
    assert call.arguments["text"] == f"Nobody here knows you as {EVE}: PLAN_ADAPTER_DESK_SLACK_USERS has to name you."


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (ApprovalPolicy(approvers=["bo@example.org"], known_by=["slack"]), "ana@example.org may not answer here; only bo@example.org may"),
        (ApprovalPolicy(approvers=["ana@example.org"], known_by=["totp"]), "is identified only by slack; an answer here needs totp"),
        (ApprovalPolicy(approvers=["ana@example.org"], known_by=["proxy"]), "is identified only by slack; an answer here needs proxy"),
    ],
)
async def test_the_policy_of_the_gate_decides(policy: ApprovalPolicy, why: str, world: World, slack: SlackService, desk: Desk) -> None:
    gate, posted = await asked(world, slack, policy)
    value = f"{gate.id} {gate.approval_digest}"  # pressed all the same: the buttons of a message decide nothing
    button = {"action_id": "approve", "type": "button", "value": value}
    await send(desk.address, body_of({**payload(posted, "open", ANA), "actions": [button]}))
    assert why in await told(slack)
    assert (await world.store.gates.get(gate.id)).end is None
    assert "approve is refused" in str([entry.message for entry in await world.store.audit(gate.run_id)])


async def test_who_started_the_run_may_not_approve_it(world: World, slack: SlackService) -> None:
    slack_of_runner = replace(slack.channel, users={ANA: "runner"})
    policy = ApprovalPolicy(approvers=["runner", "bo@example.org"], self_approval=False)
    _, gate = await world.detached(world.plan(policy=policy))
    async with (
        running_desk(world.store, world.settings, slack=slack_of_runner) as desk,
        sending_messages([slack_of_runner], world.store, world.settings, address=desk.address),
    ):
        posted = await slack.next("chat.postMessage")
        await press(desk.address, posted, "approve", ANA)
        assert "runner started this run and may not approve it; only bo@example.org may" in await told(slack)
    assert (await world.store.gates.get(gate.id)).end is None


async def test_an_answer_about_other_content_is_refused(waiting: tuple[Gate, SlackCall], slack: SlackService, desk: Desk) -> None:
    gate, posted = waiting
    button = {"action_id": "approve", "type": "button", "value": f"{gate.id} {'f' * 64}"}
    await send(desk.address, body_of({**payload(posted, "approve", ANA), "actions": [button]}))
    assert "the content of the gate changed" in await told(slack)


async def test_an_answer_to_content_that_was_replaced_approves_nothing(world: World, slack: SlackService, desk: Desk) -> None:
    gate, posted = await asked(world, slack)
    run, text = await world.store.run(gate.run_id), "## Approve something else?\n"
    new = new_gate(run, approval_digest="e" * 64, description="", text=text, gate_policy=GatePolicy())
    async with PlanStore(world.url) as elsewhere:
        await elsewhere.gates.open(new, timeout_ms=0)
    await press(desk.address, posted, "approve", ANA)
    calls: list[SlackCall] = [await slack.arrived.get() for _ in range(3)]
    assert sorted(call.method for call in calls) == ["chat.postEphemeral", "chat.postMessage", "chat.update"]
    assert "a new version replaced it" in next(call.arguments["text"] for call in calls if call.method == "chat.postEphemeral")
    assert (await world.store.gates.get(new.id)).end is None


async def test_a_question_is_not_answered_with_a_button(world: World, slack: SlackService, desk: Desk) -> None:
    plan = ExecutionPlan(description="Ask", steps=[Step(id="decide", ask=Question(question="Which?", fields={"site": Input(default="a")}))])
    plan.options.require_approval = False
    world.start(plan)
    gate, posted = await world.gate(step="decide"), await slack.next("chat.postMessage")
    for action in ("approve", "reject"):
        button = {"action_id": action, "type": "button", "value": f"{gate.id} {gate.approval_digest}"}
        await send(desk.address, body_of({**payload(posted, "open", ANA), "actions": [button]}))
        assert "this gate is answered at the desk" in await told(slack)
    assert (await world.store.gates.get(gate.id)).end is None


async def test_two_people_approve_one_in_slack_and_one_at_the_desk(world: World, slack: SlackService, desk: Desk) -> None:
    gate, posted = await asked(world, slack, PEOPLE.model_copy(update={"quorum": 2}))
    await press(desk.address, posted, "approve", ANA)
    said, updated = await both(slack)
    assert said == "Recorded: 1 of 2 approvals; the gate waits for bo@example.org."
    assert "1 of 2 approvals" in updated.texts
    await press(desk.address, posted, "approve", ANA)
    assert "ana@example.org has already approved; 1 more approval needed, by bo@example.org" in await told(slack)
    await desk.person("bo@example.org").answer(gate, "approve")
    assert "approved by ana@example.org (slack) and bo@example.org (proxy)" in (await slack.next("chat.update")).texts


async def test_no_request_says_where_the_desk_connects_to(world: World, slack: SlackService, desk: Desk) -> None:
    _, posted = await asked(world, slack)
    connections = list[object]()
    async with await asyncio.start_server(lambda _reader, writer: connections.append(writer), "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        for url in (f"http://127.0.0.1:{port}/x", f"https://hooks.slack.com@127.0.0.1:{port}/x", "file:///etc/passwd"):
            await press(desk.address, posted, "approve", EVE, response_url=url)
            await told(slack)
        assert connections == []


async def test_a_person_who_is_refused_again_and_again_has_to_wait(world: World, slack: SlackService, desk: Desk) -> None:
    gate, posted = await asked(world, slack, ApprovalPolicy(approvers=["bo@example.org"], known_by=["slack"]))
    for _ in range(FAILED_PROOFS):
        await press(desk.address, posted, "approve", ANA)
        assert "may not answer here" in await told(slack)
    await press(desk.address, posted, "approve", ANA)
    assert "Too many of your answers were refused" in await told(slack)
    refused = [entry for entry in await world.store.audit(gate.run_id) if entry.kind == "refused"]
    assert len(refused) == FAILED_PROOFS
    await press(desk.address, posted, "approve", BO)
    _, updated = await both(slack)
    assert "approved by bo@example.org (slack)" in updated.texts


@pytest.mark.parametrize(
    "change",
    [
        {"type": "view_submission"},
        {"actions": []},
        {"actions": [{"action_id": "open", "type": "button", "url": "https://desk.example.org/gates/1"}]},
        {"actions": [{"action_id": "approve", "type": "button", "value": "x"}]},
        {"actions": [{"action_id": "approve", "type": "button"}]},
        {"actions": "approve"},
        {"user": "U024ANA01"},
        {"user": {"id": 7}},
        {"channel": None},
    ],
    ids=str,
)
async def test_what_is_no_answer_is_acknowledged_and_ignored(
    change: dict[str, object], waiting: tuple[Gate, SlackCall], slack: SlackService, desk: Desk
) -> None:
    assert (await press(desk.address, waiting[1], "approve", ANA, **change)).status_code == 200
    assert slack.arrived.empty()


@pytest.mark.parametrize("body", [b"", b"payload=", b"payload=[]", b"payload=%ff", b"\xff", b"payload={", b"x=1", b"payload=null"])
async def test_a_signed_body_that_nobody_can_read_is_ignored(body: bytes, waiting: tuple[Gate, SlackCall], desk: Desk) -> None:
    assert (await send(desk.address, body)).status_code == 200


async def test_a_large_request_is_refused(waiting: tuple[Gate, SlackCall], desk: Desk) -> None:
    assert (await send(desk.address, b"payload=" + b"x" * 65_536)).status_code == 413


async def test_only_the_path_of_slack_takes_requests_of_other_origins(waiting: tuple[Gate, SlackCall], desk: Desk) -> None:
    gate, posted = waiting
    body = body_of(payload(posted, "approve", ANA))
    eve = desk.person()
    for path in (f"/gates/{gate.id}", "/slack/actions/", "/slack//actions", "/SLACK/actions", "/sign-out"):
        response = await eve.client.post(path, content=body, headers=signed(body))
        assert (response.status_code, response.text) == (403, "the request does not come from a page of this desk"), path
    assert (await eve.client.get("/slack/actions")).status_code == 405
    assert (await eve.client.post("/slack/actions", content=body, headers={**signed(body), "Host": "evil.example"})).status_code == 421


async def test_without_slack_there_is_no_such_path(world: World, slack: SlackService) -> None:
    async with running_desk(world.store, world.settings) as desk:
        response = await send(desk.address, b"payload={}")
        assert response.status_code == 403


async def test_an_answer_is_recorded_even_if_slack_is_away_then(world: World, slack: SlackService, desk: Desk) -> None:
    gate, posted = await asked(world, slack)
    slack.status = 503
    await press(desk.address, posted, "approve", ANA)
    while (closed := await world.store.gates.get(gate.id)).end is None:
        await world.store.changed(0.5)
    assert closed.end == "answered"


@asynccontextmanager
async def desk_process(world: World, slack: SlackService) -> AsyncIterator[str]:
    """Yield the address of a desk in a process of its own, which is killed at the end."""
    given = {"URL": "https://desk.example.org", "SLACK_TOKEN": TOKEN, "SLACK_CHANNEL": CONVERSATION, "SLACK_API": slack.channel.api}
    given |= {"SLACK_SIGNING_SECRET": SIGNING_SECRET, "SLACK_USERS": json.dumps(USERS)}
    environment = {
        **os.environ,
        "PLAN_ADAPTER_DATABASE_URL": world.url,
        **{f"PLAN_ADAPTER_DESK_{name}": text for name, text in given.items()},
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*REAL_PLAN, "desk", "--json", "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert json.loads(await process.stdout.readline())["channels"] == ["slack"]
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


async def test_a_desk_that_is_killed_and_started_again_answers_and_updates_its_messages(world: World, slack: SlackService) -> None:
    gate = (await world.detached(world.plan(policy=PEOPLE.model_copy(update={"quorum": 2}))))[1]
    async with desk_process(world, slack):
        posted = await slack.next("chat.postMessage")
        while [message.shown for message in await world.store.gate_messages.unfinished("slack")] != ["0"]:
            await world.store.changed(0.1)
    async with desk_process(world, slack) as address:
        for user in (ANA, BO):
            body = body_of(payload(posted, "approve", user))
            assert (await send(address, body, signed(body) | {"Host": "desk.example.org"})).status_code == 200
            _, updated = await both(slack)
    assert "approved by ana@example.org (slack) and bo@example.org (slack)" in updated.texts
    assert slack.arrived.empty()
    assert (await world.store.gates.get(gate.id)).end == "answered"


async def test_tokens_and_secrets_are_in_no_text(slack: SlackService) -> None:
    shown = repr(slack.channel)
    assert ("xoxb" in shown, SIGNING_SECRET in shown) == (False, False)
