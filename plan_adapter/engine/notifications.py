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
from plan_adapter.model.language import tr
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
{%- macro age(seconds) -%}
{%- if seconds < 120 -%}{{ seconds | int }} s
{%- elif seconds < 7200 -%}{{ (seconds / 60) | int }} min
{%- elif seconds < 172800 -%}{{ (seconds / 3600) | int }} h
{%- else -%}{{ (seconds / 86400) | int }} d
{%- endif -%}
{%- endmacro -%}
{%- set fact = event.payload -%}
{%- set link = (fact.link | default('', true) | string).split() | first | default('') -%}
"""
_QUESTION = "fact.asks == 'question'"
_OUTCOME = "fact.asks == 'outcome'"
_WHO = "{{ who }}"


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


def notifications() -> tuple[Notification, ...]:
    """Return every automation, with its texts in the language of the reader."""
    return (_gate_opened(), _gate_unanswered(), _gate_escalated(), _gate_answered(), _run_not_completed())


def _gate_opened() -> Notification:
    title = _choose((_QUESTION, tr("Question")), (_OUTCOME, tr("Outcome needed")), ("", tr("Approval needed")))
    waits = _choose(
        (_QUESTION, tr("{who} waits for an answer.", who=_WHO)),
        (_OUTCOME, tr("{who} waits for the outcome of a call.", who=_WHO)),
        ("fact.step", tr("{who} waits for an approval of its own.", who=_WHO)),
        ("", tr("{who} waits for an approval.", who=_WHO)),
    )
    age = tr("It has waited for {age} already.", age="{{ age(fact.age_seconds) }}")
    return Notification(
        "plan-gate-opened",
        tr("Notifies people that a plan or step waits for an approval or an answer"),
        "plan.gate.*",
        ["plan.gate.opened"],
        tr("{title}: {place}", title=title, place=_place()),
        waits + _line_if("fact.age_seconds is number and fact.age_seconds >= 60", age) + _gate_lines(),
    )


def _gate_unanswered() -> Notification:
    title = _choose((_QUESTION, tr("Still waiting for an answer")), ("", tr("Still waiting for an approval")))
    waited = _choose(
        (_QUESTION, tr("{who} has waited for an answer for {age}.", who=_WHO, age="{{ age(waited) }}")),
        ("", tr("{who} has waited for an approval for {age}.", who=_WHO, age="{{ age(waited) }}")),
    )
    return Notification(
        "plan-gate-unanswered",
        tr("Reminds people that a plan or step still waits for an approval or an answer"),
        "plan.gate.*",
        ["plan.gate.answered", "plan.gate.expired"],
        tr("{title}: {place}", title=title, place=_place()),
        "{%- set before = fact.age_seconds if fact.age_seconds is number else 0 -%}\n"
        "{%- set waited = (firing.triggered - event.occurred).total_seconds() + before -%}\n" + waited + _gate_lines(),
        after=["plan.gate.opened"],
    )


def _gate_escalated() -> Notification:
    title = _choose((_QUESTION, tr("Escalated question")), ("", tr("Escalated approval")))
    return Notification(
        "plan-gate-escalated",
        tr("Tells people that a gate has waited so long that others may answer as well"),
        "plan.gate.*",
        ["plan.gate.escalated"],
        tr("{title}: {place}", title=title, place=_place()),
        tr("{who}: {message}.", who=_WHO, message="{{ plain(fact.message) }}") + _gate_lines(),
    )


def _gate_answered() -> Notification:
    by, decision, message = "{{ plain(fact.by, 120) }}", "{{ plain(fact.decision, 120) }}", "{{ plain(fact.message) }}"
    title = _choose(("fact.by", tr("Answered")), ("", tr("Not answered")))
    answered = _choose(
        ("fact.by", tr("{who} was answered by {by}: {decision}.", who=_WHO, by=by, decision=decision)),
        ("", tr("{who} got no answer: {message}.", who=_WHO, message=message)),
    )
    return Notification(
        "plan-gate-answered",
        tr("Tells people that a gate was answered or has expired, so that nobody answers again"),
        "plan.gate.*",
        ["plan.gate.answered", "plan.gate.expired"],
        tr("{title}: {place}", title=title, place=_place()),
        answered
        + _line_if("fact.note", tr("Note: {note}", note="{{ plain(fact.note) }}"))
        + _link(tr("The run"), tr("`plan runs` lists it.")),
    )


def _run_not_completed() -> Notification:
    plan = "{{ plain(fact.plan) }}"
    cause = _choose(("fact.cause", "{{ plain(fact.cause) }}"), ("", tr("The plan {plan} did not complete.", plan=plan)))
    left = tr("Left behind: {what}", what="{{ plain(left) }}")
    return Notification(
        "plan-run-not-completed",
        tr("Tells people that a run failed, was undone or stopped with an unknown outcome"),
        "plan.run.*",
        [
            *("plan.run.failed", "plan.run.partial", "plan.run.rolled_back", "plan.run.rollback_incomplete"),
            *("plan.run.timed_out", "plan.run.unknown_outcome"),
        ],
        "{{ plain(fact.outcome, 40) }}: {{ plain(fact.plan, 120) }}",
        f"{cause}\n{{%- for left in fact.left_behind | default([], true) %}}\n{left}\n{{%- endfor %}}"
        + _asked_by()
        + _link(tr("Read what happened"), tr("`plan runs` lists it.")),
    )


def _place() -> str:
    """Return the plan, and the step if there is one."""
    plan, step = "{{ plain(fact.plan, 120) }}", "{{ plain(fact.step, 120) }}"
    return _choose(("fact.step", tr("{plan}, step {step}", plan=plan, step=step)), ("", plan))


def _prologue() -> str:
    """Return the part that each template begins with: `plain`, `fact`, `link`, and `who` as the subject of a sentence."""
    plan, step = "{{ plain(fact.plan) }}", "{{ plain(fact.step) }}"
    who = _choose(("fact.step", tr("The step {step} of the plan {plan}", plan=plan, step=step)), ("", tr("The plan {plan}", plan=plan)))
    return f"{_PLAIN}{{%- set who -%}}{who}{{%- endset -%}}\n"


def _gate_lines() -> str:
    """Return the lines that name the requester, show the first screen of the gate, and say how to answer it."""
    screen = "\n{%- for line in fact.first_screen | default([], true) %}\n{{ plain(line) }}\n{%- endfor %}"
    digest = tr("Digest: {digest}", digest="{{ plain(fact.digest) | truncate(12, true, '', 0) }}")
    return _asked_by() + screen + _link(tr("Read it and answer"), tr("`plan gates` lists it.")) + _line_if("fact.digest", digest)


def _asked_by() -> str:
    return _line_if("fact.requested_by", tr("Asked by {who}.", who="{{ plain(fact.requested_by, 120) }}"))


def _link(title: str, otherwise: str) -> str:
    """Return the line with the link under `title`, or `otherwise` if there is none, and the command to type."""
    link = "{{ link.translate({60: '%3C', 62: '%3E', 123: '%7B', 124: '%7C', 125: '%7D'}) }}"
    command = tr("From a command line: `{command}`", command="{{ plain(fact.command) }}")
    return (
        "\n"
        + _choose(("link.startswith(('http://', 'https://'))", tr("{title}: {link}", title=title, link=link)), ("", otherwise))
        + _line_if("fact.command", command)
    )


def _choose(*texts: tuple[str, str]) -> str:
    """Return a template of the text whose condition is true first. The last one has no condition."""
    cases = "".join(f"{{% {'if' if number == 0 else 'elif'} {condition} %}}{text}" for number, (condition, text) in enumerate(texts[:-1]))
    return f"{cases}{{% else %}}{texts[-1][1]}{{% endif %}}"


def _line_if(condition: str, text: str) -> str:
    return f"\n{{%- if {condition} %}}\n{text}\n{{%- endif %}}"


@dataclass(frozen=True, slots=True)
class AppliedNotification:
    """An automation on the server after `apply_notifications`."""

    name: str
    description: str
    done: Literal["created", "updated"]
    is_enabled: bool


async def apply_notifications(blocks: Sequence[str], *, after: timedelta) -> list[AppliedNotification]:
    """Create or update, by name, every automation of `notifications` so that it notifies through `blocks` (type/name). Return them.

    `after` is how long a gate may be open before a reminder. One that was switched off on the server stays off. Raises UnknownBlockError.
    """
    async with get_client() as client:
        documents = await _notification_blocks(client)
        ids = [_find_block(name, documents).id for name in dict.fromkeys(blocks)]
        return [
            done for notification in notifications() for done in await _apply_one(client, automation_of(notification, ids, after=after))
        ]


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
    prologue = _prologue()
    send = {"type": "send-notification", "subject": prologue + notification.subject, "body": prologue + notification.body}
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
