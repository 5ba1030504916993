"""`Pursuit`: a goal, round by round. Each round is a decision of the model, and what the program makes of it.

A start of the run that follows another goes through the same rounds again, with the receipts in place of the calls.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from pydantic import JsonValue

from plan_adapter.canonical import arguments_digest
from plan_adapter.errors import ExpressionError
from plan_adapter.execution.goal_calls import GoalCalls, Made
from plan_adapter.execution.goal_checks import citation_fault, failed, flow_check, guard_reasons, safety_check
from plan_adapter.execution.ports import AttemptEnd, GateRefusal
from plan_adapter.execution.scope import SPOKEN, RunScope
from plan_adapter.execution.step import unmet
from plan_adapter.goals import (
    MAX_CORRECTIONS,
    Check,
    EndChecks,
    Evidence,
    EvidenceSource,
    ExecuteDecision,
    Goal,
    GoalModel,
    Round,
    RoundAnswer,
    ToolCallIntent,
    Verdict,
    cited_evidence,
)
from plan_adapter.options import Input
from plan_adapter.plan import MAX_ROUNDS, Step
from plan_adapter.readable import counted, cut, duration
from plan_adapter.rounds import answer_of, decision_text
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import ToolContext

MAX_IDLE_ROUNDS = 8
"""A goal fails after this many rounds in a row without new evidence."""

SUMMARY_CHARACTERS = 1000
"""How much of a result the summary of evidence holds."""

ARGUMENTS_CHARACTERS = 500
"""How much of the arguments evidence holds."""

_ANSWER = {"answer": Input(type="string", title="Answer")}
_IS_MET = {"met": Input(type="boolean", title="Is it met?")}


@dataclass(slots=True)
class _Used:
    """What a goal has used of its limits. A start after the goal failed begins again."""

    rounds: int = 0
    tokens: int = 0
    faults: int = 0  # in a row: a round whose action was carried out ends the row
    idle: int = 0  # rounds in a row without new evidence
    fault: str = ""  # the last one


class Pursuit:
    """A goal in progress. It belongs to one start of a run."""

    def __init__(self, scope: RunScope, step: Step, calls: GoalCalls) -> None:
        """Prepare to pursue the goal of `step` with `calls`."""
        validated = scope.approved.bound.validated
        self._scope = scope
        self._step = step
        self._calls = calls
        self._tools = validated.goal_tools[step.id]
        self._told: dict[str, JsonValue] = {}
        self._rounds = list[Round]()
        self._results = dict[str, JsonValue]()  # by tool: the newest one
        self._refused = dict[str, str]()  # by digest of a call that a person refused: why
        self._facts = set[tuple[object, ...]]()  # what the evidence says; the same read with the same result says nothing new
        self._unmet_with: int | None = None  # how many facts there were when a `done_when` in words was last judged, and not met
        self._used = _Used()
        earlier = scope.history.receipts.get((step.id, None))
        self._failed_at = None if earlier is None else earlier.ended_at

    async def pursue(self) -> AttemptEnd | None:
        """Go through the rounds until the goal is met or given up, and return the end of the step. None if it is left waiting.

        Raises CutShortError if the goal ends without a decision of its model.
        """
        model = self._scope.goal_model
        if model is None:
            return AttemptEnd("failed", 0, error="no model is configured to pursue the goal: set PLAN_ADAPTER_MODEL")
        try:
            told = self._scope.approved.bound.validated.parameters[self._step.id].resolve(self._scope.variables())
        except ExpressionError as error:
            return AttemptEnd("failed", 0, error=str(error))
        assert isinstance(told, dict)
        self._told = told
        end = None
        while end is None:
            spent = self._spent()
            end = await self._failed(*spent) if spent is not None else await self._round(model)
        return end

    def _spent(self) -> tuple[str, str] | None:
        """Return the reason why no further round is made, and the same in words, or None."""
        used, most, goal_tokens = self._used, self._step.max_rounds or MAX_ROUNDS, self._scope.goal_tokens
        limit_ms = self._step.timeout_ms
        if used.faults >= MAX_CORRECTIONS:
            return "failed", f"{MAX_CORRECTIONS} decisions in a row could not be carried out; the last one: {used.fault}"
        if used.idle >= MAX_IDLE_ROUNDS:
            return "failed", f"{MAX_IDLE_ROUNDS} rounds in a row brought no new evidence"
        if used.rounds >= most:
            return "exhausted", f"the goal was not met within {counted(most, 'round')}"
        if limit_ms and self._calls.spent_ms >= limit_ms:
            return "exhausted", f"the goal was not met within {duration(limit_ms)}"
        if goal_tokens is not None and used.tokens >= goal_tokens:
            return "exhausted", f"the goal was not met with {used.tokens} tokens; the limit is {goal_tokens}"
        return None

    async def _round(self, model: GoalModel) -> AttemptEnd | None:
        item = len(self._rounds)
        receipt = self._scope.history.decisions.succeeded.get((self._step.id, item))
        is_earlier = receipt is not None and self._failed_at is not None and receipt.ended_at <= self._failed_at
        made = await self._calls.decide(item, partial(self._decide, model))
        answer = answer_of(made.result)
        self._used.rounds += 1
        self._used.tokens += answer.tokens
        end = await self._carry_out(item, answer, model, is_earlier=is_earlier)
        if is_earlier:  # the goal failed after this round, and a person resumed the run
            self._used, self._calls.spent_ms = _Used(), 0
        return end

    async def _decide(self, model: GoalModel, context: ToolContext) -> JsonValue:
        answer = await model.decide(self.goal)
        if answer.decision is None:
            context.logger.warning("the answer could not be used: %s", "; ".join(answer.faults))
        else:
            self._tell(answer.decision, context.logger)
        return answer.model_dump(mode="json")

    def _tell(self, decision: ExecuteDecision, logger: logging.Logger) -> None:
        """Log `decision`, and what the model says with it, unless a gate shows that: a question or a call to confirm."""
        at_gate = decision.action == "ask_user" or (decision.tool_call is not None and self._asks(decision.tool_call))
        said = "" if at_gate else decision.speak
        logger.info("%s", decision_text(decision, without=said))
        if said:
            logger.info("%s", said, extra=SPOKEN)

    async def _carry_out(self, item: int, answer: RoundAnswer, model: GoalModel, *, is_earlier: bool) -> AttemptEnd | None:
        decision = answer.decision
        if decision is None:
            return self._corrected(answer, "; ".join(answer.faults))
        match decision.action:
            case "continue" | "confirm":
                await self._call(item, answer, decision)
            case "ask_user":
                await self._ask(item, answer, decision)
            case "abort":
                return await self._abort(answer, decision, is_earlier=is_earlier)
            case "next_plan" | "done":
                return await self._end(item, answer, decision, model)
            case _:
                assert_never(decision.action)
        return None

    # What a round comes to: each adds one round.

    def _corrected(self, answer: RoundAnswer, why: str, *, is_fault: bool = True) -> None:
        """Add a round that came to nothing, for the reason `why`, which the model is sent."""
        used = self._used
        used.idle += 1
        used.faults, used.fault = (used.faults + 1, why) if is_fault else (0, "")
        self._rounds.append(Round(len(self._rounds) + 1, answer, refusal="" if answer.decision is None else why))

    def _observed(self, answer: RoundAnswer, source: EvidenceSource, name: str, arguments: JsonValue, made: Made) -> None:
        """Add a round whose call was made, and its evidence."""
        observation = made.result if made.error is None else made.error
        text = observation if isinstance(observation, str) else _compact(observation)
        number = len(self._rounds) + 1
        evidence = Evidence(
            id=f"E{len(self._evidence) + 1}",
            step=self._step.id,
            step_index=self._step.index,
            round=number,
            source=source,
            name=name,
            arguments_digest=arguments_digest(name, arguments),
            success=made.error is None,
            arguments=cut(_compact(arguments), ARGUMENTS_CHARACTERS),
            summary=cut(text, SUMMARY_CHARACTERS),
        )
        fact = (name, evidence.arguments_digest, text) if source == "tool_observation" else (evidence.id,)
        self._used.faults = self._used.idle = 0
        self._facts.add(fact)
        self._rounds.append(Round(number, answer, observation=observation, evidence=evidence))

    async def _call(self, item: int, answer: RoundAnswer, decision: ExecuteDecision) -> None:
        call = decision.tool_call
        if call is None:
            missing = "`confirm` without `tool_call`: write the call that a person should confirm"
            return self._corrected(answer, missing) if decision.action == "confirm" else self._thought(answer)
        tool, digest = self._tools.get(call.name), arguments_digest(call.name, dict(call.arguments))
        if tool is None:
            return self._corrected(answer, f"this step has no tool `{call.name}`: use one of {_among(self._tools)}")
        if tool.effect != "read" and decision.action == "continue":
            return self._corrected(answer, f"`{call.name}` does more than read: use `confirm` with the same `tool_call`")
        if (missing := tool.why_not_permitted(self._scope.approved.bound.validated.plan.permissions)) is not None:
            return self._corrected(answer, await self._recorded(item, f"{missing}: find another way, or use `abort`"))
        if digest in self._refused:
            why = f"a person refused exactly this call: {self._refused[digest]}; change it, ask the person with `ask_user`, or use `abort`"
            return self._corrected(answer, await self._recorded(item, why))
        made = await self._made(item, call, decision)
        if isinstance(made, str):
            self._refused[digest] = made
            return self._corrected(answer, made, is_fault=False)
        if made.error is None:
            self._results[call.name] = made.result
        source: EvidenceSource = "tool_observation" if tool.effect == "read" else "write_receipt"
        return self._observed(answer, source, call.name, dict(call.arguments), made)

    def _thought(self, answer: RoundAnswer) -> None:
        """Add a round without a call. It neither counts as a fault nor ends a row of them."""
        self._used.idle += 1
        self._rounds.append(Round(len(self._rounds) + 1, answer))

    def _asks(self, call: ToolCallIntent) -> bool:
        """Return whether a person has to confirm `call`: it does more than read, and the plan does not always execute it."""
        return self._scope.approved.bound.validated.goal_effects(self._step.id).get(call.name, "read") != "read"

    async def _made(self, item: int, call: ToolCallIntent, decision: ExecuteDecision) -> Made | str:
        """Return the call of a round, or why a person refused it."""
        if (refusal := self._recorded_refusal(item)) is not None:
            return refusal
        tool, why = self._tools[call.name], "\n\n".join(dict.fromkeys(text for text in (decision.speak, decision.reason) if text))
        return await self._or_refusal(item, await self._calls.call(item, tool, call.arguments, why=why, asks=self._asks(call)))

    async def _ask(self, item: int, answer: RoundAnswer, decision: ExecuteDecision) -> None:
        if not decision.speak:
            return self._corrected(answer, "`ask_user` without a question: write it in `speak`")
        made = self._recorded_refusal(item) or await self._or_refusal(item, await self._calls.ask(item, decision.speak, _ANSWER))
        if isinstance(made, str):
            return self._corrected(answer, made, is_fault=False)
        return self._observed(answer, "user_reply", "ask_user", decision.speak, made)

    def _recorded_refusal(self, item: int) -> str | None:
        """Return why a person refused the call of a round in an earlier start, or None."""
        receipt = self._scope.history.checks.succeeded.get((self._step.id, item))
        return None if receipt is None or not isinstance(receipt.result, dict) else str(receipt.result["reason"])

    async def _or_refusal(self, item: int, made: Made | GateRefusal) -> Made | str:
        """Return `made`, or the words of the refusal, which are recorded: nobody is asked again about this round."""
        return made if isinstance(made, Made) else await self._recorded(item, made.message)

    async def _recorded(self, item: int, why: str) -> str:
        """Record that the decision of a round is refused, and return `why`."""

        async def refused(context: ToolContext) -> JsonValue:
            context.logger.info("%s", why)
            return {"verdict": "refused", "reason": why}

        await self._calls.check(item, refused)
        return why

    async def _abort(self, answer: RoundAnswer, decision: ExecuteDecision, *, is_earlier: bool) -> AttemptEnd | None:
        if is_earlier:
            return self._corrected(answer, "the step ended here, and a person resumed it: continue with the goal", is_fault=False)
        given = decision.abort
        if given is None:
            return self._corrected(answer, "`abort` without a reason")
        self._rounds.append(Round(len(self._rounds) + 1, answer))
        return await self._failed("aborted", f"the model gave up ({given.code}): {given.user_message}")

    async def _end(self, item: int, answer: RoundAnswer, decision: ExecuteDecision, model: GoalModel) -> AttemptEnd | None:
        made = await self._calls.check(item, partial(self._checked, decision, model))
        checks = EndChecks.model_validate(made.result)
        self._used.tokens += checks.tokens
        reason = "" if checks.verdict == "met" else checks.reason
        if checks.verdict == "cannot_tell":
            reason = await self._asked_if_met(item, checks.evidence.reason)
        if reason:
            if self._told.get("done_when") and checks.flow.passed and checks.safety.passed and not citation_fault(decision, self._evidence):
                self._unmet_with = len(self._facts)
            return self._corrected(answer, reason)
        self._rounds.append(Round(len(self._rounds) + 1, answer))
        summary = decision.speak or decision.goal_check
        return await self._calls.close(self._told, self._evidence, result=self._result(summary), error=None)

    async def _checked(self, decision: ExecuteDecision, model: GoalModel, context: ToolContext) -> JsonValue:
        """Return whether the step may end. `done_when` is judged only if nothing else is wrong: judging it may cost a call of the model."""
        flow = flow_check(decision, is_last=self._is_last)
        guarded = await guard_reasons(self._tools, self._evidence, context)
        safety = safety_check(self._evidence, is_judged=self._unmet_with == len(self._facts), guarded=guarded)
        fault = citation_fault(decision, self._evidence)
        if fault or not (flow.passed and safety.passed):
            checks = EndChecks.of(flow=flow, evidence=failed(fault) if fault else None, safety=safety)
        else:
            found = await self._verdict(decision, model)
            evidence = Check(passed=found.verdict == "met", reason=found.reason or f"done_when is {found.verdict}")
            checks = EndChecks.of(flow=flow, evidence=evidence, safety=safety, verdict=found.verdict, tokens=found.tokens)
        context.logger.info("%s", checks)
        return checks.model_dump(mode="json")

    async def _verdict(self, decision: ExecuteDecision, model: GoalModel) -> Verdict:
        """Return whether `done_when` is met: computed, or judged by the verifier. Without it, a cited call that succeeded is enough."""
        done_when = self._scope.approved.bound.validated.done_when.get(self._step.id)
        if done_when is not None:
            why = unmet(done_when, self._scope.variables(result=self._result(decision.goal_check)))
            return Verdict(verdict="met" if why is None else "not_met", reason=why or "")
        if self._told.get("done_when"):
            return await model.verify(self.goal)
        if any(one.success for one in self._evidence if one.id in cited_evidence(decision.goal_check)):
            return Verdict(verdict="met", reason="a cited call succeeded, and there is no `done_when`")
        return Verdict(verdict="not_met", reason="`goal_check` cites only calls that failed, and there is no `done_when` to judge them by")

    async def _asked_if_met(self, item: int, why: str) -> str:
        """Ask a person whether the goal is met, because the verifier cannot tell. Return why it is not, or nothing."""
        found = "\n".join(f"- {one.id} `{one.name}` {'succeeded' if one.success else 'failed'}: {one.summary}" for one in self._evidence)
        question = f"Is this met: {self._told['done_when']}\n\nThe model that judges it cannot tell: {why}\n\nWhat was done:\n\n{found}"
        made = await self._calls.ask(item, question, _IS_MET)
        if isinstance(made, GateRefusal):
            return f"evidence: nobody confirmed that done_when is met: {made.message}"
        if made.error is not None:
            return f"evidence: nobody confirmed that done_when is met: {made.error}"
        is_met = isinstance(made.result, dict) and made.result.get("met") is True
        return "" if is_met else f"evidence: a person says that done_when is not met: {self._told['done_when']}"

    async def _failed(self, reason: str, error: str) -> AttemptEnd:
        return replace(await self._calls.close(self._told, self._evidence, result=None, error=error), reason=reason)

    # What the model is told.

    @property
    def _evidence(self) -> list[Evidence]:
        return [one.evidence for one in self._rounds if one.evidence is not None]

    @property
    def _is_last(self) -> bool:
        finals = self._scope.approved.bound.validated.finally_order
        others = [one for one in self._scope.run.steps if one.id != self._step.id and (one.id in finals) == (self._step.id in finals)]
        return all(one.status.has_ended for one in others)

    @property
    def goal(self) -> Goal:
        """The goal as the model sees it in the next round."""
        scope, step = self._scope, self._step
        bound, told = scope.approved.bound, {key: str(value) for key, value in self._told.items()}
        names = [bound.validated.steps[one].local_id for one in bound.validated.dependencies[step.id]]
        before = {name: scope.values[name]["result"] for name in names if name in scope.values}
        inputs = bound.inputs if scope.inputs is None else dict(scope.inputs)
        context: dict[str, JsonValue] = {"inputs": inputs} if inputs else {}
        return Goal(
            step_id=step.id,
            step_index=step.index,
            goal=told["goal"],
            done_when=told.get("done_when") or step.done_when or "",
            tools=tuple(ToolRegistry(self._tools.values()).definitions()),
            effects={name: tool.effect for name, tool in self._tools.items()},
            plan=tuple(f"{one.id}: {one.status.value}" for one in scope.run.steps),
            is_last=self._is_last,
            context=context | ({"steps": before} if before else {}),
            rounds=tuple(self._rounds),
            max_rounds=len(self._rounds) + (step.max_rounds or MAX_ROUNDS) - self._used.rounds,  # a resume gives a new budget
        )

    def _result(self, summary: str) -> JsonValue:
        evidence = [one.model_dump(mode="json") for one in self._evidence]
        return {"summary": summary, "rounds": len(self._rounds), "evidence": list[JsonValue](evidence), "results": self._results}


def _compact(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _among(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
