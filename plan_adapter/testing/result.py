"""`CaseResult`: how the run of a case ended, and where it differs from what was expected."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from plan_adapter.readable import call_name, counted, one_line
from plan_adapter.record import Attempt, PlanRun, Receipt, StepRun
from plan_adapter.status import Outcome, RunReason, StepStatus
from plan_adapter.testing.case import Case, Expectation, Parameters
from plan_adapter.values import join

SHOWN_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference: the path in `expect`, what was expected and what was found."""

    at: str
    expected: JsonValue
    actual: JsonValue


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The run of one case. It passed if it has no `mismatches` and no `unanswered` calls."""

    case: Case
    run: PlanRun
    mismatches: tuple[Mismatch, ...]
    unanswered: tuple[str, ...]  # calls that need an answer and have none, with what to write
    duration_ms: float

    @property
    def passed(self) -> bool:
        """Whether the run was as expected."""
        return not self.mismatches and not self.unanswered

    def report(self) -> str:
        """Return the differences and the steps of the run as lines of text."""
        lines = [str(self.case), *(f"  {text}" for text in self.unanswered)]
        for mismatch in self.mismatches:
            lines += [f"  {mismatch.at}", f"    expected: {_shown(mismatch.expected)}", f"    actual:   {_shown(mismatch.actual)}"]
        return "\n".join([*lines, *self._run_lines()])

    def _run_lines(self) -> Iterator[str]:
        run = self.run
        reason = f" ({run.reason})" if run.reason else ""
        yield f"  the run: {run.status}{reason}" + (f": {one_line(run.message)}" if run.message else "")
        width = max(len(step.id) for step in run.steps)
        for step in run.steps:
            more = [counted(step.attempts, "attempt")] if step.attempts > 1 else []
            more += ["rolled back"] if step.rolled_back else []
            end = step.status + (f" ({', '.join(more)})" if more else "")
            yield f"    {step.id:<{width}}  {end}" + (f": {one_line(why)}" if (why := _why(step)) else "")


def _why(step: StepRun) -> str:
    """Return why a step failed or was skipped."""
    return (step.error if step.status is StepStatus.FAILED else step.reason if step.status is StepStatus.SKIPPED else "") or ""


def _shown(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


@dataclass(frozen=True, slots=True)
class Calls:
    """What the store recorded about the calls of a run, and the names of the gates that opened."""

    attempts: Sequence[Attempt]
    receipts: Sequence[Receipt]
    gates: Sequence[str]

    @property
    def of_steps(self) -> list[Attempt]:
        """The attempts of the steps themselves, without rollbacks."""
        return [attempt for attempt in self.attempts if attempt.kind == "step"]

    @property
    def undone(self) -> list[str]:
        """The names of the calls that were rolled back."""
        done = {receipt.attempt_id for receipt in self.receipts if receipt.outcome is Outcome.SUCCEEDED}
        rollbacks = [attempt for attempt in self.attempts if attempt.kind == "rollback" and attempt.id in done]
        return [call_name(attempt.step_id, attempt.item, attempt.label) for attempt in rollbacks]


def compare(expect: Expectation, run: PlanRun, made: Calls) -> Iterator[Mismatch]:
    """Yield where `run`, with the calls that were `made`, differs from `expect`."""
    calls, steps = made.of_steps, {step.id: step for step in run.steps}
    yield from _different("status", expect.status.value, run.status.value)
    yield from _different("reason", _text(expect.reason), _text(run.reason))
    yield from _containing("message", expect.message, run.message)
    yield from _in_order(expect, _ids(calls))
    yield from _different("gates", _listed(expect.gates), _listed(made.gates))
    yield from _ended("skipped", expect.skipped, [step for step in run.steps if step.status is StepStatus.SKIPPED])
    yield from _ended("failed", expect.failed, [step for step in run.steps if step.status is StepStatus.FAILED])
    yield from _different("rolled_back", _listed(expect.rolled_back), _listed(made.undone))
    for effect, ids in (expect.effects or {}).items():
        yield from _different(join("effects", effect), _sorted(ids), _sorted(_ids(call for call in calls if call.effect == effect)))
    for step_id, count in (expect.attempts or {}).items():
        yield from _different(join("attempts", step_id), count, sum(call.step_id == step_id for call in calls))
    for step_id, parameters in (expect.called_with or {}).items():
        yield from _called(join("called_with", step_id), parameters, [call.parameters for call in _last(calls) if call.step_id == step_id])
    for step_id, value in (expect.results or {}).items():
        yield from _unlike(value, steps[step_id].result, join("results", step_id))
    yield from _unlike(dict(expect.outputs or {}), run.outputs, "outputs")


def _different(at: str, expected: JsonValue, actual: JsonValue) -> Iterator[Mismatch]:
    """Yield a mismatch if something is expected and `actual` is something else."""
    if expected is not None and expected != actual:
        yield Mismatch(at, expected, actual)


def _text(reason: RunReason | None) -> str | None:
    return None if reason is None else reason.value


def _listed(ids: Iterable[str] | None) -> list[JsonValue] | None:
    return None if ids is None else [*ids]


def _sorted(ids: Iterable[str]) -> list[JsonValue]:
    return [*sorted(ids)]


def _ended(at: str, expected: Mapping[str, str] | None, steps: list[StepRun]) -> Iterator[Mismatch]:
    """Yield a mismatch if other steps ended this way, or if one says something else about it."""
    if expected is None:
        return
    found = {step.id: _why(step) for step in steps}
    yield from _different(at, _sorted(expected), _sorted(found))
    for step_id, part in expected.items():
        if step_id in found:
            yield from _containing(join(at, step_id), part, found[step_id])


def _containing(at: str, part: str | None, text: str | None) -> Iterator[Mismatch]:
    if part is not None and part not in (text or ""):
        yield Mismatch(at, f"… {part} …", text)


def _in_order(expect: Expectation, started: list[str]) -> Iterator[Mismatch]:
    if expect.order is None:
        return
    position, found = 0, list[JsonValue]()
    for part in expect.order:
        if isinstance(part, str):
            found += started[position : position + 1]
            position += 1
        else:
            group = started[position : position + len(part)]
            found.append([*part] if sorted(group) == sorted(part) else [*group])
            position += len(part)
    found += started[position:]
    wanted: list[JsonValue] = [part if isinstance(part, str) else [*part] for part in expect.order]
    yield from _different("order", wanted, found)


def _called(at: str, expected: Parameters, calls: list[dict[str, JsonValue]]) -> Iterator[Mismatch]:
    """Yield where the parameters of the calls of a step differ from those of each call in turn, or of all its calls."""
    if isinstance(expected, list) and len(expected) != len(calls):
        yield Mismatch(at, [*expected], [*calls])
    elif isinstance(expected, list):
        for index, (wanted, found) in enumerate(zip(expected, calls, strict=True)):
            yield from _unlike(wanted, found, join(at, index))
    elif not calls:
        yield Mismatch(at, expected, None)
    else:
        for found in calls:
            yield from _unlike(expected, found, at)


def _unlike(expected: JsonValue, actual: JsonValue, at: str) -> Iterator[Mismatch]:
    """Yield where `actual` differs. A mapping may have more entries than are expected; anything else is equal."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key, value in expected.items():
            if key not in actual:
                yield Mismatch(join(at, key), value, None)
            else:
                yield from _unlike(value, actual[key], join(at, key))
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, (wanted, found) in enumerate(zip(expected, actual, strict=True)):
            yield from _unlike(wanted, found, join(at, index))
    elif expected != actual or isinstance(expected, bool) != isinstance(actual, bool):
        yield Mismatch(at, expected, actual)


def _ids(attempts: Iterable[Attempt]) -> list[str]:
    """Return the steps of `attempts`, each once, in the order of its first one."""
    return list(dict.fromkeys(attempt.step_id for attempt in attempts))


def _last(calls: Iterable[Attempt]) -> Iterator[Attempt]:
    """Yield the last attempt of each call, in the order of the items: all attempts of a call have the same parameters."""
    last: Mapping[tuple[str, int | None], Attempt] = {(call.step_id, call.item): call for call in calls}
    yield from sorted(last.values(), key=lambda call: call.item or 0)
