"""`GoalCalls`: the calls of a goal, with intents and receipts like those of any step. A call of an earlier start is not repeated."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pydantic import JsonValue

from plan_adapter.approvals import Approval
from plan_adapter.errors import ToolError
from plan_adapter.execution.asked import AskedCalls, is_open
from plan_adapter.execution.call_arguments import Called, RetryPolicy
from plan_adapter.execution.items import shown_label
from plan_adapter.execution.ports import AttemptEnd, GateRefusal, StepRunner, UnknownOutcome
from plan_adapter.execution.rollback_status import NEVER_KNOWN
from plan_adapter.execution.scope import RunScope
from plan_adapter.execution.step import Call
from plan_adapter.expressions import Template
from plan_adapter.goals import Evidence
from plan_adapter.options import CallKind, Input, Question
from plan_adapter.plan import Step
from plan_adapter.record import Attempt, Receipt, StepRun
from plan_adapter.rounds import evidence_text
from plan_adapter.status import Outcome, RunReason
from plan_adapter.tools.goal import goal_tool
from plan_adapter.tools.question import question_tool
from plan_adapter.tools.tool import Tool, ToolContext

_NO_RETRY = RetryPolicy(0, 0.0, 1.0, 0.0)


class CutShortError(Exception):
    """The goal ends here without a decision of its model. `end` is None if the run is left waiting for a person."""

    def __init__(self, end: AttemptEnd | None, *, was_refused: bool = False) -> None:
        super().__init__(None if end is None else end.error)
        self.end = end
        self.was_refused = was_refused


@dataclass(frozen=True, slots=True)
class Made:
    """A call that has ended, in this start of the run or an earlier one."""

    result: JsonValue = None
    error: str | None = None  # None: it succeeded


async def _rounds_call(context: ToolContext) -> None:
    """Stand for what the program does in a round of a goal."""


_DECIDE = Tool(_rounds_call, effect="read", name="decide")
_CHECK = Tool(_rounds_call, effect="read", name="check")


Answer: TypeAlias = Callable[[ToolContext], Awaitable[JsonValue]]
"""What the program does in a round."""


class GoalCalls:
    """Makes the calls of one goal. Each is a task run of its own, takes a slot, and is stopped with the run."""

    def __init__(
        self,
        scope: RunScope,
        step: Step,
        run: StepRun,
        *,
        asked: AskedCalls,
        run_step: StepRunner,
        urgency: float,
        halted: Callable[[], str],
    ) -> None:
        """Make the calls of `step`. `halted` says why no further call may be made, if none may."""
        self._scope = scope
        self._step = step
        self._run = run
        self._asked = asked
        self._run_step = run_step
        self._urgency = urgency
        self._halted = halted
        self._last: str | None = None  # the key of the newest call
        self.spent_ms = 0  # in calls, without the time that people take

    async def decide(self, item: int, answer: Answer) -> Made:
        """Return what `answer` returns: the model's decision in a round. Only the step's own retries follow a failure."""
        return await self._of_round("decision", item, _DECIDE, answer)

    async def check(self, item: int, answer: Answer) -> Made:
        """Return what `answer` returns: what the decision of a round is checked for."""
        return await self._of_round("check", item, _CHECK, answer)

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

        return await self._performed(self._call(self._step_of(), "step", None, goal_tool().answered_by(pursue), parameters))

    async def call(
        self, item: int, tool: Tool[..., Any], arguments: Mapping[str, JsonValue], *, why: str, asks: bool
    ) -> Made | GateRefusal:
        """Call `tool` with exactly these `arguments`, or return why a person refused it. `why` is what the person reads.

        Nobody is asked unless the call `asks`, or the plan or the settings want an approval of its own.
        """
        fields: dict[str, Any] = {"tool_name": tool.name, "parameters": dict(arguments), "effect": tool.effect}
        fields["description"] = f"A model asks for this call: {why}"
        fields["requires_approval"] = asks or self._step.requires_approval
        step, given = self._step_of(**fields), ", ".join(f"{name}={value}" for name, value in arguments.items())
        label = shown_label(f"round {item + 1}: {tool.name}({given})", self._scope.secrets.redactor.text)
        return await self._asked_and_made(self._call(step, "step", item, tool, dict(arguments), label=label))

    async def ask(self, item: int, question: str, fields: Mapping[str, Input]) -> Made | GateRefusal:
        """Ask a person, and return the answer by field, or why there is none."""
        step = self._step_of(ask=Question(question=question, fields=dict(fields)))
        label = shown_label(f"round {item + 1}: question", self._scope.secrets.redactor.text)
        return await self._asked_and_made(self._call(step, "step", item, question_tool(), {"question": question}, label=label))

    def _step_of(self, **fields: Any) -> Step:
        """Return the step of one call of the goal."""
        nothing: dict[str, Any] = {"goal": None, "tools": [], "max_rounds": None, "done_when": None, "timeout_ms": None, "max_retries": 0}
        return self._step.model_copy(update=nothing | fields)

    def _call(
        self,
        step: Step,
        kind: CallKind,
        item: int | None,
        tool: Tool[..., Any],
        parameters: dict[str, JsonValue],
        *,
        label: str | None = None,
    ) -> Call:
        called = Called(
            step_id=step.id,
            tool=tool,
            parameters=Template(parameters),  # without expressions: a model must not read what it was not given
            effect=tool.effect,
            retry=RetryPolicy.of(step) if kind != "step" else _NO_RETRY,
            timeout_seconds=None if tool.effect != "read" else self._seconds_left,
            upstream=self._scope.approved.bound.validated.reduced[step.id] if self._last is None else (self._last,),
            kind=kind,
        )
        return Call(self._scope, step, self._run, urgency=self._urgency, item=item, value=None, label=label, called=called)

    @property
    def _seconds_left(self) -> float | None:
        """What is left of the time of the whole goal, which ends a read, but never a write in the middle."""
        limit = self._step.timeout_ms
        return max(limit - self.spent_ms, 1) / 1000 if limit else None

    async def _of_round(self, kind: CallKind, item: int, tool: Tool[..., Any], answer: Answer) -> Made:
        receipt = self._scope.history.calls(kind).succeeded.get((self._step.id, item))
        if receipt is not None:
            return self._recorded(receipt)

        async def answered(context: ToolContext) -> JsonValue:
            return await answer(context)

        step = self._step_of(max_retries=self._step.max_retries)
        end = await self._performed(self._call(step, kind, item, tool.answered_by(answered), {}))
        if end.outcome != "succeeded":
            raise CutShortError(replace(end, error=f"round {item + 1}: {end.error}"))
        return Made(end.result)

    async def _asked_and_made(self, call: Call) -> Made | GateRefusal:
        """Return the end of `call`, which is made once a person has approved it if it needs that. An earlier end is kept."""
        history, unit = self._scope.history, (call.step.id, call.item)
        receipt, lost = history.receipts.get(unit), history.unknown.get(unit)
        if lost is not None:
            end = await self._found_out(call, lost)
            if end is not None:
                return _made(end)
        elif receipt is not None and receipt.resolution != "again" and unit not in {**history.repeatable, **history.interrupted_reads}:
            return self._recorded(receipt)
        while True:
            if self._scope.gates is not None and self._scope.gates.is_gated(call.step):
                try:
                    answer = await self._approved(call)
                except ToolError as error:  # it cannot be made, so nobody is asked
                    return Made(error=str(error))
                if isinstance(answer, GateRefusal):
                    return answer
                call.approval = answer
            elif call.step.ask is not None or call.step.requires_approval:
                raise CutShortError(AttemptEnd("failed", 0, error=f"nobody can be asked about `{call.name}`"))
            elif call.effect != "read":
                call.allowed_by = self._scope.approved.approval
            end = await self._performed(call)
            if end.outcome == "unknown" and call.lost is not None:
                end = await self._resolved(call, call.lost, end)
            if end is not None:
                return _made(end)

    async def _approved(self, call: Call) -> Approval | GateRefusal:
        assert self._scope.gates is not None
        self._stop_if_halted()
        gated = await call.gated()
        answer = await self._asked.answer(self._scope.gates, gated)
        if is_open(gated, answer):
            raise CutShortError(None)
        self._stop_if_halted()
        if answer is None or (isinstance(answer, GateRefusal) and answer.reason is RunReason.CANCELLED):
            raise CutShortError(AttemptEnd("failed", 0, error="the gate was closed" if answer is None else answer.message))
        if isinstance(answer, GateRefusal) and answer.reason is RunReason.EXPIRED and answer.ends_run:
            self._scope.refusal = self._scope.refusal or answer
            raise CutShortError(AttemptEnd("failed", 0, error=answer.message), was_refused=True)
        return answer

    async def _found_out(self, call: Call, lost: Attempt) -> AttemptEnd | None:
        """Return how an attempt of an earlier start ended, from the tool's probe or a person. None if the call is to be made again."""
        end = await self._probed(call, lost) if call.has_probe else None
        if end is None:
            why = "an earlier start of this run began this write, and whether it was done is unknown"
            return await self._resolved(call, lost, AttemptEnd("unknown", lost.number, error=why))
        return None if end.not_done else end

    async def _probed(self, call: Call, lost: Attempt) -> AttemptEnd | None:
        self._asked.work(1)
        await self._scope.slots.acquire(self._urgency)
        try:
            return None if self._scope.stop.is_set else await call.probed(lost)
        finally:
            self._scope.slots.release()
            self._asked.work(-1)

    async def _resolved(self, call: Call, lost: Attempt, end: AttemptEnd) -> AttemptEnd | None:
        """Return how a person says that `lost` ended, or None if the call is to be made again."""
        resolved = None if self._halted() else await self._asked.resolution(UnknownOutcome(call.step, self._run, lost, end.error or ""))
        if resolved is None:
            raise CutShortError(end)
        if resolved.resolution == "again":
            return None
        if resolved.resolution == "done":
            return AttemptEnd("succeeded", lost.number, result=resolved.result)
        self._scope.stop.set("cancelled", resolved.words)
        raise CutShortError(AttemptEnd("failed", lost.number, error=f"{resolved.words}; {NEVER_KNOWN}", can_retry=False))

    async def _performed(self, call: Call) -> AttemptEnd:
        self._asked.work(1)
        try:
            await self._scope.slots.acquire(self._urgency)
            if self._halted():
                self._scope.slots.release()
                self._stop_if_halted()
            call.hold_slot()
            began = time.monotonic()
            end = await self._run_step(call)
            self.spent_ms += round((time.monotonic() - began) * 1000)
        finally:
            self._asked.work(-1)
        self._last = call.key
        return end if call.effect == "write" else replace(end, was_interrupted=False)  # the goal may write, but this call did not

    def _recorded(self, receipt: Receipt) -> Made:
        self.spent_ms += receipt.duration_ms
        return Made(receipt.result, None if receipt.outcome is Outcome.SUCCEEDED else receipt.error or "it failed")

    def _stop_if_halted(self) -> None:
        stop = self._scope.stop
        if stop.is_set:
            raise CutShortError(AttemptEnd("timed_out" if stop.kind == "timed_out" else "cancelled", 0, error=stop.message))
        if self._halted():
            raise CutShortError(AttemptEnd("cancelled", 0, error=self._halted()))


def _made(end: AttemptEnd) -> Made:
    """Return the end of a call, or raise CutShortError if it ends the goal as well."""
    if end.outcome not in ("succeeded", "failed"):
        raise CutShortError(end)
    return Made(end.result, None if end.outcome == "succeeded" else end.error or "it failed")
