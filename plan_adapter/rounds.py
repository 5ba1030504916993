"""`rounds_of`: the rounds of the goals of a run, as its record has them. `evidence_text`: the evidence of a goal as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.goals import Evidence, RoundAnswer
from plan_adapter.readable import code, cut, prose
from plan_adapter.record import Receipt
from plan_adapter.status import Outcome

CELL_CHARACTERS = 300
"""How much of the summary of evidence a table shows."""


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of a goal: what the model decided, and what the decision was checked for."""

    round: int
    action: str | None  # None: the answer could not be used
    reason: str = ""
    tool: str | None = None
    goal_check: str = ""
    faults: tuple[str, ...] = ()
    verdict: str | None = None  # met, not_met, cannot_tell, or refused
    verdict_reason: str = ""
    model: str = ""
    tokens: int = 0

    def __str__(self) -> str:
        """Return the round in one line."""
        call = f" {code(self.tool)}" if self.tool is not None else ""
        said = f"{self.action}{call}" if self.action is not None else "an answer that could not be used"
        why = self.goal_check or self.reason if self.action is not None else "; ".join(self.faults)
        check = ": ".join(prose(text) for text in (self.verdict, self.verdict_reason) if text)
        return f"round {self.round}: {said}" + (f": {prose(why)}" if why else "") + (f" ({check})" if check else "")


def answer_of(result: JsonValue) -> RoundAnswer:
    """Return the answer that the receipt of a decision holds. One that was erased counts as an answer that could not be used."""
    return RoundAnswer.model_validate(result) if isinstance(result, dict) else RoundAnswer(faults=("it was erased",))


def evidence_text(evidence: Sequence[Evidence]) -> str:
    """Return evidence as a Markdown table. Text of tools and people cannot break out of its cell."""
    lines = ["| Evidence | Round | From | Succeeded | What came of it |", "|---|---|---|---|---|"]
    for one in evidence:
        summary = prose(cut(one.summary, CELL_CHARACTERS) + ("…" if len(one.summary) > CELL_CHARACTERS else ""))
        lines.append(f"| {one.id} | {one.round} | {code(one.name)} | {'yes' if one.success else 'no'} | {summary.replace('|', '&#124;')} |")
    return "\n".join(lines)


def rounds_of(receipts: Sequence[Receipt]) -> dict[str, list[RoundRecord]]:
    """Return the rounds of each goal, by step id, in their order."""
    done = [receipt for receipt in receipts if receipt.outcome is Outcome.SUCCEEDED and receipt.item is not None]
    checks = {(one.step_id, one.item): one.result for one in done if one.kind == "check" and isinstance(one.result, dict)}
    found = dict[str, list[RoundRecord]]()
    for one in sorted((one for one in done if one.kind == "decision"), key=lambda one: one.item or 0):
        answer, check = answer_of(one.result), cast("dict[str, Any]", checks.get((one.step_id, one.item), {}))
        decision = answer.decision
        found.setdefault(one.step_id, []).append(
            RoundRecord(
                round=(one.item or 0) + 1,
                action=None if decision is None else decision.action,
                reason="" if decision is None else decision.reason or decision.speak,
                tool=None if decision is None or decision.tool_call is None else decision.tool_call.name,
                goal_check="" if decision is None else decision.goal_check,
                faults=answer.faults,
                verdict=check.get("verdict"),
                verdict_reason=check.get("reason", ""),
                model=answer.model,
                tokens=answer.tokens + check.get("tokens", 0),
            )
        )
    return found
