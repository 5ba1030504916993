"""What an earlier start of the same run left: receipts to carry, attempts to count, outcomes that nobody knows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from plan_adapter.execution.redrive import Fate
from plan_adapter.record import Attempt, Outcome, Receipt

Unit: TypeAlias = tuple[str, int | None]
"""A step, or one item of its `for_each`; or the rollback of one."""

_ROLLBACK = "rollback "  # a blank cannot stand in a step's id


def rollback_id(step_id: str) -> str:
    """Return the id under which the attempts that undo a step are kept."""
    return _ROLLBACK + step_id


@dataclass(frozen=True, slots=True)
class Past:
    """The earlier attempts of a run by unit; empty for a first start."""

    succeeded: dict[Unit, Receipt] = field(default_factory=dict[Unit, Receipt])
    attempts: dict[Unit, int] = field(default_factory=dict[Unit, int])
    unknown: dict[Unit, Attempt] = field(default_factory=dict[Unit, Attempt])
    fates: Mapping[str, Fate] = field(default_factory=dict[str, Fate])  # of steps about which a person asked for something
    repeatable: dict[Unit, Attempt] = field(default_factory=dict[Unit, Attempt])  # idempotent writes that may have been done

    @property
    def left(self) -> list[str]:
        """The steps that nobody asked for this time."""
        return [step_id for step_id, fate in self.fates.items() if fate.kind == "left"]

    @property
    def has_rollbacks(self) -> bool:
        """Whether the run began to undo what it had done: then no step of it starts any more."""
        return any(step_id.startswith(_ROLLBACK) for step_id, _ in self.attempts)

    @property
    def unknown_steps(self) -> list[str]:
        """The steps of which nobody knows whether they, or an item of theirs, were done; rollbacks apart."""
        return list(dict.fromkeys(step_id for step_id, _ in self.unknown if not step_id.startswith(_ROLLBACK)))

    @classmethod
    def of(cls, attempts: Iterable[Attempt], receipts: Iterable[Receipt]) -> "Past":
        """Return what `attempts` and `receipts` say: a write without a receipt is unknown; a read without one may be repeated."""
        past, ended = cls(), set[str]()
        for receipt in receipts:
            ended.add(receipt.attempt_id)
            if receipt.outcome is Outcome.SUCCEEDED:
                past.succeeded[receipt.step_id, receipt.item] = receipt
        for attempt in attempts:
            unit = (attempt.step_id, attempt.item)
            past.attempts[unit] = max(past.attempts.get(unit, 0), attempt.number)
            if attempt.id not in ended and attempt.effect != "read" and unit not in past.succeeded:
                (past.unknown if attempt.effect == "write" else past.repeatable)[unit] = attempt
        return past
