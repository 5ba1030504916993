"""Tests of messages about gates: each channel gets one per gate, which later says who answered, wherever they did."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import update

from plan_adapter.cli.desk.messages import FIRST_RETRY_SECONDS, Messenger, sending_messages
from plan_adapter.cli.desk.notices import Channel, Notice, NotSentError
from plan_adapter.model.language import speaking
from plan_adapter.model.options import ApprovalPolicy, Escalation, Input, KnownBy, Question
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.store.database.tables import gate_messages, gates
from plan_adapter.store.store import PlanStore
from tests.desk.chat_services import SlackService, TeamsService, card_texts
from tests.desk.people import Desk, running_desk
from tests.gates.unknown_outcome import UnknownOutcomeWorld
from tests.gates.world import FormAnswers, World
from tests.sql import Sql
from tests.store.conftest import on_both_databases

ADDRESS = "https://desk.example.org"
PEOPLE = ApprovalPolicy(approvers=["ana@example.org", "bo@example.org"], known_by=["proxy", "slack"])
HOSTILE = "<!channel> <@U024ANA01> <https://evil.example|the desk> https://evil.example *b* _i_ `c` & [x](y) <b>x</b> \u202e 批准"


@pytest.fixture
async def slack() -> AsyncIterator[SlackService]:
    """Slack's API."""
    service = SlackService()
    async with service.serving():
        yield service


@pytest.fixture
async def teams() -> AsyncIterator[TeamsService]:
    """A webhook of Teams."""
    service = TeamsService()
    async with service.serving():
        yield service


def messenger(world: World, channel: Channel, *, store: PlanStore | None = None, **options: object) -> Messenger:
    return Messenger(channel, store or world.store, world.settings, ADDRESS, **options)  # type: ignore[arg-type]


async def wait_is_over(url: str) -> None:
    """Let the time pass that a message has to wait before it is tried again."""
    await Sql(url).change(update(gate_messages).values(not_before=datetime(2026, 1, 1, tzinfo=UTC)))


async def test_a_message_shows_the_gate_and_then_who_answered_at_the_desk(world: World, slack: SlackService, desk: Desk) -> None:
    run = world.start(world.plan(policy=PEOPLE))
    gate = await world.gate()
    async with sending_messages([slack.channel], world.store, world.settings, address=desk.address):
        posted = await slack.next("chat.postMessage")
        digest = f"Digest: {gate.approval_digest[:12]}"
        for text in ("Approval needed: Strike 目标", "undone", "strike", "Asked by runner", digest):
            assert text in posted.texts
        assert list(posted.buttons) == ["approve", "reject", "open"]
        assert posted.buttons["open"]["url"] == f"{desk.address}/gates/{gate.id}"
        assert posted.buttons["approve"]["value"] == f"{gate.id} {gate.approval_digest}"
        assert "confirm" in posted.buttons["approve"], "it cannot be undone"
        await desk.person("ana@example.org").answer(gate, "approve", note="go <ahead>")
        assert (await run).is_completed
        updated = await slack.next("chat.update")
    assert "Answered: Strike 目标" in updated.texts
    assert "approved by ana@example.org (proxy) at " in updated.texts
    assert "Note: go <ahead>" in updated.texts
    assert list(updated.buttons) == ["open"]
    assert [*slack.posted.values()] == [updated]


async def test_a_restarted_desk_sends_nothing_twice_and_still_updates(world: World, slack: SlackService) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    await messenger(world, slack.channel).send_due()
    async with PlanStore(world.url) as again:
        restarted = messenger(world, slack.channel, store=again)
        await restarted.send_due()
        assert len(slack.posted) == 1
        await world.answer(gate, "reject", by="bo@example.org", known_by="proxy", note="not now")
        await restarted.send_due()
        await restarted.send_due()
    await slack.next("chat.postMessage")
    assert "rejected by bo@example.org (proxy)" in (await slack.next("chat.update")).texts
    assert slack.arrived.empty()


@on_both_databases
async def test_of_two_desks_one_sends_each_message(world: World, slack: SlackService, store_url: str) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    for number in range(20):
        await world.store.gates.open(replace(gate, id=f"{number:032x}", step_id="strike", item=number), timeout_ms=0)
    async with PlanStore(store_url) as other:
        desks = [messenger(world, slack.channel, store=store) for store in (world.store, other)]
        await asyncio.gather(*(desk.send_due() for desk in desks))
        await asyncio.gather(*(desk.send_due() for desk in desks))
        assert len(slack.posted) == 21
        await Sql(store_url).change(update(gates).values(closed_at=await world.now(), end="expired"))
        await asyncio.gather(*(desk.send_due() for desk in desks))
    methods = [slack.arrived.get_nowait().method for _ in range(slack.arrived.qsize())]
    assert sorted(methods) == ["chat.postMessage"] * 21 + ["chat.update"] * 21


async def test_a_desk_that_died_while_it_sent_is_replaced_after_a_minute(world: World, slack: SlackService) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    assert await world.store.gate_messages.claim(gate.id, "slack", shown="") is not None
    await messenger(world, slack.channel).send_due()
    assert slack.posted == {}
    await wait_is_over(world.url)
    await messenger(world, slack.channel).send_due()
    assert len(slack.posted) == 1


async def test_a_gate_that_was_answered_before_anybody_was_told_gets_no_message(world: World, slack: SlackService) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    slack.status = 503
    desk = messenger(world, slack.channel, clock=lambda: 0.0)
    await desk.send_due()
    await world.answer(gate, "reject", by="bo@example.org", known_by="proxy")
    slack.status = 200
    await messenger(world, slack.channel).send_due()
    assert slack.posted == {}
    assert await world.store.gate_messages.unfinished("slack") == []


async def test_a_channel_that_is_away_is_tried_again_and_delays_no_other(
    world: World, slack: SlackService, teams: TeamsService, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    await world.detached(world.plan(policy=PEOPLE))
    to_slack, to_teams = (messenger(world, channel, clock=lambda: now[0]) for channel in (slack.channel, teams.channel))
    slack.status, slack.retry_after = 429, "30"
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await to_slack.send_due()
            await to_teams.send_due()
        assert "Approval needed: Strike 目标" in card_texts(await teams.arrived.get())
        slack.status, slack.retry_after = 500, None
        now[0] = 30.0
        await to_slack.send_due()
        assert slack.posted == {}
        now[0], slack.status = 30.0 + 2 * FIRST_RETRY_SECONDS, 200
        await to_slack.send_due()
    assert len(slack.posted) == 1
    assert [record.getMessage() for record in caplog.records if record.name.startswith("plan_adapter.cli.desk")] == [
        "Slack gets no messages about gates now; they are sent once it works again: Slack answered chat.postMessage with the status 429",
        "Slack works again",
    ]


async def test_a_closed_port_is_a_channel_that_is_away(world: World, slack: SlackService, caplog: pytest.LogCaptureFixture) -> None:
    await world.detached(world.plan(policy=PEOPLE))
    away = replace(slack.channel, api="http://127.0.0.1:9/api/")
    with caplog.at_level(logging.WARNING):
        await messenger(world, away).send_due()
    assert "Slack cannot be reached (ConnectError)" in caplog.text
    assert "xoxb" not in caplog.text
    await messenger(world, slack.channel).send_due()
    assert len(slack.posted) == 1


@pytest.mark.parametrize("error", ["invalid_auth", "not_in_channel", "channel_not_found"])
async def test_a_wrong_token_or_channel_stops_all_messages_until_it_is_right(error: str, world: World, slack: SlackService) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    await world.store.gates.open(replace(gate, id="f" * 32, step_id="strike"), timeout_ms=0)
    slack.error, now = error, [0.0]
    desk = messenger(world, slack.channel, clock=lambda: now[0])
    await desk.send_due()
    slack.error = None
    await desk.send_due()
    assert slack.posted == {}
    now[0] = FIRST_RETRY_SECONDS
    await desk.send_due()
    assert len(slack.posted) == 2


async def test_a_message_that_slack_refuses_delays_no_other(world: World, slack: SlackService) -> None:
    @dataclass
    class Picky:
        """A channel that refuses one message."""

        refused: str
        sent: list[str] = field(default_factory=list[str])
        name: str = "slack"
        label: str = "Slack"

        async def send(self, notice: Notice) -> str:
            if notice.gate_id == self.refused:
                raise NotSentError("Slack answered chat.postMessage with `invalid_blocks`")
            self.sent.append(notice.gate_id)
            return "C1:1"

        async def update(self, reference: str, notice: Notice) -> None:
            raise AssertionError

    _, gate = await world.detached(world.plan(policy=PEOPLE))
    await world.store.gates.open(replace(gate, id="f" * 32, step_id="strike"), timeout_ms=0)
    picky = Picky(gate.id)
    desk = messenger(world, picky)
    for _ in range(3):
        await desk.send_due()
    assert picky.sent == ["f" * 32]
    picky.refused = ""
    await wait_is_over(world.url)
    await desk.send_due()
    assert picky.sent == ["f" * 32, gate.id]


async def test_a_message_that_somebody_deleted_is_left_alone(world: World, slack: SlackService) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    desk = messenger(world, slack.channel)
    await desk.send_due()
    slack.posted.clear()
    await world.answer(gate, "reject", by="bo@example.org", known_by="proxy")
    await desk.send_due()
    assert await world.store.gate_messages.unfinished("slack") == []
    assert slack.posted == {}


async def test_the_message_counts_the_approvals(world: World, slack: SlackService) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE.model_copy(update={"quorum": 2})))
    desk = messenger(world, slack.channel)
    await desk.send_due()
    assert "0 of 2 approvals" in (await slack.next("chat.postMessage")).texts
    async with running_desk(world.store, world.settings) as page:
        await page.person("ana@example.org").answer(gate, "approve")
        await desk.send_due()
        updated = await slack.next("chat.update")
        assert "1 of 2 approvals; the gate waits for bo@example.org" in updated.texts
        assert list(updated.buttons) == ["approve", "reject", "open"]
        await page.person("bo@example.org").answer(gate, "approve")
    await desk.send_due()
    assert "approved by ana@example.org (proxy) and bo@example.org (proxy) at" in (await slack.next("chat.update")).texts


async def test_the_message_says_whom_the_gate_waits_for_now(world: World, slack: SlackService) -> None:
    policy = PEOPLE.model_copy(update={"delegate": True, "escalate": Escalation(after_ms=3_600_000, to=["chi@example.org"])})
    _, gate = await world.detached(world.plan(policy=policy))
    desk = messenger(world, slack.channel)
    await desk.send_due()
    assert "It waits for ana@example.org, bo@example.org (after 1 h also chi@example.org)" in (await slack.next("chat.postMessage")).texts
    async with running_desk(world.store, world.settings) as page:
        await page.person("ana@example.org").answer(gate, "delegate", to="dan@example.org")
    await desk.send_due()
    await desk.send_due()
    assert "It waits for bo@example.org, dan@example.org (after" in (await slack.next("chat.update")).texts
    await Sql(world.url).change(update(gates).values(opened_at=datetime(2026, 1, 1, tzinfo=UTC)))
    await desk.send_due()
    await desk.send_due()
    assert "It waits for bo@example.org, chi@example.org, dan@example.org, with proxy or slack." in (await slack.next("chat.update")).texts
    assert slack.arrived.empty()


@pytest.mark.parametrize(
    ("end", "text"),
    [("expired", "nobody answered in time"), ("cancelled", "its run was cancelled"), ("superseded", "a new version replaced it")],
)
async def test_a_gate_that_closed_without_an_answer_says_why(end: str, text: str, world: World, slack: SlackService) -> None:
    await world.detached(world.plan(policy=PEOPLE))
    desk = messenger(world, slack.channel)
    await desk.send_due()
    await Sql(world.url).change(update(gates).values(closed_at=await world.now(), end=end))
    await desk.send_due()
    await slack.next("chat.postMessage")
    updated = await slack.next("chat.update")
    assert "Not answered: Strike 目标" in updated.texts
    assert text in updated.texts


async def test_a_gate_that_expires_is_closed_and_its_message_updated(world: World, slack: SlackService) -> None:
    run, gate = await world.detached(world.plan(policy=PEOPLE, timeout_ms=3_600_000))
    desk = messenger(world, slack.channel)
    await desk.send_due()
    await Sql(world.url).change(update(gates).values(expires_at=gate.opened_at))
    await desk.send_due()
    await slack.next("chat.postMessage")
    assert "nobody answered in time" in (await slack.next("chat.update")).texts
    assert str((await world.store.run(run.id)).outcome) == "Expired"


@pytest.mark.parametrize("proof", ["totp", "proxy"])
async def test_a_gate_that_takes_no_answer_from_slack_has_only_the_link(proof: KnownBy, world: World, slack: SlackService) -> None:
    await world.detached(world.plan(policy=PEOPLE.model_copy(update={"known_by": [proof]})))
    await messenger(world, slack.channel).send_due()
    assert list((await slack.next("chat.postMessage")).buttons) == ["open"]


async def test_without_a_signing_secret_there_are_no_buttons(world: World, slack: SlackService) -> None:
    await world.detached(world.plan(policy=PEOPLE))
    await messenger(world, replace(slack.channel, signing_secret=None)).send_due()
    assert list((await slack.next("chat.postMessage")).buttons) == ["open"]


async def test_a_question_has_only_the_link(world: World, slack: SlackService) -> None:
    asked = Question(question="Which site?", fields={"site": Input(enum=["a", "b"])})
    plan = ExecutionPlan(description="Ask", steps=[Step(id="decide", ask=asked)])
    plan.options.require_approval = False
    world.start(plan)
    gate = await world.gate(step="decide")
    desk = messenger(world, slack.channel)
    await desk.send_due()
    posted = await slack.next("chat.postMessage")
    assert ("Question: Ask, step decide" in posted.texts, "Which site?" in posted.texts) == (True, True)
    assert list(posted.buttons) == ["open"]
    async with running_desk(world.store, world.settings) as page:
        await page.person("ana").answer(gate, "answer", **{"field.site": "a"})
    await desk.send_due()
    assert "answered by ana (proxy)" in (await slack.next("chat.update")).texts


async def test_an_unknown_outcome_has_only_the_link(store_url: str, slack: SlackService) -> None:
    async with PlanStore(store_url) as store:
        world = UnknownOutcomeWorld(store, store_url)
        run = asyncio.ensure_future(world.start_with_form(FormAnswers(())))
        while not (found := await store.gates.find()):
            await store.changed(0.5)
        desk = Messenger(slack.channel, store, world.settings, ADDRESS)
        await desk.send_due()
        posted = await slack.next("chat.postMessage")
        assert "Outcome needed: " in posted.texts
        assert list(posted.buttons) == ["open"]
        async with running_desk(store, world.settings) as page:
            await page.person("ana@example.org").answer(found[0], "abort", note="cannot tell")
        await run
        await desk.send_due()
        updated = await slack.next("chat.update")
        assert "abort by ana@example.org (proxy) at" in updated.texts
        assert "Note: cannot tell" in updated.texts
        await world.close()


async def test_no_text_of_a_plan_makes_a_link_a_mention_or_markup(world: World, slack: SlackService, teams: TeamsService) -> None:
    plan = ExecutionPlan(name=HOSTILE, description=HOSTILE)
    plan.add_step("look", HOSTILE, {"target": HOSTILE}, id="look")
    _, gate = await world.detached(plan)
    for channel in (slack.channel, teams.channel):
        await messenger(world, channel).send_due()
    posted = await slack.next("chat.postMessage")
    assert "<!channel> <@U024ANA01> <https：//evil.example|the desk>" in posted.texts
    assert "\\u202e" in posted.texts
    assert "<!channel> <@U024ANA01>" in card_texts(await teams.arrived.get())[0]
    await world.answer(gate, "reject", by=HOSTILE, note=HOSTILE)
    for channel in (slack.channel, teams.channel):
        await messenger(world, channel).send_due()
    assert "Note: <!channel>" in (await slack.next("chat.update")).texts
    # The services fail the test at its end if they got anything but text.


async def test_what_does_not_fit_is_read_at_the_desk_before_anybody_approves(world: World, slack: SlackService) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    long = "\n".join(f"- line {number} <&>" for number in range(400))
    await world.store.gates.open(replace(gate, id="f" * 32, step_id="strike", text=f"## Approve it?\n\n{long}\n"), timeout_ms=0)
    await messenger(world, slack.channel).send_due()
    calls = [await slack.next("chat.postMessage") for _ in range(2)]
    posted = next(call for call in calls if "line 1 <&>" in call.texts)
    assert "… it continues at the desk" in posted.texts
    assert list(posted.buttons) == ["open"]


async def test_messages_speak_the_language_of_the_desk(world: World, slack: SlackService, teams: TeamsService) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    with speaking("zh"):
        for channel in (slack.channel, teams.channel):
            await messenger(world, channel).send_due()
        posted = await slack.next("chat.postMessage")
        assert "需要批准：Strike 目标" in posted.texts
        assert [button["text"]["text"] for button in posted.buttons.values()] == ["批准", "拒绝", "在审批台打开"]
        assert (await teams.arrived.get())["actions"][0]["title"] == "在审批台打开"
        await world.answer(gate, "reject", by="bo@example.org", known_by="proxy")
        await messenger(world, slack.channel).send_due()
        assert "已拒绝" in (await slack.next("chat.update")).texts


async def test_pruning_a_run_deletes_what_was_sent_about_it(world: World, slack: SlackService) -> None:
    run, gate = await world.detached(world.plan(policy=PEOPLE))
    desk = messenger(world, slack.channel)
    await desk.send_due()
    async with running_desk(world.store, world.settings) as page:
        await page.person("bo@example.org").answer(gate, "reject")
    await desk.send_due()
    assert len(await Sql(world.url).rows(gate_messages.select())) == 1
    before = (await world.now()).replace(year=2100)
    assert await world.store.retention.prune([run.id], ended_before=before, by="kim") == {}
    assert await Sql(world.url).rows(gate_messages.select()) == []


async def test_messages_of_another_tenant_stay_out_of_sight(world: World, slack: SlackService) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    async with PlanStore(world.url, tenant_id="acme") as acme:
        await messenger(world, slack.channel, store=acme).send_due()
        assert await acme.gate_messages.claim(gate.id, "slack", shown="") is None
    assert slack.posted == {}
