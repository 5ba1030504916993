"""`Slack`: messages with buttons, and the signed requests that Slack sends when somebody presses one.

It needs two methods of Slack's API and one HMAC, so it uses httpx and the standard library instead of Slack's SDK.
"""

import hashlib
import hmac
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, cast
from urllib.parse import parse_qs

import httpx
from fastapi import BackgroundTasks, Request
from fastapi.responses import PlainTextResponse, Response

from plan_adapter.cli.desk.desk_answers import record_answer
from plan_adapter.cli.desk.notices import Notice, NotSentError
from plan_adapter.cli.desk.protection import FailedProofs
from plan_adapter.gates.identity import identity_of_sign_in
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Answer, Decision
from plan_adapter.model.errors import InvalidAnswerError, NotApprovedError, PlanAdapterError, RunConflictError
from plan_adapter.model.language import tr
from plan_adapter.model.readable import cut, one_line
from plan_adapter.store.store import PlanStore

log = logging.getLogger(__name__)

ACTIONS_PATH = "/slack/actions"
"""Where Slack sends what people press: the request URL of the app."""

TIMEOUT_SECONDS = 15.0
MAX_AGE_SECONDS = 300
"""How old a signed request may be, as Slack's documentation recommends."""

MAX_HEADER_CHARACTERS, MAX_SECTION_CHARACTERS = 150, 3000
NOTE_OF_REJECTION = "in Slack"
"""The note of a rejection, because a button takes no text."""

_LOST = frozenset({"message_not_found", "cant_update_message", "edit_window_closed", "is_archived", "channel_not_found"})
"""The errors after which a message cannot be updated any more."""

_WHOLE_CHANNEL = frozenset(
    {
        *("ratelimited", "invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "no_permission"),
        *("missing_scope", "not_in_channel", "channel_not_found", "is_archived", "restricted_action", "ekm_access_denied"),
        *("internal_error", "fatal_error", "service_unavailable", "request_timeout", "team_access_not_granted"),
    }
)
"""The errors that every other message would get, too."""

_VALUE = re.compile(r"([0-9a-zA-Z-]{8,64}) ([0-9a-f]{64})")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_DECISIONS: Mapping[str, Decision] = {"approve": "approve", "reject": "reject"}


@dataclass(frozen=True, slots=True)
class Press:
    """A button that somebody pressed in Slack."""

    user_id: str
    channel_id: str
    decision: Decision
    gate_id: str
    approval_digest: str


@dataclass(frozen=True, slots=True)
class Slack:
    """One conversation in Slack. With a `signing_secret`, its messages have buttons for the people in `users`."""

    token: str = field(repr=False)
    conversation: str
    api: str
    signing_secret: str | None = field(default=None, repr=False)
    users: Mapping[str, str] = field(default_factory=dict[str, str])  # the names of approvers, by the ids of Slack's users
    name: str = field(default="slack", init=False)
    label: str = field(default="Slack", init=False)

    async def send(self, notice: Notice) -> str:
        """Post a message, and return its conversation and its time, which identify it. Raises NotSentError."""
        asked = {"channel": self.conversation, "unfurl_links": False, "unfurl_media": False, **self._message(notice)}
        posted = await self._call("chat.postMessage", asked, lost=frozenset())
        return f"{posted.get('channel')}:{posted.get('ts')}"

    async def update(self, reference: str, notice: Notice) -> None:
        """Replace what the message says. Raises NotSentError."""
        channel_id, _, at = reference.partition(":")
        await self._call("chat.update", {"channel": channel_id, "ts": at, **self._message(notice)}, lost=_LOST)

    async def tell(self, press: Press, text: str) -> None:
        """Show a text only to the person who pressed a button. Raises NotSentError.

        It goes to the API, and not to the `response_url` of the request, so no request decides where the desk connects to.
        """
        told = {"channel": press.channel_id, "user": press.user_id, "text": escaped(text), "parse": "none", "link_names": False}
        await self._call("chat.postEphemeral", told, lost=frozenset())

    def is_signed(self, request: Request, body: bytes) -> bool:
        """Return whether Slack signed this request in the last five minutes."""
        times, signatures = request.headers.getlist("x-slack-request-timestamp"), request.headers.getlist("x-slack-signature")
        if self.signing_secret is None or len(times) != 1 or len(signatures) != 1 or not _TIMESTAMP.fullmatch(times[0]):
            return False
        signature = sign(self.signing_secret, times[0], body)
        is_right = hmac.compare_digest(signature.encode(), signatures[0].encode("latin-1"))
        return is_right and abs(time.time() - int(times[0])) <= MAX_AGE_SECONDS

    def _message(self, notice: Notice) -> dict[str, Any]:
        """Return the arguments that all methods take: blocks, and the text of notifications.

        Texts of plans are `plain_text`, which has no formatting, links and mentions, and escaped all the same.
        """
        screen, is_whole = notice.screen_text(lambda text: len(escaped(text)) < MAX_SECTION_CHARACTERS)
        blocks: list[dict[str, Any]] = [{"type": "header", "text": _plain(notice.title, MAX_HEADER_CHARACTERS)}]
        if screen:
            blocks.append({"type": "section", "text": _plain(screen, MAX_SECTION_CHARACTERS)})
        if notice.status:
            blocks.append({"type": "section", "text": _plain("\n".join(notice.status), MAX_SECTION_CHARACTERS)})
        blocks.append({"type": "context", "elements": [_plain(notice.digest_line, MAX_SECTION_CHARACTERS)]})
        buttons = self._buttons(notice) if is_whole else []  # nobody approves what the message does not show
        link = {"type": "button", "action_id": "open", "text": _plain(tr("Open at the desk"), 75), "url": notice.link}
        blocks.append({"type": "actions", "elements": [*buttons, link]})
        text = escaped("\n".join([notice.title, *notice.status]))
        return {"text": text, "blocks": blocks, "parse": "none", "link_names": False}

    def _buttons(self, notice: Notice) -> list[dict[str, Any]]:
        if self.signing_secret is None or not notice.takes_slack:
            return []
        value = f"{notice.gate_id} {notice.approval_digest}"  # says what is answered; who answers is in the signed request
        approve = {"type": "button", "action_id": "approve", "text": _plain(tr("Approve"), 75), "style": "primary", "value": value}
        if notice.is_irreversible:
            approve["confirm"] = {
                "title": _plain(tr("Approve?"), 100),
                "text": _plain(tr("Something in it cannot be undone."), 300),
                "confirm": _plain(tr("Approve"), 30),
                "deny": _plain(tr("Cancel"), 30),
                "style": "danger",
            }
        return [approve, {"type": "button", "action_id": "reject", "text": _plain(tr("Reject"), 75), "style": "danger", "value": value}]

    async def _call(self, method: str, arguments: Mapping[str, Any], *, lost: frozenset[str]) -> dict[str, Any]:
        """Call a method of the API, and return its answer. Raises NotSentError; `lost` are the errors after which no retry helps."""
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json; charset=utf-8"}
        body = json.dumps(arguments, ensure_ascii=False).encode()
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
                response = await client.post(f"{self.api.rstrip('/')}/{method}", content=body, headers=headers)
        except httpx.HTTPError as error:
            raise NotSentError(f"Slack cannot be reached ({type(error).__name__})", pause=0.0) from None
        if response.status_code == 429 or response.status_code >= 500:
            raise NotSentError(f"Slack answered {method} with the status {response.status_code}", pause=retry_after(response))
        try:
            found: object = response.json()
        except ValueError:
            found = None
        answer = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        if answer.get("ok") is True:
            return answer
        error = cut(one_line(str(answer.get("error", f"status {response.status_code}"))), 100)
        is_lost = error in lost
        pause = retry_after(response) if error in _WHOLE_CHANNEL and not is_lost else None
        raise NotSentError(f"Slack answered {method} with `{error}`", pause=pause, is_lost=is_lost)


class SlackActions:
    """Takes the requests that Slack sends when people press buttons, and answers gates in their names."""

    def __init__(self, slack: Slack, store: PlanStore, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Answer the gates of `store`."""
        self._slack = slack
        self._store = store
        self._settings = settings
        self._refused = FailedProofs(clock=clock)

    async def receive(self, request: Request) -> Response:
        """Check a request of Slack and acknowledge it at once, as Slack expects within three seconds. The answer is recorded after that.

        Requests that are not signed are not counted: all come from one address, that of a proxy, so a limit would lock out Slack.
        """
        body = await request.body()
        if not self._slack.is_signed(request, body):
            return PlainTextResponse("the request is not signed by Slack, or too old", status_code=401)
        tasks = BackgroundTasks()
        if (press := press_in(body)) is not None:
            tasks.add_task(self._answer, press)
        return Response(background=tasks)

    async def _answer(self, press: Press) -> None:
        """Record the answer, and tell the person why not if it is refused. The message itself is updated by the sender of messages."""
        if wait := self._refused.count(press.user_id):
            await self._tell(press, tr("Too many of your answers were refused. Try again in {seconds} s.", seconds=ceil(wait)))
            return
        by = self._slack.users.get(press.user_id)
        if by is None:
            unknown = tr("Nobody here knows you as {user}: PLAN_ADAPTER_DESK_SLACK_USERS has to name you.", user=press.user_id)
            await self._tell(press, unknown)
            return
        try:
            said = await self._record(press, by)
        except RunConflictError as error:
            said = tr("Your answer was not recorded: {why}.", why=str(error))
        except (InvalidAnswerError, NotApprovedError) as error:
            await self._tell(press, tr("Your answer was not recorded: {why}.", why=str(error)))
            return
        except PlanAdapterError as error:
            log.warning("an answer from Slack was not recorded: %s", error)
            said = tr("Your answer was not recorded, because the desk cannot use its store now. Try again.")
        self._refused.forgive(press.user_id)
        await self._tell(press, said)

    async def _record(self, press: Press, by: str) -> str:
        gate = await self._store.gates.get(press.gate_id)
        if gate.kind != "approval":
            raise InvalidAnswerError("this gate is answered at the desk")
        note = NOTE_OF_REJECTION if press.decision == "reject" else ""
        answer = Answer(press.decision, by, note=note, digest=press.approval_digest)
        return await record_answer(answer, gate, identity_of_sign_in(by, "slack"), self._store, self._settings)

    async def _tell(self, press: Press, text: str) -> None:
        try:
            await self._slack.tell(press, text)
        except NotSentError as error:
            log.warning("a person was not told what became of their answer: %s", error)


def press_in(body: bytes) -> Press | None:
    """Return the button that a request of Slack reports, or None if it reports something else, such as a link that somebody opened."""
    try:
        found: object = json.loads(parse_qs(body.decode("utf-8"), strict_parsing=True)["payload"][0])
        payload = cast("dict[str, Any]", found)
        (action,) = payload["actions"]
        decision, value = _DECISIONS[action["action_id"]], _VALUE.fullmatch(action["value"])
        user_id, channel_id = payload["user"]["id"], payload["channel"]["id"]
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    if payload.get("type") != "block_actions" or value is None or not (isinstance(user_id, str) and isinstance(channel_id, str)):
        return None
    return Press(user_id, channel_id, decision, value[1], value[2])


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a request, as Slack makes it."""
    return "v0=" + hmac.new(secret.encode(), b"v0:" + timestamp.encode() + b":" + body, hashlib.sha256).hexdigest()


def escaped(text: str) -> str:
    """Return `text` without Slack's control characters, with which links and mentions begin."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def retry_after(response: httpx.Response) -> float:
    """Return for how many seconds a server asks to wait, or 0.0 if it does not say."""
    asked = response.headers.get("retry-after", "")
    return float(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else 0.0


def _plain(text: str, most: int) -> dict[str, Any]:
    """Return a text object with at most `most` characters."""
    kept, size = len(text), 0
    for index, character in enumerate(text):
        size += len(escaped(character))
        if size >= most:
            kept = index
            break
    shown = text if kept == len(text) else cut(text, kept) + "…"
    return {"type": "plain_text", "text": escaped(shown), "emoji": False}
