"""`GoalCalls`: makes the calls of a goal, with intents and receipts as for any step. Calls of earlier starts are not repeated."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pydantic import JsonValue

from plan_adapter.execution.asked import OpenGates
from plan_adapter.execution.call_arguments import NO_RETRY, CallTarget, RetryPolicy
from plan_adapter.execution.course import Course, CourseEnd
from plan_adapter.execution.items import shown_label
from plan_adapter.execution.ports import BEGUN_EARLIER, AttemptEnd, GateRefusal, StepRunner
from plan_adapter.execution.rollback_status import OUTCOME_UNKNOWN
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.step import Call
from plan_adapter.expressions import Template
from plan_adapter.model.errors import ToolError
from plan_adapter.model.goals import MODEL_ASKS, Evidence
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
        self._course = Course(
            scope,
            run_step,
            open_gates,
            why_halted=lambda _: why_halted(),
            begun_earlier=BEGUN_EARLIER,
            after_abort=OUTCOME_UNKNOWN,
            confirms_each=True,
        )
        self._urgency = urgency
        self._why_halted = why_halted
        self._last_key: str | None = None  # the key of the newest call
        self.spent_ms = 0  # in calls, without the time that people take

    async def decide(self, item: int, function: RoundFunction) -> CallOutcome:
        """Get the decision of a round from `function`, and return it. If it fails, the step's own retries apply."""
        return await self._run_round_call("decision", "decide", item, function)

    async def check(self, item: int, function: RoundFunction) -> CallOutcome:
        """Check the decision of a round with `function`, and return its result."""
        return await self._run_round_call("check", "check", item, function)

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
        fields["description"] = f"{MODEL_ASKS}{why}"
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

    async def _run_round_call(self, kind: CallKind, name: str, item: int, function: RoundFunction) -> CallOutcome:
        """Make the call `name` of a round, which runs `function` in place of a tool of the plan."""
        receipt = self._scope.history.calls(kind).succeeded.get((self._step.id, item))
        if receipt is not None:
            return self._recorded_outcome(receipt)

        async def call_function(context: ToolContext) -> JsonValue:
            return await function(context)

        step = self._step_for_call(max_retries=self._step.max_retries)
        end = await self._run_call(self._new_call(step, kind, item, Tool(call_function, effect="read", name=name), {}))
        if end.outcome != "succeeded":
            raise GoalEndedError(replace(end, error=f"round {item + 1}: {end.error}"))
        return CallOutcome(end.result)

    async def _ask_and_call(self, call: Call) -> CallOutcome | GateRefusal:
        """Make `call`, after a person has approved it if it needs an approval. The outcome of an earlier start is kept."""
        history, unit, gates = self._scope.history, (call.step.id, call.item), self._scope.gates
        receipt, begun = history.receipts.get(unit), history.unknown.get(unit)
        is_to_repeat = unit in history.repeatable or unit in history.interrupted_reads
        if begun is None and receipt is not None and receipt.resolution != "again" and not is_to_repeat:
            return self._recorded_outcome(receipt)
        is_gated = gates is not None and gates.is_gated(call.step)
        if not is_gated and begun is None and (call.step.ask is not None or call.step.requires_approval):
            raise GoalEndedError(AttemptEnd("failed", 0, error=f"nobody can be asked about `{call.name}`"))
        if not is_gated and call.effect != "read":
            call.allowed_by = self._scope.approved.approval
        ended = await self._take(call, begun=begun)
        if ended.refusal is not None:
            return self._raise_if_it_ends_the_goal(ended.refusal)
        end = self._end_of(call, ended)
        if end.outcome not in ("succeeded", "failed") or ended.resolution == "abort":
            raise GoalEndedError(end)
        return CallOutcome(end.result, None if end.outcome == "succeeded" else end.error or "it failed")

    def _raise_if_it_ends_the_goal(self, refusal: GateRefusal) -> GateRefusal:
        """Return a refusal for the model to read."""
        if refusal.reason is RunReason.CANCELLED:
            raise GoalEndedError(AttemptEnd("failed", 0, error=refusal.message))
        if refusal.reason is RunReason.EXPIRED and refusal.ends_run:
            self._scope.refusal = self._scope.refusal or refusal
            raise GoalEndedError(AttemptEnd("failed", 0, error=refusal.message), was_refused=True)
        return refusal

    async def _run_call(self, call: Call) -> AttemptEnd:
        """Make a call of the program's own. Nobody is asked about it."""
        return self._end_of(call, await self._take(call, is_gated=False))

    async def _take(self, call: Call, *, begun: Attempt | None = None, is_gated: bool = True) -> CourseEnd:
        """Take a call to its end. Raise GoalEndedError if it was neither made nor refused by a person."""
        ended = await self._course.take(call, begun=begun, is_gated=is_gated)
        if ended.is_left:
            raise GoalEndedError(None)
        if ended.end is None:
            self._raise_if_halted()
        if ended.seconds is not None:
            self.spent_ms += round(ended.seconds * 1000)
            self._last_key = call.key
        return ended

    @staticmethod
    def _end_of(call: Call, ended: CourseEnd) -> AttemptEnd:
        if ended.end is None:
            raise GoalEndedError(AttemptEnd("failed", 0, error="the gate was closed"))
        return ended.end if call.effect == "write" else replace(ended.end, was_interrupted=False)  # the goal may write, but not this call

    def _recorded_outcome(self, receipt: Receipt) -> CallOutcome:
        self.spent_ms += receipt.duration_ms
        return CallOutcome(receipt.result, None if receipt.outcome is Outcome.SUCCEEDED else receipt.error or "it failed")

    def _raise_if_halted(self) -> None:
        stop = self._scope.stop
        if stop.is_set:
            raise GoalEndedError(AttemptEnd("timed_out" if stop.kind == "timed_out" else "cancelled", 0, error=stop.message))
        if self._why_halted():
            raise GoalEndedError(AttemptEnd("cancelled", 0, error=self._why_halted()))
