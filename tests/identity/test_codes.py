"""One-time codes: the vectors of RFC 6238, once each, and not too many tries."""

import asyncio
import base64
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyotp.totp import TOTP

from plan_adapter.errors import NotApprovedError
from plan_adapter.identity.codes import block_name, check, new_secret

SECRET = base64.b32encode(b"12345678901234567890").decode()


class Secrets:
    """Secrets by the name of their block."""

    def __init__(self, **people: str) -> None:
        self.kept = {block_name(person): secret for person, secret in people.items()}

    async def secret(self, name: str) -> str | None:
        await asyncio.sleep(0)
        return self.kept.get(name)


class Used:
    """Codes that were used."""

    def __init__(self) -> None:
        self.known: set[tuple[str, int]] = set()

    async def try_code(self, _name: str) -> float:
        return 0.0

    async def use_code(self, name: str, counter: int) -> bool:
        await asyncio.sleep(0)
        if (name, counter) in self.known:
            return False
        self.known.add((name, counter))
        return True


async def refused(code: str, *, person: str = "ana", now: float = 59, secrets: Secrets | None = None, used: Used | None = None) -> str:
    with pytest.raises(NotApprovedError) as error:
        await check(person, code, secrets=secrets or Secrets(ana=SECRET), codes=used or Used(), now=now)
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
async def test_the_vectors_of_the_rfc_are_right(now: int, code: str) -> None:
    counter = await check("ana", code, secrets=Secrets(ana=SECRET), codes=Used(), now=now)
    assert counter == now // 30


@pytest.mark.parametrize(("shift", "right"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
async def test_a_code_counts_one_step_before_and_after_its_own(shift: int, right: bool) -> None:
    code = TOTP(SECRET).generate_otp(1000 + shift)
    work = check("ana", code, secrets=Secrets(ana=SECRET), codes=Used(), now=1000 * 30 + 7)
    if right:
        assert await work == 1000 + shift
    else:
        with pytest.raises(NotApprovedError, match="wrong, or its 30 seconds are over"):
            await work


async def test_a_code_may_be_written_with_a_space() -> None:
    assert await check("ana", " 287 082 ", secrets=Secrets(ana=SECRET), codes=Used(), now=59) == 1


@pytest.mark.parametrize("code", ["", "287083", "2870820", "28708", "２８７０８２", "abcdef", "-87082", "287082\0", "\ud800"])
async def test_a_wrong_code_is_refused(code: str) -> None:
    assert await refused(code) == "the code of ana is wrong, or its 30 seconds are over"


async def test_a_code_counts_once() -> None:
    used = Used()
    await check("ana", "287082", secrets=Secrets(ana=SECRET), codes=used, now=59)
    assert "was used before" in await refused("287082", used=used)


async def test_the_code_of_somebody_else_is_refused() -> None:
    secrets = Secrets(ana=SECRET, bo=new_secret("bo")[0])
    assert "is wrong" in await refused("287082", person="bo", secrets=secrets)


async def test_without_a_secret_it_is_said_where_it_would_be() -> None:
    assert await refused("287082", person="安娜") == (
        f"no secret of one-time codes is kept for 安娜: it would be the Secret block `{block_name('安娜')}`"
    )


async def test_without_a_server_it_is_said_what_else_proves() -> None:
    with pytest.raises(NotApprovedError, match="need a Prefect server"):
        await check("ana", "287082", secrets=None, codes=Used())


@pytest.mark.parametrize("kept", ["not base32!", "GEZDGNBV", "安娜", ""])
async def test_a_secret_that_is_none_is_not_shown(kept: str) -> None:
    said = await refused("287082", secrets=Secrets(ana=kept))
    assert "is no secret of one-time codes" in said
    assert not kept or kept not in said


async def test_a_new_secret_gives_codes_that_count() -> None:
    secret, uri = new_secret("安娜")
    assert uri == f"otpauth://totp/prefect-plan-adapter:%E5%AE%89%E5%A8%9C?secret={secret}&issuer=prefect-plan-adapter"
    secrets = Secrets(**{"安娜": secret})
    assert await check("安娜", TOTP(secret).generate_otp(40), secrets=secrets, codes=Used(), now=1200) == 40


async def test_of_many_with_the_same_code_one_comes_through() -> None:
    used = Used()
    tries = (check("ana", "287082", secrets=Secrets(ana=SECRET), codes=used, now=59) for _ in range(50))
    said = await asyncio.gather(*tries, return_exceptions=True)
    assert [answer for answer in said if answer == 1] == [1]


@pytest.mark.parametrize(
    ("person", "name"),
    [("ana", "plan-totp-ana"), ("ana-maria", "plan-totp-ana-maria"), ("web-1", "plan-totp-web-1")],
)
def test_a_plain_name_is_the_name_of_its_block(person: str, name: str) -> None:
    assert block_name(person) == name


ALPHABETS: list[Callable[[], st.SearchStrategy[str]]] = [st.text, lambda: st.text("aA-_ .@", max_size=6)]


@pytest.mark.parametrize("texts", ALPHABETS)
def test_two_people_never_share_a_block(texts: Callable[[], st.SearchStrategy[str]]) -> None:
    @given(texts(), texts())
    def holds(one: str, other: str) -> None:
        assert re.fullmatch("[a-z0-9-]{1,128}", block_name(one))
        assert (block_name(one) == block_name(other)) == (one == other)
        assert block_name(block_name(one)) != block_name(one)

    holds()
