"""Gates and answers: `Gate`, `ApprovalRequest`, `Answer`, `Approval`, `StandingApproval`, and the gate policy that an answer must satisfy.

Times are aware datetimes in UTC, by the store's clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, TypeAlias, get_args
from unicodedata import normalize

from pydantic import JsonValue

from plan_adapter.model.language import later
from plan_adapter.model.options import CallKind, Expiry, Input

Resolution: TypeAlias = Literal["done", "again", "abort"]
"""A person's answer about an unknown outcome: it was done; it was not, run it again; end the run here."""

OperatorRequestKind: TypeAlias = Literal["skip", "run_from", "rollback", "override_freeze"]
"""What an operator can request outside a gate: skip steps, run from a skipped step after all, roll the run back, or override a freeze."""

Decision: TypeAlias = Literal["approve", "reject", "request_changes"]
"""An answer at a gate. Each closes its gate; only `approve` lets anything run."""

ANSWERED: Mapping[Decision, str] = {
    "approve": later("approved"),
    "reject": later("rejected"),
    "request_changes": later("changes requested"),
}
"""The verb that reports an answer, by decision."""

GateKind: TypeAlias = Literal["approval", "question", "outcome"]
"""What a gate asks: whether the plan or a call may run, a question of the plan, or how a call with an unknown outcome ended.

`approve` answers a question, with the values of its fields. An outcome gate approves nothing.
"""

DelegationKind: TypeAlias = Literal["delegate", "take_back"]
"""What an approver says about who answers in their place. `take_back` ends a delegation of theirs."""

GateAnswer: TypeAlias = Decision | Resolution | DelegationKind | Literal["answer"]
"""What a person says at a gate.

`answer`, at a question, is recorded as `approve`, with the values of its fields. `delegate` lets another person answer instead, and
`take_back` ends that.
"""

GATE_ANSWERS: Mapping[GateKind, tuple[GateAnswer, ...]] = {
    "approval": get_args(Decision),
    "question": ("answer", "reject"),
    "outcome": get_args(Resolution),
}
"""What closes each kind of gate. Approvals and questions also take `delegate` and `take_back`."""

GateEnd: TypeAlias = Literal["answered", "expired", "cancelled", "superseded"] | Resolution
"""How a gate was closed. `superseded`: a new version of the plan replaced the question. An outcome gate closes with the resolution."""

PauseKind: TypeAlias = Literal["paused", "suspended"]
"""How a flow run waits with a form on its page: in a process, or `suspended`, its worker released until the gate is answered."""


def keyset_of(kind: PauseKind, key: str) -> str:
    """Return the key under which Prefect keeps the form of one pause, and its answer."""
    return f"{kind}-{key}"


def pause_kind_of(keyset: str) -> PauseKind | None:
    """Return the kind of pause that `keyset_of` wrote into `keyset`, or None if it did not write it."""
    kind = keyset.partition("-")[0]
    return next((known for known in get_args(PauseKind) if known == kind), None)


AGREE = "agree"
"""What the store records as the decision of an agreement, next to the decisions of answers."""

DELEGATE: Final = "delegate"
"""What it records as the decision of a delegation."""

TAKE_BACK: Final = "take_back"
"""What it records as the decision of an approver who takes a delegation back."""

LEAVES_OPEN = (AGREE, DELEGATE, TAKE_BACK)
"""The decisions in the store that close no gate, so that no reader may take them for answers."""


def person_of(name: str) -> str:
    """Return the form of a name that identifies the person. A quorum counts people, whatever the case or Unicode form of their names."""
    return normalize("NFKC", normalize("NFKC", name).casefold()).strip()


def people_in(names: Iterable[str]) -> list[str]:
    """Return the first form of each different person's name."""
    found = dict[str, str]()
    for name in names:
        found.setdefault(person_of(name), name)
    return [*found.values()]


@dataclass(frozen=True, slots=True)
class Agreement:
    """One person's approval at a gate that needs more of them. By itself it closes no gate and lets nothing run."""

    id: str  # its own id
    gate_id: str  # the gate it was given at
    approval_digest: str  # the content that was shown
    by: str  # who gave it
    known_by: str  # a `KnownBy`
    at: datetime  # when
    note: str = ""  # what they wrote
    signature: str | None = None  # an armored SSH signature of `approval_text_to_sign`
    expires_at: datetime | None = None  # until when it counts; None: no limit

    @property
    def as_approval(self) -> "Approval":
        """What the person said, as at a gate that needs only them."""
        return Approval(
            id=self.id,
            approval_digest=self.approval_digest,
            decision="approve",
            by=self.by,
            known_by=self.known_by,
            at=self.at,
            note=self.note,
            signature=self.signature,
            expires_at=self.expires_at,
            gate_id=self.gate_id,
        )


@dataclass(frozen=True, slots=True)
class Delegation:
    """An approver's word that another person answers at a gate in their place, or no longer does."""

    id: str  # its own id
    gate_id: str  # the gate it was given at
    approval_digest: str  # the content that was shown
    by: str  # who gave it
    to: str  # who answers instead, or no longer does
    known_by: str  # a `KnownBy`
    at: datetime  # when
    note: str = ""  # what they wrote
    signature: str | None = None  # an armored SSH signature of `approval_text_to_sign`
    decision: DelegationKind = "delegate"
    follows: str | None = None  # the id of the earlier one that this takes back or, if it delegates again, comes after


def delegations_in_force(delegations: Iterable[Delegation]) -> list[Delegation]:
    """Return the delegations that still count, in their order."""
    given = [*delegations]
    ended = {each.follows for each in given if each.decision == TAKE_BACK}
    return [each for each in given if each.decision == DELEGATE and each.id not in ended]


def delegation_result(to: str, follows: str | None) -> dict[str, JsonValue]:
    """Return the result of a delegation, which is signed and stored: who answers instead, and the earlier one that it follows."""
    return {"to": to} if follows is None else {"to": to, "follows": follows}


def followed_by(delegations: Sequence[Delegation], *, decision: DelegationKind, by: str, to: str) -> str | None:
    """Return the id of the one that a delegation by `by` to `to` takes back or, if it delegates again, comes after; or None.

    Its signature covers that, so nobody can repeat a delegation that was taken back.
    """
    candidates = delegations if decision == DELEGATE else delegations_in_force(delegations)
    return next((each.id for each in reversed(candidates) if (each.by, each.to) == (by, to)), None)


@dataclass(frozen=True, slots=True)
class Approval:
    """One recorded answer: the content it covers, who gave it, how they were identified, and until when it is valid."""

    id: str  # its own id
    approval_digest: str  # for a step, the digest of its resolved call
    decision: Decision  # what was answered
    by: str  # who answered
    known_by: str  # a `KnownBy`, or `not_required` if the plan requires no approval
    at: datetime  # when
    note: str = ""  # what they wrote
    expires_at: datetime | None = None  # until when a run may start with it; None: no limit
    run_id: str | None = None  # the run it was given for, or that used it
    step_id: str | None = None  # None: it covers the whole plan
    item: int | None = None  # the item of the step's `for_each`, from 0
    gate_id: str | None = None  # the gate it answers
    standing_id: str | None = None  # the standing approval it came from
    signature: str | None = None  # an armored SSH signature of `approval_text_to_sign`
    used_at: datetime | None = None  # when the run or the call started with it
    result: JsonValue = None  # the answer to a question, by field
    agreements: tuple[Agreement, ...] = ()  # the approvals by others at its gate, which it completes

    @property
    def people(self) -> list[str]:
        """Who gave the answer: several people if its gate needed more than one."""
        return [*(agreement.by for agreement in self.agreements), self.by]

    @property
    def givers(self) -> str:
        """The people with the proofs of their identity: `ana (totp) and ben (ssh_signature)`."""
        return " and ".join(f"{row.by} ({row.known_by})" for row in (*self.agreements, self))

    @property
    def notes(self) -> str:
        """What these people wrote: `ana: looks good; ben: go`. The note alone if only one person answered."""
        if not self.agreements:
            return self.note
        return "; ".join(f"{row.by}: {row.note}" for row in (*self.agreements, self) if row.note)


@dataclass(frozen=True, slots=True)
class Answer:
    """An unchecked answer at a gate. All of it is untrusted text."""

    decision: Decision | Resolution | DelegationKind  # depends on the kind of gate
    by: str
    note: str = ""
    channel: Literal["os_user", "form", "unverified"] = "unverified"  # how `by` is known without `code` and `signature`
    code: str | None = None  # a one-time code
    signature: str | None = None  # an armored SSH signature of `text_to_sign`
    result: JsonValue = None  # with `done`: what the call returned; at a question: the answer, by field
    digest: str | None = None  # a prefix of the digest shown with the question; None: not given
    to: str = ""  # with `delegate`: who answers instead; with `take_back`: who no longer does


@dataclass(frozen=True, slots=True)
class FreezeOverride:
    """A change freeze that an approval at a gate overrides."""

    name: str
    until: datetime  # when the freeze ends, and the override with it


ExcludedAs: TypeAlias = Literal["requester", "reviser", "author"]
"""Why a person may not approve: they started the run, revised it, or wrote its plan."""


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What an answer must satisfy. It combines the plan's policy and the settings as they were when the gate opened."""

    approvers: tuple[str, ...] | None = None  # names, with groups resolved; None: anyone
    known_by: tuple[str, ...] | None = None  # None: any proof
    quorum: int = 1  # how many different approvers must approve; always 1 for a question and an unknown outcome
    self_approval: bool = True
    requested_by: str = ""  # who started the run
    revised_by: str = ""  # who replaced an earlier version with the content in question
    authors: tuple[str, ...] = ()  # the authors of the plan, if none of them may approve it
    escalate_after_ms: int = 0  # how long the gate waits before `escalate_to` may answer as well; 0: it does not escalate
    escalate_to: tuple[str, ...] = ()  # names, with groups resolved
    is_escalated: bool = False  # whether the gate has waited for that long, so that `approvers` has `escalate_to` among them
    delegate: bool = False  # whether an approver may let another person answer in their place
    delegations: tuple[Delegation, ...] = ()  # oldest first; `approvers` has those that still count
    expires: Expiry = "reject"
    remind_after_ms: int = 0
    release: bool = False
    excluded_by: str = ""  # the environment variable that leaves nobody, or no proof, to answer with
    overrides: tuple[FreezeOverride, ...] = ()  # the change freezes that an approval overrides

    @property
    def may_not_approve(self) -> Mapping[str, ExcludedAs]:
        """The people who may answer, but not approve, each with why."""
        found: dict[str, ExcludedAs] = dict.fromkeys(self.authors, "author")
        if not self.self_approval:
            found |= {self.revised_by: "reviser", self.requested_by: "requester"}
        return {name: why for name, why in found.items() if name}


@dataclass(frozen=True, slots=True)
class Gate:
    """A pause before a plan (`step_id` is None) or a step, or, with kind `outcome`, after a call whose outcome is unknown."""

    id: str  # its own id
    run_id: str  # the run that waits
    step_id: str | None  # None: the whole plan
    item: int | None  # the item of the step's `for_each`, from 0
    approval_digest: str  # the digest that an answer binds to
    name: str  # of the plan
    description: str  # of the plan, or of the step; or the question that it asks
    text: str  # Markdown: exactly what would run
    gate_policy: GatePolicy  # who may answer, and how they prove it
    opened_at: datetime  # when it opened
    expires_at: datetime | None = None  # until when an answer counts; None: no limit
    closed_at: datetime | None = None  # when it was closed
    end: GateEnd | None = None  # None while it is open
    flow_run_id: str | None = None  # the flow run whose page shows the form
    keyset: str | None = None  # the key under which Prefect keeps the form's answer
    openings: int = 1  # how often it was shown: again after a kill, a forced state or a refused answer
    attended: bool | None = None  # whether a process waits at it; None: on another host, so unknown
    kind: GateKind = "approval"  # what it asks: an approval, a question, or how a call ended
    label: str | None = None  # the item's name; None: its number
    call_kind: CallKind = "step"  # `rollback`: the call rolls back the step
    fields: Mapping[str, Input] = field(default_factory=dict[str, Input])  # of the answer to a question
    agreements: tuple[Agreement, ...] = ()  # the approvals it has so far, oldest first, if it needs more than one

    @property
    def has_form(self) -> bool | None:
        """Whether Prefect shows the gate's form. None if the gate was not shown there; False if Prefect does not keep the form."""
        return None if self.flow_run_id is None else self.keyset is not None

    @property
    def pause_kind(self) -> PauseKind | None:
        """How the flow run that shows the form waits, or None without a form."""
        return None if self.keyset is None else pause_kind_of(self.keyset)

    @property
    def is_released(self) -> bool:
        """Whether the run has released its worker and starts again by itself once the gate is answered."""
        return self.gate_policy.release and self.attended is False and self.pause_kind == "suspended"

    @property
    def can_be_over(self) -> bool:
        """Whether no process is there to close an open gate when it expires."""
        return self.attended is False and self.expires_at is not None

    def is_over(self, now: datetime) -> bool:
        """Return whether an open gate has expired at `now` and no process is there to close it."""
        return self.attended is False and self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What an approver is asked: the content as text, and the digest that an answer binds to."""

    approval_digest: str  # the digest that the answer must name
    name: str  # the plan's name
    description: str  # the plan's or the step's description, or the question
    text: str  # Markdown: exactly what would run
    run_id: str | None = None  # the run that asks
    step_id: str | None = None  # None: the whole plan
    item: int | None = None  # the item of the step's `for_each`, from 0
    gate_id: str | None = None  # the gate that is open for it
    opened_at: datetime | None = None  # when the gate opened
    expires_at: datetime | None = None  # until when an answer counts; None: no limit
    gate_policy: GatePolicy = field(default_factory=GatePolicy)  # who may answer, and how they prove it
    refused: str | None = None  # why the previous answer was refused
    kind: GateKind = "approval"  # what the gate asks: an approval, a question, or how a call ended
    operator_request: OperatorRequestKind | None = None  # a request made outside any gate; the answer approves it
    label: str | None = None  # the item's name; None: its number
    call_kind: CallKind = "step"  # `rollback`: the call rolls back the step
    fields: Mapping[str, Input] = field(default_factory=dict[str, Input])  # of the answer to a question
    agreements: tuple[Agreement, ...] = ()  # the approvals that the gate has so far, if it needs more than one


@dataclass(frozen=True, slots=True)
class StandingApproval:
    """One approval for many runs. It covers a runbook digest, input patterns and named schedules, until a date or a number of runs."""

    id: str  # its own id
    runbook_digest: str  # of the plan digest and the tool definitions
    name: str  # of the plan
    by: str  # who gave it
    known_by: str  # how their name was proved
    at: datetime  # when
    inputs: dict[str, JsonValue]  # by input: a text is a regular expression for the whole value, anything else is the value itself
    schedules: tuple[str, ...]  # the `flow/deployment` names whose scheduled runs it covers
    steps: tuple[str, ...] = ()  # steps whose gates it answers as well
    until: datetime | None = None  # when it ends; None: no limit
    max_runs: int | None = None  # how many runs may use it; None: no limit
    runs: int = 0  # how many runs have used it
    note: str = ""  # why it was given
    signature: str | None = None  # an armored SSH signature
    source: str | None = None  # the file that contains it
    revoked_at: datetime | None = None  # when it was revoked
    revoked_by: str | None = None  # who revoked it
