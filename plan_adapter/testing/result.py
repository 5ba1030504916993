"""`CaseResult`: how the run of a case ended, and where it differs from what was expected."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from plan_adapter.model.readable import call_name, counted, one_line
from plan_adapter.model.record import Attempt, PlanRun, Receipt, StepRun
from plan_adapter.model.status import Outcome, RunReason, StepStatus
from plan_adapter.model.values import join
from plan_adapter.testing.case import Case
from plan_adapter.testing.expectations import CalledWith, Ended, Expectation

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
            lines += [
                f"  {mismatch.at}",
                f"    expected: {_short_json(mismatch.expected)}",
                f"    actual:   {_short_json(mismatch.actual)}",
            ]
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
            yield f"    {step.id:<{width}}  {end}" + (f": {one_line(why)}" if (why := _explanation(step)) else "")


def _explanation(step: StepRun) -> str:
    """Return why a step failed or was skipped."""
    return (step.error if step.status is StepStatus.FAILED else step.reason if step.status is StepStatus.SKIPPED else "") or ""


def _short_json(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """What the store recorded about the calls of a run, and the names of the gates that opened."""

    attempts: Sequence[Attempt]
    receipts: Sequence[Receipt]
    gates: Sequence[str]

    @property
    def step_attempts(self) -> list[Attempt]:
        """The attempts of the steps themselves, without rollbacks."""
        return [attempt for attempt in self.attempts if attempt.kind == "step"]

    @property
    def rolled_back(self) -> list[str]:
        """The names of the calls that were rolled back."""
        done = {receipt.attempt_id for receipt in self.receipts if receipt.outcome is Outcome.SUCCEEDED}
        rollbacks = [attempt for attempt in self.attempts if attempt.kind == "rollback" and attempt.id in done]
        return [call_name(attempt.step_id, attempt.item, attempt.label) for attempt in rollbacks]


def compare(expect: Expectation, run: PlanRun, recorded: RecordedCalls) -> Iterator[Mismatch]:
    """Yield where `run`, with its `recorded` calls, differs from `expect`."""
    calls, steps = recorded.step_attempts, {step.id: step for step in run.steps}
    yield from _compare_values("status", expect.status.value, run.status.value)
    yield from _compare_values("reason", _reason_text(expect.reason), _reason_text(run.reason))
    yield from _compare_text("message", expect.message, run.message)
    yield from _compare_order(expect, _step_ids(calls))
    yield from _compare_values("gates", _as_list(expect.gates), _as_list(recorded.gates))
    yield from _compare_ended("skipped", expect.skipped, [step for step in run.steps if step.status is StepStatus.SKIPPED])
    yield from _compare_ended("failed", expect.failed, [step for step in run.steps if step.status is StepStatus.FAILED])
    yield from _compare_values("rolled_back", _as_list(expect.rolled_back), _as_list(recorded.rolled_back))
    for effect, ids in expect.effects.items():
        found = _step_ids(call for call in calls if call.effect == effect)
        yield from _compare_values(join("effects", effect), _sorted_list(ids), _sorted_list(found))
    for step_id, count in expect.attempts.items():
        yield from _compare_values(join("attempts", step_id), count, sum(call.step_id == step_id for call in calls))
    for step_id, parameters in expect.called_with.items():
        yield from _compare_parameters(
            join("called_with", step_id), parameters, [call.parameters for call in _last_attempts(calls) if call.step_id == step_id]
        )
    for step_id, value in expect.results.items():
        yield from _compare_subset(value, steps[step_id].result, join("results", step_id))
    yield from _compare_subset(expect.outputs, run.outputs, "outputs")


def _compare_values(at: str, expected: JsonValue, actual: JsonValue) -> Iterator[Mismatch]:
    """Yield a mismatch if something is expected and `actual` is something else."""
    if expected is not None and expected != actual:
        yield Mismatch(at, expected, actual)


def _reason_text(reason: RunReason | None) -> str | None:
    return None if reason is None else reason.value


def _as_list(ids: Iterable[str] | None) -> list[JsonValue] | None:
    return None if ids is None else [*ids]


def _sorted_list(ids: Iterable[str]) -> list[JsonValue]:
    return [*sorted(ids)]


def _compare_ended(at: str, expected: Ended | None, steps: list[StepRun]) -> Iterator[Mismatch]:
    """Yield a mismatch if other steps ended this way, or if a step's reason lacks the expected text."""
    if expected is None:
        return
    expected = dict.fromkeys(expected, "") if isinstance(expected, list) else expected
    found = {step.id: _explanation(step) for step in steps}
    yield from _compare_values(at, _sorted_list(expected), _sorted_list(found))
    for step_id, part in expected.items():
        if step_id in found:
            yield from _compare_text(join(at, step_id), part, found[step_id])


def _compare_text(at: str, part: str | None, text: str | None) -> Iterator[Mismatch]:
    if part is not None and part not in (text or ""):
        yield Mismatch(at, f"… {part} …", text)


def _compare_order(expect: Expectation, started: list[str]) -> Iterator[Mismatch]:
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
    yield from _compare_values("order", wanted, found)


def _compare_parameters(at: str, expected: CalledWith, calls: list[dict[str, JsonValue]]) -> Iterator[Mismatch]:
    """Yield where the parameters of a step's calls differ from `expected`: a list has one entry per call, a mapping is for all calls."""
    if isinstance(expected, list) and len(expected) != len(calls):
        yield Mismatch(at, [*expected], [*calls])
    elif isinstance(expected, list):
        for index, (wanted, found) in enumerate(zip(expected, calls, strict=True)):
            yield from _compare_subset(wanted, found, join(at, index))
    elif not calls:
        yield Mismatch(at, expected, None)
    else:
        for found in calls:
            yield from _compare_subset(expected, found, at)


def _compare_subset(expected: JsonValue, actual: JsonValue, at: str) -> Iterator[Mismatch]:
    """Yield where `actual` differs. A mapping may have more entries than expected; anything else must be equal."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key, value in expected.items():
            if key not in actual:
                yield Mismatch(join(at, key), value, None)
            else:
                yield from _compare_subset(value, actual[key], join(at, key))
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, (wanted, found) in enumerate(zip(expected, actual, strict=True)):
            yield from _compare_subset(wanted, found, join(at, index))
    elif expected != actual or isinstance(expected, bool) != isinstance(actual, bool):
        yield Mismatch(at, expected, actual)


def _step_ids(attempts: Iterable[Attempt]) -> list[str]:
    """Return the steps of `attempts`, each once, in the order of its first one."""
    return list(dict.fromkeys(attempt.step_id for attempt in attempts))


def _last_attempts(calls: Iterable[Attempt]) -> Iterator[Attempt]:
    """Yield the last attempt of each call, in the order of the items: all attempts of a call have the same parameters."""
    last: Mapping[tuple[str, int | None], Attempt] = {(call.step_id, call.item): call for call in calls}
    yield from sorted(last.values(), key=lambda call: call.item or 0)
