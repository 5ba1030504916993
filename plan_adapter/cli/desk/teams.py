"""`Teams`: cards in a channel of Microsoft Teams, through the webhook of a workflow."""

import logging
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import httpx

from plan_adapter.cli.desk.notices import Notice, NotSentError
from plan_adapter.cli.desk.slack import retry_after
from plan_adapter.model.language import tr

TIMEOUT_SECONDS = 15.0
MAX_SCREEN_CHARACTERS = 6000
"""How much of the first screen a card shows. Teams refuses messages of more than 28 KB."""

POSTED = "posted"
"""The reference of a card. A webhook does not say which message it became, so nobody can change it."""

_is_posting: ContextVar[bool] = ContextVar("posting to Teams", default=False)
logging.getLogger("httpx").addFilter(lambda _record: not _is_posting.get())  # it logs the address of each request, which is a secret here

_REFUSES_ALL = frozenset({401, 403, 404, 405, 410, 429})
"""The statuses that every other card would get, too."""


@dataclass(frozen=True, slots=True)
class Teams:
    """A channel in Teams. Whoever knows the address of its webhook can post there."""

    webhook: str = field(repr=False)
    name: str = field(default="teams", init=False)
    label: str = field(default="Teams", init=False)

    async def send(self, notice: Notice) -> str:
        """Post a card. Raises NotSentError."""
        await self._post(notice)
        return POSTED

    async def update(self, reference: str, notice: Notice) -> None:
        """Post another card that says how far the gate is. Raises NotSentError."""
        await self._post(notice)

    async def _post(self, notice: Notice) -> None:
        content = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": _card(notice)}
        token = _is_posting.set(True)
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
                response = await client.post(self.webhook, json={"type": "message", "attachments": [content]})
        except httpx.HTTPError as error:  # its text may have the address, which is a secret
            raise NotSentError(f"Teams cannot be reached ({type(error).__name__})", pause=0.0) from None
        finally:
            _is_posting.reset(token)
        if not response.is_success:
            status = response.status_code
            pause = retry_after(response) if status in _REFUSES_ALL or status >= 500 else None
            raise NotSentError(f"the webhook of Teams answered with the status {status}", pause=pause)


def _card(notice: Notice) -> dict[str, Any]:
    """Return an Adaptive Card. Its texts are text runs, because a text block would read Markdown in them."""
    screen, _ = notice.screen_text(lambda text: len(text) <= MAX_SCREEN_CHARACTERS)
    return {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "fallbackText": notice.title,
        "body": [
            _lines([notice.title], weight="bolder", size="large"),
            *([_lines(notice.status, weight="bolder")] if notice.status else []),
            *([_lines(screen.split("\n"))] if screen and not notice.closing else []),
            _lines([notice.digest_line], isSubtle=True),
        ],
        "actions": [{"type": "Action.OpenUrl", "title": tr("Open at the desk"), "url": notice.link}],
        "msteams": {"width": "Full"},
    }


def _lines(lines: "list[str] | tuple[str, ...]", **style: str | bool) -> dict[str, Any]:
    """Return a container with a line of text for each of `lines`."""
    return {
        "type": "Container",
        "spacing": "medium",
        "items": [{"type": "RichTextBlock", "spacing": "none", "inlines": [{"type": "TextRun", "text": line, **style}]} for line in lines],
    }
