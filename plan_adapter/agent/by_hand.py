"""Drafting by way of any chat: the prompt that a person takes there, and what came back, judged as an answer of a model is."""

from dataclasses import dataclass

from plan_adapter.agent import prompts
from plan_adapter.agent.answers import read_answer
from plan_adapter.agent.hiding import hidden_note, shown_request
from plan_adapter.agent.judging import Judge, tools_at_hand, unplannable
from plan_adapter.agent.model import Message
from plan_adapter.agent.requests import form_in_words
from plan_adapter.agent.schema import draft_outline
from plan_adapter.drafts import Draft, ModelCall, PlanRequest, Usage
from plan_adapter.errors import DraftError
from plan_adapter.execution.secrets import Redactor
from plan_adapter.readable import without_passwords
from plan_adapter.tools.registry import ToolRegistry

CHAT = "a chat"
"""What the model of a draft is called that nobody asked but a person."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A draft of one answer; without a plan, what is to be said to the model next, or what it asks."""

    draft: Draft
    reply: str | None = None
    question: str | None = None


def prompt_for_chat(request: PlanRequest, tools: ToolRegistry, *, hide: Redactor | None = None) -> tuple[Message, ...]:
    """Return the messages with which a draft begins where nothing but words can say how to answer; what `hide` knows is not in them.

    Raises DraftError where no plan can come of the request, and ToolDefinitionError for tools that are not there.
    """
    tools = tools_at_hand(request, tools)
    if why := unplannable(request, tools):
        raise DraftError(why, Draft(request, CHAT))
    hide = hide or Redactor()
    system, user = prompts.opening(shown_request(request, hide)[0], tools)
    form = form_in_words(draft_outline(max_steps=request.max_steps))
    return system, Message("user", f"{hide.text(user.content)}\n\n{form}")


def judged_answer(request: PlanRequest, tools: ToolRegistry, text: str, *, hide: Redactor | None = None) -> Judged:
    """Return what comes of one answer to `prompt_for_chat`, in a fence, in prose or as nearly JSON; raises what that does."""
    messages, tools = prompt_for_chat(request, tools, hide=hide), tools_at_hand(request, tools)
    request, hidden = shown_request(request, hide or Redactor())
    draft = Draft(request, CHAT, notes=[hidden_note(hidden)] if hidden else [])
    judge, reading = Judge(draft, tools), read_answer(text, repair=True)
    decision, draft.problems = judge.judged(reading)
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
        problems=tuple(prompts.told(problem) for problem in draft.problems),
    )
    draft.calls.append(call)
    if decision is None or draft.problems:
        draft.failure = "the answer cannot be used"
        return Judged(draft, reply=prompts.correction(draft.problems).content)
    if decision.action == "ask_user":
        draft.failure = f"the model asks: {decision.speak}"
        return Judged(draft, question=decision.speak)
    if decision.action == "continue":
        draft.failure = "the answer is no plan yet"
        return Judged(draft, reply=prompts.continue_message().content)
    judge.accept(decision)
    if reading.repaired:
        draft.notes.append("the answer was no JSON as it was written, and was mended: compare it with the plan")
    return Judged(draft)
