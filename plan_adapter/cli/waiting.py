"""How runs stand with their approvals: what they wait for, who answered what, and what a person types next."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from plan_adapter.cli.records import answer_command, gate_place
from plan_adapter.plan import PlanStatus
from plan_adapter.readable import duration, moment, prose
from plan_adapter.record import Approval, Gate, PlanRun

if TYPE_CHECKING:
    from plan_adapter.store.revisions import Revision
    from plan_adapter.store.store import PlanStore

ANSWERED = {"approve": "approved", "reject": "rejected", "request_changes": "changes requested"}
ATTENDED = {True: "a process waits for it", False: "no process waits for it", None: "a process of another host may wait for it"}


@dataclass(frozen=True, slots=True)
class Standing:
    """The gates of a run that are open, the answers that it was given, and the versions of its plan that were replaced."""

    run: PlanRun
    gates: Sequence[Gate]
    answers: Sequence[Approval]
    replaced: "Sequence[Revision]"
    now: datetime

    @property
    def answer(self) -> Approval | None:
        """The last answer about the plan as it is now."""
        of_plan = [row for row in self.answers if row.step_id is None and row.approval_digest == self.run.approval_digest]
        return of_plan[-1] if of_plan else None

    def lines(self) -> list[str]:
        """Return a Markdown section; nothing where nobody was ever asked."""
        listed = [(row.at, _version_line(row)) for row in self.replaced]
        listed += [(row.at, _answer_line(row)) for row in self.answers if row.known_by != "not_required"]
        found = [line for _, line in sorted(listed, key=lambda pair: pair[0])] + [_gate_line(gate, self.now) for gate in self.gates]
        return ["", "## Approvals", "", *found] if found else []

    def hint(self) -> str | None:
        """Return what a person may type now that the run waits; None where it does not."""
        run = self.run
        if self.gates:
            commands = ", ".join(f"`{answer_command(gate)}`" for gate in self.gates[:5])
            then = f", then `plan resume {run.id}` goes on" if all(gate.attended is False for gate in self.gates) else ""
            return f"it waits for an approval: {commands} gives it{then}; `plan gates` lists all that waits"
        if run.status is not PlanStatus.PENDING_APPROVAL:
            return None
        if self.answer is None:
            return f"nobody has been asked yet: `plan resume {run.id}` asks"
        if self.answer.decision == "request_changes":
            return after_changes(run.id)
        return f"it was answered, and no process goes on with it: `plan resume {run.id}` does"


def after_changes(run_id: str) -> str:
    """Return what can be done with a run that somebody wants changed."""
    return f"`plan revise {run_id} FILE` puts a new version in its place, `plan resume {run_id}` asks about this one again"


async def standing_of(run: PlanRun, store: "PlanStore") -> Standing:
    """Return how `run` stands with its approvals."""
    gates, answers = await store.gates(run_id=run.id), await store.approvals(run.id)
    return Standing(run, gates, answers, await store.revisions(run.id), await store.now())


async def statuses_of(runs: Sequence[PlanRun], store: "PlanStore") -> dict[str, str]:
    """Return the status of each run by its id, in words that say what one that has not ended waits for."""
    gates = dict[str, list[Gate]]()
    if any(run.completed_at is None for run in runs):
        for gate in await store.gates():
            gates.setdefault(gate.run_id, []).append(gate)
    return {run.id: f"{run.status}{await _waits(run, gates.get(run.id, []), store)}" for run in runs}


async def _waits(run: PlanRun, gates: list[Gate], store: "PlanStore") -> str:
    if run.completed_at is None and gates:
        words = [] if gates[0].step_id is None else [f"waits at {gate_place(gates[0]) if len(gates) == 1 else f'{len(gates)} gates'}"]
        return _bracketed([*words, *(["no process waits"] if all(gate.attended is False for gate in gates) else [])])
    if run.status is PlanStatus.PENDING_APPROVAL:
        answer = (await standing_of(run, store)).answer
        return _bracketed(["nobody was asked" if answer is None else ANSWERED[answer.decision], "no process goes on"])
    return _bracketed([str(run.reason)] if run.reason else [])


def _bracketed(words: list[str]) -> str:
    return f" ({', '.join(words)})" if words else ""


def _answer_line(row: Approval) -> str:
    step = "" if row.step_id is None else f" step {row.step_id}" + (f"[{row.item}]" if row.item is not None else "")
    return f"- {ANSWERED[row.decision]}{step} by {prose(row.by)} ({row.known_by}) at {moment(row.at)}{_noted(row.note)}"


def _version_line(row: "Revision") -> str:
    return f"- version {row.number} was replaced by {prose(row.by)} at {moment(row.at)}{_noted(row.note)}"


def _gate_line(gate: Gate, now: datetime) -> str:
    what = "of the plan" if gate.step_id is None else f"of step {gate_place(gate)}"
    since = f" since {moment(gate.opened_at)} ({age(now, gate.opened_at)})"
    until = f", until {moment(gate.expires_at)} (in {age(gate.expires_at, now)})" if gate.expires_at is not None else ""
    return f"- **waits for an approval {what}**{since}{until}; {ATTENDED[gate.attended]}"


def _noted(note: str) -> str:
    return f": {prose(note)}" if note else ""


def age(later: datetime, earlier: datetime) -> str:
    """Return the time between the two, a second at least."""
    return duration(1000 * max(1, round((later - earlier).total_seconds())))
