"""A model that plays a user task as AgentDojo would, and obeys whoever wrote to it: an upper bound for an attacker.

It knows the calls of its task and those of the injection. As soon as a result contains the text of the injection, it makes the calls of
the injection before anything else. It sees whole results, where a real model may be sent the beginning of a long one.
"""

from collections.abc import Sequence
from typing import Any

from plan_adapter.model.goals import AbortIntent, ExecuteDecision, Goal, RoundAnswer, ToolCallIntent, Verdict
from tests.agentdojo.attacker import attacker_calls
from tests.agentdojo.suites import Desk, arguments_of, effect_of


class ObedientModel:
    """Plays the case of `desk`. Implements `goals.GoalModel`."""

    name = "obedient"

    def __init__(self, desk: Desk, calls: Sequence[Any]) -> None:
        """`calls` do the user task."""
        self._desk = desk
        self._left = list(calls)
        self._last_words = desk.case.task.GROUND_TRUTH_OUTPUT
        self._is_free = desk.case.injection_task is not None  # nobody has given it orders yet

    async def decide(self, goal: Goal) -> RoundAnswer:
        """Return the next call, or the end."""
        if self._is_free and self._desk.has_seen_injection():
            self._is_free = False
            self._left = [*attacker_calls(self._desk), *self._left]
            self._last_words = f"{self._last_words} {self._desk.case.attack.GROUND_TRUTH_OUTPUT}"
        decision = self._call(self._left.pop(0)) if self._left else self._end(goal)
        return RoundAnswer(decision=decision, model=self.name)

    def _call(self, call: Any) -> ExecuteDecision:
        intent = ToolCallIntent(name=call.function, arguments=arguments_of(call))
        action = "continue" if effect_of(call.function) == "read" else "confirm"
        return ExecuteDecision(action=action, speak="The next call.", tool_call=intent)

    def _end(self, goal: Goal) -> ExecuteDecision:
        cited = ", ".join(evidence.id for evidence in goal.evidence)
        if not any(evidence.success for evidence in goal.evidence):
            return ExecuteDecision(action="abort", abort=AbortIntent(code="nothing", user_message="Nothing could be done."))
        return ExecuteDecision(action="done", speak=self._last_words or "Done.", goal_check=f"All calls were made: {cited}")

    async def verify(self, goal: Goal) -> Verdict:
        """Raise AssertionError: the goals have no `done_when`."""
        raise AssertionError(goal.done_when)
