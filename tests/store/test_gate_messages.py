"""Tests of the messages about gates: one process at a time sends or updates each of them."""

import asyncio
from datetime import UTC, datetime

from sqlalchemy import update

from plan_adapter.model.approvals import Gate
from plan_adapter.store.database.tables import gate_messages
from plan_adapter.store.gate_messages import CLOSED, GateMessage
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import a_gate, created


async def a_waiting_gate(store: PlanStore) -> Gate:
    return await store.gates.open(a_gate(await created(store)), timeout_ms=0)


async def let_wait_pass(store_url: str) -> None:
    await Sql(store_url).change(update(gate_messages).values(not_before=datetime(2026, 1, 1, tzinfo=UTC)))


async def test_of_twenty_claims_at_once_one_wins(store: PlanStore, store_url: str):
    gate = await a_waiting_gate(store)
    async with PlanStore(store_url) as other:
        claims = [part.claim(gate.id, "slack", shown="") for _ in range(10) for part in (store.gate_messages, other.gate_messages)]
        won = [message for message in await asyncio.gather(*claims) if message is not None]
    assert [(message.gate_id, message.channel, message.shown, message.reference) for message in won] == [(gate.id, "slack", "", None)]


async def test_each_channel_has_a_message_of_its_own(store: PlanStore):
    gate = await a_waiting_gate(store)
    for channel in ("slack", "teams", "mail"):
        assert await store.gate_messages.claim(gate.id, channel, shown="") is not None
        assert len(await store.gate_messages.unfinished(channel)) == 1


async def test_a_recorded_message_is_claimed_again_only_as_it_is(store: PlanStore):
    messages, gate = store.gate_messages, await a_waiting_gate(store)
    first = await messages.claim(gate.id, "slack", shown="")
    assert first is not None
    await messages.record(first, shown="0", reference="C1:1.5")
    assert await messages.claim(gate.id, "slack", shown="") is None, "another process has sent it"
    second = await messages.claim(gate.id, "slack", shown="0")
    assert isinstance(second, GateMessage)
    assert (second.reference, second.failures) == ("C1:1.5", 0)
    await messages.record(second, shown=CLOSED, reference="C1:1.5")
    assert await messages.unfinished("slack") == []


async def test_a_message_that_failed_waits_and_counts_its_failures(store: PlanStore, store_url: str):
    messages, gate = store.gate_messages, await a_waiting_gate(store)
    for failures in range(3):
        message = await messages.claim(gate.id, "slack", shown="")
        assert message is not None
        assert message.failures == failures
        await messages.postpone(message, seconds=3600.0)
        assert await messages.claim(gate.id, "slack", shown="") is None
        await let_wait_pass(store_url)


async def test_a_claim_that_its_process_left_ends(store: PlanStore, store_url: str):
    gate = await a_waiting_gate(store)
    assert await store.gate_messages.claim(gate.id, "slack", shown="") is not None
    await let_wait_pass(store_url)
    assert await store.gate_messages.claim(gate.id, "slack", shown="") is not None


async def test_there_is_no_message_about_a_gate_that_does_not_exist(store: PlanStore):
    assert await store.gate_messages.claim("0" * 32, "slack", shown="") is None
