"""`Pursuit`: a goal, round by round. In each round, the model decides and the program carries out the decision.

A resumed run goes through the earlier rounds again, with receipts in place of calls.
"""

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, assert_never

from pydantic import JsonValue

from plan_adapter.execution.calling import prepare_call
from plan_adapter.execution.goal_calls import CallOutcome, GoalCalls
from plan_adapter.execution.ports import AttemptEnd, GateRefusal
from plan_adapter.execution.scope import SPOKEN, RunScope
from plan_adapter.execution.step import why_not_met
from plan_adapter.model.canonical import arguments_digest
from plan_adapter.model.errors import ExpressionError, error_text
from plan_adapter.model.goals import (
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
from plan_adapter.model.options import Input
from plan_adapter.model.plan import MAX_ROUNDS, Step
from plan_adapter.model.readable import counted, cut, duration
from plan_adapter.model.rounds import answer_of, decision_text
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.tools.tool import Tool, ToolContext


def passed(reason: str) -> Check:
    """Return a check that passed."""
    return Check(passed=True, reason=reason)


def failed(reason: str) -> Check:
    """Return a check that failed. The model is sent `reason`, which says what to do instead."""
    return Check(passed=False, reason=reason)


def flow_check(decision: ExecuteDecision, *, is_last: bool) -> Check:
    """Return whether `decision`, which ends the step, fits this place in the plan.

    A question or a confirmation keeps its round open until it is answered, so the only call that can be open is the decision's own.
    """
    if decision.tool_call is not None:
        call = decision.tool_call.name
        return failed(
            f"`{decision.action}` calls nothing, and nobody confirmed `{call}`: make the call first, with `confirm` or `continue`"
        )
    if decision.action == "done" and not is_last:
        return failed("`done` ends the plan, and other steps of it are left: use `next_plan`")
    return passed("this is the last step" if is_last else "other steps of the plan are left")


def citation_fault(decision: ExecuteDecision, evidence: Sequence[Evidence]) -> str:
    """Return what is wrong with the evidence that `goal_check` cites, or an empty text. The model is sent the answer."""
    known, cited = [item.id for item in evidence], cited_evidence(decision.goal_check)
    if not known:
        return "there is no evidence yet: call a tool first, with `continue` for a read and `confirm` for a write"
    if not cited:
        return f"`goal_check` has to cite evidence by its id: {_quoted_of_goal_checks(known)}"
    if unknown := [evidence_id for evidence_id in cited if evidence_id not in known]:
        return (
            f"`goal_check` cites {_quoted_of_goal_checks(unknown)}, which does not exist: the evidence is {_quoted_of_goal_checks(known)}"
        )
    return ""


def safety_check(evidence: Sequence[Evidence], *, is_judged: bool, objections: Sequence[str] = ()) -> Check:
    """Return whether the step may end safely. `is_judged`: `done_when` was judged not met, and nothing new was found since.

    Without new evidence it is not judged again: a model must not ask until the verifier, or a tired person, says yes. `objections` come
    from the guards of the tools.
    """
    reasons = [*objections]
    if is_judged:
        reasons.append("done_when was judged with this evidence, and is not met: find new evidence, or use `abort`")
    if reasons:
        return failed("; ".join(reasons))
    writes = sum(item.source == "write_receipt" for item in evidence)
    return passed(f"{counted(writes, 'write')}, each confirmed or in `always_execute`" if writes else "nothing was written")


async def guard_reasons(tools: Mapping[str, Tool[..., Any]], evidence: Sequence[Evidence], context: ToolContext) -> list[str]:
    """Return why the guards of the tools that wrote do not let the step end. A guard that fails does not let it end either."""
    called = dict.fromkeys(item.name for item in evidence if item.source == "write_receipt")
    reasons = list[str]()
    for guard in {id(guard): guard for name in called if (guard := tools[name].guard) is not None}.values():
        try:
            objection = await prepare_call(guard, guard.bind({}, context), isolation="thread")
        except Exception as error:
            objection = error_text(error, context.redact)
        if objection:
            reasons.append(f"`{guard.name}`: {objection}")
    return reasons


def _quoted_of_goal_checks(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


MAX_IDLE_ROUNDS = 8
"""A goal fails after this many rounds in a row without new evidence."""

SUMMARY_CHARACTERS = 1000
"""How much of a result the summary of evidence holds."""

ARGUMENTS_CHARACTERS = 500
"""How much of the arguments evidence holds."""

_ANSWER_FIELDS = {"answer": Input(type="string", title="Answer")}
_IS_MET_FIELDS = {"met": Input(type="boolean", title="Is it met?")}


@dataclass(slots=True)
class _Usage:
    """What a goal has used of its limits. If the goal failed and the run is resumed, it starts at zero."""

    rounds: int = 0
    tokens: int = 0
    faults: int = 0  # rounds in a row whose action could not be carried out
    idle: int = 0  # rounds in a row without new evidence
    fault: str = ""  # the last fault


class Pursuit:
    """A goal in progress. It belongs to one start of a run."""

    def __init__(self, scope: RunScope, step: Step, calls: GoalCalls) -> None:
        """Prepare to pursue the goal of `step` with `calls`."""
        validated = scope.approved.bound.validated
        self._scope = scope
        self._step = step
        self._calls = calls
        self._tools = validated.goal_tools[step.id]
        self._permissions = validated.permissions_at(step).names
        self._parameters: dict[str, JsonValue] = {}
        self._rounds = list[Round]()
        self._results = dict[str, JsonValue]()  # the newest result, by tool
        self._refusals = dict[str, str]()  # why a person refused a call, by the digest of the call
        self._facts = set[tuple[object, ...]]()  # what the evidence shows; the same read with the same result adds nothing
        self._facts_when_unmet: int | None = None  # how many facts there were when a `done_when` in words was last judged not met
        self._usage = _Usage()
        earlier = scope.history.receipts.get((step.id, None))
        self._failed_at = None if earlier is None else earlier.ended_at

    async def pursue(self) -> AttemptEnd | None:
        """Go through the rounds until the goal is met or given up, and return the end of the step, or None if it is left waiting.

        Raises GoalEndedError if the goal ends without a decision of its model.
        """
        model = self._scope.goal_model
        if model is None:
            return AttemptEnd("failed", 0, error="no model is configured to pursue the goal: set PLAN_ADAPTER_MODEL")
        try:
            parameters = self._scope.approved.bound.validated.parameters[self._step.id].resolve(self._scope.variables())
        except ExpressionError as error:
            return AttemptEnd("failed", 0, error=str(error))
        assert isinstance(parameters, dict)
        self._parameters = parameters
        end = None
        while end is None:
            limit = self._reached_limit()
            end = await self._close_failed(*limit) if limit is not None else await self._run_round(model)
        return end

    def _reached_limit(self) -> tuple[str, str] | None:
        """Return the reason of the limit that the goal has reached and its message, or None if another round may start."""
        usage, most, goal_tokens = self._usage, self._step.max_rounds or MAX_ROUNDS, self._scope.goal_tokens
        limit_ms = self._step.timeout_ms
        if usage.faults >= MAX_CORRECTIONS:
            return "failed", f"{MAX_CORRECTIONS} decisions in a row could not be carried out; the last one: {usage.fault}"
        if usage.idle >= MAX_IDLE_ROUNDS:
            return "failed", f"{MAX_IDLE_ROUNDS} rounds in a row brought no new evidence"
        if usage.rounds >= most:
            return "exhausted", f"the goal was not met within {counted(most, 'round')}"
        if limit_ms and self._calls.spent_ms >= limit_ms:
            return "exhausted", f"the goal was not met within {duration(limit_ms)}"
        if goal_tokens is not None and usage.tokens >= goal_tokens:
            return "exhausted", f"the goal was not met with {usage.tokens} tokens; the limit is {goal_tokens}"
        return None

    async def _run_round(self, model: GoalModel) -> AttemptEnd | None:
        item = len(self._rounds)
        receipt = self._scope.history.decisions.succeeded.get((self._step.id, item))
        is_earlier = receipt is not None and self._failed_at is not None and receipt.ended_at <= self._failed_at
        outcome = await self._calls.decide(item, partial(self._decide, model))
        answer = answer_of(outcome.result)
        self._usage.rounds += 1
        self._usage.tokens += answer.tokens
        end = await self._carry_out(item, answer, model, is_earlier=is_earlier)
        if is_earlier:  # the goal failed after this round, and a person resumed the run
            self._usage, self._calls.spent_ms = _Usage(), 0
        return end

    async def _decide(self, model: GoalModel, context: ToolContext) -> JsonValue:
        answer = await model.decide(self.goal)
        if answer.decision is None:
            context.logger.warning("the answer could not be used: %s", "; ".join(answer.faults))
        else:
            self._log_decision(answer.decision, context.logger)
        return answer.model_dump(mode="json")

    def _log_decision(self, decision: ExecuteDecision, logger: logging.Logger) -> None:
        """Log `decision` and what the model says with it. A gate already shows the text of a question or of a call to confirm."""
        is_shown_at_gate = decision.action == "ask_user" or (
            decision.tool_call is not None and self._needs_confirmation(decision.tool_call)
        )
        said = "" if is_shown_at_gate else decision.speak
        logger.info("%s", decision_text(decision, without=said))
        if said:
            logger.info("%s", said, extra=SPOKEN)

    async def _carry_out(self, item: int, answer: RoundAnswer, model: GoalModel, *, is_earlier: bool) -> AttemptEnd | None:
        decision = answer.decision
        if decision is None:
            return self._add_correction(answer, "; ".join(answer.faults))
        match decision.action:
            case "continue" | "confirm":
                await self._handle_call(item, answer, decision)
            case "ask_user":
                await self._ask(item, answer, decision)
            case "abort":
                return await self._abort(answer, decision, is_earlier=is_earlier)
            case "next_plan" | "done":
                return await self._finish(item, answer, decision, model)
            case _:
                assert_never(decision.action)
        return None

    # Each of these adds one round.

    def _add_correction(self, answer: RoundAnswer, why: str, *, is_fault: bool = True) -> None:
        """Add a round without effect. The model is sent the reason `why`."""
        usage = self._usage
        usage.idle += 1
        usage.faults, usage.fault = (usage.faults + 1, why) if is_fault else (0, "")
        self._rounds.append(Round(len(self._rounds) + 1, answer, refusal="" if answer.decision is None else why))

    def _add_observation(self, answer: RoundAnswer, source: EvidenceSource, name: str, arguments: JsonValue, outcome: CallOutcome) -> None:
        """Add a round with a call, and the evidence of the call."""
        observation = outcome.result if outcome.error is None else outcome.error
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
            success=outcome.error is None,
            arguments=cut(_compact(arguments), ARGUMENTS_CHARACTERS),
            summary=cut(text, SUMMARY_CHARACTERS),
        )
        fact = (name, evidence.arguments_digest, text) if source == "tool_observation" else (evidence.id,)
        self._usage.faults = self._usage.idle = 0
        self._facts.add(fact)
        self._rounds.append(Round(number, answer, observation=observation, evidence=evidence))

    async def _handle_call(self, item: int, answer: RoundAnswer, decision: ExecuteDecision) -> None:
        call = decision.tool_call
        if call is None:
            missing = "`confirm` without `tool_call`: write the call that a person should confirm"
            return self._add_correction(answer, missing) if decision.action == "confirm" else self._add_thought(answer)
        tool = self._tools.get(call.name)
        if tool is None:
            return self._add_correction(answer, f"this step has no tool `{call.name}`: use one of {_quoted(self._tools)}")
        # As the tool gets it: a call in other words, such as with a default written out, is the same call.
        written, call = call, call.model_copy(update={"arguments": tool.normalized(call.arguments, with_defaults=True)})
        digest = arguments_digest(call.name, dict(call.arguments))
        if tool.effect != "read" and decision.action == "continue":
            return self._add_correction(answer, f"`{call.name}` does more than read: use `confirm` with the same `tool_call`")
        if (missing := tool.why_not_permitted(self._permissions)) is not None:
            return self._add_correction(answer, await self._record_refusal(item, f"{missing}: find another way, or use `abort`"))
        if digest in self._refusals:
            why = f"a person refused this call before: {self._refusals[digest]}; change it, ask the person with `ask_user`, or use `abort`"
            return self._add_correction(answer, await self._record_refusal(item, why))
        outcome = await self._run_call(item, call, decision, written=written.arguments)
        if isinstance(outcome, str):
            self._refusals[digest] = outcome
            return self._add_correction(answer, outcome, is_fault=False)
        if outcome.error is None:
            self._results[call.name] = outcome.result
        source: EvidenceSource = "tool_observation" if tool.effect == "read" else "write_receipt"
        return self._add_observation(answer, source, call.name, dict(call.arguments), outcome)

    def _add_thought(self, answer: RoundAnswer) -> None:
        """Add a round without a call. It is not a fault, and it does not reset the count of faults in a row."""
        self._usage.idle += 1
        self._rounds.append(Round(len(self._rounds) + 1, answer))

    def _needs_confirmation(self, call: ToolCallIntent) -> bool:
        """Return whether a person must confirm `call`: it does more than read, and the plan does not always execute it."""
        return self._scope.approved.bound.validated.goal_effects(self._step.id).get(call.name, "read") != "read"

    async def _run_call(self, item: int, call: ToolCallIntent, decision: ExecuteDecision, *, written: Collection[str]) -> CallOutcome | str:
        """Make the call of a round. Return its outcome, or why a person refused it. `written`: the arguments that the model wrote."""
        if (refusal := self._recorded_refusal(item)) is not None:
            return refusal
        tool, why = self._tools[call.name], "\n\n".join(dict.fromkeys(text for text in (decision.speak, decision.reason) if text))
        return await self._record_if_refused(
            item,
            await self._calls.call(item, tool, call.arguments, written=written, why=why, needs_approval=self._needs_confirmation(call)),
        )

    async def _ask(self, item: int, answer: RoundAnswer, decision: ExecuteDecision) -> None:
        if not decision.speak:
            return self._add_correction(answer, "`ask_user` without a question: write it in `speak`")
        outcome = self._recorded_refusal(item) or await self._record_if_refused(
            item, await self._calls.ask(item, decision.speak, _ANSWER_FIELDS)
        )
        if isinstance(outcome, str):
            return self._add_correction(answer, outcome, is_fault=False)
        return self._add_observation(answer, "user_reply", "ask_user", decision.speak, outcome)

    def _recorded_refusal(self, item: int) -> str | None:
        """Return why a person refused the call of a round in an earlier start, or None."""
        receipt = self._scope.history.checks.succeeded.get((self._step.id, item))
        return None if receipt is None or not isinstance(receipt.result, dict) else str(receipt.result["reason"])

    async def _record_if_refused(self, item: int, outcome: CallOutcome | GateRefusal) -> CallOutcome | str:
        """Return `outcome`. Record a refusal, so that nobody is asked again about this round, and return its message."""
        return outcome if isinstance(outcome, CallOutcome) else await self._record_refusal(item, outcome.message)

    async def _record_refusal(self, item: int, why: str) -> str:
        """Record that the decision of a round is refused, and return `why`."""

        async def refused(context: ToolContext) -> JsonValue:
            context.logger.info("%s", why)
            return {"verdict": "refused", "reason": why}

        await self._calls.check(item, refused)
        return why

    async def _abort(self, answer: RoundAnswer, decision: ExecuteDecision, *, is_earlier: bool) -> AttemptEnd | None:
        if is_earlier:
            return self._add_correction(answer, "the step ended here, and a person resumed it: continue with the goal", is_fault=False)
        given = decision.abort
        if given is None:
            return self._add_correction(answer, "`abort` without a reason")
        self._rounds.append(Round(len(self._rounds) + 1, answer))
        return await self._close_failed("aborted", f"the model gave up ({given.code}): {given.user_message}")

    async def _finish(self, item: int, answer: RoundAnswer, decision: ExecuteDecision, model: GoalModel) -> AttemptEnd | None:
        outcome = await self._calls.check(item, partial(self._check_end, decision, model))
        checks = EndChecks.model_validate(outcome.result)
        self._usage.tokens += checks.tokens
        reason = "" if checks.verdict == "met" else checks.reason
        if checks.verdict == "cannot_tell":
            reason = await self._ask_if_met(item, checks.evidence.reason)
        if reason:
            if (
                self._parameters.get("done_when")
                and checks.flow.passed
                and checks.safety.passed
                and not citation_fault(decision, self._evidence)
            ):
                self._facts_when_unmet = len(self._facts)
            return self._add_correction(answer, reason)
        self._rounds.append(Round(len(self._rounds) + 1, answer))
        summary = decision.speak or decision.goal_check
        return await self._calls.close(self._parameters, self._evidence, result=self._result(summary), error=None)

    async def _check_end(self, decision: ExecuteDecision, model: GoalModel, context: ToolContext) -> JsonValue:
        """Return whether the step may end. `done_when` is judged last and only if needed, because that may cost a call of the model."""
        flow = flow_check(decision, is_last=self._is_last)
        objections = await guard_reasons(self._tools, self._evidence, context)
        safety = safety_check(self._evidence, is_judged=self._facts_when_unmet == len(self._facts), objections=objections)
        fault = citation_fault(decision, self._evidence)
        if fault or not (flow.passed and safety.passed):
            checks = EndChecks.of(flow=flow, evidence=failed(fault) if fault else None, safety=safety)
        else:
            found = await self._judge(decision, model)
            evidence = Check(passed=found.verdict == "met", reason=found.reason or f"done_when is {found.verdict}")
            checks = EndChecks.of(flow=flow, evidence=evidence, safety=safety, verdict=found.verdict, tokens=found.tokens)
        context.logger.info("%s", checks)
        return checks.model_dump(mode="json")

    async def _judge(self, decision: ExecuteDecision, model: GoalModel) -> Verdict:
        """Return whether `done_when` is met: computed, or judged by the verifier. Without one, a cited call must have succeeded."""
        done_when = self._scope.approved.bound.validated.done_when.get(self._step.id)
        if done_when is not None:
            why = why_not_met(done_when, self._scope.variables(result=self._result(decision.goal_check)))
            return Verdict(verdict="met" if why is None else "not_met", reason=why or "")
        if self._parameters.get("done_when"):
            return await model.verify(self.goal)
        if any(item.success for item in self._evidence if item.id in cited_evidence(decision.goal_check)):
            return Verdict(verdict="met", reason="a cited call succeeded, and there is no `done_when`")
        return Verdict(verdict="not_met", reason="`goal_check` cites only calls that failed, and there is no `done_when` to judge them by")

    async def _ask_if_met(self, item: int, why: str) -> str:
        """Ask a person whether the goal is met, because the verifier cannot tell. Return why it is not met, or an empty text."""
        found = "\n".join(
            f"- {item.id} `{item.name}` {'succeeded' if item.success else 'failed'}: {item.summary}" for item in self._evidence
        )
        question = (
            f"Is this met: {self._parameters['done_when']}\n\nThe model that judges it cannot tell: {why}\n\nWhat was done:\n\n{found}"
        )
        outcome = await self._calls.ask(item, question, _IS_MET_FIELDS)
        if isinstance(outcome, GateRefusal):
            return f"evidence: nobody confirmed that done_when is met: {outcome.message}"
        if outcome.error is not None:
            return f"evidence: nobody confirmed that done_when is met: {outcome.error}"
        is_met = isinstance(outcome.result, dict) and outcome.result.get("met") is True
        return "" if is_met else f"evidence: a person says that done_when is not met: {self._parameters['done_when']}"

    async def _close_failed(self, reason: str, error: str) -> AttemptEnd:
        return replace(await self._calls.close(self._parameters, self._evidence, result=None, error=error), reason=reason)

    # What the model is sent.

    @property
    def _evidence(self) -> list[Evidence]:
        return [each.evidence for each in self._rounds if each.evidence is not None]

    @property
    def _is_last(self) -> bool:
        finally_ids = self._scope.approved.bound.validated.finally_order
        others = [
            step
            for step in self._scope.run.steps
            if step.id != self._step.id and (step.id in finally_ids) == (self._step.id in finally_ids)
        ]
        return all(step.status.has_ended for step in others)

    @property
    def goal(self) -> Goal:
        """The goal as the model sees it in the next round."""
        scope, step = self._scope, self._step
        bound, parameters = scope.approved.bound, {key: str(value) for key, value in self._parameters.items()}
        names = [bound.validated.steps[step_id].local_id for step_id in bound.validated.dependencies[step.id]]
        before = {name: scope.values[name]["result"] for name in names if name in scope.values}
        inputs = bound.inputs if scope.inputs is None else dict(scope.inputs)
        context: dict[str, JsonValue] = {"inputs": inputs} if inputs else {}
        return Goal(
            step_id=step.id,
            step_index=step.index,
            goal=parameters["goal"],
            done_when=parameters.get("done_when") or step.done_when or "",
            tools=tuple(ToolRegistry(self._tools.values()).definitions()),
            effects={name: tool.effect for name, tool in self._tools.items()},
            plan=tuple(f"{step_run.id}: {step_run.status.value}" for step_run in scope.run.steps),
            is_last=self._is_last,
            context=context | ({"steps": before} if before else {}),
            rounds=tuple(self._rounds),
            max_rounds=len(self._rounds) + (step.max_rounds or MAX_ROUNDS) - self._usage.rounds,  # a resume gives a new budget
        )

    def _result(self, summary: str) -> JsonValue:
        evidence = [item.model_dump(mode="json") for item in self._evidence]
        return {"summary": summary, "rounds": len(self._rounds), "evidence": list[JsonValue](evidence), "results": self._results}


def _compact(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
