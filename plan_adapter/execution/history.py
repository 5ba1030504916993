"""What earlier starts of a run left, and which steps a resume runs."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

from plan_adapter.model import graph
from plan_adapter.model.errors import RunConflictError, RunNotFoundError
from plan_adapter.model.options import CallKind
from plan_adapter.model.problems import did_you_mean
from plan_adapter.model.record import Attempt, Receipt, StepEnd
from plan_adapter.model.status import Outcome


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    """What a person requests for a resume. Empty: run everything that has not succeeded."""

    from_step: str | None = None  # run only this step and the steps that depend on it
    only_failed: bool = False  # run only the failed steps and the steps that waited for them
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])  # steps to skip from now on, and why

    def all_skipped(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return all skipped steps with their reasons: those of `before`, except `from_step`, and those skipped now."""
        return {step_id: why for step_id, why in before.items() if step_id != self.from_step} | dict(self.skipped)


def skipped_by(by: str, because: str) -> str:
    """Return the reason of a step that `by` skipped."""
    return f"skipped by {by}: {because}"


@dataclass(frozen=True, slots=True)
class StepChoice:
    """What a resume does with a step.

    - `carried`: it succeeded before, and its result is kept.
    - `run`: it is called if its condition and its dependencies allow it.
    - `skipped`: a person skipped it, and the steps that depend on it still run.
    - `left`: nobody requested it this time. It is skipped together with the steps that depend on it.
    """

    kind: Literal["carried", "run", "skipped", "left"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """The steps of a run by how they ended: succeeded, failed or interrupted, and skipped."""

    succeeded: Collection[str] = ()
    failed: Collection[str] = ()
    skipped: Collection[str] = ()  # a condition that skipped a step is evaluated again


def choices(dependencies: graph.Graph, record: Record, request: ResumeOptions) -> dict[str, StepChoice]:
    """Return what a resume does with each step. Raise RunConflictError with every part of the request that is impossible."""
    _check_request(dependencies, record, request)
    requested = _requested_steps(dependencies, record, request)
    found = dict[str, StepChoice]()
    for step_id in dependencies:
        if step_id in record.succeeded:
            found[step_id] = StepChoice("carried")
        elif step_id in request.skipped:
            found[step_id] = StepChoice("skipped", request.skipped[step_id])
        elif requested is None or step_id in requested:
            found[step_id] = StepChoice("run")
        else:
            found[step_id] = StepChoice("left", _why_left(request))
    return found


def _requested_steps(dependencies: graph.Graph, record: Record, request: ResumeOptions) -> set[str] | None:
    """Return the requested steps, or None for all."""
    after, chosen = graph.successors(dependencies), list[set[str]]()
    if request.from_step is not None:
        chosen.append(graph.reachable(after, [request.from_step]))
    if request.only_failed:
        chosen.append(graph.reachable(after, record.failed))
    if not chosen:
        return None
    requested = chosen[0].intersection(*chosen[1:])
    return requested | (graph.reachable(dependencies, requested) & set(record.skipped))


def _check_request(dependencies: graph.Graph, record: Record, request: ResumeOptions) -> None:
    named = [*([request.from_step] if request.from_step is not None else []), *request.skipped]
    unknown = [_no_such_step(step_id, dependencies) for step_id in dict.fromkeys(named) if step_id not in dependencies]
    problems = [f"`{step_id}` has succeeded: it cannot be skipped" for step_id in request.skipped if step_id in record.succeeded]
    problems += [f"`{step_id}` is skipped without a reason" for step_id, why in request.skipped.items() if not why.strip()]
    first = request.from_step
    if first is not None and first in dependencies:
        if first in record.succeeded:
            problems.append(f"`{first}` has succeeded, and is never run again in this run: start a new run")
        if first in request.skipped:
            problems.append(f"`{first}` cannot be both skipped and the step to run from")
        passed = {*record.succeeded, *record.skipped, *request.skipped}
        missing = [dependency for dependency in dependencies[first] if dependency not in passed]
        if missing:
            names = ", ".join(f"`{step_id}`" for step_id in missing)
            problems.append(f"`{first}` depends on {names}, which has not succeeded: run from there, or skip it with a reason")
    if request.only_failed and not record.failed:
        problems.append("no step has failed")
    if unknown or problems:
        raise (RunConflictError if problems else RunNotFoundError)("; ".join([*unknown, *problems]))


def _no_such_step(name: str, dependencies: graph.Graph) -> str:
    step_id, bracket, item = name.partition("[")
    if not bracket or step_id not in dependencies:
        return f"no step is called `{name}` ({did_you_mean(name, frozenset(dependencies))})"
    return (
        f"`{name}` is one item of `{step_id}`, and only whole steps are skipped or run from: name `{step_id}`; if somebody did the item by "
        f"hand, `plan resolve RUN {step_id} done --item {item.removesuffix(']')}` records that"
    )


def _why_left(request: ResumeOptions) -> str:
    if request.from_step is not None:
        return f"the run was resumed from `{request.from_step}` only"
    return "the run was resumed with its failed steps only"


Unit: TypeAlias = tuple[str, int | None]
"""A step, or one item of its `for_each`."""


@dataclass(frozen=True, slots=True)
class CallHistory:
    """The earlier attempts of the calls of one kind, by unit."""

    succeeded: dict[Unit, Receipt] = field(default_factory=dict[Unit, Receipt])  # units whose last attempt succeeded
    attempts: dict[Unit, int] = field(default_factory=dict[Unit, int])
    unknown: dict[Unit, Attempt] = field(default_factory=dict[Unit, Attempt])
    repeatable: dict[Unit, Attempt] = field(default_factory=dict[Unit, Attempt])  # idempotent writes that may have been done
    interrupted_reads: dict[Unit, Attempt] = field(default_factory=dict[Unit, Attempt])  # reads without a receipt, which run again
    aborted: set[Unit] = field(default_factory=set[Unit])  # writes with an unknown outcome, when a person aborted the run
    receipts: dict[Unit, Receipt] = field(default_factory=dict[Unit, Receipt])  # the last one, whatever its outcome
    outdated: dict[Unit, int] = field(default_factory=dict[Unit, int])  # `finally` steps to run again: the attempt that had succeeded

    def add(self, attempts: Iterable[Attempt], receipts: Iterable[Receipt]) -> None:
        """Add `attempts` and `receipts`. A write without a receipt is unknown; a read without one may be repeated.

        A later receipt covers an interrupted read, because a read leaves nothing behind. A success covers only the attempts before it: a
        `finally` step may be called again after it succeeded, and that call may be interrupted. A person's resolution of an idempotent
        write also covers its earlier attempts. Attempts that have receipts may be omitted.
        """
        resolved, ended = dict[Unit, int](), set[tuple[Unit, int]]()
        for receipt in receipts:
            unit, number = (receipt.step_id, receipt.item), receipt.number
            self.attempts[unit] = max(self.attempts.get(unit, 0), number)
            ended.add((unit, number))
            self.receipts[unit] = receipt
            if receipt.outcome is Outcome.SUCCEEDED:
                self.succeeded[unit] = receipt
            elif receipt.is_abort:
                self.aborted.add(unit)
            else:  # somebody has checked it since the abort
                self.aborted.discard(unit)
                resolved[unit] = max(resolved.get(unit, 0), number if receipt.by is not None else 0)
        for attempt in attempts:
            unit = (attempt.step_id, attempt.item)
            self.attempts[unit] = max(self.attempts.get(unit, 0), attempt.number)
            if (unit, attempt.number) in ended or (unit in self.succeeded and attempt.number < self.succeeded[unit].number):
                continue
            if attempt.effect == "write":
                self.unknown[unit] = attempt
            elif attempt.effect == "read":
                if unit not in self.receipts or self.receipts[unit].number < attempt.number:
                    self.interrupted_reads[unit] = attempt
            elif attempt.number > resolved.get(unit, 0):
                self.repeatable[unit] = attempt
        for unit in [unit for unit, receipt in self.succeeded.items() if receipt.number < self.attempts[unit]]:
            self.outdated[unit] = self.succeeded.pop(unit).number
        self.aborted.difference_update(self.succeeded)


@dataclass(frozen=True, slots=True)
class RunHistory(CallHistory):
    """What earlier starts of a run left: the calls of its steps, of their `rollbacks`, and of goals. Empty on the first start."""

    rollbacks: CallHistory = field(default_factory=CallHistory)
    decisions: CallHistory = field(default_factory=CallHistory)  # of the models of goals
    checks: CallHistory = field(default_factory=CallHistory)  # of those decisions
    choices: Mapping[str, StepChoice] = field(
        default_factory=dict[str, StepChoice]
    )  # steps covered by a person's request, in this start or an earlier one
    ends: Mapping[str, StepEnd] = field(
        default_factory=dict[str, StepEnd]
    )  # completed steps, unless the process died before it recorded the end
    asked: frozenset[str] = frozenset()  # steps that ended in the last start and that somebody was asked about
    labels: Mapping[Unit, str] = field(default_factory=dict[Unit, str])  # names of items, as far as the record needs them

    def calls(self, kind: CallKind) -> CallHistory:
        """Return the calls of this kind."""
        return {"step": self, "rollback": self.rollbacks, "decision": self.decisions, "check": self.checks}[kind]

    @property
    def left(self) -> list[str]:
        """The steps that nobody requested this time."""
        return [step_id for step_id, choice in self.choices.items() if choice.kind == "left"]

    @property
    def skipped(self) -> dict[str, str]:
        """The steps that people skipped, and why. They are not called; the steps that depend on them still run."""
        return {step_id: choice.reason for step_id, choice in self.choices.items() if choice.kind == "skipped"}

    def with_skipped(self, steps: Mapping[str, str], *, again: Collection[str] = ()) -> "RunHistory":
        """Return this history with `steps` skipped, each for its reason.

        A step that has succeeded anyway is not skipped, unless it is one of those that run `again`.
        """
        skipped = {step_id: why for step_id, why in steps.items() if (step_id, None) not in self.succeeded or step_id in again}
        return replace(self, choices={step_id: StepChoice("skipped", why) for step_id, why in skipped.items()})

    def for_finally_steps(self, finally_ids: Collection[str], order: Mapping[tuple[CallKind, Unit], int]) -> "RunHistory":
        """Return this history for the `finally` steps (`finally_ids`). One that succeeded before anything else ran runs again.

        `order` numbers the newest entry of the audit log about each call. Times would not do: the clock may be set back.
        """
        others = (number for (kind, unit), number in order.items() if kind == "rollback" or unit[0] not in finally_ids)
        newest = max(others, default=0)
        outdated = self.outdated | {
            unit: receipt.number
            for unit, receipt in self.succeeded.items()
            if unit[0] in finally_ids and order.get(("step", unit), 0) < newest
        }
        succeeded = {unit: receipt for unit, receipt in self.succeeded.items() if unit not in outdated}
        return replace(self, succeeded=succeeded, outdated=outdated)

    @property
    def has_rollbacks(self) -> bool:
        """Whether a rollback has begun: of the run, or only of items that failed (`rollback_units.is_rolled_back` tells which)."""
        return bool(self.rollbacks.attempts)

    @property
    def failed(self) -> list[Unit]:
        """The steps and items that are recorded as failed: started, not succeeded, and with a known outcome."""
        uncertain = {*self.succeeded, *self.unknown, *self.repeatable, *self.interrupted_reads, *self.aborted}
        return [unit for unit in self.attempts if unit not in uncertain]

    @property
    def unknown_steps(self) -> list[str]:
        """The steps whose outcome, or that of one of their items, is unknown."""
        return list(dict.fromkeys(step_id for step_id, _ in self.unknown))

    @classmethod
    def of(cls, attempts: Iterable[Attempt], receipts: Iterable[Receipt]) -> "RunHistory":
        """Return the history given by `attempts` and `receipts`. Attempts that have receipts may be omitted."""
        history, tried, ended = cls(), list(attempts), list(receipts)
        for kind in get_args(CallKind):
            history.calls(kind).add((row for row in tried if row.kind == kind), (row for row in ended if row.kind == kind))
        return replace(history, labels={(row.step_id, row.item): row.label for row in tried if row.label is not None})
