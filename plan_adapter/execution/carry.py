"""What an earlier start of the same run left: receipts to carry, attempts to count, outcomes that nobody knows."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from plan_adapter.record import Attempt, Outcome, Receipt

Unit: TypeAlias = tuple[str, int | None]
"""A step, or one item of its `for_each`."""


@dataclass(frozen=True, slots=True)
class Past:
    """The earlier attempts of a run by unit; empty for a first start."""

    succeeded: dict[Unit, Receipt] = field(default_factory=dict[Unit, Receipt])
    attempts: dict[Unit, int] = field(default_factory=dict[Unit, int])
    unknown: dict[Unit, Attempt] = field(default_factory=dict[Unit, Attempt])

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
            if attempt.id not in ended and attempt.effect == "write" and unit not in past.succeeded:
                past.unknown[unit] = attempt
        return past
