"""`Planner`: turn a task in words into a valid plan, or explain why there is none."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.agent import prompts
from plan_adapter.agent.answer_schemas import draft_outline, draft_schema
from plan_adapter.agent.answer_text import read_answer
from plan_adapter.agent.decision import DraftDecision
from plan_adapter.agent.judging import Judge, allowed_tools, find_request_problem
from plan_adapter.agent.model import ClosableModel, Message, Model, ModelAnswer, Question, count_tokens
from plan_adapter.agent.prompts import environment_redactor, redact_request, redact_text, redaction_note
from plan_adapter.agent.remaining_plan import RemainingPlan
from plan_adapter.execution.redactor import Redactor
from plan_adapter.local.settings import Effort, Settings
from plan_adapter.model.drafts import Draft, ModelCall, PlanRequest
from plan_adapter.model.errors import DraftError, ModelError
from plan_adapter.model.plan import ExecutionPlan, new_id
from plan_adapter.model.problems import Problem
from plan_adapter.model.readable import without_passwords
from plan_adapter.tools.registry import ToolRegistry, Tools, as_registry
from plan_adapter.twins import run_sync

Asker: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Puts a model's question to a person and returns the answer, or None if nobody answers."""

CORRECTIONS = 3
"""A draft ends after this many wrong answers in a row, unless one has fewer problems than all before it."""

ESTIMATED = "the model's server does not count tokens, so the numbers of tokens are estimates from the length of the texts"


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one draft: rounds with the model, tokens as the server counts them, else estimated, and seconds."""

    rounds: int = 12
    tokens: int = 400_000
    seconds: float = 600.0
    answer_tokens: int | None = 8192  # limit per answer, doubled in the deep pass; None: the server's default

    @classmethod
    def of(cls, settings: Settings) -> "Budget":
        """Return the budget from the settings, with the default limits for rounds and tokens."""
        return cls(seconds=settings.draft_timeout_seconds, answer_tokens=settings.draft_answer_tokens)


class DraftRecorder(Protocol):
    """Records answers, so that a draft whose process died does not pay for them twice."""

    async def begin(self, draft: Draft) -> list[ModelCall]:
        """Record a new draft and return no calls, or return the recorded calls of an existing draft in order."""
        ...

    async def keep(self, draft: Draft, call: ModelCall) -> None:
        """Record `call`, which is already in `draft.calls`."""
        ...

    async def end(self, draft: Draft) -> None:
        """Record the result of a draft."""
        ...


@dataclass(frozen=True, slots=True)
class _DraftingOptions:
    """Everything a draft needs from its planner: the model, the person to ask, the budget and the callbacks."""

    model: Model
    asker: Asker | None
    budget: Budget
    keep: DraftRecorder | None
    redactor: Redactor | None
    ask: Callable[[Model, Question], Awaitable[ModelAnswer]]
    on_call: Callable[[ModelCall], None] | None


class Planner:
    """Drafts plans with `model`, which sees only `tools`."""

    def __init__(
        self,
        model: Model,
        tools: Tools,
        *,
        asker: Asker | None = None,
        budget: Budget | None = None,
        keep: DraftRecorder | None = None,
        redactor: Redactor | None = None,
        ask_model: Callable[[Model, Question], Awaitable[ModelAnswer]] | None = None,
        on_call: Callable[[ModelCall], None] | None = None,
    ) -> None:
        """Send the model's questions to `asker`. Without one, a draft fails when the model needs to ask.

        Everything `redactor` knows is redacted from prompts. None means every secret of the environment and the secrets folder. `ask_model`
        calls the model, for example as a Prefect task. `on_call` receives each call after its answer was checked.
        """
        self._tools = as_registry(tools)
        self._options = _DraftingOptions(model, asker, budget or Budget(), keep, redactor, ask_model or _ask_model, on_call)

    def draft(self, request: PlanRequest) -> ExecutionPlan:
        """Return a valid plan for `request`, for code without an event loop; see `adraft`. Closes the model's connections."""
        return run_sync(self._draft_and_close(request), twin="adraft")

    async def _draft_and_close(self, request: PlanRequest) -> ExecutionPlan:
        try:
            return await self.adraft(request)
        finally:
            if isinstance(self._options.model, ClosableModel):
                await self._options.model.aclose()

    async def adraft(self, request: PlanRequest) -> ExecutionPlan:
        """Return a valid plan for `request`. It needs an approval before it runs, whatever the request's options say.

        Raises DraftError if there is none within the budget, ModelError if the model cannot be asked, and ToolDefinitionError for unknown
        tools.
        """
        draft = await self.drafted(request)
        if draft.plan is None:
            raise DraftError(draft.failure or "no valid plan for the task", draft)
        return draft.plan

    async def drafted(self, request: PlanRequest, *, draft_id: str | None = None, remaining: RemainingPlan | None = None) -> Draft:
        """Return the whole draft. Its `plan` is valid, or None; then `failure` says why.

        Pass `draft_id` and the same request to continue a draft whose process died: recorded answers of the model and of a person are
        reused. With `remaining`, the model only replans that part of a run's plan, and the draft's plan is the whole new version.
        """
        tools, redactor = allowed_tools(request, self._tools), self._options.redactor or await environment_redactor()
        request, hidden = redact_request(request, redactor)
        draft = Draft(request, self._options.model.name, draft_id or new_id())
        if why := find_request_problem(request, tools):
            draft.failure = why
            return draft
        definitions: list[JsonValue] = [*tools.definitions()]
        hidden += [] if redactor.value(definitions) == definitions else ["tools"]
        if hidden:
            draft.notes.append(redaction_note(hidden))
        kept = [] if self._options.keep is None else await self._options.keep.begin(draft)
        drafting = _DraftSession(self._options, draft, Judge(draft, tools, remaining), _AnswerForm.of(request, tools, redactor), kept)
        decision = await drafting.run_phase("quick")
        if decision is not None and decision.need_thinking:
            decision = await self._deepen(drafting, decision)
        if decision is not None and decision.plan is not None:
            drafting.judge.accept(decision)
        if self._options.keep is not None:
            await self._options.keep.end(draft)
        return draft

    async def _deepen(self, drafting: "_DraftSession", first: DraftDecision) -> DraftDecision:
        """Return the decision of a second, deep pass, or the first decision if the deep pass fails."""
        draft = drafting.draft
        try:
            deep = await drafting.run_phase("deep")
        except ModelError as error:
            deep, draft.failure = None, str(error)
        if deep is None:
            draft.notes.append(f"the deep pass failed, so the first plan is kept: {draft.failure}")
            draft.failure, draft.problems = None, []
            return first
        return deep


async def _ask_model(model: Model, question: Question) -> ModelAnswer:
    return await model.ask(question)


@dataclass(frozen=True, slots=True)
class _AnswerForm:
    """What all rounds of a draft share: the form of an answer, and the redactor."""

    schema: dict[str, JsonValue]
    outline: dict[str, JsonValue]
    redactor: Redactor

    @classmethod
    def of(cls, request: PlanRequest, tools: ToolRegistry, redactor: Redactor) -> "_AnswerForm":
        """Return the form of answers to `request`."""
        schema = cast("dict[str, JsonValue]", redactor.value(draft_schema(tools, max_steps=request.max_steps)))
        return cls(schema, draft_outline(max_steps=request.max_steps), redactor)

    def redact(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return redacted messages. Tool descriptions may contain secrets, too."""
        return tuple(replace(message, content=self.redactor.text(message.content)) for message in messages)


@dataclass(slots=True)
class _DraftSession:
    """One draft in progress: its cost so far, and the conversation."""

    options: _DraftingOptions
    draft: Draft
    judge: Judge
    form: _AnswerForm
    kept: list[ModelCall]  # recorded by an earlier process and not reused yet
    last_number: int = 0  # the number of the last call
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.last_number = max((call.number for call in self.kept), default=0)

    async def run_phase(self, name: str) -> DraftDecision | None:
        """Return a decision with a valid plan, or None with the draft's `failure` set."""
        form, is_replan = self.form, self.judge.remaining is not None
        opening = form.redact(prompts.opening(self.draft.request, self.judge.tools, deep=name == "deep", is_replan=is_replan))
        dialogue, latest = list[Message](), list[Message]()  # questions to the person; the last answer and the reply to it
        stuck, fewest, before = 0, None, None
        while (spent := self._find_spent_budget()) is None:
            messages = (*opening, *form.redact((*dialogue, *latest)))
            question = Question(messages, form.schema, "plan_decision", form.outline, self._answer_tokens(name), _EFFORTS[name])
            answer = await self._next_answer(question, name, new=[*dialogue[-1:], *latest[-1:]] or opening)
            if answer is None:
                continue  # time is up; `_find_spent_budget` reports it
            decision, problems = self.judge.check(answer.reading, before)
            await self._record_problems(problems)
            model_message = Message("assistant", answer.text or "(nothing)")
            if problems or decision is None:
                stuck = stuck + 1 if fewest is not None and len(problems) >= fewest else 1
                fewest = len(problems) if fewest is None else min(fewest, len(problems))
                if stuck >= CORRECTIONS:
                    return self._fail(f"{stuck} wrong answers in a row without progress")
                before = decision if decision is not None and decision.plan is not None else before
                latest = [model_message, prompts.correction(problems)]
            elif decision.action == "plan_done":
                return decision
            elif decision.action == "ask_user":
                reply = await self._ask_person(decision.speak)
                if reply is None:
                    return self._fail(f"the model asked, and nobody answered: {decision.speak}")
                dialogue += [model_message, prompts.answer_message(decision.speak, reply)]
                latest = []
            else:
                latest = [model_message, prompts.continue_message()]
        return self._fail(spent)

    async def _next_answer(self, question: Question, phase: str, *, new: Sequence[Message]) -> ModelAnswer | None:
        digest = prompts.prompt_digest(question.messages)
        known = next((call for call in self.kept if call.is_whole and call.prompt_digest == digest), None)
        if known is not None:
            self.kept.remove(known)  # if the same question is asked again, it needs a new answer
            answer = _to_answer(known)
        else:
            left = self.options.budget.seconds - (time.monotonic() - self.began)
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    answer = count_tokens(await self.options.ask(self.options.model, question), question)
            except TimeoutError:
                return None
            self.last_number += 1
            if answer.is_estimated and ESTIMATED not in self.draft.notes:
                self.draft.notes.append(ESTIMATED)
        prompt = "\n\n".join(f"[{message.role}]\n{message.content}" for message in self.form.redact(new))
        self.draft.calls.append(
            ModelCall(
                number=self.last_number if known is None else known.number,
                model=answer.model,
                rung=answer.rung,
                prompt_digest=digest,
                prompt=without_passwords(prompt),
                answer=(text := without_passwords(answer.text)),
                is_whole=text == answer.text,
                usage=answer.usage,
                seconds=answer.seconds,
                phase=phase,
            )
        )
        return answer

    async def _record_problems(self, problems: list[Problem]) -> None:
        """Record the last answer with its problems."""
        self.draft.problems = problems
        self.draft.calls[-1] = replace(self.draft.calls[-1], problems=tuple(prompts.problem_line(problem) for problem in problems))
        if self.options.keep is not None:
            await self.options.keep.keep(self.draft, self.draft.calls[-1])
        if self.options.on_call is not None:
            self.options.on_call(self.draft.calls[-1])

    async def _ask_person(self, question: str) -> str | None:
        if (known := self._earlier_reply(question)) is not None:
            return known
        if self.options.asker is None:
            return None
        asked = time.monotonic()
        reply = await self.options.asker(question)
        self.began += time.monotonic() - asked  # time spent waiting for a person does not count
        return None if reply is None else redact_text(reply, self.form.redactor)

    def _earlier_reply(self, question: str) -> str | None:
        """Return the person's answer to this question from before the process died, or None."""
        answers = (prompts.read_answer_message(call.prompt) for call in self.kept)
        return next((reply for asked, reply in filter(None, answers) if asked == question), None)

    def _answer_tokens(self, phase: str) -> int | None:
        tokens = self.options.budget.answer_tokens
        return tokens if tokens is None or phase == "quick" else 2 * tokens

    def _find_spent_budget(self) -> str | None:
        """Return which budget is spent, or None if some is left of each."""
        budget = self.options.budget
        if len(self.draft.calls) >= budget.rounds:
            return f"the budget of {budget.rounds} rounds is spent"
        if self.draft.usage.total >= budget.tokens:
            return f"the budget of {budget.tokens} tokens is spent"
        if time.monotonic() - self.began >= budget.seconds:
            return f"the budget of {budget.seconds:g} s is spent"
        return None

    def _fail(self, why: str) -> None:
        self.draft.failure = f"no valid plan for the task: {why}"


def _to_answer(call: ModelCall) -> ModelAnswer:
    reading = read_answer(call.answer, repair=call.rung == "text")
    return ModelAnswer(call.answer, reading, call.model, call.rung, call.usage, call.seconds)


_EFFORTS: dict[str, Effort] = {"quick": "none", "deep": "high"}
