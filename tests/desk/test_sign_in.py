"""Tests of sign-ins with OpenID Connect: only an ID token of the issuer, for this desk and this browser, names a person."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from plan_adapter.cli.desk.sign_in import OpenIdSignIn, sign_in_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.options import ApprovalPolicy
from tests.desk.issuer import (
    CLIENT,
    CLIENT_SECRET,
    Claims,
    Issuer,
    altered,
    by_another_key,
    by_the_client_secret,
    by_the_public_key,
    unsigned,
)
from tests.desk.people import Desk, Person, running_desk, said
from tests.gates.world import World


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """An issuer that signs in ana."""
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
async def desk(world: World, issuer: Issuer) -> AsyncIterator[Desk]:
    """A desk at which people sign in with OpenID Connect."""
    settings = Settings(desk_oidc_issuer=issuer.url, desk_oidc_client_id=CLIENT, desk_oidc_client_secret=CLIENT_SECRET)  # type: ignore[arg-type]
    sign_in = sign_in_of(settings, address="http://to-be-replaced")
    assert isinstance(sign_in, OpenIdSignIn)
    async with running_desk(world.store, world.settings, sign_in) as desk:
        sign_in.redirect_uri = f"{desk.address}/sign-in/callback"
        yield desk


async def callback_of(person: Person, path: str = "/") -> str:
    """Go to the issuer and sign in there. Return the address to which it sends the browser back."""
    to_issuer = await person.get(path)
    assert to_issuer.status_code == 303
    async with httpx.AsyncClient(trust_env=False) as browser:
        return (await browser.get(to_issuer.headers["location"])).headers["location"]


async def signed_in(desk: Desk, path: str = "/") -> tuple[Person, httpx.Response]:
    """Return a browser after its sign-in, and the answer of the desk to it."""
    person = desk.person()
    return person, await person.get(await callback_of(person, path))


async def test_a_person_signs_in_reads_answers_and_signs_out(world: World, desk: Desk, issuer: Issuer) -> None:
    _, gate = await world.detached(world.plan(policy=ApprovalPolicy(approvers=["ana@example.org"], known_by=["sign_in"])))
    ana, back = await signed_in(desk, f"/gates/{gate.id}")
    assert (back.status_code, back.headers["location"]) == (303, f"/gates/{gate.id}")
    assert "ana@example.org" in said(await ana.get(f"/gates/{gate.id}"))
    assert "code_verifier" in issuer.exchanged[0]
    await ana.answer(gate, "approve")
    answer = await world.store.gates.answer_to(gate.id)
    assert answer is not None
    assert (answer.by, answer.known_by) == ("ana@example.org", "sign_in")
    token = (await ana.hidden("/"))["token"]
    assert "You are signed out" in said(await ana.post("/sign-out", token=token))
    assert (await ana.get("/")).status_code == 303
    late = await ana.post(f"/gates/{gate.id}", token=token, digest=gate.approval_digest, decision="approve")
    assert late.status_code == 403


async def test_the_session_is_new_after_the_sign_in(desk: Desk) -> None:
    person = desk.person()
    address = await callback_of(person)
    before = person.client.cookies["desk"]
    response = await person.get(address)
    assert person.client.cookies["desk"] != before
    assert {"httponly", "samesite=lax", "path=/"} <= {part.strip().lower() for part in response.headers["set-cookie"].split(";")}
    person.client.cookies.set("desk", before)
    assert (await person.get("/")).status_code == 303


async def test_no_secret_is_in_an_address_of_the_desk_or_on_a_page(world: World, desk: Desk) -> None:
    ana, back = await signed_in(desk)
    page = await ana.get("/")
    secret = ana.client.cookies["desk"]
    assert CLIENT_SECRET not in page.text + str(back.headers)
    assert secret not in page.text
    assert CLIENT_SECRET not in repr(sign_in_of(Settings(desk_oidc_issuer="https://i", desk_oidc_client_id="c"), address="https://d"))


async def test_a_forwarded_link_shows_the_page_to_others_only_under_their_own_name(world: World, desk: Desk, issuer: Issuer) -> None:
    _, gate = await world.detached(world.plan(policy=ApprovalPolicy(approvers=["ana@example.org"])))
    ana, _ = await signed_in(desk)
    address = str((await ana.get(f"/gates/{gate.id}")).url)
    issuer.person = "eve@example.org"
    eve = desk.person()
    assert (await eve.get(address)).status_code == 303
    await eve.get(await callback_of(eve, f"/gates/{gate.id}"))
    page = await eve.get(address)
    assert "eve@example.org may not answer here" in said(page)
    assert "<button name" not in page.text


async def test_the_callback_of_another_browser_signs_nobody_in(desk: Desk) -> None:
    ana, eve = desk.person(), desk.person()
    address = await callback_of(ana)
    assert (await eve.get(address)).status_code == 403
    await callback_of(eve)
    refused = await eve.get(address)
    assert (refused.status_code, "not started in this browser" in said(refused)) == (403, True)
    assert (await ana.get(address)).status_code == 303
    assert (await ana.get(address)).status_code == 403, "a sign-in finishes once"


REFUSED: dict[str, dict[str, Any]] = {
    "another issuer": {"iss": "https://evil.example"},
    "another audience": {"aud": "another-client"},
    "several audiences": {"aud": [CLIENT, "another-client"]},
    "expired": {"exp": 1_700_000_000},
    "issued later": {"iat": 4_000_000_000},
    "another nonce": {"nonce": "another"},
    "no nonce": {"nonce": None},
    "no expiry": {"exp": None},
    "an email that nobody verified": {"email_verified": False},
    "an email that is verified in words": {"email_verified": "true"},
    "no email": {"email": None},
    "no name": {"email": " "},
    "an invisible name": {"email": "ana@example.org\u202e"},
    "another type": {"email": ["ana@example.org"]},
}


@pytest.mark.parametrize("changed", REFUSED.values(), ids=REFUSED)
async def test_an_id_token_with_a_wrong_claim_is_refused(changed: Claims, desk: Desk, issuer: Issuer) -> None:
    issuer.change = lambda claims: {name: value for name, value in (claims | changed).items() if value is not None}
    person, response = await signed_in(desk)
    assert response.status_code == 403
    assert "You are not signed in" in said(response)
    assert (await person.get("/")).status_code == 303


@pytest.mark.parametrize("sign", [unsigned, by_another_key, by_the_client_secret, by_the_public_key, altered])
async def test_an_id_token_that_the_issuer_did_not_sign_is_refused(sign: Any, desk: Desk, issuer: Issuer) -> None:
    issuer.sign = sign
    person, response = await signed_in(desk)
    assert response.status_code == 403
    assert "the ID token of the issuer is not valid" in said(response)
    assert (await person.get("/")).status_code == 303


async def test_a_wrong_code_and_an_error_of_the_issuer_sign_nobody_in(desk: Desk) -> None:
    ana = desk.person()
    address = await callback_of(ana)
    assert (await ana.get(address.replace("code-0", "code-9"))).status_code == 403
    state = (await callback_of(ana)).partition("state=")[2]
    assert (await ana.get(f"/sign-in/callback?error=access_denied&state={state}")).status_code == 403
    assert (await ana.get("/")).status_code == 303


async def test_a_rotated_key_of_the_issuer_is_accepted(desk: Desk, issuer: Issuer) -> None:
    await signed_in(desk)
    issuer.key = type(issuer.key).generate_key(2048, {"kid": "one", "alg": "RS256"})
    assert (await signed_in(desk))[1].status_code == 303


async def test_an_issuer_that_is_away_is_said(desk: Desk, issuer: Issuer) -> None:
    issuer.__exit__()
    response = await desk.person().get("/")
    assert (response.status_code, "the issuer cannot be used now" in said(response)) == (503, True)
