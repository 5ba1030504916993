"""`GoalCalls`: makes the calls of a goal, with intents and receipts as for any step. Calls of earlier starts are not repeated."""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pydantic import JsonValue

from plan_adapter.execution.asked import OpenGates, is_unanswered
from plan_adapter.execution.call_arguments import NO_RETRY, CallTarget, RetryPolicy
from plan_adapter.execution.items import shown_label
from plan_adapter.execution.ports import BEGUN_EARLIER, AttemptEnd, GateRefusal, StepRunner, UnknownOutcome
from plan_adapter.execution.rollback_status import OUTCOME_UNKNOWN
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.step import Call
from plan_adapter.expressions import Template
from plan_adapter.model.approvals import Approval
from plan_adapter.model.errors import ToolError
from plan_adapter.model.goals import Evidence
from plan_adapter.model.options import CallKind, Input, Question
from plan_adapter.model.plan import Step
from plan_adapter.model.record import Attempt, Receipt, StepRun
from plan_adapter.model.rounds import evidence_text
from plan_adapter.model.status import Outcome, RunReason
from plan_adapter.tools.placeholders import goal_tool, question_tool
from plan_adapter.tools.tool import Tool, ToolContext


class GoalEndedError(Exception):
    """The goal ended without a decision of its model. `end` is None if the run is left waiting for a person."""

    def __init__(self, end: AttemptEnd | None, *, was_refused: bool = False) -> None:
        super().__init__(None if end is None else end.error)
        self.end = end
        self.was_refused = was_refused


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """A call that has ended, in this start of the run or an earlier one."""

    result: JsonValue = None
    error: str | None = None  # None: it succeeded


async def _placeholder(context: ToolContext) -> None:
    """Do nothing: each round of a goal puts its own function in this place."""


_DECIDE = Tool(_placeholder, effect="read", name="decide")
_CHECK = Tool(_placeholder, effect="read", name="check")


RoundFunction: TypeAlias = Callable[[ToolContext], Awaitable[JsonValue]]
"""What the program does in a round, given the context of the call."""


class GoalCalls:
    """Makes the calls of one goal. Each is a task run of its own, takes a slot, and is stopped with the run."""

    def __init__(
        self,
        scope: RunScope,
        step: Step,
        run: StepRun,
        *,
        open_gates: OpenGates,
        run_step: StepRunner,
        urgency: float,
        why_halted: Callable[[], str],
    ) -> None:
        """Make the calls of `step`. `why_halted` returns why no further call may be made, or an empty text."""
        self._scope = scope
        self._step = step
        self._run = run
        self._open_gates = open_gates
        self._run_step = run_step
        self._urgency = urgency
        self._why_halted = why_halted
        self._last_key: str | None = None  # the key of the newest call
        self.spent_ms = 0  # in calls, without the time that people take

    async def decide(self, item: int, function: RoundFunction) -> CallOutcome:
        """Get the decision of a round from `function`, and return it. If it fails, the step's own retries apply."""
        return await self._run_round_call("decision", item, _DECIDE, function)

    async def check(self, item: int, function: RoundFunction) -> CallOutcome:
        """Check the decision of a round with `function`, and return its result."""
        return await self._run_round_call("check", item, _CHECK, function)

    async def close(
        self, parameters: dict[str, JsonValue], evidence: Sequence[Evidence], *, result: JsonValue, error: str | None
    ) -> AttemptEnd:
        """End the step itself with `result`, or with `error`, and publish the evidence."""

        async def pursue(**_: object) -> JsonValue:
            if evidence and self._scope.publish is not None:
                description = f"The evidence of {self._step.id}"
                await self._scope.publish(evidence_text(evidence), key=f"evidence-{self._step.id}", description=description)
            if error is not None:
                raise ToolError(error)
            return result

        return await self._run_call(self._new_call(self._step_for_call(), "step", None, goal_tool().with_function(pursue), parameters))

    async def call(
        self,
        item: int,
        tool: Tool[..., Any],
        arguments: Mapping[str, JsonValue],
        *,
        written: Collection[str],
        why: str,
        needs_approval: bool,
    ) -> CallOutcome | GateRefusal:
        """Call `tool` with exactly these `arguments`, or return why a person refused it. `why` is shown to the person.

        The call is named after the arguments in `written`, which are not defaults.

        Nobody is asked unless the call `needs_approval`, or the plan or the settings require one.
        """
        fields: dict[str, Any] = {"tool_name": tool.name, "parameters": dict(arguments), "effect": tool.effect}
        fields["description"] = f"A model asks for this call: {why}"
        fields["requires_approval"] = needs_approval or self._step.requires_approval
        step, given = self._step_for_call(**fields), (f"{name}={value}" for name, value in arguments.items() if name in written)
        label = shown_label(f"round {item + 1}: {tool.name}({', '.join(given)})", self._scope.secrets.redactor.text)
        return await self._ask_and_call(self._new_call(step, "step", item, tool, dict(arguments), label=label))

    async def ask(self, item: int, question: str, fields: Mapping[str, Input]) -> CallOutcome | GateRefusal:
        """Ask a person, and return the answer by field, or why there is none."""
        step = self._step_for_call(ask=Question(question=question, fields=dict(fields)))
        label = shown_label(f"round {item + 1}: question", self._scope.secrets.redactor.text)
        return await self._ask_and_call(self._new_call(step, "step", item, question_tool(), {"question": question}, label=label))

    def _step_for_call(self, **fields: Any) -> Step:
        """Return a step for one call of the goal, with `fields` changed."""
        nothing: dict[str, Any] = {"goal": None, "tools": [], "max_rounds": None, "done_when": None, "timeout_ms": None, "max_retries": 0}
        return self._step.model_copy(update=nothing | fields)

    def _new_call(
        self,
        step: Step,
        kind: CallKind,
        item: int | None,
        tool: Tool[..., Any],
        parameters: dict[str, JsonValue],
        *,
        label: str | None = None,
    ) -> Call:
        target = CallTarget(
            step_id=step.id,
            tool=tool,
            parameters=Template(parameters),  # without expressions, so that a model reads only what it was given
            effect=tool.effect,
            retry=RetryPolicy.of(step) if kind != "step" else NO_RETRY,
            timeout_seconds=None if tool.effect != "read" else self._seconds_left,
            upstream=self._scope.approved.bound.validated.reduced[step.id] if self._last_key is None else (self._last_key,),
            kind=kind,
        )
        return Call(self._scope, step, self._run, urgency=self._urgency, item=item, value=None, label=label, target=target)

    @property
    def _seconds_left(self) -> float | None:
        """The time left for the whole goal. It limits reads; a write is never interrupted by it."""
        limit = self._step.timeout_ms
        return max(limit - self.spent_ms, 1) / 1000 if limit else None

    async def _run_round_call(self, kind: CallKind, item: int, tool: Tool[..., Any], function: RoundFunction) -> CallOutcome:
        receipt = self._scope.history.calls(kind).succeeded.get((self._step.id, item))
        if receipt is not None:
            return self._recorded_outcome(receipt)

        async def call_function(context: ToolContext) -> JsonValue:
            return await function(context)

        step = self._step_for_call(max_retries=self._step.max_retries)
        end = await self._run_call(self._new_call(step, kind, item, tool.with_function(call_function), {}))
        if end.outcome != "succeeded":
            raise GoalEndedError(replace(end, error=f"round {item + 1}: {end.error}"))
        return CallOutcome(end.result)

    async def _ask_and_call(self, call: Call) -> CallOutcome | GateRefusal:
        """Make `call`, after a person has approved it if it needs an approval. The outcome of an earlier start is kept."""
        history, unit = self._scope.history, (call.step.id, call.item)
        receipt, attempt = history.receipts.get(unit), history.unknown.get(unit)
        if attempt is not None:
            end = await self._find_outcome(call, attempt)
            if end is not None:
                return _outcome_of(end)
        elif receipt is not None and receipt.resolution != "again" and unit not in {**history.repeatable, **history.interrupted_reads}:
            return self._recorded_outcome(receipt)
        while True:
            if self._scope.gates is not None and self._scope.gates.is_gated(call.step):
                try:
                    answer = await self._ask_for_approval(call)
                except ToolError as error:  # the call cannot be made, so nobody is asked
                    return CallOutcome(error=str(error))
                if isinstance(answer, GateRefusal):
                    return answer
                call.approval = answer
            elif call.step.ask is not None or call.step.requires_approval:
                raise GoalEndedError(AttemptEnd("failed", 0, error=f"nobody can be asked about `{call.name}`"))
            elif call.effect != "read":
                call.allowed_by = self._scope.approved.approval
            end = await self._run_call(call)
            if end.outcome == "unknown" and call.unknown_attempt is not None:
                end = await self._ask_for_outcome(call, call.unknown_attempt, end)
            if end is not None:
                return _outcome_of(end)

    async def _ask_for_approval(self, call: Call) -> Approval | GateRefusal:
        assert self._scope.gates is not None
        self._raise_if_halted()
        gated = await call.gated_call()
        answer = await self._open_gates.ask_for_approval(self._scope.gates, gated)
        if is_unanswered(gated, answer):
            raise GoalEndedError(None)
        self._raise_if_halted()
        if answer is None or (isinstance(answer, GateRefusal) and answer.reason is RunReason.CANCELLED):
            raise GoalEndedError(AttemptEnd("failed", 0, error="the gate was closed" if answer is None else answer.message))
        if isinstance(answer, GateRefusal) and answer.reason is RunReason.EXPIRED and answer.ends_run:
            self._scope.refusal = self._scope.refusal or answer
            raise GoalEndedError(AttemptEnd("failed", 0, error=answer.message), was_refused=True)
        return answer

    async def _find_outcome(self, call: Call, attempt: Attempt) -> AttemptEnd | None:
        """Ask the tool's probe, then a person, how an attempt of an earlier start ended. Return None if the call is to be made again."""
        end = await self._ask_probe(call, attempt) if call.has_probe else None
        if end is None:
            return await self._ask_for_outcome(call, attempt, AttemptEnd("unknown", attempt.number, error=BEGUN_EARLIER))
        return None if end.not_done else end

    async def _ask_probe(self, call: Call, attempt: Attempt) -> AttemptEnd | None:
        self._open_gates.count_call(1)
        await self._scope.slots.acquire(self._urgency)
        try:
            return None if self._scope.stop.is_set else await call.probe_attempt(attempt)
        finally:
            self._scope.slots.release()
            self._open_gates.count_call(-1)

    async def _ask_for_outcome(self, call: Call, attempt: Attempt, end: AttemptEnd) -> AttemptEnd | None:
        """Ask a person how `attempt` ended. Return that end, or None if the call is to be made again."""
        resolved = (
            None
            if self._why_halted()
            else await self._open_gates.ask_for_resolution(UnknownOutcome(call.step, self._run, attempt, end.error or ""))
        )
        if resolved is None:
            raise GoalEndedError(end)
        if resolved.resolution == "again":
            return None
        if resolved.resolution == "done":
            return AttemptEnd("succeeded", attempt.number, result=resolved.result)
        self._scope.stop.set("cancelled", resolved.words)
        raise GoalEndedError(AttemptEnd("failed", attempt.number, error=f"{resolved.words}; {OUTCOME_UNKNOWN}", can_retry=False))

    async def _run_call(self, call: Call) -> AttemptEnd:
        self._open_gates.count_call(1)
        try:
            await self._scope.slots.acquire(self._urgency)
            if self._why_halted():
                self._scope.slots.release()
                self._raise_if_halted()
            call.take_slot()
            began = time.monotonic()
            end = await self._run_step(call)
            self.spent_ms += round((time.monotonic() - began) * 1000)
        finally:
            self._open_gates.count_call(-1)
        self._last_key = call.key
        return end if call.effect == "write" else replace(end, was_interrupted=False)  # the goal may write, but this call did not write

    def _recorded_outcome(self, receipt: Receipt) -> CallOutcome:
        self.spent_ms += receipt.duration_ms
        return CallOutcome(receipt.result, None if receipt.outcome is Outcome.SUCCEEDED else receipt.error or "it failed")

    def _raise_if_halted(self) -> None:
        stop = self._scope.stop
        if stop.is_set:
            raise GoalEndedError(AttemptEnd("timed_out" if stop.kind == "timed_out" else "cancelled", 0, error=stop.message))
        if self._why_halted():
            raise GoalEndedError(AttemptEnd("cancelled", 0, error=self._why_halted()))


def _outcome_of(end: AttemptEnd) -> CallOutcome:
    """Return the outcome of a call. Raise GoalEndedError if its end also ends the goal."""
    if end.outcome not in ("succeeded", "failed"):
        raise GoalEndedError(end)
    return CallOutcome(end.result, None if end.outcome == "succeeded" else end.error or "it failed")
