"""`Notice`: what a message in a chat or an e-mail says about a gate. `Channel`: where `plan desk` sends it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from plan_adapter.cli.approval_state import answered_in_words
from plan_adapter.cli.desk.gate_pages import is_irreversible
from plan_adapter.cli.records import gate_place
from plan_adapter.cli.verbs.gates import who_may_answer
from plan_adapter.gates.approval import why_nobody_may_answer
from plan_adapter.gates.gate import request_of
from plan_adapter.gates.quorum import progress_in_words
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Approval, Gate, GateEnd, GatePolicy
from plan_adapter.model.language import later, tr
from plan_adapter.model.readable import cut, one_line, visible
from plan_adapter.runs.answers import GateAnswers
from plan_adapter.store.gate_messages import CLOSED
from plan_adapter.store.store import PlanStore
from plan_adapter.text.commands import SHOWN_DIGITS
from plan_adapter.text.gate_text import at_minute, first_screen_lines

MAX_NAME_CHARACTERS = 120
MAX_NOTE_CHARACTERS = 500

_TITLES = {"approval": later("Approval needed"), "question": later("Question"), "outcome": later("Outcome needed")}

_ENDS: dict[GateEnd, str] = {
    "expired": later("nobody answered in time"),
    "cancelled": later("its run was cancelled"),
    "superseded": later("a new version replaced it"),
}
"""Why a gate was closed without an answer."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What a message says about a gate, as plain text in which no address can become a link. `link` is the page at the desk."""

    gate_id: str
    approval_digest: str
    shown: str  # how far the gate is: what `GateMessage.shown` records
    title: str
    screen: tuple[str, ...]  # the lines of the first screen
    progress: str  # whom the gate waits for, and how many of several approvals it has; empty if anybody may answer
    closing: tuple[str, ...]  # how the gate was answered, and the note; empty while it is open
    link: str
    takes_slack: bool  # whether its policy lets people answer in Slack
    is_irreversible: bool

    @property
    def digest_line(self) -> str:
        """The beginning of the digest, which other places show as well."""
        return tr("Digest: {digest}", digest=self.approval_digest[:SHOWN_DIGITS])

    @property
    def status(self) -> tuple[str, ...]:
        """Whom the gate waits for, or how it was answered. Empty if neither is to be said."""
        return self.closing or ((self.progress,) if self.progress else ())

    def screen_text(self, fits: Callable[[str], bool]) -> tuple[str, bool]:
        """Return as many lines of the first screen as fit, and whether these are all."""
        shown, more = [*self.screen], list[str]()
        while shown and not fits("\n".join([*shown, *more])):
            shown.pop()
            more = [tr("… it continues at the desk")]
        return "\n".join([*shown, *more]), not more


class NotSentError(Exception):
    """A channel did not take a message. The text has no secrets.

    `pause`: everything on the channel has to wait so many seconds; 0: for as long as the sender decides; None: only this message failed.
    `is_lost`: the message no longer exists, so it can never be updated.
    """

    def __init__(self, message: str, *, pause: float | None = None, is_lost: bool = False) -> None:
        """Say why, without addresses and tokens."""
        super().__init__(message)
        self.pause = pause
        self.is_lost = is_lost


class Channel(Protocol):
    """A place to which messages about gates are sent: a chat, or mailboxes."""

    @property
    def name(self) -> str:
        """What the store records as the channel of a message."""
        ...

    @property
    def label(self) -> str:
        """What people call it."""
        ...

    async def send(self, notice: Notice) -> str:
        """Send a message, and return the reference by which the channel knows it. Raises NotSentError."""
        ...

    async def update(self, reference: str, notice: Notice) -> None:
        """Let a message, or another one that follows it, say what `notice` says. Raises NotSentError."""
        ...


def shown_of(gate: Gate) -> str:
    """Return how far `gate` is, which its messages have to show: its approvals so far, who may answer now, or that it is closed."""
    if gate.closed_at is not None:
        return CLOSED
    gate_policy = gate.gate_policy
    changes = f".{len(gate_policy.delegations)}{'e' if gate_policy.is_escalated else ''}"
    return f"{len(gate.agreements)}{changes if changes != '.0' else ''}"


async def notice_of(gate: Gate, store: PlanStore, settings: Settings, *, address: str) -> Notice:
    """Return the content of a message about `gate` now. `address` is that of the desk."""
    answers = GateAnswers(store, settings)
    gate_policy = await answers.policy_of(request_of(gate))
    closing = () if gate.closed_at is None else await _closing(gate, store, answers)
    return Notice(
        gate.id,
        gate.approval_digest,
        shown_of(gate),
        _title(gate),
        tuple(_unlinked(visible(line)) for line in first_screen_lines(gate.text)),
        _unlinked(_progress(gate, gate_policy)),
        tuple(map(_unlinked, closing)),
        f"{address}/gates/{gate.id}",
        _takes_slack(gate, gate_policy),
        is_irreversible(gate),
    )


def _takes_slack(gate: Gate, gate_policy: GatePolicy) -> bool:
    if gate.kind != "approval" or gate.closed_at is not None or why_nobody_may_answer(gate_policy) is not None:
        return False
    return gate_policy.known_by is None or "slack" in gate_policy.known_by


def _progress(gate: Gate, gate_policy: GatePolicy) -> str:
    if gate_policy.quorum > 1:
        return progress_in_words(gate_policy, gate.agreements)
    if gate_policy.approvers is None:
        return ""
    return tr("It waits for {names}.", names=who_may_answer(replace(gate, gate_policy=gate_policy)))


def _title(gate: Gate) -> str:
    title = tr(_TITLES[gate.kind])
    if gate.closed_at is not None:
        title = tr("Not answered") if gate.end in _ENDS else tr("Answered")
    place = cut(one_line(gate.name), MAX_NAME_CHARACTERS)
    if gate.step_id is not None:
        place = tr("{plan}, step {step}", plan=place, step=cut(one_line(gate_place(gate)), MAX_NAME_CHARACTERS))
    return _unlinked(tr("{title}: {place}", title=title, place=place))


async def _closing(gate: Gate, store: PlanStore, answers: GateAnswers) -> tuple[str, ...]:
    """Return how a closed gate was answered, and the note, if there is one."""
    assert gate.closed_at is not None
    when, answer = at_minute(gate.closed_at), await store.gates.answer_to(gate.id)
    if (resolution := await answers.resolution_at(gate)) is not None:
        who = f"{one_line(resolution.by or '')} ({resolution.known_by})"
        return _with_note(tr("{answered} by {who} at {when}", answered=gate.end, who=who, when=when), resolution.note)
    if answer is None:
        return (f"{tr(_ENDS.get(gate.end or 'expired', ''))} ({when})",)
    answered = answered_in_words(answer.decision, is_question=_is_answered_question(gate, answer))
    return _with_note(tr("{answered} by {who} at {when}", answered=answered, who=one_line(answer.givers), when=when), answer.note)


def _is_answered_question(gate: Gate, answer: Approval) -> bool:
    return gate.kind == "question" and answer.decision == "approve"


def _with_note(text: str, note: str | None) -> tuple[str, ...]:
    return (text, tr("Note: {note}", note=cut(one_line(note), MAX_NOTE_CHARACTERS))) if note else (text,)


def _unlinked(text: str) -> str:
    """Return `text` without the mark of addresses, which chats and mail programs would turn into links."""
    return text.replace("://", "：//")
