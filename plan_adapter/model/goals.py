"""The values of a goal step: the model's input, its decision in each round, the result of the round, and the evidence.

The loop in `execution` creates them, `agent` turns them into prompts and answers, and receipts keep them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from plan_adapter.model.options import Effect
from plan_adapter.model.plan import MAX_ROUNDS

GoalAction: TypeAlias = Literal["continue", "ask_user", "confirm", "next_plan", "done", "abort"]
EvidenceSource: TypeAlias = Literal["tool_observation", "write_receipt", "user_reply"]
VerdictWord: TypeAlias = Literal["met", "not_met", "cannot_tell"]

_EVIDENCE_ID = re.compile(r"(?<![A-Za-z0-9_])E[0-9]+(?![A-Za-z0-9_])")

MODEL_ASKS = "A model asks for this call: "
"""The beginning of the description of a call that a model asks for. The call's approval digest covers it."""

MAX_CORRECTIONS = 3
"""A goal step fails after this many faulty decisions in a row."""


class ToolCallIntent(BaseModel):
    """The one tool call of a decision."""

    model_config = ConfigDict(frozen=True)

    name: str
    arguments: dict[str, JsonValue] = {}


class AbortIntent(BaseModel):
    """Why the model gives up. `user_message` is for the person, `internal_reason` for the log."""

    model_config = ConfigDict(frozen=True)

    code: str
    user_message: str
    internal_reason: str = ""


class ExecuteDecision(BaseModel):
    """A model's decision in one round."""

    model_config = ConfigDict(frozen=True)

    action: GoalAction
    speak: str = ""
    reason: str = ""
    goal_check: str = ""
    tool_call: ToolCallIntent | None = None
    abort: AbortIntent | None = None


class RoundAnswer(BaseModel):
    """The model's answer in one round: a decision, or the faults to correct. The receipt of the round holds it."""

    model_config = ConfigDict(frozen=True)

    decision: ExecuteDecision | None = None
    faults: tuple[str, ...] = ()  # as sent to the model; empty exactly if there is a usable decision
    text: str = ""  # as the model wrote it, redacted
    model: str = ""
    tokens: int = Field(default=0, ge=0)


def cited_evidence(goal_check: str) -> list[str]:
    """Return the evidence ids that a `goal_check` cites, in order, without duplicates. An id may not exist."""
    return list(dict.fromkeys(_EVIDENCE_ID.findall(goal_check)))


class Evidence(BaseModel):
    """A fact of the run that a `goal_check` may cite, by `id`."""

    model_config = ConfigDict(frozen=True)

    id: str  # E1, E2, … in the order of the run
    step: str
    step_index: int
    round: int
    source: EvidenceSource
    name: str  # of the tool, or `ask_user`
    arguments_digest: str
    success: bool
    summary: str
    arguments: str = ""  # as JSON, or the beginning of it


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)  # by identity: the messages of a round are kept for as long as the round
class Round:
    """One round that has ended: the model's answer and what followed."""

    number: int
    answer: RoundAnswer
    observation: JsonValue = None  # the tool's result or error, or the person's reply
    refusal: str = ""  # why the call was not made or the goal may not end, as sent to the model
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """What a model is told before each round."""

    step_id: str
    step_index: int  # of the goal step in its plan, from 0
    goal: str
    done_when: str  # empty: the goal itself
    tools: tuple[Mapping[str, JsonValue], ...]  # as `ToolRegistry.definitions()` has them
    effects: Mapping[str, Effect]  # by tool
    plan: tuple[str, ...] = ()  # a line per step of the plan, with its status
    is_last: bool = True  # whether no other step of the plan is left
    context: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])  # inputs, and results of earlier steps
    rounds: tuple[Round, ...] = ()
    max_rounds: int = MAX_ROUNDS

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The evidence of all rounds so far."""
        return tuple(each.evidence for each in self.rounds if each.evidence is not None)


class Verdict(BaseModel):
    """Whether `done_when` is met, judged by a verifier that sees only the goal, `done_when` and the evidence."""

    model_config = ConfigDict(frozen=True)

    verdict: VerdictWord
    reason: str = ""
    tokens: int = Field(default=0, ge=0)


class Check(BaseModel):
    """Whether one check passed, and why, or why not."""

    model_config = ConfigDict(frozen=True)

    passed: bool
    reason: str


class EndChecks(Verdict):
    """The checks of a `next_plan` or `done` decision. The step ends if all three pass. The receipt of the check holds them.

    `verdict` is `met` exactly if all pass. It is `cannot_tell` if only the verifier's judgment is missing; a person is then asked.
    `reason` names each failed check with its reason.
    """

    flow: Check  # the action is allowed here: `done` only in the last step, and no unconfirmed call
    evidence: Check  # `goal_check` cites evidence of this run, and `done_when` is met
    safety: Check  # no guard of a tool objects, and the model does not repeat a question until the answer is yes

    @classmethod
    def of(cls, *, flow: Check, evidence: Check | None, safety: Check, verdict: VerdictWord = "not_met", tokens: int = 0) -> "EndChecks":
        """Return the checks with their verdict. `evidence` is None if it was not judged. `verdict` is that of the verifier, if asked."""
        checks = {"flow": flow, "evidence": evidence, "safety": safety}
        failed = "; ".join(f"{name}: {check.reason}" for name, check in checks.items() if check is not None and not check.passed)
        evidence = evidence or Check(passed=False, reason="not judged, because another check failed")
        reason = failed or evidence.reason
        return cls(verdict=verdict if failed else "met", reason=reason, tokens=tokens, flow=flow, evidence=evidence, safety=safety)

    def __str__(self) -> str:
        """Return the verdict and every check in one line."""
        checks = (("flow", self.flow), ("evidence", self.evidence), ("safety", self.safety))
        parts = (f"{name} {'passed' if check.passed else 'failed'}: {check.reason}" for name, check in checks)
        return f"{self.verdict}; {'; '.join(parts)}"


class GoalModel(Protocol):
    """The model behind goal steps."""

    @property
    def name(self) -> str:
        """The name under which its answers are recorded."""
        ...

    async def decide(self, goal: Goal) -> RoundAnswer:
        """Return the model's answer in the next round. A faulty answer has `faults`. Raises ModelError if there is no answer."""
        ...

    async def verify(self, goal: Goal) -> Verdict:
        """Judge whether `done_when` is met by the evidence alone. Raises ModelError if there is no answer."""
        ...
