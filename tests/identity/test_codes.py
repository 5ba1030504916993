"""Tests of one-time codes: RFC 6238 vectors, single use, and counting of tries."""

import asyncio
import base64
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from pyotp.totp import TOTP

from plan_adapter.gates.totp import check_code, code_key, encrypt_seed, new_seed
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError

SECRET = base64.b32encode(b"12345678901234567890").decode()


def settings_with_key() -> Settings:
    """Return settings with a key for the seeds of one-time codes."""
    return Settings(totp_key=SecretStr("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="))


class Codes:
    """An in-memory store of seeds and used codes."""

    def __init__(self, **people: str) -> None:
        self.seeds = {person: encrypt_seed(person, seed, settings_with_key()) for person, seed in people.items()}
        self.used: set[tuple[str, int]] = set()

    async def seed(self, person: str) -> str | None:
        await asyncio.sleep(0)
        return self.seeds.get(person)

    async def count_try(self, _name: str) -> float:
        return 0.0

    async def use(self, name: str, counter: int) -> bool:
        await asyncio.sleep(0)
        if (name, counter) in self.used:
            return False
        self.used.add((name, counter))
        return True


async def refused(code: str, *, person: str = "ana", now: float = 59, codes: Codes | None = None) -> str:
    with pytest.raises(NotApprovedError) as error:
        await check_code(person, code, codes=codes or Codes(ana=SECRET), settings=settings_with_key(), now=now)
    return str(error.value)


@pytest.mark.parametrize(
    ("now", "code"),
    [
        (59, "287082"),
        (1111111109, "081804"),
        (1111111111, "050471"),
        (1234567890, "005924"),
        (2000000000, "279037"),
        (20000000000, "353130"),
    ],
)
async def test_codes_match_the_vectors_of_rfc_6238(now: int, code: str) -> None:
    counter = await check_code("ana", code, codes=Codes(ana=SECRET), settings=settings_with_key(), now=now)
    assert counter == now // 30


@pytest.mark.parametrize(("shift", "right"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
async def test_a_code_is_valid_one_step_before_and_after_its_own(shift: int, right: bool) -> None:
    code = TOTP(SECRET).generate_otp(1000 + shift)
    work = check_code("ana", code, codes=Codes(ana=SECRET), settings=settings_with_key(), now=1000 * 30 + 7)
    if right:
        assert await work == 1000 + shift
    else:
        with pytest.raises(NotApprovedError, match="wrong or has expired"):
            await work


async def test_a_code_may_contain_spaces() -> None:
    assert await check_code("ana", " 287 082 ", codes=Codes(ana=SECRET), settings=settings_with_key(), now=59) == 1


@pytest.mark.parametrize("code", ["", "287083", "2870820", "28708", "２８７０８２", "abcdef", "-87082", "287082\0", "\ud800"])
async def test_a_wrong_code_is_refused(code: str) -> None:
    assert await refused(code) == "the code of ana is wrong or has expired"


async def test_a_code_is_valid_once() -> None:
    codes = Codes(ana=SECRET)
    await check_code("ana", "287082", codes=codes, settings=settings_with_key(), now=59)
    assert "was already used" in await refused("287082", codes=codes)


async def test_the_code_of_somebody_else_is_refused() -> None:
    codes = Codes(ana=SECRET, bo=new_seed("bo")[0])
    assert "is wrong" in await refused("287082", person="bo", codes=codes)


async def test_the_error_for_a_person_without_codes_says_how_to_enroll() -> None:
    assert await refused("287082", person="安娜") == "安娜 has no one-time codes: set them up with `plan enroll 安娜`"


async def test_codes_of_a_new_seed_are_valid() -> None:
    seed, uri = new_seed("安娜")
    assert uri == f"otpauth://totp/prefect-plan-adapter:%E5%AE%89%E5%A8%9C?secret={seed}&issuer=prefect-plan-adapter"
    codes = Codes(**{"安娜": seed})
    assert await check_code("安娜", TOTP(seed).generate_otp(40), codes=codes, settings=settings_with_key(), now=1200) == 40


async def test_one_of_many_concurrent_uses_of_a_code_succeeds() -> None:
    codes = Codes(ana=SECRET)
    tries = (check_code("ana", "287082", codes=codes, settings=settings_with_key(), now=59) for _ in range(50))
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert [answer for answer in results if answer == 1] == [1]


ALPHABETS: list[Callable[[], st.SearchStrategy[str]]] = [st.text, lambda: st.text("aA-_ .@", max_size=6)]


@pytest.mark.parametrize("texts", ALPHABETS)
def test_two_people_never_share_a_try_counter(texts: Callable[[], st.SearchStrategy[str]]) -> None:
    @given(texts(), texts())
    def check_keys(one: str, other: str) -> None:
        assert (code_key(one) == code_key(other)) == (one == other)

    check_keys()
