"""Drafting through any chat: the prompt a person pastes there, and the answer, checked like any model's answer."""

from dataclasses import dataclass

from plan_adapter.agent import prompts
from plan_adapter.agent.answer_schemas import draft_outline
from plan_adapter.agent.answer_text import read_answer
from plan_adapter.agent.completions import schema_prompt
from plan_adapter.agent.judging import Judge, allowed_tools, find_request_problem
from plan_adapter.agent.model import Message
from plan_adapter.agent.prompts import redact_request, redaction_note
from plan_adapter.execution.redactor import Redactor
from plan_adapter.model.drafts import Draft, ModelCall, PlanRequest, Usage
from plan_adapter.model.errors import DraftError
from plan_adapter.model.readable import without_passwords
from plan_adapter.tools.registry import ToolRegistry

CHAT = "a chat"
"""The model name of a draft whose answer a person pasted."""


@dataclass(frozen=True, slots=True)
class ChatDraft:
    """A draft from one answer of a chat. Without a plan, it has the `reply` to send to the model, or the model's `question`."""

    draft: Draft
    reply: str | None = None
    question: str | None = None


def prompt_for_chat(request: PlanRequest, tools: ToolRegistry, *, redactor: Redactor | None = None) -> tuple[Message, ...]:
    """Return the opening messages of a draft, with the answer's form described in words. Everything `redactor` knows is redacted.

    Raises DraftError if the request cannot lead to a plan, and ToolDefinitionError for unknown tools.
    """
    tools = allowed_tools(request, tools)
    if why := find_request_problem(request, tools):
        raise DraftError(why, Draft(request, CHAT))
    redactor = Redactor() if redactor is None else redactor
    system, user = prompts.opening(redact_request(request, redactor)[0], tools)
    form = schema_prompt(draft_outline(max_steps=request.max_steps))
    return system, Message("user", f"{redactor.text(user.content)}\n\n{form}")


def draft_from_chat(request: PlanRequest, tools: ToolRegistry, text: str, *, redactor: Redactor | None = None) -> ChatDraft:
    """Return the draft that one answer to `prompt_for_chat` leads to.

    The answer may be fenced, inside prose or almost JSON. Raises the same errors as `prompt_for_chat`.
    """
    messages, tools = prompt_for_chat(request, tools, redactor=redactor), allowed_tools(request, tools)
    request, hidden = redact_request(request, redactor or Redactor())
    draft = Draft(request, CHAT, notes=[redaction_note(hidden)] if hidden else [])
    judge, reading = Judge(draft, tools), read_answer(text, repair=True)
    decision, draft.problems = judge.check(reading)
    call = ModelCall(
        number=1,
        model=CHAT,
        rung="text",
        prompt_digest=prompts.prompt_digest(messages),
        prompt=without_passwords("\n\n".join(f"[{message.role}]\n{message.content}" for message in messages)),
        answer=without_passwords(text),
        usage=Usage(),
        seconds=0.0,
        phase="quick",
        problems=tuple(prompts.problem_line(problem) for problem in draft.problems),
    )
    draft.calls.append(call)
    if decision is None or draft.problems:
        draft.failure = "the answer cannot be used"
        return ChatDraft(draft, reply=prompts.correction(draft.problems).content)
    if decision.action == "ask_user":
        draft.failure = f"the model asks: {decision.speak}"
        return ChatDraft(draft, question=decision.speak)
    if decision.action == "continue":
        draft.failure = "the answer is not a plan yet"
        return ChatDraft(draft, reply=prompts.continue_message().content)
    judge.accept(decision)
    if reading.repaired:
        draft.notes.append("the answer was not valid JSON and was repaired: compare it with the plan")
    return ChatDraft(draft)
