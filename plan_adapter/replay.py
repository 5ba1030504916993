"""`replay_runs`: executes a plan again for recorded runs, with the answers that their calls got, and without any effect."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TypeVar, cast

from pydantic import JsonValue

from plan_adapter.execution.ports import StepCall
from plan_adapter.gates.approval import needs_gate
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.loading import PlanSource, aplan_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Approval, Gate
from plan_adapter.model.canonical import canonical_json
from plan_adapter.model.dry_run import DryRun, DryRunCall
from plan_adapter.model.errors import InvalidPlanError, RunNotFoundError
from plan_adapter.model.options import CallKind
from plan_adapter.model.plan import GOAL, ExecutionPlan, Step
from plan_adapter.model.readable import redacted
from plan_adapter.model.record import Attempt, PlanRun, Receipt
from plan_adapter.model.replayed import Difference, Replay, ReplayedRun, ReplayFinding
from plan_adapter.model.status import Outcome, RunReason, StepStatus
from plan_adapter.model.values import has_unknown, join
from plan_adapter.rehearsal import Rehearsal, rehearsals
from plan_adapter.runs.run_session import opened_store
from plan_adapter.store.store import PlanStore
from plan_adapter.tools.registry import ToolRegistry, Tools, as_registry
from plan_adapter.twins import sync_twin
from plan_adapter.validation import ValidatedPlan, validate
from plan_adapter.validation.inputs import read_values

_REPLAYED = (None, RunReason.STEP_FAILED, RunReason.REJECTED, RunReason.EXHAUSTED)
"""Why a run may have ended to be replayed. Where time, a kill or a person outside the plan ended it,
the record does not say what came next."""

PAGE = 64
"""How many runs are read at first. More are read if too few of them can be replayed."""

_ENDED = (StepStatus.COMPLETED, StepStatus.FAILED)

_Call = TypeVar("_Call", Attempt, DryRunCall)


async def areplay_runs(
    plan: PlanSource, *, tools: Tools, runs: int = 40, since: timedelta | None = None, store: PlanStore | None = None
) -> Replay:
    """Run `plan` as its recorded runs ran, and return what would have gone differently. No tool is called, and nothing is recorded.

    The newest `runs` runs of plans of this name are taken, or those of them that are not older than `since`. A call of the same step with
    the same parameters ends as it did then. Any other call is new: its tool's `simulate` is called, and without one its result is unknown.
    Gates that a person rejected are rejected again, and questions get the answers that they got.

    Raises RunNotFoundError if there is no run to replay, InvalidPlanError for a plan that is not valid, and StoreError.
    """
    settings = Settings()
    async with opened_store(store, settings) as opened:
        loaded = await aplan_of(plan, store=opened)
        return await replay(loaded, as_registry(tools), opened, settings, runs=runs, since=since)


replay_runs = sync_twin(areplay_runs)


async def replay(
    plan: ExecutionPlan, tools: ToolRegistry, store: PlanStore, settings: Settings, *, runs: int, since: timedelta | None = None
) -> Replay:
    """Replay recorded runs with `plan`, as `areplay_runs` does."""
    known = validate(plan, tools)
    when = "" if since is None else " in this time"
    start = None if since is None else await store.now() - since
    policy, earlier = await store.policy.effective(settings), dict[str, _EarlierPlan]()
    order, replayed, left_out = _Order(known, policy), list[ReplayedRun](), Counter[str]()
    async with rehearsals(known, tools, policy=policy, settings=settings) as rehearsal:
        async for run in _newest_runs(store, known.plan.name, start):
            if len(replayed) == runs:
                break
            if not (run.has_ended and run.reason in _REPLAYED):
                left_out[(run.reason or run.status).value] += 1
                continue
            if run.digest not in earlier:
                earlier[run.digest] = _EarlierPlan.of(await store.get(run.digest), tools, policy)
            recorded = await _read_record(run, store, earlier[run.digest], order)
            if run.reason is RunReason.REJECTED and recorded.refusal_of_plan:
                left_out["rejected"] += 1
                continue
            replayed.append(await _replay_run(recorded, rehearsal))
    if not replayed and left_out:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
        raise RunNotFoundError(
            f"no run of `{known.plan.name}`{when} can be replayed ({reasons}): their records do not say what came next",
            hint="`plan test --record RUN` and `plan run --dry` also show what a plan does",
        )
    if not replayed:
        raise RunNotFoundError(f"the store has no run of `{known.plan.name}`{when}", hint="`plan runs` lists the runs and their plans")
    return Replay(known.plan.name, tuple(replayed), left_out, tuple(_findings(replayed, known)))


async def _newest_runs(store: PlanStore, name: str, start: datetime | None) -> AsyncIterator[PlanRun]:
    """Yield the runs of a plan that began after `start`, newest first."""
    seen, limit = set[str](), PAGE
    while True:
        page = await store.runs(limit, names=[name])
        for run in page:
            if start is not None and run.created_at < start:
                return
            if run.id not in seen:
                seen.add(run.id)
                yield run
        if len(page) < limit:
            return
        limit *= 4


@dataclass(frozen=True)
class _RecordedRun:
    """A run as the store recorded it. Implements `rehearsal.Recorded`."""

    run: PlanRun
    earlier: "_EarlierPlan"
    attempts: Sequence[Attempt]
    receipts: Mapping[str, Receipt]  # by attempt
    gates: Sequence[Gate]
    approvals: Sequence[Approval]
    same_goals: frozenset[str]  # the goals that the run and its replay have in common
    now: "_Order"  # of the plan that is replayed

    @cached_property
    def _ends(self) -> dict[tuple[str, CallKind, str, bytes], Receipt]:
        ends = dict[tuple[str, CallKind, str, bytes], Receipt]()
        for attempt in self.attempts:
            if (receipt := self.receipts.get(attempt.id)) is not None:
                ends[attempt.step_id, attempt.kind, attempt.tool_name, _content(attempt.parameters)] = receipt
        return ends

    def end_of(self, call: StepCall, parameters: Mapping[str, JsonValue]) -> Receipt | None:
        """Return how the same call ended: of the same step, with the same tool and parameters. A goal is one call."""
        if call.tool_name == GOAL:
            return self._end_of_goal(call)
        if has_unknown(parameters):
            return None
        kind: CallKind = "step" if call.step_run.undoes is None else "rollback"
        return self._ends.get((call.step.id, kind, call.tool_name, _content(parameters)))

    def _end_of_goal(self, call: StepCall) -> Receipt | None:
        if call.step.id not in self.same_goals:
            return None
        step = self.run.step(call.step.id)
        if step.status not in _ENDED:
            return None
        outcome = Outcome.SUCCEEDED if step.status is StepStatus.COMPLETED else Outcome.FAILED
        result = step.result if call.item is None else cast("list[JsonValue]", step.result)[call.item]
        ended = self.run.completed_at or self.run.updated_at
        return Receipt("", self.run.id, step.id, call.item, 1, outcome, result, step.error, ended, 0)

    def begun_before(self, step_id: str, item: int | None) -> set[tuple[str, int | None]]:
        """Return the step and item of each call that begins before this one fails or is refused.

        Those are the calls that had begun then, and those of new steps that do not wait for it.
        """
        ends = [receipt.ended_at for receipt in self.receipts.values() if (receipt.step_id, receipt.item) == (step_id, item)]
        ends += [given.at for given in self.approvals if (given.step_id, given.item) == (step_id, item)]
        ends += [gate.closed_at for gate in self.gates if gate.closed_at is not None and (gate.step_id, gate.item) == (step_id, item)]
        begun = {(call.step_id, call.item) for call in self.attempts if call.kind == "step" and ends and call.started_at < max(ends)}
        return begun | {(step, None) for step in self.new_steps if step != step_id and not self.now.is_before(step_id, step)}

    @cached_property
    def new_steps(self) -> frozenset[str]:
        """The steps that make one call each, at any rate, and that the plan of the run does not have."""
        before = self.earlier.step_ids
        return frozenset(
            step_id
            for step_id in self.now.plan.order
            if step_id not in before and (step := self.now.plan.steps[step_id]).when is None and step.for_each is None and not step.inner
        )

    def depends_on_time(self, step_id: str) -> bool:
        """Whether a step that was not called in the run may begin before one that stopped the run, or may not."""
        return any(stop != step_id and not self.now.is_before(stop, step_id) for stop in self.stops)

    @cached_property
    def stops(self) -> frozenset[str]:
        """The steps that failed or were refused in the run. What else had begun by then depends on the time that each call took."""
        return frozenset(
            step.id
            for step in self.run.steps
            if step.status is StepStatus.FAILED or any(self.refusal_at(step.id, item) for item in {None, *self._gated_items(step.id)})
        )

    def _gated_items(self, step_id: str) -> set[int | None]:
        return {gate.item for gate in self.gates if gate.step_id == step_id}

    def refusal_at(self, step_id: str, item: int | None) -> RunReason | None:
        """Return why the call was not made after its gate. None if it was approved."""
        place = (step_id, item)
        answers = [given.decision for given in self.approvals if (given.step_id, given.item) == place]
        if answers and answers[-1] == "reject":
            return RunReason.REJECTED
        is_expired = any(gate.end == "expired" and (gate.step_id, gate.item) == place for gate in self.gates)
        is_made = any((call.step_id, call.item) == place for call in self.attempts)  # a question may have an answer by default
        return RunReason.EXPIRED if is_expired and not is_made else None

    @property
    def refusal_of_plan(self) -> bool:
        """Whether a person rejected the whole plan, so that nothing was called."""
        return any(given.decision == "reject" and given.step_id is None for given in self.approvals)

    @cached_property
    def calls(self) -> list[Attempt]:
        """The last attempt of each call, without rollbacks, in the order of the first ones. What a goal called is a part of it."""
        last = dict[tuple[str, int | None], Attempt]()
        for attempt in self.attempts:
            if attempt.kind == "step" and attempt.step_id not in self.same_goals:
                last[attempt.step_id, attempt.item] = attempt
        return [*last.values()]

    @property
    def gate_places(self) -> set[tuple[str | None, int | None]]:
        """The step and item of each gate at which somebody or something answered or waited. None: the whole plan."""
        asked = {(gate.step_id, gate.item) for gate in self.gates if gate.kind != "outcome"}
        return asked | {(given.step_id, given.item) for given in self.approvals if given.known_by != "not_required"}

    @property
    def answers(self) -> dict[str, dict[str, JsonValue]]:
        """The answers to questions, by step."""
        given = {gate.step_id for gate in self.gates if gate.kind == "question"}
        return {
            step.id: cast("dict[str, JsonValue]", step.result)
            for step in self.run.steps
            if step.id in given and isinstance(step.result, dict)
        }


def _content(parameters: Mapping[str, JsonValue]) -> bytes:
    return canonical_json(redacted(dict(parameters)))


async def _read_record(listed: PlanRun, store: PlanStore, earlier: "_EarlierPlan", now: "_Order") -> _RecordedRun:
    run = await store.run(listed.id)
    ends = {receipt.attempt_id: receipt for receipt in await store.receipts(run.id)}
    before = {step.id: step for step in earlier.plan.all_steps if step.goal is not None}
    steps = now.plan.steps
    same = frozenset(step_id for step_id, step in before.items() if step_id in steps and _is_same_goal(step, steps[step_id]))
    gates, approvals = await store.gates.find(run_id=run.id, open_only=False), await store.approvals(run.id)
    return _RecordedRun(run, earlier, await store.attempts(run.id), ends, gates, approvals, same, now)


def _is_same_goal(before: Step, now: Step) -> bool:
    return before.model_dump(exclude={"depends_on", "description"}) == now.model_dump(exclude={"depends_on", "description"})


async def _replay_run(recorded: _RecordedRun, rehearsal: Rehearsal) -> ReplayedRun:
    answers, unfit = _fitting_answers(recorded, rehearsal.known)
    try:
        found = await rehearsal.run(_inputs_of(recorded.run, rehearsal.known.plan), answers=answers, recorded=recorded)
    except InvalidPlanError as error:  # of its inputs
        first = error.problems[0]
        return ReplayedRun(recorded.run, (Difference("no_start", None, first.at, writes=True, after=first.message),), 0)
    differences = [
        *unfit,
        *_compare_calls(recorded, found, rehearsal.known),
        *_compare_gates(recorded, found, rehearsal.known),
        *_compare_ends(recorded, found),
    ]
    if recorded.earlier.order is not None:
        differences += _compare_order(recorded.earlier.order, recorded, found)
    return ReplayedRun(recorded.run, tuple(differences), found.effects, has_order=recorded.earlier.order is not None)


def _fitting_answers(recorded: _RecordedRun, now: ValidatedPlan) -> tuple[dict[str, dict[str, JsonValue]], list[Difference]]:
    """Return the answers of the run that the questions still take, and a difference for each that they no longer take."""
    answers, unfit = dict[str, dict[str, JsonValue]](), list[Difference]()
    for step_id, values in recorded.answers.items():
        step = now.steps.get(step_id)
        if step is None or step.ask is None:
            continue
        kept = {name: value for name, value in values.items() if name in step.ask.fields}
        typed, problems = read_values(step.ask.fields, kept, from_text=False, what="field")
        if problems:
            after = "; ".join(f"{found.at.removeprefix('fields.')}: {found.message}" for found in problems)
            unfit.append(Difference("no_answer", step_id, "", writes=True, after=after))
        else:
            answers[step_id] = typed
    return answers, unfit


def _inputs_of(run: PlanRun, plan: ExecutionPlan) -> dict[str, JsonValue]:
    """Return the inputs of the run that the plan still has."""
    return {name: value for name, value in run.inputs.items() if name in plan.inputs}


def _compare_calls(recorded: _RecordedRun, found: DryRun, now: ValidatedPlan) -> Iterator[Difference]:
    """Yield the calls that are made newly, no longer, or with other parameters. Calls of a step are compared as sets, then by item."""
    made = [call for call in found.calls if call.kind == "step" and call.step_id not in recorded.same_goals]
    for step_id in dict.fromkeys([*(call.step_id for call in recorded.calls), *(call.step_id for call in made)]):
        old = [call for call in recorded.calls if call.step_id == step_id]
        new = [call for call in made if call.step_id == step_id]
        same = Counter(map(_identity, old)) & Counter(map(_identity, new))
        old, new = _without(old, same), _without(new, same)
        for call in [*old]:
            partner = next((other for other in new if (other.item, other.tool_name) == (call.item, call.tool_name)), None)
            if partner is not None:
                old.remove(call)
                new.remove(partner)
                yield from _compare_values(call, partner)
        for call in old:
            beside = _step_before(step_id, recorded.earlier.plan, now)
            yield Difference("gone_call", step_id, call.tool_name, call.effect != "read", before=_shown(call), beside=beside)
        for call in new:
            if step_id in recorded.earlier.step_ids and recorded.depends_on_time(step_id):
                continue
            yield Difference("new_call", step_id, call.tool_name, call.effect != "read", after=_shown(call), repeats=_twin_of(call, made))


def _step_before(step_id: str, before: ExecutionPlan, now: ValidatedPlan) -> str | None:
    """Return the step before `step_id` in the earlier plan that the plan still has. None if it has `step_id` itself, or none before it."""
    if step_id in now.steps:
        return None
    names = [step.id for step in before.all_steps]
    return next((name for name in reversed(names[: names.index(step_id)]) if name in now.steps), None)


def _identity(call: Attempt | DryRunCall) -> tuple[str, bytes]:
    return call.tool_name, _content(call.parameters)


def _without(calls: Sequence[_Call], same: Counter[tuple[str, bytes]]) -> list[_Call]:
    """Return the calls without as many of each as `same` says."""
    left, kept = Counter(same), list[_Call]()
    for call in calls:
        if left[_identity(call)]:
            left[_identity(call)] -= 1
        else:
            kept.append(call)
    return kept


def _shown(call: Attempt | DryRunCall) -> JsonValue:
    return redacted(call.parameters)


def _twin_of(call: DryRunCall, made: Sequence[DryRunCall]) -> str | None:
    """Return another step that makes the same call, if there is one."""
    return next((other.step_id for other in made if other.step_id != call.step_id and _identity(other) == _identity(call)), None)


def _compare_values(before: Attempt, after: DryRunCall) -> Iterator[Difference]:
    old, new = cast("dict[str, JsonValue]", _shown(before)), cast("dict[str, JsonValue]", _shown(after))
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            writes = "read" not in (before.effect, after.effect)
            yield Difference("other_values", after.step_id, name, writes, before=old.get(name), after=new.get(name))


def _compare_gates(recorded: _RecordedRun, found: DryRun, now: ValidatedPlan) -> Iterator[Difference]:
    """Yield the gates that open newly or no longer, once for each step. The gate of a call that is not made is a part of the call."""
    old, new = {step for step, _ in recorded.gate_places}, {gate.step_id for gate in found.gates}
    ran = {step.id for step in recorded.run.steps if step.status in _ENDED}
    would_run = {step.id for step in found.run.steps if step.status in _ENDED}
    for step_id in sorted(new - old, key=str):
        if step_id is None or step_id in ran:
            yield Difference("new_gate", step_id, "", writes=False)
    for step_id in sorted(old - new, key=str):
        if step_id is None or step_id in would_run:
            writes = step_id is None or bool(now.steps[step_id].inner) or now.effect_of(step_id) != "read"
            yield Difference("gone_gate", step_id, "", writes)


def _compare_ends(recorded: _RecordedRun, found: DryRun) -> Iterator[Difference]:
    run = recorded.run
    unknown = {call.step_id for call in found.calls if call.how == "unknown"}
    if run.status is not found.run.status and unknown & recorded.stops:  # it was assumed to succeed
        yield Difference("other_end", None, "", writes=False, before=run.status.value)
        return
    if run.status is not found.run.status:
        yield Difference("other_end", None, "", writes=False, before=run.status.value, after=found.run.status.value)
        return
    for name in dict.fromkeys([*run.outputs, *found.run.outputs]):
        before, after = redacted(run.outputs.get(name)), redacted(found.run.outputs.get(name))
        if before != after:
            yield Difference("other_output", None, name, writes=False, before=before, after=after)


def _compare_order(old: "_Order", recorded: _RecordedRun, found: DryRun) -> Iterator[Difference]:
    """Yield the steps that would no longer wait for a step that they directly waited for.

    Both call them, or the earlier one stopped the run, so that the later one was not reached.
    """
    new = recorded.now
    called = ({call.step_id for call in recorded.calls} & {call.step_id for call in found.calls}) | (recorded.stops & {*new.plan.order})
    stopped = {step.id for step in recorded.run.steps if step.status is StepStatus.SKIPPED and step.id in new.plan.steps}
    for step_id in sorted(called | stopped):
        for earlier in sorted(old.directly_before(step_id, called)):
            if (step_id in called or earlier in recorded.stops) and not new.is_before(earlier, step_id):
                after = "before" if new.is_before(step_id, earlier) else "at once"
                writes = new.plan.effect_of(step_id) != "read"
                yield Difference("other_order", step_id, earlier, writes, before="after", after=after)


class _Order:
    """Which steps of a plan come before which.

    A plan without `allow_parallel` runs its steps one after the other, but not those that wait at a gate: the others go on meanwhile.
    """

    def __init__(self, plan: ValidatedPlan, policy: EffectivePolicy) -> None:
        self.plan = plan
        self._policy = policy
        self._is_sequence = plan.plan.options.parallel_limit == 1
        order = [*plan.order, *plan.finally_order]
        self._places = {step_id: place for place, step_id in enumerate(order)}
        self._all = dict[str, frozenset[str]]()  # what each step waits for, directly or not
        for step_id in order:
            direct = plan.dependencies.get(step_id, ())
            self._all[step_id] = frozenset(direct).union(*(self._all.get(name, frozenset()) for name in direct))

    def is_before(self, first: str, second: str) -> bool:
        """Return whether `second` starts only after `first` has ended."""
        if first in self._all.get(second, ()) or self._is_in_finally(first, second):
            return True
        return self._is_sequence and self._places.get(first, -1) < self._places.get(second, -1) and first not in self._waiting

    @cached_property
    def _waiting(self) -> frozenset[str]:
        """The steps that wait at a gate, or for one that does."""
        asked = {step_id for step_id in self._places if self._stops_at_gate(self.plan.steps[step_id])}
        return frozenset(step_id for step_id in self._places if step_id in asked or asked & self._all[step_id])

    def _stops_at_gate(self, step: Step) -> bool:
        return step.ask is not None or needs_gate(step, self.plan, self._policy) or any(map(self._stops_at_gate, step.inner))

    def _is_in_finally(self, first: str, second: str) -> bool:
        return second in self.plan.finally_order and first in self.plan.order

    def directly_before(self, step_id: str, called: set[str]) -> set[str]:
        """Return the steps in `called` after which `step_id` comes next."""
        before = {other for other in called if other != step_id and self.is_before(other, step_id)}
        return {other for other in before if not any(self.is_before(other, between) for between in before)}


@dataclass(frozen=True)
class _EarlierPlan:
    """A plan that recorded runs ran."""

    plan: ExecutionPlan
    order: _Order | None  # None: it is no longer valid, because a tool has gone or changed

    @cached_property
    def step_ids(self) -> frozenset[str]:
        """The ids of its steps, also of those inside groups."""
        return frozenset(step.id for step in self.plan.all_steps)

    @classmethod
    def of(cls, plan: ExecutionPlan, tools: ToolRegistry, policy: EffectivePolicy) -> "_EarlierPlan":
        """Return `plan` with the order of its steps, if it is still valid."""
        try:
            return cls(plan, _Order(validate(plan, tools), policy))
        except InvalidPlanError:
            return cls(plan, None)


def _findings(replayed: Sequence[ReplayedRun], plan: ValidatedPlan) -> list[ReplayFinding]:
    """Return each difference once, with the runs that have it: first those about writes, each in the order of the document."""
    found = dict[tuple[object, ...], tuple[Difference, dict[str, None]]]()
    for run in replayed:
        for difference in run.differences:
            key = (difference.kind, difference.step_id, difference.subject, difference.repeats)
            found.setdefault(key, (difference, {}))[1][run.run.id] = None
    document = plan.plan
    places = {step.id: at for at, step in document.places.items()}
    findings = list[ReplayFinding]()
    for difference, runs in found.values():
        at = _place_of(difference, document, places)
        line, column = (None, None) if (marks := document._marks) is None else marks.find(at)  # pyright: ignore[reportPrivateUsage]
        file = document._file  # pyright: ignore[reportPrivateUsage]  # set by the reader of the document
        findings.append(ReplayFinding(difference, tuple(runs), at, line, column, file))
    return sorted(findings, key=lambda finding: (not finding.first.writes, finding.line or 0, finding.column or 0))


def _place_of(difference: Difference, plan: ExecutionPlan, places: Mapping[str, str]) -> str:
    """Return the path in the document of what causes a difference. Of a call that is gone, it is the place of its step or the steps."""
    if difference.kind == "other_output":
        return join("outputs", difference.subject) if difference.subject in plan.outputs else "outputs"
    if difference.kind == "no_start":
        return difference.subject
    if difference.step_id is None:
        return "options" if difference.kind in ("new_gate", "gone_gate") else ""
    at = places.get(difference.beside or difference.step_id)
    if at is None:
        return "steps"
    return join(f"{at}.parameters", difference.subject) if difference.kind == "other_values" else at
