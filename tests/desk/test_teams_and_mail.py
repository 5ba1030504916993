"""Tests of messages in Teams and by e-mail: the first screen, a link without authority, and later who answered."""

import logging
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.headerregistry import Address
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from plan_adapter.cli.desk.mail import Mail
from plan_adapter.cli.desk.messages import Messenger
from plan_adapter.cli.desk.notices import Channel
from plan_adapter.model.language import speaking
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import ExecutionPlan
from tests.desk.chat_services import MailService, TeamsService, card_texts, text_of
from tests.desk.people import HEADER, running_desk
from tests.gates.world import World

ADDRESS = "https://desk.example.org"
PEOPLE = ApprovalPolicy(approvers=["ana@example.org", "bo@example.org"], known_by=["proxy"])
TO = (Address(addr_spec="sre@example.org"), Address(addr_spec="bo@example.org"))
NOT_LOOPBACK = "127.1"  # this machine, by a name that the desk does not know as such


def mail_to(service: MailService, **changes: object) -> Mail:
    """Return the mailboxes, as the desk uses them."""
    made = Mail("127.0.0.1", service.port, service.begins_with_tls, Address(addr_spec="plans@desk.example.org"), TO)
    return replace(made, **changes)  # type: ignore[arg-type]


def messenger(world: World, channel: Channel) -> Messenger:
    return Messenger(channel, world.store, world.settings, ADDRESS)


@pytest.fixture
async def teams() -> AsyncIterator[TeamsService]:
    """A webhook of Teams."""
    service = TeamsService()
    async with service.serving():
        yield service


@pytest.fixture
async def mail() -> AsyncIterator[MailService]:
    """A mail server without TLS on loopback."""
    service = MailService()
    async with service.serving():
        yield service


async def test_teams_gets_a_card_and_a_second_one_that_says_who_answered(world: World, teams: TeamsService) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    desk = messenger(world, teams.channel)
    await desk.send_due()
    card = await teams.arrived.get()
    texts = card_texts(card)
    assert texts[0] == "Approval needed: Strike 目标"
    assert any("undone" in text for text in texts)
    assert texts[-1] == f"Digest: {gate.approval_digest[:12]}"
    assert card["actions"] == [{"type": "Action.OpenUrl", "title": "Open at the desk", "url": f"{ADDRESS}/gates/{gate.id}"}]
    async with running_desk(world.store, world.settings) as page:
        await page.person("ana@example.org").answer(gate, "reject", note="not tonight")
    await desk.send_due()
    await desk.send_due()
    texts = card_texts(await teams.arrived.get())
    assert texts[0] == "Answered: Strike 目标"
    assert "rejected by ana@example.org (proxy) at" in texts[1]
    assert texts[2] == "Note: not tonight"
    assert teams.arrived.empty()


async def test_the_address_of_the_webhook_is_in_no_log(world: World, teams: TeamsService, caplog: pytest.LogCaptureFixture) -> None:
    await world.detached(world.plan(policy=PEOPLE))
    with caplog.at_level(logging.DEBUG):
        for webhook in (teams.channel.webhook[:-1], f"http://127.0.0.1:9/?sig={teams.secret}", teams.channel.webhook):
            await messenger(world, replace(teams.channel, webhook=webhook)).send_due()
    assert "the webhook of Teams answered with the status 401" in caplog.text
    assert teams.secret[:-1] not in caplog.text + repr(teams.channel)


async def test_mail_has_the_first_screen_and_a_reply_in_its_thread_says_who_answered(world: World, mail: MailService) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    desk = messenger(world, mail_to(mail))
    await desk.send_due()
    sent = await mail.arrived.get()
    assert (sent["Subject"], sent["From"], sent["To"]) == (
        "Approval needed: Strike 目标",
        "plans@desk.example.org",
        "sre@example.org, bo@example.org",
    )
    assert sent["Message-ID"] == f"<{gate.id}@desk.example.org>"
    assert sent["Auto-Submitted"] == "auto-generated"
    for kind in ("plain", "html"):
        text = text_of(sent, kind)
        for part in ("undone", "strike", f"{ADDRESS}/gates/{gate.id}", f"Digest: {gate.approval_digest[:12]}"):
            assert part in text, kind
    async with running_desk(world.store, world.settings) as page:
        await page.person("bo@example.org").answer(gate, "reject", note="不行")
    await desk.send_due()
    await desk.send_due()
    reply = await mail.arrived.get()
    assert reply["Subject"] == "Answered: Strike 目标"
    assert (reply["In-Reply-To"], reply["References"]) == (sent["Message-ID"], sent["Message-ID"])
    assert reply["Message-ID"].strip() == f"<{gate.id}.closed@desk.example.org>"
    assert "rejected by bo@example.org (proxy) at" in text_of(reply)
    assert "Note: 不行" in text_of(reply)
    assert mail.arrived.empty()
    assert mail.envelopes == [("plans@desk.example.org", ["sre@example.org", "bo@example.org"], False)] * 2


async def test_the_link_has_no_authority(world: World, mail: MailService) -> None:
    _, gate = await world.detached(world.plan(policy=PEOPLE))
    async with running_desk(world.store, world.settings) as page:
        await Messenger(mail_to(mail), world.store, world.settings, page.address).send_due()
        link = text_of(await mail.arrived.get()).partition("Open at the desk: ")[2].split()[0]
        assert link == f"{page.address}/gates/{gate.id}"
        assert (await page.person().get(link)).status_code == 403
        assert (await page.person(**{HEADER: "ana@example.org"}).get(link)).status_code == 403
    assert (await world.store.gates.get(gate.id)).end is None


async def test_no_text_of_a_plan_adds_a_header_a_link_or_html(world: World, mail: MailService) -> None:
    hostile = "x\r\nBcc: eve@evil.example\r\n\r\n<b>b</b> <a href='https://evil.example'>y</a> https://evil.example\n.\n \u202e 批准"
    plan = ExecutionPlan(name=hostile, description=hostile)
    plan.add_step("look", hostile, {"target": hostile}, id="look")
    await world.detached(plan)
    await messenger(world, mail_to(mail)).send_due()
    sent = await mail.arrived.get()
    assert sent["Bcc"] is None
    assert sent["Subject"].startswith("Approval needed: x Bcc: eve@evil.example <b>b</b>")
    assert "\\u202e" in sent["Subject"]
    html = text_of(sent, "html")
    assert ("<b>" in html, "href='" in html, "https://evil" in html, html.count("<a ")) == (False, False, False, 1)
    assert "https://evil" not in text_of(sent)
    assert mail.envelopes[0][1] == ["sre@example.org", "bo@example.org"]


async def test_mail_speaks_the_language_of_the_desk(world: World, mail: MailService) -> None:
    await world.detached(world.plan(policy=PEOPLE))
    with speaking("zh"):
        await messenger(world, mail_to(mail)).send_due()
    sent = await mail.arrived.get()
    assert sent["Subject"] == "需要批准：Strike 目标"
    assert "在审批台打开: " in text_of(sent)


@pytest.fixture
def certificates(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    """The context of a server whose certificate is for 127.0.0.1 and `127.1`, and the file of the authority that signed it."""
    now = datetime.now(UTC)

    def certificate(name: str, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> x509.Certificate:
        builder = x509.CertificateBuilder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]),
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            key.public_key(),
            x509.random_serial_number(),
            now - timedelta(days=1),
            now + timedelta(days=1),
        )
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
        usage = x509.KeyUsage(
            digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=is_authority, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName(NOT_LOOPBACK)])
        builder = builder.add_extension(usage, critical=True).add_extension(names, critical=False)
        return builder.sign(by, hashes.SHA256())

    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    root = tmp_path / "authority.pem"
    root.write_bytes(certificate("authority", authority, authority, is_authority=True).public_bytes(pem))
    chain = certificate("server", server, authority, is_authority=False).public_bytes(pem)
    key = server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "server.pem").write_bytes(chain + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    return context, root


@pytest.mark.parametrize("begins_with_tls", [True, False])
async def test_the_connection_is_encrypted_and_the_server_verified(
    begins_with_tls: bool,
    certificates: tuple[ssl.SSLContext, Path],
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    context, root = certificates
    await world.detached(world.plan(policy=PEOPLE))
    service = MailService(context, begins_with_tls, password="secret-0123")
    async with service.serving():
        channel = mail_to(service, host=NOT_LOOPBACK, user="plans", password="secret-0123")
        with caplog.at_level(logging.WARNING):
            await messenger(world, channel).send_due()  # nobody here knows this authority
        assert "the mail server cannot be used (SSLCertVerificationError)" in caplog.text
        assert service.envelopes == []
        monkeypatch.setenv("SSL_CERT_FILE", str(root))
        await messenger(world, channel).send_due()
        assert service.envelopes == [("plans@desk.example.org", ["sre@example.org", "bo@example.org"], True)]


async def test_a_server_elsewhere_gets_nothing_in_clear(world: World, mail: MailService, caplog: pytest.LogCaptureFixture) -> None:
    await world.detached(world.plan(policy=PEOPLE))
    with caplog.at_level(logging.WARNING):
        await messenger(world, mail_to(mail, host=NOT_LOOPBACK, user="plans", password="secret-0123")).send_due()
    assert "the mail server cannot be used (SMTPNotSupportedError)" in caplog.text
    assert mail.envelopes == []


async def test_a_recipient_that_the_server_refuses_keeps_no_other_from_the_message(
    world: World, mail: MailService, caplog: pytest.LogCaptureFixture
) -> None:
    await world.detached(world.plan(policy=PEOPLE))
    mail.unknown = ("sre@example.org",)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await messenger(world, mail_to(mail)).send_due()
    assert mail.envelopes == [("plans@desk.example.org", ["bo@example.org"], False)]
    assert "the mail server refused 1 of 2 recipients" in caplog.text


@pytest.mark.parametrize(
    ("service", "text"),
    [
        (MailService(password="another-one"), "the mail server answered with the code 535"),
        (MailService(refuses=451), "the mail server answered with the code 451"),
        (MailService(refuses=554), "the mail server answered with the code 554"),
    ],
)
async def test_a_server_that_refuses_is_logged_without_the_password(
    service: MailService, text: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.detached(world.plan(policy=PEOPLE))
    with caplog.at_level(logging.WARNING):
        async with service.serving():
            channel = mail_to(service, user="plans", password="secret-0123")
            for _ in range(2):
                await messenger(world, channel).send_due()
    assert text in caplog.text
    assert "secret-0123" not in caplog.text + repr(channel)
    assert service.envelopes == []
