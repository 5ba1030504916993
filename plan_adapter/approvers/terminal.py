"""`TerminalApprover`: the person at this process's terminal."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.approval import answer_to, os_user, refusal
from plan_adapter.approvers.conversation import Conversation
from plan_adapter.approvers.summary import gate_summary
from plan_adapter.execution.standing import answer_command
from plan_adapter.gate_text import without_picture
from plan_adapter.readable import call_name
from plan_adapter.record import Answer, Approval, ApprovalRequest, Resolution

Edit: TypeAlias = Callable[[ApprovalRequest, Conversation], Awaitable[bool]]
"""Lets the person change what is asked about; returns whether a new version took its place, which is then asked about instead."""

NO_ANSWER = "no answer: the input ended"

_HELP = {
    "y": "yes: exactly this is run, once",
    "n": "no: nothing of it is run; you may say why",
    "v": "view all of what you are asked about",
    "e": "edit the plan in your editor; what comes of it is asked about anew",
}


_OUTCOME_HELP = {
    "done": "it was done: it is not made again, and you are asked for its result",
    "again": "it was not done: it is made again",
    "abort": "end the run here, as cancelled",
    "v": "view all of what you are asked about",
}


class TerminalApprover:
    """Shows what would run and asks the person at the terminal, in the name of the operating system's user.

    Of several gates one is asked about at a time. A gate that is answered elsewhere ends its question.
    """

    asks_again = True  # a person who is told why an answer was not taken can give another

    def __init__(self, *, edit: Edit | None = None, conversation: Conversation | None = None, is_alone: bool = True) -> None:
        """`edit` None offers no editing. `is_alone`: nobody else is asked, so that an end of the input is an answer: a rejection."""
        self._edit = edit
        self._conversation = conversation or Conversation()
        self._is_alone = is_alone
        self._user = os_user()

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the person's answer."""
        conversation = self._conversation
        async with conversation.turn:
            with conversation.foreground():
                self._show(request)
                while True:
                    word = await conversation.ask(self._question(request), forget=True)
                    if word is None:
                        break
                    answer = await self._answer(word.casefold(), request)
                    if answer is not None:
                        return answer
        if self._is_alone and conversation.has_hung_up:  # nobody ended the input: that is no answer
            conversation.hung_up()
            return await _never()
        if self._is_alone:
            return self._said(request, approve=False, note=NO_ANSWER)
        conversation.say("the input has ended here; the form and `plan approve` still answer")
        return await _never()

    async def ask_outcome(self, request: ApprovalRequest) -> Answer | None:
        """Return what the person says of a call of which nobody knows how it ended; None where the input has ended."""
        conversation = self._conversation
        async with conversation.turn:
            with conversation.foreground():
                self._show(request)
                question = f"How did {step_name(request)} end, says {self._user}? done, again, abort, [v]iew, [?] "
                while (word := await conversation.ask(question, forget=True)) is not None:
                    if word.casefold() in ("done", "again", "abort"):
                        return await self._outcome(cast("Resolution", word.casefold()))
                    if word.casefold() in ("v", "view"):
                        conversation.say(without_picture(request.text))
                    else:
                        conversation.say("\n".join(f"  {key:5}  {text}" for key, text in _OUTCOME_HELP.items()))
        if not self._is_alone:
            conversation.say("the input has ended here; the form and `plan resolve` still answer")
        return None

    async def _outcome(self, resolution: Resolution) -> Answer | None:
        result: JsonValue = None
        while resolution == "done":
            text = await self._conversation.ask("What did it give back? (JSON, empty for none) ")
            if text is None:
                return None
            try:
                result = json.loads(text) if text else None
                break
            except ValueError as error:
                self._conversation.say(f'that is no JSON ({error}); a text is written with quotes, as in "v3"')
        note = await self._conversation.ask("How do you know? (one line, may be empty) ")
        return None if note is None else Answer(resolution, self._user, note=note, channel="os_user", result=result)

    def _show(self, request: ApprovalRequest) -> None:
        say = self._conversation.say
        if request.refused is not None:
            say(f"this answer is not taken: {request.refused}")
            return
        say("\n" + gate_summary(request))
        if request.kind == "outcome":
            reason = refusal(request.rules, by=self._user, known_by="os_user", decision="reject")
            if reason is not None:
                say(f"you cannot answer here: {reason}; {_other_ways(request)}")
            return
        reason = refusal(request.rules, by=self._user, known_by="os_user", decision="approve")
        if reason is not None:
            say(f"you cannot approve it here: {reason}; {_other_ways(request)}")

    def _question(self, request: ApprovalRequest) -> str:
        what = "this plan" if request.step_id is None else f"step {step_name(request)} with these parameters"
        words = ["[y]es", "[n]o", "[v]iew", *(["[e]dit"] if self._may_edit(request) else []), "[?]"]
        return f"Run {what}, approved by {self._user}? {', '.join(words)} "

    async def _answer(self, word: str, request: ApprovalRequest) -> Approval | None:
        """Return what `word` answers, None where it is no answer yet."""
        conversation = self._conversation
        if word in ("y", "yes"):
            return self._said(request, approve=True)
        if word in ("n", "no"):
            note = await conversation.ask("Why not? (one line, may be empty) ")
            return self._said(request, approve=False, note=note or "")
        if word in ("v", "view"):
            conversation.say(without_picture(request.text))
        elif word in ("e", "edit") and self._edit is not None and self._may_edit(request):
            if await self._edit(request, conversation):
                return await _never()  # this gate is closed now, and the next one asks
        else:
            conversation.say("\n".join(f"  {key}  {text}" for key, text in _HELP.items() if key != "e" or self._may_edit(request)))
        return None

    def _may_edit(self, request: ApprovalRequest) -> bool:
        return self._edit is not None and request.step_id is None and request.run_id is not None

    def _said(self, request: ApprovalRequest, *, approve: bool, note: str = "") -> Approval:
        return answer_to(request, decision="approve" if approve else "reject", by=self._user, known_by="os_user", note=note)


def step_name(request: ApprovalRequest) -> str:
    """Return the step that is asked about, with the label of its item."""
    return f"`{call_name(str(request.step_id), request.item, request.label)}`"


def _other_ways(request: ApprovalRequest) -> str:
    return f"`{answer_command(request)}` with --sign or --code may"


async def _never() -> Approval:
    """Wait for whoever else answers: the caller cancels this wait then."""
    return await asyncio.get_running_loop().create_future()
