"""Automations of a Prefect server that notify people: of gates, and of runs that did not complete."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.events.schemas.automations import AutomationCore

from plan_adapter.model.errors import PlanAdapterError
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.readable import visible

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import BlockDocument

MIN_DELAY = timedelta(seconds=10)
"""Prefect's minimum for an automation that waits for something not to happen."""
PAGE_SIZE = 200


class UnknownBlockError(PlanAdapterError):
    """The server has no notification block with this name."""


# Prefect renders a template once, so the text of an event is never evaluated. But it comes from a plan, so `plain` removes what chats,
# e-mail or a custom webhook would read as a mention, a link, HTML or the name of a secret.
_PLAIN = """\
{%- macro plain(text, most=400) -%}
{{ (text | string | truncate(most, true)).translate({9: ' ', 10: ' ', 13: ' ', 8232: ' ', 8233: ' ',
60: '＜', 62: '＞', 64: '＠', 91: '［', 93: '］', 123: '｛', 125: '｝'}) | replace('://', '：//') }}
{%- endmacro -%}
{%- set fact = event.payload -%}
{%- set link = (fact.link | default('', true) | string).split() | first | default('') -%}
"""
_PLACE = "{{ plain(fact.plan, 120) }}{% if fact.step %}, step {{ plain(fact.step, 120) }}{% endif %}"
_SUBJECT_OF_STEP = "{% if fact.step %}The step {{ plain(fact.step) }} of the{% else %}The{% endif %} plan {{ plain(fact.plan) }}"
_ASKED = """
{%- if fact.requested_by %}
Asked by {{ plain(fact.requested_by, 120) }}.
{%- endif %}
{%- for line in fact.first_screen | default([], true) %}
{{ plain(line) }}
{%- endfor %}"""


def _link(title: str, otherwise: str) -> str:
    """Return the lines with the link under `title`, or `otherwise` if there is none, and the command to type."""
    return (
        "\n{%- if link.startswith(('http://', 'https://')) %}\n"
        + title
        + ": {{ link.translate({60: '%3C', 62: '%3E', 123: '%7B', 124: '%7C', 125: '%7D'}) }}\n{%- else %}\n"
        + otherwise
        + "\n{%- endif %}\n{%- if fact.command %}\nFrom a command line: `{{ plain(fact.command) }}`\n{%- endif %}"
    )


_ANSWER_LINK = _link("Read it and answer", "`plan gates` lists it.")
_DIGEST = """
{%- if fact.digest %}
Digest: {{ plain(fact.digest) | truncate(12, true, '', 0) }}
{%- endif %}"""


@dataclass(frozen=True, slots=True)
class Notification:
    """An automation: the events of which it notifies, and its subject and body as Jinja templates."""

    name: str
    description: str
    resource: str
    expect: Sequence[str]
    subject: str
    body: str
    after: Sequence[str] = ()  # with these: notify if, after such an event, none of `expect` comes in time


NOTIFICATIONS = (
    Notification(
        "plan-gate-opened",
        "Notifies people that a plan or step waits for an approval or an answer",
        "plan.gate.*",
        ["plan.gate.opened"],
        "{% if fact.asks == 'question' %}Question{% elif fact.asks == 'outcome' %}Outcome needed{% else %}Approval needed{% endif %}: "
        + _PLACE,
        _SUBJECT_OF_STEP
        + " waits for {% if fact.asks == 'question' %}an answer{% elif fact.asks == 'outcome' %}the outcome of a call"
        + "{% elif fact.step %}an approval of its own{% else %}an approval{% endif %}."
        + """
{%- if fact.age_seconds is number and fact.age_seconds >= 60 %}
It has waited for {{ fact.age_seconds | humanize_naturaldelta }} already.
{%- endif %}"""
        + _ASKED
        + _ANSWER_LINK
        + _DIGEST,
    ),
    Notification(
        "plan-gate-unanswered",
        "Reminds people that a plan or step still waits for an approval or an answer",
        "plan.gate.*",
        ["plan.gate.answered", "plan.gate.expired"],
        "Still waiting for an {{ 'answer' if fact.asks == 'question' else 'approval' }}: " + _PLACE,
        "{%- set before = fact.age_seconds if fact.age_seconds is number else 0 -%}\n"
        "{%- set waited = (firing.triggered - event.occurred).total_seconds() + before -%}\n"
        + _SUBJECT_OF_STEP
        + " has waited for an {{ 'answer' if fact.asks == 'question' else 'approval' }} for {{ waited | humanize_naturaldelta }}."
        + _ASKED
        + _ANSWER_LINK
        + _DIGEST,
        after=["plan.gate.opened"],
    ),
    Notification(
        "plan-gate-answered",
        "Tells people that a gate was answered or has expired, so that nobody answers again",
        "plan.gate.*",
        ["plan.gate.answered", "plan.gate.expired"],
        "{% if fact.by %}Answered{% else %}Not answered{% endif %}: " + _PLACE,
        _SUBJECT_OF_STEP
        + " {% if fact.by %}was answered by {{ plain(fact.by, 120) }}: {{ plain(fact.decision, 120) }}."
        + "{% else %}got no answer: {{ plain(fact.message) }}.{% endif %}"
        + """
{%- if fact.note %}
Note: {{ plain(fact.note) }}
{%- endif %}"""
        + _link("The run", "`plan runs` lists it."),
    ),
    Notification(
        "plan-run-not-completed",
        "Tells people that a run failed, was undone or stopped with an unknown outcome",
        "plan.run.*",
        [
            *("plan.run.failed", "plan.run.partial", "plan.run.rolled_back", "plan.run.rollback_incomplete"),
            *("plan.run.timed_out", "plan.run.unknown_outcome"),
        ],
        "{{ plain(fact.outcome, 40) }}: {{ plain(fact.plan, 120) }}",
        "{% if fact.cause %}{{ plain(fact.cause) }}{% else %}The plan {{ plain(fact.plan) }} did not complete.{% endif %}"
        + """
{%- for left in fact.left_behind | default([], true) %}
Left behind: {{ plain(left) }}
{%- endfor %}
{%- if fact.requested_by %}
Asked by {{ plain(fact.requested_by, 120) }}.
{%- endif %}"""
        + _link("Read what happened", "`plan runs` lists it."),
    ),
)


@dataclass(frozen=True, slots=True)
class AppliedNotification:
    """An automation on the server after `apply_notifications`."""

    name: str
    description: str
    done: Literal["created", "updated"]
    is_enabled: bool


async def apply_notifications(blocks: Sequence[str], *, after: timedelta) -> list[AppliedNotification]:
    """Create or update, by name, every automation of NOTIFICATIONS so that it notifies through `blocks` (type/name). Return them.

    `after` is how long a gate may be open before a reminder. One that was switched off on the server stays off. Raises UnknownBlockError.
    """
    async with get_client() as client:
        documents = await _notification_blocks(client)
        ids = [_find_block(name, documents).id for name in dict.fromkeys(blocks)]
        return [done for notification in NOTIFICATIONS for done in await _apply_one(client, automation_of(notification, ids, after=after))]


def automation_of(notification: Notification, block_ids: Sequence[UUID], *, after: timedelta) -> AutomationCore:
    """Return the automation, with an action for each block, and `after` as the delay of a reminder."""
    trigger: Mapping[str, Any] = {
        "type": "event",
        "posture": "Proactive" if notification.after else "Reactive",
        "match": {"prefect.resource.id": notification.resource},
        "for_each": ["prefect.resource.id"],
        "after": notification.after,
        "expect": notification.expect,
        "threshold": 1,
        "within": after if notification.after else 0,
    }
    send = {"type": "send-notification", "subject": _PLAIN + notification.subject, "body": _PLAIN + notification.body}
    return AutomationCore.model_validate(
        {
            "name": notification.name,
            "description": notification.description,
            "tags": ["plan-adapter"],
            "trigger": trigger,
            "actions": [send | {"block_document_id": block_id} for block_id in block_ids],
        }
    )


async def _apply_one(client: "PrefectClient", automation: AutomationCore) -> list[AppliedNotification]:
    # Names are not unique on the server. A second automation with this name, created by hand, would notify through another block.
    existing = await client.read_automations_by_name(automation.name)
    for known in existing:
        await client.update_automation(known.id, automation.model_copy(update={"enabled": known.enabled}))
    if not existing:
        await client.create_automation(automation)
        return [AppliedNotification(automation.name, automation.description, "created", is_enabled=True)]
    return [AppliedNotification(automation.name, automation.description, "updated", known.enabled) for known in existing]


async def _notification_blocks(client: "PrefectClient") -> "dict[str, BlockDocument]":
    """Return every block on the server that can send notifications, by type/name."""
    found: dict[str, BlockDocument] = {}
    for offset in range(0, sys.maxsize, PAGE_SIZE):
        page = await client.read_block_documents(limit=PAGE_SIZE, offset=offset, include_secrets=False)
        for document in page:
            schema, kind = document.block_schema, document.block_type
            if schema is not None and kind is not None and "notify" in schema.capabilities:
                found[f"{kind.slug}/{document.name}"] = document
        if len(page) < PAGE_SIZE:
            break
    return found


def _find_block(name: str, documents: "dict[str, BlockDocument]") -> "BlockDocument":
    if name in documents:
        return documents[name]
    known = did_you_mean(name, documents) if documents else "the server has none: create one in its UI, as in Blocks > Slack Webhook"
    raise UnknownBlockError(f"no notification block is called `{visible(name)}`: {visible(known)}")
