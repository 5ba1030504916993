"""Goals of the fault tests: each goal contains a script, which the model follows while it logs every call."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue

from plan_adapter.local.crash_points import reached
from plan_adapter.model.goals import AbortIntent, ExecuteDecision, Goal, RoundAnswer, ToolCallIntent, Verdict, VerdictWord
from plan_adapter.model.options import Effect
from plan_adapter.model.plan import Step

RoundKind = Literal["look", "failing", "broken", "put", "write", "unwanted", "ask", "end", "abort"]
"""What a round of a script does: a tool call, a failing call, an invalid decision, a write that people reject, a question, or the end."""

NOT_EXPANDED = "${{ secrets.canary }}"
"""The secret reference in the model's calls, which tools receive unexpanded."""
UNWANTED = "unwanted-"
"""The prefix of the bodies of calls that people reject."""
ALWAYS = 99
"""The number of failing attempts of a step that never succeeds."""
_BAR = " | "


def goal_text(script: Sequence[RoundKind], tokens: Sequence[str] = ()) -> str:
    """Return the text of a goal with a script, whose last round is repeated, and the tokens that its calls repeat."""
    return _BAR.join((" ".join(script), " ".join(tokens)))


def script_of(goal: str) -> list[str]:
    """Return the script of a goal."""
    return goal.partition(_BAR)[0].split()


def effects_of(step: Step) -> set[Effect]:
    """Return the effects of the calls of a goal."""
    effects: dict[str, Effect] = {"put": "idempotent_write", "write": "write"}
    called: set[Effect] = {"read"}
    called.update(effects[kind] for kind in script_of(step.goal or "") if kind in effects)
    return called


def may_fail(step: Step) -> bool:
    """Return whether a goal is likely to end without success."""
    return step.goal is not None and (step.max_rounds is not None or "end" not in script_of(step.goal))


@dataclass(frozen=True)
class ModelCall:
    """One call of the model, logged before its answer."""

    kind: Literal["decision", "check"]
    step: str
    round: int  # from 0
    text: str  # of the answer, unique
    earlier_answers: list[str]  # the texts of the model's earlier answers, which it received
    observed: list[str | None]  # the token of each result that it received, by round
    context: dict[str, JsonValue]
    pid: int


def model_calls(path: Path) -> list[ModelCall]:
    """Return the logged calls of the model, in their order."""
    return [ModelCall(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


class LoggedModel:
    """Follows the script of the goal, and logs each call before it answers. Implements `goals.GoalModel`.

    As with a real model, the text of each answer is new.
    """

    name = "scripted"

    def __init__(self, path: Path) -> None:
        """Log into the file at `path`."""
        self._path = path

    async def decide(self, goal: Goal) -> RoundAnswer:
        """Return the decision of the script for this round."""
        script = script_of(goal.goal)
        text = self._log("decision", goal)
        kind = script[min(len(goal.rounds), len(script) - 1)]
        if kind == "broken":
            return RoundAnswer(faults=("it is not JSON",), text=text, tokens=1)
        return RoundAnswer(decision=_decision(kind, goal, text), text=text, tokens=1)

    async def verify(self, goal: Goal) -> Verdict:
        """Return the verdict of `done_when` on this attempt to end the goal."""
        text = self._log("check", goal)
        tries = sum(
            goal_round.answer.decision is not None and goal_round.answer.decision.action == "next_plan" for goal_round in goal.rounds
        )
        verdicts = goal.done_when.split()
        verdict: Any = verdicts[min(tries, len(verdicts) - 1)]
        return Verdict(verdict=verdict, reason=text, tokens=1)

    def _log(self, kind: Literal["decision", "check"], goal: Goal) -> str:
        earlier_answers = [goal_round.answer.text for goal_round in goal.rounds]
        observed = [token_of(goal_round.observation) for goal_round in goal.rounds]
        text = os.urandom(6).hex()
        self.append(ModelCall(kind, goal.step_id, len(goal.rounds), text, earlier_answers, observed, dict(goal.context), os.getpid()))
        reached("mid-effect", f"{kind} read")
        return text

    def append(self, call: ModelCall) -> None:
        """Log a call."""
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, (json.dumps(asdict(call)) + "\n").encode())
            os.fsync(file)
        finally:
            os.close(file)


def verdicts(*verdicts: VerdictWord) -> str:
    """Return a `done_when` with the verdicts on successive attempts to end the goal."""
    return " ".join(verdicts)


def token_of(result: JsonValue) -> str | None:
    """Return the token that identifies the result of a tool or an answer."""
    found = (result.get("token") or result.get("answer")) if isinstance(result, dict) else None
    return found if isinstance(found, str) else None


def _decision(kind: str, goal: Goal, text: str) -> ExecuteDecision:
    last = next((token for goal_round in reversed(goal.rounds) if (token := token_of(goal_round.observation)) is not None), "")
    number = len(goal.rounds)
    match kind:
        case "ask":
            return ExecuteDecision(action="ask_user", speak=f"What about {text}?")
        case "abort":
            return ExecuteDecision(action="abort", abort=AbortIntent(code="script", user_message=f"It ends with {text}"))
        case "end":
            cited = goal.evidence[-1].id if goal.evidence else "nothing"
            return ExecuteDecision(action="next_plan", goal_check=f"{cited}:{last}")
        case _:
            name = {"failing": "look", "unwanted": "write"}.get(kind, kind)
            first = f"{UNWANTED if kind == 'unwanted' else ''}{goal.step_id}-{text}"
            body = " ".join((first, *goal.goal.partition(_BAR)[2].split(), last)).rstrip()
            arguments: dict[str, JsonValue] = {"body": body, "secret": NOT_EXPANDED, "item": number}
            arguments |= {"fails": ALWAYS} if kind == "failing" else {}
            call = ToolCallIntent(name=name, arguments=arguments)
            return ExecuteDecision(action="continue" if name == "look" else "confirm", reason=text, tool_call=call)
