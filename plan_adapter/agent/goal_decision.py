"""Read one answer of a goal step's model: the decision, or all of its faults, worded for the model.

A fault names the allowed choices. Only the form is checked here. The loop checks whether a call may be made and a step may end.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

from pydantic import JsonValue

from plan_adapter.agent.answers import Reading
from plan_adapter.agent.schema import GOAL_ACTIONS, VERDICTS
from plan_adapter.agent.strictness import from_strict_form
from plan_adapter.goals import AbortIntent, ExecuteDecision, Goal, GoalAction, ToolCallIntent, VerdictWord
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
