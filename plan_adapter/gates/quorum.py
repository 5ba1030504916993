"""The quorum of a gate: how many different people must approve, who still may, and why others are too few."""

from collections.abc import Sequence
from datetime import UTC

from plan_adapter.model.approvals import Agreement, GatePolicy, people_in, person_of
from plan_adapter.model.language import tr
from plan_adapter.model.readable import one_line


def nobody_is_named(gate_policy: GatePolicy) -> str:
    """Return why nobody may approve at a gate with a quorum and without approvers."""
    return f"{gate_policy.quorum} different people must approve, and no approvers are named, so one person could type several names"


def why_quorum_out_of_reach(gate_policy: GatePolicy) -> str | None:
    """Return why fewer people may approve than must, or None."""
    if gate_policy.quorum == 1:
        return None
    able = able_to_approve(gate_policy)
    if able is None:
        return nobody_is_named(gate_policy)
    if len(able) >= gate_policy.quorum:
        return None
    who = " and ".join(map(one_line, able)) if able else "nobody"
    return f"{gate_policy.quorum} different people must approve, and only {who} may"


def able_to_approve(gate_policy: GatePolicy) -> list[str] | None:
    """Return the different people who may approve, or None if no approvers are named."""
    if gate_policy.approvers is None:
        return None
    return people_in(name for name in gate_policy.approvers if name not in gate_policy.may_not_approve)


def why_one_is_too_few(gate_policy: GatePolicy, what: str) -> str | None:
    """Return why `what`, which one person gives outside a gate, approves nothing under this gate policy, or None."""
    if gate_policy.quorum == 1:
        return None
    return f"{gate_policy.quorum} different people must approve, each at the gate; {what} is by one person"


def why_too_few(gate_policy: GatePolicy, people: Sequence[str]) -> str | None:
    """Return why the approvals of `people` are not enough, or None. Two forms of one name are one person."""
    found = people_in(people)
    if len(found) >= gate_policy.quorum:
        return None
    who = " and ".join(map(one_line, found)) or "nobody"
    return f"{gate_policy.quorum} different people must approve, and only {who} did"


def why_already_given(gate_policy: GatePolicy, agreements: Sequence[Agreement], by: str) -> str | None:
    """Return why another approval by a person who is among `agreements` adds nothing, or None."""
    if person_of(by) not in {person_of(agreement.by) for agreement in agreements}:
        return None
    missing = gate_policy.quorum - len(agreements)
    needed = f"{missing} more {'approval' if missing == 1 else 'approvals'} needed"
    names = " or ".join(map(one_line, others_who_may_approve(gate_policy, agreements)))
    return f"{one_line(by)} has already approved; {needed}" + (f", by {names}" if names else "")


def others_who_may_approve(gate_policy: GatePolicy, agreements: Sequence[Agreement]) -> list[str]:
    """Return the people who may approve and are not among `agreements`."""
    given = {person_of(agreement.by) for agreement in agreements}
    return [name for name in able_to_approve(gate_policy) or () if person_of(name) not in given]


def progress_in_words(gate_policy: GatePolicy, agreements: Sequence[Agreement]) -> str:
    """Return how many of the approvals there are, and whom the gate waits for: `1 of 2 approvals; the gate waits for ben or chi`."""
    names = tr(" or ").join(map(one_line, others_who_may_approve(gate_policy, agreements))) or tr("nobody")
    return tr("{count} of {quorum} approvals; the gate waits for {names}", count=len(agreements), quorum=gate_policy.quorum, names=names)


def progress_line(gate_policy: GatePolicy, agreements: Sequence[Agreement]) -> str:
    """Return a line for a page about the approvals that its gate has so far, with the time of each in UTC."""
    given = [tr("{who} approved at {when}", who=one_line(row.by), when=f"{row.at.astimezone(UTC):%H:%M} UTC") for row in agreements]
    return progress_in_words(gate_policy, agreements) + (f" ({'; '.join(given)})" if given else "")
