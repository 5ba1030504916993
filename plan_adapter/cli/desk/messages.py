"""`sending_messages`: tells chats and mailboxes about gates, and says in the same messages how they were answered."""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.headerregistry import Address
from urllib.parse import urlsplit

from plan_adapter.cli.desk.mail import Mail
from plan_adapter.cli.desk.notices import Channel, Notice, NotSentError, notice_of, shown_of
from plan_adapter.cli.desk.sign_in import SignInError, is_loopback, is_safe_address, person_name
from plan_adapter.cli.desk.slack import Slack
from plan_adapter.cli.desk.teams import Teams
from plan_adapter.cli.exit_codes import UsageError
from plan_adapter.cli.records import FIND_LIMIT
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Gate
from plan_adapter.model.errors import PlanAdapterError
from plan_adapter.runs.plan_approval import end_expired
from plan_adapter.store.gate_messages import CLOSED, GateMessage
from plan_adapter.store.store import PlanStore

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
"""How long a change of the store may stay unnoticed, and how often to look for messages that have to be tried again."""

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 5.0, 300.0
MIN_SIGNING_SECRET_CHARACTERS = 16

_SLACK_USER = re.compile(r"[UW][A-Z0-9]{2,30}")


@asynccontextmanager
async def sending_messages(channels: Sequence[Channel], store: PlanStore, settings: Settings, *, address: str) -> AsyncGenerator[None]:
    """Send the messages of each channel while the block runs. `address` is that of the desk.

    A channel that is away delays neither the others nor the desk.
    """
    tasks = [asyncio.create_task(Messenger(channel, store, settings, address).run()) for channel in channels]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class Messenger:
    """Sends and updates the messages of one channel.

    Each message is claimed in the store first, so of several desks one sends it. A desk that dies between sending a message and recording
    it leaves the claim, and a minute later the message is sent again.
    """

    channel: Channel
    store: PlanStore
    settings: Settings
    address: str
    clock: Callable[[], float] = time.monotonic
    _paused_until: float = field(default=0.0, init=False)
    _failures: int = field(default=0, init=False)  # of the whole channel, since it last worked
    _is_broken: bool = field(default=False, init=False)  # whether the last look at the store failed

    async def run(self) -> None:
        """Send and update messages until cancelled."""
        while True:
            try:
                await self.send_due()
                self._is_broken = False
                await self.store.changed(CHECK_SECONDS)
            except Exception as error:  # whatever happens, later messages have to be sent
                if not self._is_broken:
                    why = str(error) if isinstance(error, PlanAdapterError) else type(error).__name__  # others may have a secret in them
                    log.warning("messages to %s are delayed: %s", self.channel.label, why)
                self._is_broken = True
                await asyncio.sleep(CHECK_SECONDS)

    async def send_due(self) -> None:
        """Send every message that is missing, and update each whose gate has changed: first those that were sent already."""
        if self.clock() < self._paused_until:
            return
        # The messages first: a gate that another desk has sent a message about is then among the gates, unless it is closed.
        known = {message.gate_id: message for message in await self.store.gate_messages.unfinished(self.channel.name)}
        gates = {gate.id: gate for gate in await self._open_gates()}
        now = await self.store.now()
        for gate_id in sorted({**known, **gates}, key=lambda gate_id: gate_id not in known):
            message, gate = known.get(gate_id), gates.get(gate_id)
            shown = CLOSED if gate is None else shown_of(gate)
            is_due = message is None or (message.shown != shown and message.not_before <= now)
            if is_due and not await self._send(gate_id, "" if message is None else message.shown):
                return

    async def _open_gates(self) -> list[Gate]:
        """Close expired gates, and return the open ones."""
        found, now = await self.store.gates.find(limit=FIND_LIMIT), await self.store.now()
        if any(gate.is_over(now) for gate in found):
            await end_expired(self.store)
            found = await self.store.gates.find(limit=FIND_LIMIT)
        return found

    async def _send(self, gate_id: str, shown: str) -> bool:
        """Send or update one message, unless another process does. Return whether the channel takes others."""
        messages = self.store.gate_messages
        message = await messages.claim(gate_id, self.channel.name, shown=shown)
        if message is None:
            return True
        gate = await self.store.gates.get(gate_id)
        if gate.closed_at is not None and message.reference is None:  # answered before anybody was told
            await messages.record(message, shown=CLOSED, reference=None)
            return True
        notice = await notice_of(gate, self.store, self.settings, address=self.address)
        try:
            reference = message.reference
            if reference is None:
                reference = await self.channel.send(notice)
            else:
                await self.channel.update(reference, notice)
        except NotSentError as error:
            return await self._postpone(message, notice, error)
        await messages.record(message, shown=notice.shown, reference=reference)
        if self._failures:
            log.warning("%s works again", self.channel.label)
            self._failures = 0
        return True

    async def _postpone(self, message: GateMessage, notice: Notice, error: NotSentError) -> bool:
        """Try again later, unless the message is lost. Return whether the channel takes other messages."""
        if error.is_lost:
            log.warning("the message about gate %s can no longer be updated: %s", message.gate_id, error)
            await self.store.gate_messages.record(message, shown=notice.shown, reference=message.reference)
            return True
        if error.pause is None:
            if message.failures == 0:
                log.warning("the message about gate %s was not sent, and is tried again: %s", message.gate_id, error)
            await self.store.gate_messages.postpone(message, seconds=_delay(message.failures))
            return True
        await self.store.gate_messages.postpone(message, seconds=0.0)
        self._paused_until = self.clock() + max(error.pause, _delay(self._failures))
        if self._failures == 0:
            log.warning("%s gets no messages about gates now; they are sent once it works again: %s", self.channel.label, error)
        self._failures += 1
        return False


def _delay(failures: int) -> float:
    return min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures, 10))


def channels_of(settings: Settings) -> list[Channel]:
    """Return the channels that the settings name. Raises UsageError for settings that are wrong or incomplete."""
    found: list[Channel | None] = [_slack_of(settings), _teams_of(settings), _mail_of(settings)]
    channels = [channel for channel in found if channel is not None]
    if channels and settings.desk_url is None:
        names = ", ".join(channel.label for channel in channels)
        raise UsageError(f"messages ({names}) link to the desk: set PLAN_ADAPTER_DESK_URL to the address that people use")
    return channels


def _slack_of(settings: Settings) -> Slack | None:
    """Return the conversation in Slack that the settings name, or None. Raises UsageError."""
    token, conversation, secret, users = (
        settings.desk_slack_token,
        settings.desk_slack_channel,
        settings.desk_slack_signing_secret,
        settings.desk_slack_users,
    )
    if (token is None) != (conversation is None):
        raise UsageError("PLAN_ADAPTER_DESK_SLACK_TOKEN and PLAN_ADAPTER_DESK_SLACK_CHANNEL belong together: set both")
    if (secret is None) != (not users):
        raise UsageError("PLAN_ADAPTER_DESK_SLACK_SIGNING_SECRET and PLAN_ADAPTER_DESK_SLACK_USERS belong together: set both, for buttons")
    if token is None or conversation is None:
        if secret is not None:
            raise UsageError("buttons in Slack need messages: set PLAN_ADAPTER_DESK_SLACK_TOKEN and PLAN_ADAPTER_DESK_SLACK_CHANNEL")
        return None
    if not is_safe_address(settings.desk_slack_api):
        raise UsageError("PLAN_ADAPTER_DESK_SLACK_API must be an https:// address")
    if not _is_one_word(token.get_secret_value()):
        raise UsageError("PLAN_ADAPTER_DESK_SLACK_TOKEN is no token: copy the `Bot User OAuth Token` of the app")
    if secret is not None and len(secret.get_secret_value()) < MIN_SIGNING_SECRET_CHARACTERS:
        raise UsageError("PLAN_ADAPTER_DESK_SLACK_SIGNING_SECRET is too short: copy the `Signing Secret` of the app")
    for user_id, name in users.items():
        _check_user(user_id, name)
    return Slack(
        token.get_secret_value(), conversation, settings.desk_slack_api, None if secret is None else secret.get_secret_value(), users
    )


def _check_user(user_id: str, name: str) -> None:
    if not _SLACK_USER.fullmatch(user_id):
        raise UsageError(f"PLAN_ADAPTER_DESK_SLACK_USERS: {json.dumps(user_id)} is no id of a Slack user, such as `U024BE7LH`")
    try:
        person_name(name)
    except SignInError as error:
        raise UsageError(f"PLAN_ADAPTER_DESK_SLACK_USERS: the name of {user_id} is empty, too long, or has invisible characters") from error


def _teams_of(settings: Settings) -> Teams | None:
    if settings.desk_teams_webhook is None:
        return None
    webhook = settings.desk_teams_webhook.get_secret_value()
    if not is_safe_address(webhook) or not _is_one_word(webhook):
        raise UsageError("PLAN_ADAPTER_DESK_TEAMS_WEBHOOK must be the https:// address of the workflow's webhook")
    return Teams(webhook)


def _mail_of(settings: Settings) -> Mail | None:
    server, sender, recipients = settings.desk_mail_server, settings.desk_mail_from, settings.desk_mail_to
    user, password = settings.desk_mail_user, settings.desk_mail_password
    given = [server is not None, sender is not None, bool(recipients)]
    if any(given) != all(given):
        raise UsageError("PLAN_ADAPTER_DESK_MAIL_SERVER, PLAN_ADAPTER_DESK_MAIL_FROM and …_MAIL_TO belong together: set all three")
    if (user is None) != (password is None):
        raise UsageError("PLAN_ADAPTER_DESK_MAIL_USER and PLAN_ADAPTER_DESK_MAIL_PASSWORD belong together: set both")
    if server is None or sender is None:
        if user is not None:
            raise UsageError("PLAN_ADAPTER_DESK_MAIL_USER needs PLAN_ADAPTER_DESK_MAIL_SERVER")
        return None
    if user is not None and password is not None and not (user.isascii() and password.get_secret_value().isascii()):
        raise UsageError("PLAN_ADAPTER_DESK_MAIL_USER and PLAN_ADAPTER_DESK_MAIL_PASSWORD take only ASCII characters, as SMTP does")
    host, port, is_tls = _mail_server(server)
    return Mail(
        host,
        port,
        is_tls,
        _mail_address("PLAN_ADAPTER_DESK_MAIL_FROM", sender),
        tuple(_mail_address("PLAN_ADAPTER_DESK_MAIL_TO", recipient) for recipient in recipients),
        user,
        None if password is None else password.get_secret_value(),
    )


def _mail_server(server: str) -> tuple[str, int, bool]:
    """Return the host, the port, and whether the connection begins with TLS. Raises UsageError."""
    try:
        parts = urlsplit(server)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    else:
        if host and parts.scheme in ("smtp", "smtps") and "@" not in parts.netloc and not parts.path.strip("/"):
            default = 465 if parts.scheme == "smtps" else 25 if is_loopback(host) else 587
            return host, port or default, parts.scheme == "smtps"
    raise UsageError("PLAN_ADAPTER_DESK_MAIL_SERVER must be `smtps://host` or `smtp://host:587`, without a name and a password in it")


def _mail_address(setting: str, text: str) -> Address:
    try:
        address = Address(addr_spec=text)
    except Exception as error:  # the parser raises several kinds
        raise UsageError(f"{setting}: {json.dumps(text)} is no e-mail address, such as `plans@example.org`") from error
    if not address.username or not address.domain or not text.isprintable():
        raise UsageError(f"{setting}: {json.dumps(text)} is no e-mail address, such as `plans@example.org`")
    return address


def _is_one_word(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
