"""Tries of one-time codes, counted for all processes: on both databases."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from pyotp.totp import TOTP

from plan_adapter import NotApprovedError
from plan_adapter.gates.totp import check, code_key, new_seed, seal
from plan_adapter.store.store import PlanStore
from tests.identity.test_codes import keyed
from tests.sql import Sql

PEOPLE = {person: new_seed(person)[0] for person in ("ana", "博")}


@pytest.fixture
async def stores(store_url: str) -> AsyncIterator[list[PlanStore]]:
    """The same store, opened as three processes have it."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(PlanStore(store_url)) for _ in range(3)]
        await opened[0].upgrade()
        for person, seed in PEOPLE.items():
            await opened[0].codes.enroll(person, seal(person, seed, keyed()), by=person, known_by="os_user", replaces=False)
        yield opened


async def tried(store: PlanStore, code: str, person: str = "ana", *, counter: int = 40) -> str:
    try:
        await check(person, code, codes=store.codes, settings=keyed(), now=counter * 30)
    except NotApprovedError as error:
        return str(error)
    return "taken"


def right(counter: int = 40, person: str = "ana") -> str:
    return TOTP(PEOPLE[person]).generate_otp(counter)


async def made_older(sql: Sql, seconds: int) -> None:
    """Let all that was tried be so many seconds ago."""
    earlier = {
        "sqlite": f"strftime('%Y-%m-%d %H:%M:%f', used_at, '-{seconds} seconds')",
        "postgresql": f"used_at - interval '{seconds} seconds'",
    }
    await sql.change(f"UPDATE used_codes SET used_at = {earlier[sql.dialect]}")


async def test_of_many_wrong_codes_at_once_five_are_looked_at_in_all_processes_together(stores: list[PlanStore]) -> None:
    said = await asyncio.gather(*(tried(stores[number % 3], "no") for number in range(15)))
    assert sum("is wrong" in words for words in said) == 5
    assert (await tried(stores[0], right())).startswith("too many wrong codes for ana: try again in ")
    assert await tried(stores[1], right(person="博"), "博") == "taken"


async def test_after_five_minutes_codes_are_looked_at_again(stores: list[PlanStore], sql: Sql) -> None:
    for _ in range(5):
        await tried(stores[0], "no")
    await made_older(sql, 290)
    refused = await tried(stores[1], right())
    assert "too many" in refused
    assert 0 < await stores[1].codes.count_try(code_key("ana")) <= 10
    await made_older(sql, 11)
    assert await tried(stores[2], right()) == "taken"


async def test_what_was_right_does_not_count_and_what_was_used_before_does(stores: list[PlanStore]) -> None:
    for counter in range(40, 50):
        assert await tried(stores[counter % 3], right(counter), counter=counter) == "taken"
    for _ in range(5):
        assert "already used" in await tried(stores[0], right(40))
    assert "too many" in await tried(stores[0], right(50), counter=50)
