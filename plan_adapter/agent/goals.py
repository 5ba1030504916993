"""`PromptedGoalModel`: a language model decides the rounds of goal steps, and judges whether a goal is met."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import JsonValue

from plan_adapter.agent import goal_prompts
from plan_adapter.agent.goal_decision import read_goal_decision, read_verdict
from plan_adapter.agent.model import Message, Model, Question, count_tokens
from plan_adapter.agent.redaction import redact_text
from plan_adapter.agent.schema import goal_outline, goal_schema, verdict_schema
from plan_adapter.execution.secrets import Redactor
from plan_adapter.goals import Goal, Round, RoundAnswer, Verdict
from plan_adapter.readable import cut
from plan_adapter.settings import Effort
from plan_adapter.tools.registry import ToolRegistry

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
