"""The model of the gate: what the promise allows, without a database. `None` means done, an error class means refused."""

from collections import Counter
from dataclasses import dataclass, field

from plan_adapter.model.approvals import Decision, GateEnd
from plan_adapter.model.errors import NotApprovedError, RunConflictError

Refusal = type[Exception] | None

APPROVERS = {"ana": "ana", "Ana": "ana", "ＡＮＡ": "ana", "bo": "bo", "安娜": "安娜", "chi": "chi"}
"""Who may approve where several must, and who each of the names is."""

ESCALATES_AFTER = 60
ESCALATES_TO = "dan"
"""How many seconds a gate that needs several approvals waits before this person may approve, too."""


@dataclass(eq=False)
class ModelDelegation:
    """An approver's word that another person answers in their place."""

    by: str
    to: str
    is_taken_back: bool = False


@dataclass
class ModelGate:
    """A question about one content, at the plan (`step` is None) or at a step."""

    run: str
    step: str | None
    content: str
    deadline: float | None
    end: GateEnd | None = None
    by: str | None = None
    quorum: int = 1
    agreed: list[tuple[str, float | None]] = field(default_factory=list[tuple[str, float | None]])  # by whom, and until when it counts
    opened: float = 0
    delegated: list[ModelDelegation] = field(default_factory=list[ModelDelegation])

    def allowed(self, now: float) -> set[str]:
        """Return the names that may approve at `now`, if several people must."""
        names = {*APPROVERS, *([ESCALATES_TO] if now - self.opened >= ESCALATES_AFTER else [])}
        for each in self.in_force:
            if each.by in names:
                names = names - {each.by} | {each.to}
        return names

    @property
    def in_force(self) -> list[ModelDelegation]:
        return [each for each in self.delegated if not each.is_taken_back]

    def answers_in_place_of(self, delegation: ModelDelegation) -> set[str]:
        """Return the people who may answer because of `delegation`, or because of a later one by them."""
        people, given = {person(delegation.to)}, self.in_force
        for each in given[given.index(delegation) + 1 :]:
            people |= {person(each.to)} if person(each.by) in people else set()
        return people

    def counted(self, now: float) -> dict[str, float | None]:
        """Return until when each person's approval counts at `now`."""
        found, allowed = dict[str, float | None](), self.allowed(now)
        for name, until in self.agreed:
            if name in allowed and (until is None or until > now):
                found.setdefault(person(name), until)
        return found


def person(name: str) -> str:
    """Return the person behind a name."""
    return APPROVERS.get(name, name)


@dataclass
class ModelApproval:
    """An answer, or an approval given in advance (`run` is None until a run uses it)."""

    run: str | None
    step: str | None
    content: str
    decision: Decision
    until: float | None
    used_in: tuple[str, int] | None = None  # the run and its start


@dataclass
class GateModel:
    """An answer covers exactly one content and is used once. A gate that expired or was withdrawn lets nothing run."""

    now: float = 0
    contents: dict[str, str] = field(default_factory=dict[str, str])  # by run: what it would execute now
    starts: Counter[str] = field(default_factory=Counter[str])
    gates: dict[str, ModelGate] = field(default_factory=dict[str, ModelGate])
    approvals: dict[str, ModelApproval] = field(default_factory=dict[str, ModelApproval])

    def open(self, gate_id: str, gate: ModelGate) -> str:
        for key, other in self.gates.items():
            if (other.run, other.step, other.end) == (gate.run, gate.step, None):
                if other.content == gate.content:
                    return key
                other.end = "superseded"
        self.gates[gate_id] = gate
        return gate_id

    def close(self, gate_id: str, end: GateEnd) -> None:
        gate = self.gates[gate_id]
        if gate.end is None and (end != "expired" or (gate.deadline is not None and gate.deadline <= self.now)):
            gate.end = end

    def revise(self, run: str, content: str) -> None:
        self.contents[run] = content
        for key in [key for key, gate in self.gates.items() if gate.run == run]:
            self.close(key, "superseded")

    def answer(self, gate_id: str, approval_id: str, content: str, decision: Decision, by: str, until: float | None) -> Refusal:
        self.close(gate_id, "expired")
        gate = self.gates[gate_id]
        if gate.end is not None or gate.content != content:
            return NotApprovedError if gate.end is None else RunConflictError
        if decision == "approve" and gate.quorum > 1:
            counted = gate.counted(self.now)
            if by not in gate.allowed(self.now) or person(by) in counted:
                return NotApprovedError
            if len(counted) + 1 < gate.quorum:
                gate.agreed.append((by, until))
                return None
            until = min(
                (valid for valid in (until, *(each for _, each in gate.agreed)) if valid is not None and valid > self.now), default=None
            )
        gate.end, gate.by = "answered", by
        self.approvals[approval_id] = ModelApproval(gate.run, gate.step, content, decision, until)
        return None

    def delegate(self, gate_id: str, by: str, to: str) -> Refusal:
        self.close(gate_id, "expired")
        gate = self.gates[gate_id]
        if gate.end is not None:
            return RunConflictError
        gate.delegated.append(ModelDelegation(by, to))
        return None

    def take_back(self, gate_id: str, by: str, to: str) -> Refusal:
        self.close(gate_id, "expired")
        gate = self.gates[gate_id]
        if gate.end is not None:
            return RunConflictError
        found = [each for each in gate.in_force if (each.by, each.to) == (by, to)]
        still_counts = [name for name, until in gate.agreed if until is None or until > self.now]
        if not found or {*map(person, still_counts)} & gate.answers_in_place_of(found[-1]):
            return NotApprovedError
        found[-1].is_taken_back = True
        return None

    def use(self, run: str, approval_id: str) -> Refusal:
        approval = self.approvals[approval_id]
        later = [*self.approvals.values()][[*self.approvals].index(approval_id) + 1 :]
        same = {each.run for each in later if each.step is None and each.decision != "approve" and each.content == approval.content}
        if approval.decision != "approve" or approval.step is not None or approval.run not in (None, run):
            return NotApprovedError
        if approval.used_in is None and (self.has_expired(approval) or same & {None, run}):
            return NotApprovedError
        approval.run, approval.used_in = run, approval.used_in or (run, self.starts[run])
        return None

    def call(self, run: str, step: str, content: str | None, approval_id: str | None) -> Refusal:
        """Return whether the run may call `step`. Without `content`, the step has no gate."""
        plans = [each for each in self.approvals.values() if each.step is None and each.used_in is not None and each.run == run]
        if self.contents[run] not in {each.content for each in plans}:
            return NotApprovedError
        if content is None:
            return None
        approval, this_start = self.approvals.get(approval_id or ""), (run, self.starts[run])
        same = approval is not None and (approval.run, approval.step, approval.content) == (run, step, content)
        if not same or approval.decision != "approve" or self.has_expired(approval) or approval.used_in not in (None, this_start):
            return NotApprovedError
        approval.used_in = this_start
        return None

    def has_expired(self, approval: ModelApproval) -> bool:
        return approval.until is not None and approval.until <= self.now
