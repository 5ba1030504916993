"""`Mail`: messages by e-mail, in one thread for each gate."""

import asyncio
import logging
import smtplib
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from html import escape

from plan_adapter.cli.desk.notices import Notice, NotSentError
from plan_adapter.cli.desk.sign_in import is_loopback
from plan_adapter.model.language import tr

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
MAX_SCREEN_CHARACTERS = 20_000


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail server, and who gets the messages. The connection is encrypted, and the server's certificate is verified.

    Only a server on this machine may do without.
    """

    host: str
    port: int
    is_tls: bool  # whether the connection begins with TLS, and does not switch to it
    sender: Address
    recipients: tuple[Address, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    name: str = field(default="mail", init=False)
    label: str = field(default="e-mail", init=False)

    async def send(self, notice: Notice) -> str:
        """Send a message, and return the id of its thread. Raises NotSentError."""
        thread = f"<{notice.gate_id}@{self.sender.domain}>"
        await asyncio.to_thread(self._deliver, self._message(notice, message_id=thread))
        return thread

    async def update(self, reference: str, notice: Notice) -> None:
        """Send a reply to the message that says how far the gate is. Raises NotSentError."""
        message = self._message(notice, message_id=f"<{notice.gate_id}.{notice.shown}@{self.sender.domain}>")
        message["In-Reply-To"] = reference
        message["References"] = reference
        await asyncio.to_thread(self._deliver, message)

    def _message(self, notice: Notice, *, message_id: str) -> EmailMessage:
        """Return a message of text and HTML. EmailMessage refuses line breaks in headers, and encodes other characters."""
        message = EmailMessage(policy=SMTP)
        message["From"] = self.sender
        message["To"] = self.recipients
        message["Subject"] = notice.title
        message["Date"] = format_datetime(datetime.now(UTC))
        message["Message-ID"] = message_id
        message["Auto-Submitted"] = "auto-generated"  # no replies of absent people, please
        screen = "" if notice.closing else notice.screen_text(lambda text: len(text) <= MAX_SCREEN_CHARACTERS)[0]
        link = tr("Open at the desk")
        parts = [notice.title, "\n".join(notice.status), screen, f"{link}: {notice.link}", notice.digest_line]
        message.set_content("\n\n".join(part for part in parts if part) + "\n")
        paragraphs = [
            f"<h1 style='font-size:1.2em'>{escape(notice.title)}</h1>",
            *(f"<p><strong>{escape(line)}</strong></p>" for line in notice.status),
            f"<pre style='white-space:pre-wrap'>{escape(screen)}</pre>" if screen else "",
            f'<p><a href="{escape(notice.link)}">{escape(link)}</a></p>',
            f"<p>{escape(notice.digest_line)}</p>",
        ]
        html = "\n".join(["<!doctype html>", *filter(None, paragraphs)])
        message.add_alternative(html + "\n", subtype="html")
        return message

    def _deliver(self, message: EmailMessage) -> None:
        """Send a message to its recipients. Raises NotSentError."""
        try:
            with self._connected() as server:
                if self.user is not None and self.password is not None:
                    server.login(self.user, self.password)
                refused = server.send_message(message)
        except smtplib.SMTPResponseException as error:  # without the server's text, which may repeat what was sent
            pause = None if isinstance(error, smtplib.SMTPDataError) and error.smtp_code >= 500 else 0.0
            raise NotSentError(f"the mail server answered with the code {error.smtp_code}", pause=pause) from None
        except smtplib.SMTPRecipientsRefused:
            raise NotSentError("the mail server refused every recipient", pause=0.0) from None
        except (OSError, UnicodeError) as error:  # errors of smtplib and of TLS are OSErrors
            raise NotSentError(f"the mail server cannot be used ({type(error).__name__})", pause=0.0) from None
        if refused:  # the others have it, so it is not sent again
            log.warning("the mail server refused %s of %s recipients", len(refused), len(self.recipients))

    def _connected(self) -> smtplib.SMTP:
        context = ssl.create_default_context()
        if self.is_tls:
            return smtplib.SMTP_SSL(self.host, self.port, timeout=TIMEOUT_SECONDS, context=context)
        server = smtplib.SMTP(self.host, self.port, timeout=TIMEOUT_SECONDS)
        if not is_loopback(self.host):
            try:
                server.starttls(context=context)  # raises if the server does not offer it
            except BaseException:
                server.close()
                raise
        return server
