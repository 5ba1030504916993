"""What the pages of the desk show of gates and runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from markdown_it import MarkdownIt
from markupsafe import Markup

from plan_adapter.cli.answering import what_happens_next
from plan_adapter.cli.approval_state import age, time_left
from plan_adapter.cli.records import QUESTION_SUFFIXES, gate_place
from plan_adapter.cli.verbs.gates import who_may_answer
from plan_adapter.gates.approval import approval_text_to_sign, refusal, why_nobody_may_answer, why_not_taken_back
from plan_adapter.gates.identity import Identity, agreements_that_count, identity_of_name
from plan_adapter.gates.quorum import progress_line, why_already_given
from plan_adapter.gates.signatures import NAMESPACE
from plan_adapter.model.approvals import GATE_ANSWERS, Decision, Gate, GateAnswer, GatePolicy, delegations_in_force, person_of
from plan_adapter.model.language import in_all_languages
from plan_adapter.model.options import Input
from plan_adapter.model.readable import as_text, moment, one_line
from plan_adapter.model.record import PlanRun
from plan_adapter.text.commands import answer_command, command_at_gate, resolutions_in_words
from plan_adapter.text.gate_text import IRREVERSIBLE, split_text, without_digests, without_picture
from plan_adapter.validation.inputs import limits_in_words, type_in_words

SHOWN_CHARACTERS = 200
"""How many characters of a description the list shows."""

LABELS: dict[GateAnswer, str] = {
    "approve": "Approve",
    "answer": "Answer",
    "reject": "Reject",
    "request_changes": "Request changes",
    "done": "Done: it took effect",
    "again": "Again: run it again",
    "abort": "Abort",
}
"""The texts of the buttons."""

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).disable(["image", "link", "autolink", "html_block", "html_inline", "reference"])


def markdown_html(text: str) -> Markup:
    """Return Markdown of ours as HTML, without links, pictures and HTML of others. Its first heading is that of the page."""
    html = _MARKDOWN.render(text)
    return Markup(html.replace("<h2>", "<h1>").replace("</h2>", "</h1>").replace("<h3>", "<h2>").replace("</h3>", "</h2>"))  # noqa: S704


def is_irreversible(gate: Gate) -> bool:
    """Return whether the text of a gate says that something cannot be undone, or its outcome is unknown."""
    text = gate.text.casefold()
    return gate.kind == "outcome" or any(words in text for words in in_all_languages(IRREVERSIBLE))


def title_of(gate: Gate) -> str:
    """Return the name of the plan that waits, and of its step."""
    return gate.name if gate.step_id is None else f"{gate.name}: {gate_place(gate)}{QUESTION_SUFFIXES[gate.kind]}"


@dataclass(frozen=True, slots=True)
class ListedGate:
    """One gate in the list of what waits."""

    gate: Gate
    title: str
    description: str
    age: str
    left: str
    who: str
    is_irreversible: bool
    is_mine: bool  # whether the person who reads the list may answer
    has_approved: bool  # whether that person has approved, and others have to approve as well
    command: str | None  # what to type at a terminal, if no page can answer


def listed_gates(gates: Sequence[Gate], identity: Identity | None, now: datetime) -> list[ListedGate]:
    """Return the gates for the list: those that cannot be undone first, and the newest first among them and the others."""
    listed = [
        ListedGate(
            gate,
            title_of(gate),
            one_line(gate.description)[:SHOWN_CHARACTERS],
            age(now, gate.opened_at),
            "" if gate.expires_at is None else time_left(gate.expires_at, now),
            who_may_answer(gate),
            is_irreversible(gate),
            identity is not None and bool(Choices.of(gate, gate.gate_policy, identity).decisions),
            identity is not None and person_of(identity.by) in {person_of(agreement.by) for agreement in gate.agreements},
            None if gate.id else answer_command(gate),
        )
        for gate in gates
    ]
    return sorted(listed, key=lambda each: (each.is_irreversible, each.gate.opened_at), reverse=True)


@dataclass(frozen=True, slots=True)
class Choices:
    """What a person may answer at a gate, which proof they add, and why they may not give the other answers."""

    decisions: tuple[GateAnswer, ...]
    why_not: tuple[str, ...]
    asks_name: bool
    takes_code: bool
    takes_signature: bool
    may_delegate: bool = False
    may_take_back: tuple[str, ...] = ()  # the people whom they let answer, and who have not

    @classmethod
    def of(cls, gate: Gate, gate_policy: GatePolicy, identity: Identity | None) -> "Choices":
        """Return the choices of the person who signed in, or, without a sign-in, of anyone with a proof."""
        if (nobody := why_nobody_may_answer(gate_policy)) is not None:
            return cls((), (f"nobody may answer: {nobody}",), asks_name=False, takes_code=False, takes_signature=False)
        accepted = gate_policy.known_by
        needs_proof = identity is None or (accepted is not None and identity.known_by not in accepted)
        takes_code = needs_proof and (accepted is None or "totp" in accepted)
        takes_signature = needs_proof and gate.kind == "approval" and (accepted is None or "ssh_signature" in accepted)
        if needs_proof and not takes_code and not takes_signature:
            why = f"this gate takes {' or '.join(accepted or ())}, which no page can give"
            why += f": {command} answers it" if (command := command_at_gate(gate, accepted)) is not None else ""
            return cls((), (why,), asks_name=False, takes_code=False, takes_signature=False)
        refused = dict[GateAnswer, str | None]()
        for decision in GATE_ANSWERS[gate.kind]:
            refused[decision] = None if identity is None else _why_refused(gate, gate_policy, identity, decision)
        allowed: tuple[GateAnswer, ...] = tuple(decision for decision, why in refused.items() if why is None)
        why_not = tuple(dict.fromkeys(why for why in refused.values() if why is not None))
        may_delegate = gate_policy.delegate and gate_policy.approvers is not None and gate.kind != "outcome" and bool(allowed)
        proofs = {"asks_name": identity is None, "takes_code": takes_code, "takes_signature": takes_signature}
        return cls(allowed, why_not, **proofs, may_delegate=may_delegate, may_take_back=_may_take_back(gate, gate_policy, identity))


def _may_take_back(gate: Gate, gate_policy: GatePolicy, identity: Identity | None) -> tuple[str, ...]:
    """Return the people who answer in the place of the person who signed in, or of anyone, as far as that can be taken back."""
    given = [each for each in delegations_in_force(gate_policy.delegations) if identity is None or each.by == identity.by]
    names = (each.to for each in given if why_not_taken_back(gate_policy, by=each.by, to=each.to, agreements=gate.agreements) is None)
    return tuple(dict.fromkeys(names))


def _why_refused(gate: Gate, gate_policy: GatePolicy, identity: Identity, decision: GateAnswer) -> str | None:
    """Return why a person may not give this answer, whatever proof they add, or None."""
    approves = decision in ("approve", "answer")
    if gate.agreements and decision == "approve":
        counted = agreements_that_count(gate_policy, gate.agreements, approval_digest=gate.approval_digest)
        if (reason := why_already_given(gate_policy, counted, identity.by)) is not None:
            return reason
    person = identity_of_name(identity.by)
    return refusal(replace(gate_policy, known_by=None), person, decision="approve" if approves else "reject")


@dataclass(frozen=True, slots=True)
class ShownField:
    """A field of the answer to a question, for the form."""

    name: str
    title: str
    type: str
    limits: str
    description: str
    is_required: bool
    choices: tuple[str, ...]
    value: str


def shown_fields(fields: Mapping[str, Input], typed: Mapping[str, str]) -> Iterator[ShownField]:
    """Yield the fields of a question with what was typed, or their defaults."""
    for name, definition in fields.items():
        choices = definition.enum or ([True, False] if definition.type == "boolean" else [])
        default = "" if definition.is_required else as_text(definition.default)
        yield ShownField(
            name,
            definition.title or name,
            type_in_words(definition),
            ", ".join(limits_in_words(definition)),
            definition.description,
            definition.is_required,
            tuple(map(as_text, choices)),
            typed.get(name, default),
        )


def shown_gate(gate: Gate, gate_policy: GatePolicy, run: PlanRun, identity: Identity | None, now: datetime) -> dict[str, object]:
    """Return the values that the page of a gate shows, by name."""
    text = without_digests(without_picture(gate.text)) or gate.text
    first, rest = split_text(text)
    asked = replace(gate, gate_policy=gate_policy)
    choices = Choices.of(gate, gate_policy, identity)
    return {
        "gate": gate,
        "run": run,
        "title": title_of(gate),
        "first": markdown_html(first),
        "rest": markdown_html(rest) if rest else None,
        "is_irreversible": is_irreversible(gate),
        "age": age(now, gate.opened_at),
        "left": "" if gate.expires_at is None else time_left(gate.expires_at, now),
        "opened": moment(gate.opened_at),
        "who": who_may_answer(asked),
        "progress": progress_line(gate_policy, gate.agreements) if gate_policy.quorum > 1 else "",
        "choices": choices,
        "labels": LABELS,
        "effects": _effects(asked, run),
        "to_sign": _texts_to_sign(gate) if choices.takes_signature else {},
        "namespace": NAMESPACE,
    }


def _effects(gate: Gate, run: PlanRun) -> dict[str, str]:
    """Return the effect of each answer at a gate, by answer."""
    if gate.kind == "outcome":
        return {**resolutions_in_words(is_rollback=gate.call_kind == "rollback")}
    approve, missing = what_happens_next(gate, run, "approve"), gate.gate_policy.quorum - len(gate.agreements) - 1
    if missing > 0:
        approve = f"it is recorded, and the gate waits for {missing} more {'approval' if missing == 1 else 'approvals'}"
    return {
        "approve": approve,
        "answer": approve,
        "reject": "the run ends" if gate.step_id is None and gate.attended is False else what_happens_next(gate, run, "reject"),
        "request_changes": what_happens_next(gate, run, "request_changes"),
    }


def _texts_to_sign(gate: Gate) -> dict[str, str]:
    """Return the text that an SSH key signs for each answer at a gate."""
    decisions: tuple[Decision, ...] = ("approve", "reject", "request_changes")
    return {
        decision: approval_text_to_sign(approval_digest=gate.approval_digest, decision=decision, run_id=gate.run_id, gate_id=gate.id)
        for decision in decisions
    }
