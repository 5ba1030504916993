"""`PromptedGoalModel`: a language model decides the rounds of goal steps, and judges whether a goal is met."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast
from weakref import WeakKeyDictionary

from pydantic import JsonValue

from plan_adapter.agent import goal_prompts
from plan_adapter.agent.answer_schemas import GOAL_ACTIONS, VERDICTS, from_strict_form, goal_outline, goal_schema, verdict_schema
from plan_adapter.agent.answer_text import Reading
from plan_adapter.agent.model import Message, Model, Question, count_tokens
from plan_adapter.agent.prompts import redact_text
from plan_adapter.execution.redactor import Redactor
from plan_adapter.local.settings import Effort
from plan_adapter.model.goals import (
    AbortIntent,
    ExecuteDecision,
    Goal,
    GoalAction,
    Round,
    RoundAnswer,
    ToolCallIntent,
    Verdict,
    VerdictWord,
)
from plan_adapter.model.readable import cut
from plan_adapter.tools.registry import ToolRegistry

_LIST_NUMBER = re.compile(r"(?<![A-Za-z0-9.,/_-])(?<![0-9]:)([0-9]{1,2})(?:[.)]\s+|、\s*)")

_DEFAULT_SPEAK: Mapping[GoalAction, str] = {
    "continue": "I am working on this step.",
    "ask_user": "I need one more fact from you to go on.",
    "confirm": "I have prepared this call. Please confirm it.",
}
"""What a person reads if the model wrote neither `speak` nor `reason`. The other actions end the step and need no sentence."""


def read_goal_decision(reading: Reading, goal: Goal, tools: ToolRegistry) -> tuple[ExecuteDecision | None, tuple[str, ...]]:
    """Return the decision in an answer, or None and its faults. Never raises for what a model wrote.

    The arguments of its call are as the tool expects them. `tools` contains the goal's tools.
    """
    if reading.value is None:
        return None, (f"{reading.problem}; its `action` is one of {_quote_names(GOAL_ACTIONS)}",)
    reader = _GoalDecisionReader(reading.value, goal, tools)
    decision = reader.decision()
    return (None, tuple(reader.faults)) if reader.faults or decision is None else (decision, ())


def read_verdict(reading: Reading, goal: Goal) -> tuple[VerdictWord, str] | str:
    """Return the verdict in an answer and its reason, or the problem to send back to the model."""
    if reading.value is None:
        return reading.problem
    verdict, reason = reading.value.get("verdict"), reading.value.get("reason")
    found: VerdictWord | None = next((word for word in VERDICTS if word == verdict), None)
    if found is None:
        return f"`verdict` is {_short_json(verdict)}, not one of {_quote_names(VERDICTS)}"
    cited, known = reading.value.get("receipts"), {evidence.id for evidence in goal.evidence}
    if found == "met" and not (isinstance(cited, list) and cited and known.issuperset(map(str, cited))):
        return f"`met` needs the ids of the evidence in `receipts`, which are {_quote_names(sorted(known))}"
    return found, reason if isinstance(reason, str) else ""


def repaired_list(text: str) -> str:
    """Return `text` with the items of a list on lines of their own: `1. a 2. b` becomes two lines.

    A number counts only if it continues the count from 1, so `v1.2. ` and `in 12. place` stay as they are.
    """
    last, breaks = 0, list[int]()
    for found in _LIST_NUMBER.finditer(text):
        number = int(found[1])
        if number == last + 1 > 1:
            breaks.append(found.start())
        last = number if number in (1, last + 1) else last
    for at in reversed(breaks):
        before = text[:at].rstrip(" ")
        text = text if before.endswith("\n") else f"{before}\n{text[at:]}"
    return text


@dataclass(slots=True)
class _GoalDecisionReader:
    value: Mapping[str, JsonValue]
    goal: Goal
    tools: ToolRegistry
    faults: list[str] = field(default_factory=list[str])

    def decision(self) -> ExecuteDecision | None:
        action, call, abort = self._read_action(), self._read_call(), self._read_abort()
        if action is None:
            return None
        self._check_call_fits_action(action, call)
        goal_check, reason = self._read_text("goal_check"), self._read_text("reason")
        if action in ("next_plan", "done"):
            self._check_goal_check(action, goal_check)
        speak = self._read_text("speak") or (reason or _DEFAULT_SPEAK[action] if action in _DEFAULT_SPEAK else "")
        return ExecuteDecision(action=action, speak=repaired_list(speak), reason=reason, goal_check=goal_check, tool_call=call, abort=abort)

    def _read_text(self, name: str) -> str:
        found = self.value.get(name)
        return found.strip() if isinstance(found, str) else ""

    def _read_action(self) -> GoalAction | None:
        written = self._read_text("action")
        found: GoalAction | None = next((action for action in GOAL_ACTIONS if action == written), None)
        if found is None:
            what = "is missing" if self.value.get("action") is None else f"{_short_json(self.value['action'])} does not exist"
            self.faults.append(f"the `action` {what}: write one of {_quote_names(GOAL_ACTIONS)}")
        return found

    def _read_call(self) -> ToolCallIntent | None:
        """Return the call, or None if there is none or it has a fault."""
        written = self.value.get("tool_call")
        if isinstance(written, list):
            fault = "`tool_call` is a list, and a round makes one call: write one object, and the other calls in later rounds"
        elif written is not None and not isinstance(written, dict):
            fault = f"`tool_call` is {_short_json(written)}: {_CALL_FORM}"
        elif written is not None and not isinstance(written.get("name"), str):
            fault = f"`tool_call` has no `name`: {_CALL_FORM}"
        else:
            return (
                None if written is None else self._check_call(cast("str", written["name"]).strip(), from_strict_form(written, _CALL_SCHEMA))
            )
        self.faults.append(fault)
        return None

    def _check_call(self, name: str, written: Mapping[str, JsonValue]) -> ToolCallIntent | None:
        tool, arguments = self.tools.get(name) if name in self.goal.effects else None, written.get("arguments", {})
        if tool is None:
            self.faults.append(f"this step has no tool {_short_json(name)}: use one of {_quote_names(sorted(self.goal.effects))}")
            return None
        if not isinstance(arguments, dict):
            expected = _quote_names(sorted(tool.parameter_names)) or "none"
            message = f"`tool_call.arguments` of `{name}` is {_short_json(arguments)}"
            self.faults.append(f"{message}: write an object with the parameters by name ({expected})")
            return None
        parsed = from_strict_form(arguments, tool.parameters_schema)
        for at, message, hint in tool.check(parsed, lambda _: False):
            place = f"tool_call.arguments.{at}" if at else "tool_call.arguments"
            self.faults.append(f"`{place}` of `{name}`: {message}" + (f"; {hint}" if hint else ""))
        return ToolCallIntent(name=name, arguments=parsed)

    def _read_abort(self) -> AbortIntent | None:
        written = self.value.get("abort")
        if self._read_text("action") != "abort":
            if written is not None:
                self.faults.append("`abort` is written only with the action `abort`: leave it out")
            return None
        fields = written if isinstance(written, dict) else {}
        code, message, internal = (value.strip() if isinstance(value := fields.get(name), str) else "" for name in AbortIntent.model_fields)
        if not (code and message):
            self.faults.append('`abort` without a reason: write "abort": {"code", "user_message", "internal_reason"}')
            return None
        return AbortIntent(code=code, user_message=message, internal_reason=internal or self._read_text("reason"))

    def _check_call_fits_action(self, action: GoalAction, call: ToolCallIntent | None) -> None:
        has_call = self.value.get("tool_call") is not None
        if action == "confirm" and not has_call:
            self.faults.append(f"`confirm` without `tool_call`: write the call that a person should confirm; {_CALL_FORM}")
        elif action not in ("confirm", "continue") and has_call:
            self.faults.append(f"`{action}` calls nothing: leave `tool_call` out, or use `confirm` for a write and `continue` for a read")
        elif action == "continue" and call is not None and self.goal.effects[call.name] != "read":
            message = f"`{call.name}` does more than read, and `continue` only reads"
            self.faults.append(f"{message}: use `confirm` with the same `tool_call`")

    def _check_goal_check(self, action: GoalAction, goal_check: str) -> None:
        if not goal_check:
            known = _quote_names([evidence.id for evidence in self.goal.evidence])
            hint = f"say point by point why done_when is met, citing evidence ({known or 'there is none yet'})"
            self.faults.append(f"`{action}` without `goal_check`: {hint}")


_CALL_SCHEMA = {"properties": {"arguments": {"type": "object"}}}
_CALL_FORM = 'write {"name": "TOOL", "arguments": {…}}'


def _quote_names(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _short_json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)[:60]


VERIFIER_ANSWERS = 3
"""How many unusable answers of the verifier are read before the verdict is `cannot_tell`."""

TEXT_CHARACTERS = 8_000
"""How much of an answer's text is kept."""


class PromptedGoalModel:
    """The model behind goal steps, as prompts to `model`. Implements `goals.GoalModel`."""

    def __init__(
        self,
        model: Model,
        tools: ToolRegistry,
        *,
        redactor: Redactor | None = None,
        answer_tokens: int | None = 8192,
        effort: Effort | None = None,
        temperature: float | None = None,
    ) -> None:
        """Check calls against `tools`, which contain those of the goals. Everything `redactor` knows is redacted from prompts."""
        self._model = model
        self._tools = tools
        self._redactor = Redactor() if redactor is None else redactor
        self._options: dict[str, Any] = {"max_tokens": answer_tokens, "effort": effort, "temperature": temperature}
        self._schemas: dict[tuple[str, ...], dict[str, JsonValue]] = {}
        self._verdict: Mapping[str, JsonValue] = verdict_schema()
        self._messages_by_round = WeakKeyDictionary[Round, goal_prompts.Pair]()

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    async def decide(self, goal: Goal) -> RoundAnswer:
        """Return the model's answer in the next round. A faulty answer has `faults`. Raises ModelError if there is no answer."""
        messages = goal_prompts.round_messages(goal, self._redactor, self._messages_by_round)
        question = Question(messages, self._decision_schema(goal), "goal_decision", goal_outline(), **self._options)
        answer = count_tokens(await self._model.ask(question), question)
        decision, faults = read_goal_decision(answer.reading, goal, self._tools)
        text = cut(redact_text(answer.text, self._redactor), TEXT_CHARACTERS)
        return RoundAnswer(decision=decision, faults=faults, text=text, model=answer.model, tokens=answer.usage.total)

    async def verify(self, goal: Goal) -> Verdict:
        """Judge whether `done_when` is met by the evidence alone. Without a usable answer, the verdict is `cannot_tell`.

        Raises ModelError if there is no answer.
        """
        if not goal.evidence:
            return Verdict(verdict="not_met", reason="there is no evidence")
        question = Question(goal_prompts.verifier_messages(goal, self._redactor), self._verdict, "goal_verdict", **self._options)
        tokens, problem = 0, ""
        for _ in range(VERIFIER_ANSWERS):
            answer = count_tokens(await self._model.ask(question), question)
            tokens += answer.usage.total
            found = read_verdict(answer.reading, goal)
            if not isinstance(found, str):
                return Verdict(verdict=found[0], reason=redact_text(found[1], self._redactor), tokens=tokens)
            problem = found
            previous = Message("assistant", self._redactor.text(answer.text) or "(nothing)")
            question = replace(question, messages=(*question.messages, previous, goal_prompts.verdict_correction(problem)))
        return Verdict(verdict="cannot_tell", reason=f"the verifier's answer could not be used: {problem}", tokens=tokens)

    def _decision_schema(self, goal: Goal) -> dict[str, JsonValue]:
        """Return the schema of a decision. It is the same object for the same tools, so that its strict form is made once."""
        names = tuple(str(definition["name"]) for definition in goal.tools)
        if names not in self._schemas:
            schema = self._redactor.value(goal_schema(goal.tools))
            assert isinstance(schema, dict)
            self._schemas[names] = schema
        return self._schemas[names]
