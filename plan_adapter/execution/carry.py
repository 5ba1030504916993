"""What an earlier start of the same run left: receipts to carry, attempts to count, outcomes that nobody knows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from plan_adapter.execution.redrive import Fate
from plan_adapter.record import Attempt, Outcome, Receipt, StepEnd

Unit: TypeAlias = tuple[str, int | None]
"""A step, or one item of its `for_each`; or the rollback of one."""

_ROLLBACK = "rollback "  # a blank cannot stand in a step's id


def rollback_id(step_id: str) -> str:
    """Return the id under which the attempts that undo a step are kept."""
    return _ROLLBACK + step_id


def undone_by(step_id: str) -> str:
    """Return the id of the step that is undone by the attempts kept under `step_id`; of a step itself its own."""
    return step_id.removeprefix(_ROLLBACK)


def is_rollback(step_id: str) -> bool:
    """Return whether the attempts that are kept under `step_id` are those of a rollback."""
    return step_id.startswith(_ROLLBACK)


@dataclass(frozen=True, slots=True)
class Past:
    """The earlier attempts of a run by unit; empty for a first start."""

    succeeded: dict[Unit, Receipt] = field(default_factory=dict[Unit, Receipt])
    attempts: dict[Unit, int] = field(default_factory=dict[Unit, int])
    unknown: dict[Unit, Attempt] = field(default_factory=dict[Unit, Attempt])
    fates: Mapping[str, Fate] = field(default_factory=dict[str, Fate])  # of steps about which a person asked for something, ever or now
    repeatable: dict[Unit, Attempt] = field(default_factory=dict[Unit, Attempt])  # idempotent writes that may have been done
    cut_reads: dict[Unit, Attempt] = field(default_factory=dict[Unit, Attempt])  # reads without a receipt, which are repeated
    ends: Mapping[str, StepEnd] = field(
        default_factory=dict[str, StepEnd]
    )  # of completed steps, unless the process died before it wrote one
    asked: frozenset[str] = frozenset()  # steps that have ended in the last start, and that somebody was asked about
    labels: Mapping[Unit, str] = field(default_factory=dict[Unit, str])  # what items are called, as far as the record has to name them
    aborted: set[Unit] = field(default_factory=set[Unit])  # writes that may have been done: a person ended the run, and did not say

    @property
    def left(self) -> list[str]:
        """The steps that nobody asked for this time."""
        return [step_id for step_id, fate in self.fates.items() if fate.kind == "left"]

    @property
    def left_out(self) -> dict[str, str]:
        """The steps that people have left out, and why: they are not called, and what depends on them goes on."""
        return {step_id: fate.reason for step_id, fate in self.fates.items() if fate.kind == "skipped"}

    def leaving_out(self, steps: Mapping[str, str]) -> "Past":
        """Return this past with `steps` left out, each for its reason, unless it has succeeded all the same."""
        return replace(
            self, fates={step_id: Fate("skipped", why) for step_id, why in steps.items() if (step_id, None) not in self.succeeded}
        )

    @property
    def has_rollbacks(self) -> bool:
        """Whether the run began to undo what it had done: then no step of it starts any more."""
        return any(step_id.startswith(_ROLLBACK) for step_id, _ in self.attempts)

    @property
    def failed(self) -> list[Unit]:
        """The steps, and items, that were begun, have not succeeded, and of which the record says so; rollbacks apart."""
        doubted = {*self.succeeded, *self.unknown, *self.repeatable, *self.cut_reads, *self.aborted}
        return [unit for unit in self.attempts if unit not in doubted and not is_rollback(unit[0])]

    @property
    def unknown_steps(self) -> list[str]:
        """The steps of which nobody knows whether they, or an item of theirs, were done; rollbacks apart."""
        return list(dict.fromkeys(step_id for step_id, _ in self.unknown if not is_rollback(step_id)))

    @classmethod
    def of(cls, attempts: Iterable[Attempt], receipts: Iterable[Receipt]) -> "Past":
        """Return what `attempts` and `receipts` say: a write without a receipt is unknown; a read without one may be repeated.

        What a person says of an idempotent write holds for its earlier attempts, too. Attempts that have receipts may be left out.
        """
        past, told, ended, tried = cls(), dict[Unit, int](), set[tuple[Unit, int]](), list(attempts)
        made, succeeded = past.attempts, past.succeeded
        for receipt in receipts:
            unit, number = (receipt.step_id, receipt.item), receipt.number
            made[unit] = max(made.get(unit, 0), number)
            ended.add((unit, number))
            if receipt.outcome is Outcome.SUCCEEDED:
                succeeded[unit] = receipt
            elif receipt.is_abort:
                past.aborted.add(unit)
            else:  # somebody has looked since
                past.aborted.discard(unit)
                told[unit] = max(told.get(unit, 0), number if receipt.by is not None else 0)
        for attempt in tried:
            unit = (attempt.step_id, attempt.item)
            past.attempts[unit] = max(past.attempts.get(unit, 0), attempt.number)
            if (unit, attempt.number) in ended or unit in past.succeeded:
                continue
            if attempt.effect != "idempotent_write":
                (past.unknown if attempt.effect == "write" else past.cut_reads)[unit] = attempt
            elif attempt.number > told.get(unit, 0):
                past.repeatable[unit] = attempt
        past.aborted.difference_update(past.succeeded)
        return past
