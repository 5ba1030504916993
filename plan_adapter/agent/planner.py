"""`Planner`: a task in words becomes a valid plan, or an honest account of why not."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from plan_adapter.agent import prompts
from plan_adapter.agent.answers import read_answer
from plan_adapter.agent.decision import Decision
from plan_adapter.agent.judging import Judge, tools_at_hand, unplannable
from plan_adapter.agent.model import Effort, Message, Model, ModelAnswer, Question
from plan_adapter.agent.schema import draft_outline, draft_schema
from plan_adapter.drafts import Draft, ModelCall, PlanRequest
from plan_adapter.errors import DraftError, ModelError
from plan_adapter.plan import ExecutionPlan, new_id
from plan_adapter.problems import Problem
from plan_adapter.readable import without_passwords
from plan_adapter.tools.registry import ToolRegistry

Asker: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Puts a question of the model to a person and returns the answer, None where nobody answers."""

CORRECTIONS = 3
"""So many answers in a row that mend nothing end a draft."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a draft may cost: rounds with the model, tokens as its server counts them, and seconds."""

    rounds: int = 12
    tokens: int = 400_000
    seconds: float = 600.0
    answer_tokens: int | None = 8192  # of one answer; the deep pass has twice as many; None: as the server has it


class Keep(Protocol):
    """Remembers answers, so that a draft whose process ended does not pay twice."""

    async def known(self, draft_id: str, prompt_digest: str) -> ModelCall | None:
        """Return the call of this draft that asked exactly this before."""
        ...

    async def keep(self, draft: Draft, call: ModelCall) -> None:
        """Keep a call, which stands on `draft`, too."""
        ...

    async def end(self, draft: Draft) -> None:
        """Keep what came of a draft."""
        ...


@dataclass(frozen=True, slots=True)
class _Means:
    """Whom a draft asks, and what it may cost."""

    model: Model
    asker: Asker | None
    budget: Budget
    keep: Keep | None
    ask: Callable[[Model, Question], Awaitable[ModelAnswer]]
    on_call: Callable[[ModelCall], None] | None


class Planner:
    """Drafts plans with `model`, which sees `tools` and no others."""

    def __init__(
        self,
        model: Model,
        tools: ToolRegistry,
        *,
        asker: Asker | None = None,
        budget: Budget | None = None,
        keep: Keep | None = None,
        ask_model: Callable[[Model, Question], Awaitable[ModelAnswer]] | None = None,
        on_call: Callable[[ModelCall], None] | None = None,
    ) -> None:
        """Put questions of the model to `asker`; without one a draft ends where the model must ask.

        `ask_model` calls the model, where that is to be a task of Prefect. `on_call` is given each call once its answer was judged.
        """
        self._tools = tools
        self._means = _Means(model, asker, budget or Budget(), keep, ask_model or _asked, on_call)

    def draft(self, request: PlanRequest) -> ExecutionPlan:
        """Return a valid plan for `request`, for code without an event loop; see `adraft`."""
        return asyncio.run(self.adraft(request))

    async def adraft(self, request: PlanRequest) -> ExecutionPlan:
        """Return a valid plan for `request`, which needs an approval before it runs, whatever the request's options say.

        Raises DraftError where none came of it within the budget, ModelError where the model cannot be asked, and ToolDefinitionError
        for tools that are not there.
        """
        draft = await self.drafted(request)
        if draft.plan is None:
            raise DraftError(draft.failure or "no plan came of the task", draft)
        return draft.plan

    async def drafted(self, request: PlanRequest, *, draft_id: str | None = None) -> Draft:
        """Return the whole story of a draft; its `plan` is valid, or None, and then `failure` says why.

        With the id of a draft whose process ended, answers that are kept are not asked for again.
        """
        tools = tools_at_hand(request, self._tools)
        draft = Draft(request, self._means.model.name, draft_id or new_id())
        drafting = _Drafting(self._means, draft, tools, Judge(draft, tools))
        if why := unplannable(request, tools):
            draft.failure = why
            return draft
        decision = await drafting.phase("quick")
        if decision is not None and decision.need_thinking:
            decision = await self._deeper(drafting, decision)
        if decision is not None and decision.plan is not None:
            drafting.judge.accept(decision)
        if self._means.keep is not None:
            await self._means.keep.end(draft)
        return draft

    async def _deeper(self, drafting: "_Drafting", first: Decision) -> Decision:
        """Return the decision of a second, deep pass, or the first one where that comes to nothing."""
        draft = drafting.draft
        try:
            deep = await drafting.phase("deep")
        except ModelError as error:
            deep, draft.failure = None, str(error)
        if deep is None:
            draft.notes.append(f"the deep pass came to nothing, and the first plan stands: {draft.failure}")
            draft.failure, draft.problems = None, []
            return first
        return deep


async def _asked(model: Model, question: Question) -> ModelAnswer:
    return await model.ask(question)


@dataclass(slots=True)
class _Drafting:
    """One request under way: what it has cost, and what was said."""

    means: _Means
    draft: Draft
    tools: ToolRegistry
    judge: Judge
    began: float = field(default_factory=time.monotonic)

    async def phase(self, name: str) -> Decision | None:
        """Return a decision with a valid plan; None with the draft's failure set."""
        request = self.draft.request
        opening = prompts.opening(request, self.tools, deep=name == "deep")
        schema, outline = draft_schema(self.tools, max_steps=request.max_steps), draft_outline(max_steps=request.max_steps)
        dialogue, latest = list[Message](), list[Message]()  # what the person was asked; the last answer and what is said to it
        stuck, fewest, before = 0, None, None
        while (spent := self._spent()) is None:
            messages = (*opening, *dialogue, *latest)
            question = Question(messages, schema, "plan_decision", outline, self._answer_tokens(name), _EFFORTS[name])
            answer = await self._answer(question, name, new=[*dialogue[-1:], *latest[-1:]] or opening)
            if answer is None:
                continue  # the time is over, which `_spent` says
            decision, problems = self.judge.judged(answer.reading, before)
            await self._settle(problems)
            said = Message("assistant", answer.text or "(nothing)")
            if problems or decision is None:
                stuck = stuck + 1 if fewest is not None and len(problems) >= fewest else 0
                fewest = len(problems) if fewest is None else min(fewest, len(problems))
                if stuck >= CORRECTIONS:
                    return self._fail(f"{stuck} corrections in a row mended nothing")
                before = decision if decision is not None and decision.plan is not None else before
                latest = [said, prompts.correction(problems)]
            elif decision.action == "plan_done":
                return decision
            elif decision.action == "ask_user":
                reply = await self._ask_person(decision.speak)
                if reply is None:
                    return self._fail(f"the model asks, and nobody answers: {decision.speak}")
                dialogue += [said, prompts.answer_of_user(decision.speak, reply)]
                latest = []
            else:
                latest = [said, prompts.go_on()]
        return self._fail(spent)

    async def _answer(self, question: Question, phase: str, *, new: Sequence[Message]) -> ModelAnswer | None:
        digest = prompts.prompt_digest(question.messages)
        known = None if self.means.keep is None else await self.means.keep.known(self.draft.id, digest)
        answer = None if known is None else _as_answered(known)
        if answer is None:
            left = self.means.budget.seconds - (time.monotonic() - self.began)
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    answer = await self.means.ask(self.means.model, question)
            except TimeoutError:
                return None
        prompt = "\n\n".join(f"[{message.role}]\n{message.content}" for message in new)
        self.draft.calls.append(
            ModelCall(
                number=len(self.draft.calls) + 1,
                model=answer.model,
                rung=answer.rung,
                prompt_digest=digest,
                prompt=without_passwords(prompt),
                answer=(told := without_passwords(answer.text)),
                is_whole=told == answer.text,
                usage=answer.usage,
                seconds=answer.seconds,
                phase=phase,
            )
        )
        return answer

    async def _settle(self, problems: list[Problem]) -> None:
        """Note what was wrong with the last answer, and keep it."""
        self.draft.problems = problems
        self.draft.calls[-1] = replace(self.draft.calls[-1], problems=tuple(prompts.told(problem) for problem in problems))
        if self.means.keep is not None:
            await self.means.keep.keep(self.draft, self.draft.calls[-1])
        if self.means.on_call is not None:
            self.means.on_call(self.draft.calls[-1])

    async def _ask_person(self, question: str) -> str | None:
        if self.means.asker is None:
            return None
        asked = time.monotonic()
        reply = await self.means.asker(question)
        self.began += time.monotonic() - asked  # a person's time is no cost of the draft
        return reply

    def _answer_tokens(self, phase: str) -> int | None:
        tokens = self.means.budget.answer_tokens
        return tokens if tokens is None or phase == "quick" else 2 * tokens

    def _spent(self) -> str | None:
        """Return in words which budget is spent, None if there is some left of each."""
        budget = self.means.budget
        if len(self.draft.calls) >= budget.rounds:
            return f"the budget of {budget.rounds} rounds is spent"
        if self.draft.usage.total >= budget.tokens:
            return f"the budget of {budget.tokens} tokens is spent"
        if time.monotonic() - self.began >= budget.seconds:
            return f"the budget of {budget.seconds:g} s is spent"
        return None

    def _fail(self, why: str) -> None:
        self.draft.failure = f"no valid plan came of the task: {why}"


def _as_answered(call: ModelCall) -> ModelAnswer:
    reading = read_answer(call.answer, mend=call.rung == "text")
    return ModelAnswer(call.answer, reading, call.model, call.rung, call.usage, call.seconds)


_EFFORTS: dict[str, Effort | None] = {"quick": None, "deep": "high"}
