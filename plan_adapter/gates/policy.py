"""The gate policy for every plan: the document in the store, and what it and the settings demand together."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, TypeVar

from pydantic import ConfigDict, Field, JsonValue, field_validator

from plan_adapter.documents import read_typed
from plan_adapter.documents.typed import build
from plan_adapter.gates.calendars import is_calendar
from plan_adapter.gates.freeze_problems import CODE, find_freeze_problems, read_calendars
from plan_adapter.gates.freezes import Freeze
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import people_in
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.options import EFFECTS, DocumentModel, Effect, KnownBy
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import visible
from plan_adapter.model.values import join

T = TypeVar("T")

STORES_SIGNERS = "the allowed signers of the store's policy"

_SIGNER = re.compile(r'(?:"[^"]+"|[^\s"#]\S*)[ \t]+\S+[ \t]+\S+.*')  # names, then options or a key type, then a key


class Policy(DocumentModel):
    """Who can do what in every plan of a store. An omitted field restricts nothing."""

    model_config = ConfigDict(frozen=True, strict=True)

    noun: ClassVar[str] = "a policy"
    null_is_absent: ClassVar[bool] = False  # an omitted field restricts nothing, so nobody may omit one by mistake

    approvers: list[str] = Field(default_factory=list)
    """Names and groups that are allowed to answer at any gate."""
    operators: list[str] = Field(default_factory=list)
    """Names, groups and deployments allowed to run, resume, revise, cancel, roll back, prune and erase runs.

    The names can also set the next policy.
    """
    groups: dict[str, list[str]] = Field(default_factory=dict)
    """The members of each group. With a policy in the store, groups from the environment are ignored."""
    known_by: list[KnownBy] = Field(default_factory=list)
    """The accepted proofs of identity at any gate."""
    quorum: int = Field(default=1, ge=1)
    """How many different people must approve at any gate for an approval, at least."""
    self_approval: bool = True
    """Whether the person who started a run can approve it."""
    author_approval: bool = True
    """Whether an author of a plan can approve it: whoever saved it or revised the run."""
    gate_effects: list[Effect] = Field(default_factory=list)
    """Steps whose tools have these effects wait at a gate of their own."""
    allow_unapproved: bool = True
    """Whether a plan's `require_approval: false` and `auto_approve: true` are honored."""
    allowed_signers: list[str] = Field(default_factory=list)
    """The accepted SSH keys, one line each as in ssh-keygen's ALLOWED SIGNERS. A file named by the environment is ignored."""
    freezes: list[Freeze] = Field(default_factory=list)
    """When runs of some plans do not start."""

    @field_validator("allowed_signers", mode="before")
    @classmethod
    def _split_lines(cls, value: object) -> object:
        return value.splitlines() if isinstance(value, str) else value

    def to_document(self) -> dict[str, JsonValue]:
        """Return the policy as JSON, without omitted fields."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)


def read_policy(path: str | Path) -> Policy:
    """Return the policy in a YAML or JSON file, with the texts of its calendars, whose paths are relative to the file.

    Raises InvalidPlanError, which lists every problem with its line and column.
    """
    file = read_typed(path, Policy)
    if file.problems:
        raise InvalidPlanError(file.all_problems(()))
    freezes, unread = read_calendars(file.value.freezes, Path(path).parent)
    if problems := file.all_problems([*_find_mistakes(file.value), *unread]):
        raise InvalidPlanError(problems)
    return file.value.model_copy(update={"freezes": freezes}) if freezes else file.value


def policy_of(document: dict[str, JsonValue]) -> Policy:
    """Return the policy that the store keeps as `document`. Raise InvalidPlanError, which lists every problem."""
    policy, problems = build(document, Policy)
    if problems := problems or [*_find_mistakes(policy), *_calendars_without_text(policy)]:
        raise InvalidPlanError(problems)
    return policy


def _calendars_without_text(policy: Policy) -> list[Problem]:
    message = "the text of the calendar is missing"
    without = [index for index, freeze in enumerate(policy.freezes) if freeze.calendar is not None and not is_calendar(freeze.calendar)]
    return [Problem(CODE, at=f"freezes[{index}].calendar", message=message, hint="read the policy with `read_policy`") for index in without]


def _find_mistakes(policy: Policy) -> list[Problem]:
    return [*_bad_names(policy), *_bad_quorums(policy), *_bad_signers(policy), *find_freeze_problems(policy.freezes)]


def _bad_quorums(policy: Policy) -> list[Problem]:
    """Return the problem of each quorum that is larger than its approvers. Without approvers, the plans name them."""
    overrides = [(f"freezes[{index}].override.quorum", freeze.override) for index, freeze in enumerate(policy.freezes)]
    found, groups = list[Problem](), EffectivePolicy(groups=policy.groups)
    for at, part in [("quorum", policy), *((at, override) for at, override in overrides if override is not None)]:
        able = people_in(groups.members(part.approvers) or ())
        if able and len(able) < part.quorum:
            message = f"{part.quorum} different people must approve, and `approvers` names only {' and '.join(able)}"
            found.append(Problem("bad-quorum", at=at, message=message, hint="name more approvers, or lower the quorum"))
    return found


def _bad_names(policy: Policy) -> list[Problem]:
    named = [
        *(("bad-approver", f"approvers[{index}]", name) for index, name in enumerate(policy.approvers)),
        *(("bad-operator", f"operators[{index}]", name) for index, name in enumerate(policy.operators)),
        *(("bad-value", join("groups", name), name) for name in policy.groups),
        *(
            ("bad-value", f"{join('groups', group)}[{index}]", name)
            for group, members in policy.groups.items()
            for index, name in enumerate(members)
        ),
        *((CODE, f"freezes[{index}].name", freeze.name) for index, freeze in enumerate(policy.freezes)),
        *(
            ("bad-approver", f"freezes[{index}].override.approvers[{number}]", name)
            for index, freeze in enumerate(policy.freezes)
            for number, name in enumerate(freeze.override.approvers if freeze.override is not None else ())
        ),
    ]
    hint = "write the name without white space around it and without invisible characters"
    return [Problem(code, at=at, message=f"{name[:80]!r} cannot be a name", hint=hint) for code, at, name in named if not is_name(name)]


def is_name(name: str) -> bool:
    """Return whether people and groups can be called this: without white space around it and invisible characters."""
    return bool(name) and name == name.strip() and visible(name) == name and name.isprintable()


def _bad_signers(policy: Policy) -> list[Problem]:
    hint = "write a line for each key: `ana ssh-ed25519 AAAA…`"
    lines = [(index, line.strip()) for index, line in enumerate(policy.allowed_signers)]
    return [
        Problem("bad-value", at=f"allowed_signers[{index}]", message="this line is not an allowed signer", hint=hint)
        for index, line in lines
        if line and not line.startswith("#") and (_SIGNER.fullmatch(line) is None or not line.isprintable())
    ]


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """What the settings and the store's policy demand together at one moment. The stricter of the two applies.

    For names and proofs, None restricts nothing. An empty tuple accepts nobody: the settings and the policy exclude each other.
    """

    number: int | None = None  # of the store's policy; None: only the settings apply
    approvers: tuple[str, ...] | None = None  # with groups resolved
    operators: tuple[str, ...] | None = None
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    named: tuple[str, ...] = ()  # approvers as written, both names and groups
    known_by: tuple[KnownBy, ...] | None = None
    quorum: int = 1
    self_approval: bool = True
    author_approval: bool = True
    gate_effects: tuple[Effect, ...] = ()
    allow_unapproved: bool = True
    allowed_signers: Path | str | None = None  # a file, or the lines themselves
    stored: Policy = field(default_factory=Policy, compare=False)  # the store's policy alone, without the settings

    def members(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """Return `names` with each group replaced by its members, or None (no restriction) if there are no names."""
        if not names:
            return None
        return tuple(dict.fromkeys(member for name in names for member in self.groups.get(name, [name])))


def effective_policy(settings: Settings, policy: Policy | None = None, *, number: int | None = None) -> EffectivePolicy:
    """Return the combination of `settings` and the store's `policy`.

    With a policy, groups and signers come from the policy alone. Names and proofs must be accepted by both, the larger quorum and the
    stricter boolean apply, and gate effects add up.
    """
    if policy is None:
        store_policy, groups = Policy(), settings.groups
        signers: Path | str | None = settings.allowed_signers
    else:
        store_policy, groups = policy, policy.groups
        signers = "\n".join(policy.allowed_signers) if policy.allowed_signers else None
    shared = EffectivePolicy(groups=groups, stored=store_policy)
    effects = {*settings.gate_effects, *store_policy.gate_effects}
    return replace(
        shared,
        number=number,
        approvers=intersect(shared.members(settings.approvers), shared.members(store_policy.approvers)),
        operators=intersect(shared.members(settings.operators), shared.members(store_policy.operators)),
        named=(*settings.approvers, *store_policy.approvers),
        known_by=intersect(tuple(settings.known_by) or None, tuple(store_policy.known_by) or None),
        quorum=max(settings.quorum, store_policy.quorum),
        self_approval=settings.allow_self_approval and store_policy.self_approval,
        author_approval=store_policy.author_approval,
        gate_effects=tuple(effect for effect in EFFECTS if effect in effects),
        allow_unapproved=settings.allow_unapproved and store_policy.allow_unapproved,
        allowed_signers=signers,
    )


def intersect(first: tuple[T, ...] | None, second: tuple[T, ...] | None) -> tuple[T, ...] | None:
    """Return the members of both, in the order of `first`. None stands for everything."""
    if first is None or second is None:
        return second if first is None else first
    return tuple(name for name in first if name in second)
