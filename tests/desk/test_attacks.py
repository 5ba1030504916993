"""Attacks on the desk: none of them leaves an answer, or an answer in the name of another person."""

from collections.abc import AsyncIterator

import httpx
import pytest

from plan_adapter.cli.desk.protection import (
    CONTENT_POLICY,
    FAILED_PROOFS,
    MAX_SESSIONS,
    PROOF_SECONDS,
    SESSION_SECONDS,
    FailedProofs,
    Sessions,
)
from plan_adapter.cli.desk.sign_in import PROXY_SECRET_HEADER
from plan_adapter.cli.desk.web_app import desk_app
from plan_adapter.gates.approval import os_user
from plan_adapter.gates.identity import identity_of_sign_in
from plan_adapter.gates.totp import encrypt_seed, new_seed
from plan_adapter.model.approvals import Gate
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import ExecutionPlan
from tests.desk.people import BY_PROXY, HEADER, SECRET, Desk, running_desk, said
from tests.gates.world import World

PEOPLE = ApprovalPolicy(approvers=["ana"], known_by=["proxy", "totp"])


@pytest.fixture
async def gate(world: World) -> AsyncIterator[Gate]:
    """A gate at which ana may answer. Nobody has answered it at the end."""
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    yield gate
    assert (await world.store.gates.get(gate.id)).end is None
    assert await world.store.gates.answer_to(gate.id) is None
    assert [row for row in await world.store.approvals(gate.run_id) if row.gate_id == gate.id] == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {HEADER: "ana"},
        {HEADER: "ana", PROXY_SECRET_HEADER: "wrong"},
        {HEADER: "ana", PROXY_SECRET_HEADER: SECRET.upper()},
        {PROXY_SECRET_HEADER: SECRET},
        {HEADER: "", PROXY_SECRET_HEADER: SECRET},
        {HEADER: "ana", PROXY_SECRET_HEADER: SECRET + "0"},
        {"X-Forwarded-User": "ana", PROXY_SECRET_HEADER: SECRET},
    ],
    ids=str,
)
async def test_a_forged_proxy_header_reads_and_answers_nothing(headers: dict[str, str], gate: Gate, desk: Desk) -> None:
    eve, ana = desk.person(**headers), desk.person("ana")
    form = await ana.hidden(f"/gates/{gate.id}")
    eve.client.cookies.update(ana.client.cookies)
    for path in ("/", "/runs", f"/runs/{gate.run_id}", f"/gates/{gate.id}"):
        response = await eve.get(path)
        assert response.status_code == 403
        assert gate.approval_digest not in response.text
        assert gate.name not in response.text
    assert (await eve.post(f"/gates/{gate.id}", **form, decision="approve")).status_code == 403


async def test_two_names_in_one_request_are_refused(gate: Gate, desk: Desk) -> None:
    ana = desk.person("ana")
    for header, value in ((HEADER, "eve"), (PROXY_SECRET_HEADER, SECRET)):
        response = await ana.client.get("/", headers=[*ana.client.headers.multi_items(), (header, value)])
        assert response.status_code == 403


async def test_a_name_in_the_form_does_not_replace_the_person_who_signed_in(world: World, gate: Gate, desk: Desk) -> None:
    _, open_to_all = await world.detached()
    eve = desk.person("eve")
    token = (await eve.hidden(f"/gates/{open_to_all.id}"))["token"]
    refused = await eve.post(f"/gates/{gate.id}", token=token, digest=gate.approval_digest, decision="approve", by="ana")
    assert (refused.status_code, "eve may not answer here" in said(refused)) == (403, True)


async def test_a_stolen_token_needs_its_session(gate: Gate, desk: Desk) -> None:
    ana, eve = desk.person("ana"), desk.person("ana")
    stolen = await eve.hidden(f"/gates/{gate.id}")
    await ana.get("/")
    assert (await ana.post(f"/gates/{gate.id}", **stolen, decision="approve")).status_code == 403
    ana.client.cookies.clear()
    assert (await ana.post(f"/gates/{gate.id}", **stolen, decision="approve")).status_code == 403
    for token in ("", "é", stolen["token"][:-1]):
        assert (await eve.post(f"/gates/{gate.id}", **stolen | {"token": token}, decision="approve")).status_code == 403
    assert (await eve.post(f"/gates/{gate.id}", digest=gate.approval_digest, decision="approve")).status_code == 403


async def test_a_stolen_session_of_another_person_is_not_theirs(gate: Gate, desk: Desk) -> None:
    ana, eve = desk.person("ana"), desk.person("eve")
    form = await ana.hidden(f"/gates/{gate.id}")
    eve.client.cookies.update(ana.client.cookies)
    refused = await eve.post(f"/gates/{gate.id}", **form, decision="approve")
    assert refused.status_code == 403
    assert (await ana.post(f"/gates/{gate.id}", **form, decision="approve")).status_code == 403, "the session that was shared is over"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1", "", "HTTP://EVIL"])
async def test_a_form_of_another_origin_is_refused(origin: str, gate: Gate, desk: Desk) -> None:
    ana = desk.person("ana")
    form = await ana.hidden(f"/gates/{gate.id}")
    response = await ana.post(f"/gates/{gate.id}", origin, **form, decision="approve")
    assert (response.status_code, response.text) == (403, "the request does not come from a page of this desk")


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
async def test_a_form_that_a_browser_calls_foreign_is_refused(site: str, gate: Gate, desk: Desk) -> None:
    ana = desk.person("ana")
    form = await ana.hidden(f"/gates/{gate.id}")
    headers = {"Origin": desk.address, "Sec-Fetch-Site": site}
    response = await ana.client.post(f"/gates/{gate.id}", data={**form, "decision": "approve"}, headers=headers)
    assert response.status_code == 403


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_only_a_post_answers(method: str, gate: Gate, desk: Desk) -> None:
    ana = desk.person("ana")
    form = await ana.hidden(f"/gates/{gate.id}")
    path = f"/gates/{gate.id}"
    response = await ana.client.request(method, path, params={**form, "decision": "approve"}, headers={"Origin": desk.address})
    assert response.status_code == (200 if method == "GET" else 405)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:1", "localhost", ""])
async def test_another_host_is_refused(host: str, gate: Gate, desk: Desk) -> None:
    response = await desk.person("ana").get("/", headers={"Host": host})
    assert response.status_code in (400, 421)
    assert gate.name not in response.text


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"decision=approve&decision=reject&token=", "application/x-www-form-urlencoded", 403),
        (b"%ff=%ff", "application/x-www-form-urlencoded", 403),
        (b"decision", "application/x-www-form-urlencoded", 403),
        (b"{}", "application/json", 403),
        (b"", "multipart/form-data; boundary=x", 403),
        (b"&".join(b"f%d=1" % number for number in range(300)), "application/x-www-form-urlencoded", 403),
        (b"note=" + b"x" * 65_536, "application/x-www-form-urlencoded", 413),
    ],
)
async def test_what_is_no_form_of_the_desk_is_refused(body: bytes, kind: str, status: int, gate: Gate, desk: Desk) -> None:
    ana = desk.person("ana")
    await ana.get("/")
    headers = {"Origin": desk.address, "Content-Type": kind}
    assert (await ana.client.post(f"/gates/{gate.id}", content=body, headers=headers)).status_code == status


async def test_a_large_body_without_a_length_is_refused(gate: Gate, desk: Desk) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(70):
            yield b"x" * 1024

    response = await desk.person("ana").client.post(f"/gates/{gate.id}", content=pieces(), headers={"Origin": desk.address})
    assert response.status_code == 413


@pytest.mark.parametrize("decision", ["", "done", "answer", "APPROVE", "agree"])
async def test_an_answer_that_the_gate_does_not_take_is_refused(decision: str, gate: Gate, desk: Desk) -> None:
    assert (await desk.person("ana").answer(gate, decision)).status_code == 422


@pytest.mark.parametrize("digest", ["", "d", "%", "0" * 65])
async def test_an_answer_without_the_content_is_refused(digest: str, gate: Gate, desk: Desk) -> None:
    assert (await desk.person("ana").answer(gate, "approve", digest=digest)).status_code == 422


async def test_a_replayed_answer_changes_nothing(world: World, desk: Desk) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    ana = desk.person("ana")
    form = await ana.hidden(f"/gates/{gate.id}")
    assert (await ana.post(f"/gates/{gate.id}", **form, decision="approve")).status_code == 303
    for decision in ("approve", "reject"):
        again = await ana.post(f"/gates/{gate.id}", **form, decision=decision)
        assert (again.status_code, "ana answered at" in said(again)) == (409, True)
    assert len([row for row in await world.store.approvals(gate.run_id) if row.gate_id == gate.id]) == 1


async def test_a_form_of_one_gate_does_not_answer_another(world: World, gate: Gate, desk: Desk) -> None:
    _, other = await world.detached(world.plan(gated=False, policy=ApprovalPolicy(approvers=["ana", "bo"])))
    ana = desk.person("ana")
    form = await ana.hidden(f"/gates/{other.id}")
    assert (await ana.post(f"/gates/{gate.id}", **form, decision="approve")).status_code == 403


async def test_too_many_wrong_codes_are_refused_without_being_checked(world: World, gate: Gate) -> None:
    async with running_desk(world.store, world.settings, None) as desk:
        seed, _ = new_seed("ana")
        await world.store.codes.enroll("ana", encrypt_seed("ana", seed, world.settings), by="ana", replaces=False)
        ana = desk.person()
        for number in range(FAILED_PROOFS):
            assert (await ana.answer(gate, "approve", by=f"person-{number}", code="000000")).status_code == 403
        refused = await ana.answer(gate, "approve", by="ana", code="000000")
        assert refused.status_code == 429
        assert 0 < int(refused.headers["retry-after"]) <= PROOF_SECONDS


async def test_the_account_of_the_desk_is_nobody_who_uses_it(world: World) -> None:
    _, gate = await world.detached(world.plan(policy=ApprovalPolicy(known_by=["os_user", "totp"])))
    async with running_desk(world.store, world.settings, None) as desk:
        ana = desk.person()
        assert (await ana.answer(gate, "approve", by=os_user())).status_code == 403
        assert (await ana.answer(gate, "approve", by=os_user(), code="123456")).status_code == 403
    async with running_desk(world.store, world.settings) as desk:
        page = await desk.person(os_user()).answer(gate, "approve")
        assert page.status_code == 403
    assert (await world.store.gates.get(gate.id)).end is None


async def test_hostile_texts_are_shown_as_texts(world: World, desk: Desk) -> None:
    hostile = "<script>alert(1)</script> [x](javascript:alert(1)) ![p](http://evil.example/p) <http://evil.example> \u202e\"'{{ 1237*7 }}"
    plan = ExecutionPlan(name=hostile, description=hostile)
    plan.add_step("look", hostile, {"target": hostile}, id="look")
    _, gate = await world.detached(plan)
    name = "<b>ana</b>"
    ana = desk.person(name)
    await ana.answer(gate, "request_changes", note=hostile.replace("\u202e", ""))
    for path in ("/", f"/gates/{gate.id}", "/runs", f"/runs/{gate.run_id}"):
        text = (await ana.get(path)).text
        for wrong in ("<script", "<b>ana", "<img", 'href="javascript', 'href="http', "\u202e", "8659"):
            assert wrong not in text, path


async def test_every_page_has_the_headers_and_no_script_or_foreign_file(world: World, gate: Gate, desk: Desk) -> None:
    ana = desk.person("ana")
    pages = [
        "/",
        f"/gates/{gate.id}",
        "/runs",
        f"/runs/{gate.run_id}",
        "/nothing",
        "/gates/none-of-these",
        "/runs/../../etc/passwd",
        "/desk.css",
    ]
    for path in pages:
        response = await ana.get(path)
        assert response.status_code == (200 if path in pages[:4] or path == "/desk.css" else 404), path
        policy = response.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'; style-src ")
        assert policy == CONTENT_POLICY or path.startswith("/runs/")
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "same-origin"
        assert response.headers["cache-control"] == "no-store"
        assert "server" not in response.headers
        assert "<script" not in response.text
        assert "//" not in response.text.replace("<!doctype", "").partition("<body>")[0]
        assert SECRET not in response.text
    assert (await ana.get("/openapi.json")).status_code == 404
    assert (await ana.get("/docs")).status_code == 404


async def test_over_https_the_cookie_is_bound_to_its_host(world: World) -> None:
    address, host = "https://desk.example.org", "desk.example.org"
    app = desk_app(world.store, world.settings, BY_PROXY, address=address, hosts=frozenset({host}))
    headers = {HEADER: "ana", PROXY_SECRET_HEADER: SECRET, "Host": host}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=address, headers=headers) as ana:
        response = await ana.get("/")
        assert response.headers["strict-transport-security"] == "max-age=31536000"
        parts = response.headers["set-cookie"].split("; ")
        assert parts[0].startswith("__Host-desk=")
        assert {"Secure", "HttpOnly", "Path=/", "SameSite=lax"} == {*parts[1:]}
        assert (await ana.post("/sign-out", headers={"Origin": "http://desk.example.org"})).status_code == 403


def test_sessions_end_and_are_limited() -> None:
    now = [0.0]
    sessions = Sessions(clock=lambda: now[0])
    ana = sessions.begin(identity_of_sign_in("ana", "sign_in"))
    for _ in range(MAX_SESSIONS + 5):
        last = sessions.begin()
    assert sessions.find(last.id) is last
    assert sessions.find(ana.id) is ana, "sessions without a sign-in end first"
    now[0] = SESSION_SECONDS
    assert sessions.find(ana.id) is None
    assert sessions.find(None) is None


def test_failed_proofs_are_counted_per_person_and_forgotten() -> None:
    now = [0.0]
    failed = FailedProofs(clock=lambda: now[0])
    assert [failed.count("ana") for _ in range(FAILED_PROOFS)] == [0.0] * FAILED_PROOFS
    assert failed.count("ana") == PROOF_SECONDS
    assert failed.count("bo") == 0.0
    failed.forgive("ana")
    assert failed.count("ana") == 0.0
    now[0] = PROOF_SECONDS
    assert failed.count("ana") == 0.0
