"""Tests of one-time codes: wrong codes are counted across processes, on both databases."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from pyotp.totp import TOTP

from plan_adapter.errors import NotApprovedError
from plan_adapter.gates.totp import check_code, code_key, encrypt_seed, new_seed
from plan_adapter.store.store import PlanStore
from tests.identity.test_codes import settings_with_key
from tests.sql import Sql

PEOPLE = {person: new_seed(person)[0] for person in ("ana", "博")}


@pytest.fixture
async def stores(store_url: str) -> AsyncIterator[list[PlanStore]]:
    """The same store, opened three times as three processes would."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(PlanStore(store_url)) for _ in range(3)]
        await opened[0].upgrade()
        for person, seed in PEOPLE.items():
            await opened[0].codes.enroll(person, encrypt_seed(person, seed, settings_with_key()), by=person, replaces=False)
        yield opened


async def try_code(store: PlanStore, code: str, person: str = "ana", *, counter: int = 40) -> str:
    try:
        await check_code(person, code, codes=store.codes, settings=settings_with_key(), now=counter * 30)
    except NotApprovedError as error:
        return str(error)
    return "taken"


def correct_code(counter: int = 40, person: str = "ana") -> str:
    return TOTP(PEOPLE[person]).generate_otp(counter)


async def age_tries(sql: Sql, seconds: int) -> None:
    """Move all recorded tries `seconds` into the past."""
    earlier = {
        "sqlite": f"strftime('%Y-%m-%d %H:%M:%f', used_at, '-{seconds} seconds')",
        "postgresql": f"used_at - interval '{seconds} seconds'",
    }
    await sql.change(f"UPDATE used_codes SET used_at = {earlier[sql.dialect]}")


async def test_only_five_of_many_concurrent_wrong_codes_are_checked_across_processes(stores: list[PlanStore]) -> None:
    answers = await asyncio.gather(*(try_code(stores[number % 3], "no") for number in range(15)))
    assert sum("is wrong" in answer for answer in answers) == 5
    assert (await try_code(stores[0], correct_code())).startswith("too many wrong codes for ana: try again in ")
    assert await try_code(stores[1], correct_code(person="博"), "博") == "taken"


async def test_codes_are_checked_again_after_five_minutes(stores: list[PlanStore], sql: Sql) -> None:
    for _ in range(5):
        await try_code(stores[0], "no")
    await age_tries(sql, 290)
    refused = await try_code(stores[1], correct_code())
    assert "too many" in refused
    assert 0 < await stores[1].codes.count_try(code_key("ana")) <= 10
    await age_tries(sql, 11)
    assert await try_code(stores[2], correct_code()) == "taken"


async def test_correct_codes_do_not_count_as_failures_and_reused_codes_do(stores: list[PlanStore]) -> None:
    for counter in range(40, 50):
        assert await try_code(stores[counter % 3], correct_code(counter), counter=counter) == "taken"
    for _ in range(5):
        assert "already used" in await try_code(stores[0], correct_code(40))
    assert "too many" in await try_code(stores[0], correct_code(50), counter=50)
