"""`rounds_of` returns the recorded rounds of a run's goals, `evidence_text` the evidence of a goal as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from pydantic import JsonValue, ValidationError

from plan_adapter.model.approvals import ANSWERED, Approval, Decision
from plan_adapter.model.goals import Evidence, ExecuteDecision, RoundAnswer
from plan_adapter.model.readable import as_text, code, counted, cut, duration, moment, one_line, prose, redacted
from plan_adapter.model.record import Attempt, Receipt
from plan_adapter.model.status import Outcome

CELL_CHARACTERS = 300
"""How many characters are shown of a summary in the evidence table, and of each value in a round."""

CHECKS = ("flow", "evidence", "safety")
"""The checks that a goal must pass before it ends."""

REPLIES: Mapping[Decision, str] = {**ANSWERED, "approve": "confirmed"}
"""How a person answered the confirmation of a call, by decision."""


@dataclass(frozen=True, slots=True)
class RoundCall:
    """The last attempt of the call that a round made."""

    tool: str
    arguments: JsonValue  # secrets redacted
    is_allowed: bool = False  # whether it is a write that needed no confirmation, because the plan lists its tool in `always_execute`
    outcome: str | None = None  # succeeded or failed; None if its end is not recorded
    duration_ms: int | None = None
    result: JsonValue = None
    error: str | None = None
    by: str | None = None  # the person or probe that reported the outcome
    known_by: str | None = None
    note: str | None = None

    def __str__(self) -> str:
        """Return the call and its end in one line."""
        took = f" in {duration(self.duration_ms)}" if self.duration_ms is not None and self.by is None else ""
        ended = f"{self.outcome or 'not ended'}{took}"
        ended += f", recorded by {prose(self.by)} ({self.known_by}){_note_suffix(self.note)}" if self.by is not None else ""
        result_text = f": {prose(_cut(self.error))}" if self.error else "" if self.result is None else f": {_value_code(self.result)}"
        allowed = ", without a confirmation (`always_execute`)" if self.is_allowed else ""
        return f"{code(self.tool)} with {_value_code(self.arguments)}{allowed}: {ended}{result_text}"


@dataclass(frozen=True, slots=True)
class RoundReply:
    """A person's answer in a round: to the confirmation of a call, or to a question."""

    decision: Decision
    by: str
    known_by: str
    at: datetime
    note: str = ""
    result: JsonValue = None  # the answer to a question, by field

    def __str__(self) -> str:
        """Return the answer in one line."""
        who = f"by {prose(self.by)} ({self.known_by}) at {moment(self.at)}{_note_suffix(self.note)}"
        return f"{REPLIES[self.decision]} {who}" if self.result is None else f"answered {who}: {_value_code(self.result)}"


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of a goal: the model's decision, its checks, people's answers, and the call."""

    round: int
    action: str | None  # None: the answer could not be used
    reason: str = ""
    speak: str = ""  # what the model said: a question, if it asks one
    tool: str | None = None
    goal_check: str = ""
    faults: tuple[str, ...] = ()
    verdict: str | None = None  # met, not_met, cannot_tell, or refused
    verdict_reason: str = ""
    checks: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])  # flow, evidence, safety: {passed, reason}
    replies: tuple[RoundReply, ...] = ()
    call: RoundCall | None = None
    model: str = ""
    tokens: int = 0

    @property
    def decision(self) -> str:
        """What the model decided and why, in one line."""
        if self.action is None:
            return f"an answer that could not be used: {prose(_cut('; '.join(self.faults)))}"
        tool = f" {code(self.tool)}" if self.tool is not None else ""
        why = self.speak if self.action == "ask_user" else self.goal_check or self.reason or self.speak
        return f"{self.action}{tool}" + (f": {prose(_cut(why))}" if why else "")

    @property
    def judgements(self) -> list[str]:
        """What the checks and people said of the decision, one line each, in order of time."""
        if self.action is None:
            return []
        is_rejected = self.verdict == "refused" and any(reply.decision == "reject" for reply in self.replies)
        found = list[str]()
        if self.verdict is not None and not is_rejected:
            found.append(": ".join(prose(_cut(text)) for text in (self.verdict, self.verdict_reason) if text))
        return [*found, *map(str, self.replies)]

    @property
    def evidence(self) -> str:
        """The call that the round made and how it ended, in one line. Empty if it made none."""
        return "" if self.action is None or self.call is None else str(self.call)

    def lines(self) -> list[str]:
        """Return the decision and what followed it, one line each, in order of time."""
        return [f"round {self.round}: {self.decision}", *self.judgements, *([self.evidence] if self.evidence else [])]


def _cut(text: str) -> str:
    return text if len(text) <= CELL_CHARACTERS else cut(text, CELL_CHARACTERS) + "…"


def _value_code(value: JsonValue) -> str:
    return code(_cut(as_text(value)))


def _note_suffix(note: str | None) -> str:
    return f": {prose(note)}" if note else ""


def round_text(receipt: Receipt) -> str | None:
    """Return a goal's receipt in one line for a log: a decision, its check, or the end of the goal. Return None for any other call."""
    if not isinstance(receipt.result, dict):
        return None
    match receipt.kind:
        case "decision":
            answer = answer_of(receipt.result)
            if answer.decision is None:
                return f"an answer that could not be used: {one_line('; '.join(answer.faults))}"
            return decision_text(answer.decision)
        case "check":
            return ": ".join(one_line(str(text)) for name in ("verdict", "reason") if (text := receipt.result.get(name)))
        case "step" if receipt.item is None:
            rounds = receipt.result.get("rounds")
            return f"the goal is met after {counted(rounds if isinstance(rounds, int) else 0, 'round')}: {receipt.result.get('summary')}"
        case _:
            return None


def decision_text(decision: ExecuteDecision, *, without: str = "") -> str:
    """Return a decision in one line for a log: the action, the call with its arguments, and the reason unless it equals `without`."""
    tool = ""
    if (call := decision.tool_call) is not None:
        arguments = cast("dict[str, JsonValue]", redacted(call.arguments, expressions=False))
        tool = f" {call.name}({', '.join(f'{name}={as_text(value)}' for name, value in arguments.items())})"
    why = decision.speak if decision.action == "ask_user" else decision.goal_check or decision.reason or decision.speak
    return f"{decision.action}{tool}" + (f": {one_line(why)}" if why and why != without else "")


def answer_of(result: JsonValue) -> RoundAnswer:
    """Return the answer in the receipt of a decision. An erased one counts as an answer that could not be used."""
    try:
        answer = RoundAnswer.model_validate(result)
    except ValidationError:
        answer = RoundAnswer()
    return answer if answer.decision is not None or answer.faults else RoundAnswer(faults=("it was erased",))


def evidence_text(evidence: Sequence[Evidence]) -> str:
    """Return evidence as a Markdown table. Text from tools and people cannot break out of its cell."""
    lines = ["| Evidence | Round | From | Succeeded | Result |", "|---|---|---|---|---|"]
    for item in evidence:
        summary = prose(_cut(item.summary)).replace("|", "&#124;")
        lines.append(f"| {item.id} | {item.round} | {code(item.name)} | {'yes' if item.success else 'no'} | {summary} |")
    return "\n".join(lines)


def rounds_of(receipts: Sequence[Receipt], attempts: Sequence[Attempt], answers: Sequence[Approval]) -> dict[str, list[RoundRecord]]:
    """Return the rounds of each goal in order, by step id. `answers` are people's answers at the gates of the run."""
    done = [receipt for receipt in receipts if receipt.outcome is Outcome.SUCCEEDED and receipt.item is not None]
    checks = {(check.step_id, check.item): check.result for check in done if check.kind == "check" and isinstance(check.result, dict)}
    calls = _last_calls(receipts, attempts)
    replies = dict[tuple[str, int | None], list[RoundReply]]()
    for row in answers:
        if row.step_id is not None and row.item is not None:
            given = RoundReply(row.decision, row.by, row.known_by, row.at, row.note, row.result)
            replies.setdefault((row.step_id, row.item), []).append(given)
    found = dict[str, list[RoundRecord]]()
    for decision in sorted((decision for decision in done if decision.kind == "decision"), key=lambda decision: decision.item or 0):
        unit, answer = (decision.step_id, decision.item), answer_of(decision.result)
        record = _round_record(decision, answer, cast("dict[str, Any]", checks.get(unit, {})))
        call = (
            None if record.tool is None else calls.get(unit)
        )  # a decision without a tool asks a question, whose recorded call only holds the answer
        found.setdefault(decision.step_id, []).append(replace(record, replies=tuple(replies.get(unit, ())), call=call))
    return found


def _round_record(receipt: Receipt, answer: RoundAnswer, check: dict[str, Any]) -> RoundRecord:
    decision, number = answer.decision, (receipt.item or 0) + 1
    tokens = answer.tokens + check.get("tokens", 0)
    if decision is None:
        return RoundRecord(number, None, faults=answer.faults, model=answer.model, tokens=tokens)
    return RoundRecord(
        round=number,
        action=decision.action,
        reason=decision.reason,
        speak=decision.speak,
        tool=None if decision.tool_call is None else decision.tool_call.name,
        goal_check=decision.goal_check,
        verdict=check.get("verdict"),
        verdict_reason=check.get("reason", ""),
        checks={name: check[name] for name in CHECKS if name in check},
        model=answer.model,
        tokens=tokens,
    )


def _last_calls(receipts: Sequence[Receipt], attempts: Sequence[Attempt]) -> dict[tuple[str, int | None], RoundCall]:
    """Return the last call of each item of a step, by step and item."""
    ends, found = {receipt.attempt_id: receipt for receipt in receipts}, dict[tuple[str, int | None], RoundCall]()
    for attempt in sorted(attempts, key=lambda attempt: attempt.number):
        if attempt.kind == "step" and attempt.item is not None:
            end, arguments = ends.get(attempt.id), redacted(attempt.parameters, expressions=False)
            call = RoundCall(attempt.tool_name, arguments, is_allowed=attempt.effect != "read" and attempt.approval_id is None)
            if end is not None:
                call = replace(call, outcome=end.outcome.value, duration_ms=end.duration_ms, result=end.result, error=end.error)
                call = replace(call, by=end.by, known_by=end.known_by, note=end.note)
            found[attempt.step_id, attempt.item] = call
    return found
