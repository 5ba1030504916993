"""`TerminalApprover`: asks at the terminal of the process that runs the plan."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.gates.approval import answer_to, os_user, refusal
from plan_adapter.gates.conversation import Conversation, ask_fields
from plan_adapter.gates.identity import identity_of_account
from plan_adapter.gates.quorum import progress_line, why_already_given
from plan_adapter.model.approvals import Answer, Approval, ApprovalRequest, GatePolicy, Resolution
from plan_adapter.model.language import in_all_languages, later, tr
from plan_adapter.model.readable import call_name, moment, one_line, plain, visible
from plan_adapter.text.commands import resolutions_in_words, show_command, ways_to_answer
from plan_adapter.text.gate_text import IRREVERSIBLE, without_digests, without_picture

SHOWN_LINES = 50


def gate_summary(request: ApprovalRequest) -> str:
    """Return the start of the text, every line about what cannot be undone, the time limit and the approval digest."""
    text = without_digests(without_picture(request.text)) or request.text
    compact, is_approval = "\n".join(_compact(text)), request.kind != "outcome"
    lines = plain(compact).split("\n") if compact else []
    shown, rest = lines[:SHOWN_LINES], lines[SHOWN_LINES:]
    if rest:
        irreversible = in_all_languages(IRREVERSIBLE)
        shown += [line for line in rest if any(text in line.casefold() for text in irreversible)]
        more = tr("… {count} more lines; v shows all of it", count=len(rest))
        shown.append(more + (tr(", as does `{command}`", command=show_command(request)) if is_approval else ""))
    if not lines:
        name = call_name(request.step_id, request.item, request.label, kind=request.call_kind) if request.step_id else ""
        call = tr(", step {name}", name=name) if name else ""
        shown.append(one_line(f"{request.name}{call}: {request.description}"))
    shown.append("")
    if request.agreements:
        shown.append(progress_line(request.gate_policy, request.agreements))
    if request.expires_at is not None:
        shown.append(tr("waiting for an answer until {when}", when=moment(request.expires_at)))
    if is_approval:
        shown.append(tr("approval digest: `{digest}`", digest=request.approval_digest))
    return visible("\n".join(shown))


def _compact(text: str) -> Iterator[str]:
    """Yield the lines of `text` without empty ones, except before a heading."""
    for line in text.splitlines():
        if line.startswith(("## ", "### ")):
            yield ""
        if line.strip():
            yield line


Edit: TypeAlias = Callable[[ApprovalRequest, Conversation], Awaitable[bool]]
"""Lets the person edit what is asked about. Returns whether a new version replaced it, which is then asked about instead."""

NO_ANSWER = "no answer: the input ended"

_VIEW_ALL = later("view everything that you are asked about")
_APPROVAL_HELP = {
    "y": later("yes: run exactly this, once"),
    "n": later("no: run none of it; you can say why"),
    "v": _VIEW_ALL,
    "e": later("edit the plan in your editor; you are then asked about the new version"),
}
_QUESTION_HELP = {
    "a": later("answer, field by field"),
    "r": later("reject: end the run; you can say why"),
    "v": _VIEW_ALL,
}


class TerminalApprover:
    """Shows what would run and asks the person at the terminal, in the name of the operating system user.

    Several gates are asked about one at a time. A gate that is answered elsewhere ends its question.
    """

    asks_again = True  # a person who learns why an answer was refused can give another

    def __init__(self, *, edit: Edit | None = None, conversation: Conversation | None = None, is_alone: bool = True) -> None:
        """Offer editing if `edit` is given. `is_alone`: nobody else is asked, so the end of the input is a rejection."""
        self._edit = edit
        self._conversation = conversation or Conversation()
        self._is_alone = is_alone
        self._user = os_user()

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the person's answer."""
        conversation = self._conversation
        async with conversation.turn:
            with conversation.foreground():
                self._show_request(request)
                while True:
                    reply = await conversation.ask(self._prompt(request), drop_typeahead=True)
                    if reply is None:
                        break
                    answer = await self._handle_reply(reply.casefold(), request)
                    if answer is not None:
                        return answer
        if self._is_alone and conversation.has_hung_up:  # the terminal is gone, which is no answer
            conversation.on_hang_up()
            return await _wait_forever()
        if self._is_alone:
            return self._approval(request, approve=False, note=NO_ANSWER)
        conversation.say(tr("the input has ended here; answer in the form or with `{command}`", command="plan approve"))
        return await _wait_forever()

    async def ask_outcome(self, request: ApprovalRequest) -> Answer | None:
        """Return how the person resolves an unknown outcome, or None at the end of the input."""
        conversation = self._conversation
        async with conversation.turn:
            with conversation.foreground():
                self._show_request(request)
                asked = tr("Did {call} take effect? Your answer as {user}:", call=step_name(request), user=self._user)
                question = f"{asked} done, again, abort, {tr('[v]iew, [?]')} "
                while (reply := await conversation.ask(question, drop_typeahead=True)) is not None:
                    if reply.casefold() in ("done", "again", "abort"):
                        return await self._ask_details(cast("Resolution", reply.casefold()), takes_result="result" in request.fields)
                    if reply.casefold() in ("v", "view"):
                        conversation.say(plain(without_picture(request.text)))
                    else:
                        answers = resolutions_in_words(is_rollback=request.call_kind == "rollback")
                        keys = {**answers, "v": tr(_VIEW_ALL)}
                        conversation.say("\n".join(f"  {key:5}  {text}" for key, text in keys.items()))
        if not self._is_alone:
            conversation.say(tr("the input has ended here; answer in the form or with `{command}`", command="plan resolve"))
        return None

    async def _ask_details(self, resolution: Resolution, *, takes_result: bool) -> Answer | None:
        result: JsonValue = None
        while resolution == "done" and takes_result:
            text = await self._conversation.ask(tr("What did it return? (JSON, empty for none)") + " ")
            if text is None:
                return None
            try:
                result = json.loads(text) if text else None
                break
            except ValueError as error:
                self._conversation.say(tr('that is not JSON ({error}); put quotes around a text, as in "v3"', error=error))
        note = await self._conversation.ask(tr("How do you know? (one line, may be empty)") + " ")
        return None if note is None else Answer(resolution, self._user, note=note, channel="os_user", result=result)

    def _show_request(self, request: ApprovalRequest) -> None:
        say = self._conversation.say
        if request.refused is not None:
            say(tr("your answer was refused: {why}", why=request.refused))
            return
        say("\n" + gate_summary(request))
        if request.kind == "outcome":
            reason = refusal(request.gate_policy, identity_of_account(), decision="reject")
            if reason is not None:
                say(tr("you cannot answer here: {why}; {hint}", why=reason, hint=_proof_hint(request)))
            return
        reason = refusal(request.gate_policy, identity_of_account(), decision="approve")
        reason = reason or why_already_given(request.gate_policy, request.agreements, self._user)
        if reason is not None:
            hint = _proof_hint(request)
            if request.kind == "question":
                say(tr("you cannot answer here: {why}; {hint}", why=reason, hint=hint))
            else:
                say(tr("you cannot approve it here: {why}; {hint}", why=reason, hint=hint))

    def _prompt(self, request: ApprovalRequest) -> str:
        if request.kind == "question":
            return tr("{call} asks you, {user}: [a]nswer, [r]eject, [v]iew, [?]", call=step_name(request), user=self._user) + " "
        asked = tr("Approve this plan as {user}?", user=self._user)
        if request.step_id is not None:
            asked = tr("Approve step {call} with these parameters as {user}?", call=step_name(request), user=self._user)
        keys = tr("[y]es, [n]o, [v]iew, [e]dit, [?]") if self._may_edit(request) else tr("[y]es, [n]o, [v]iew, [?]")
        return f"{asked} {keys} "

    async def _handle_reply(self, reply: str, request: ApprovalRequest) -> Approval | None:
        """Return the answer that the typed `reply` gives, or None if it is not an answer yet."""
        conversation, is_question = self._conversation, request.kind == "question"
        if is_question and reply in ("a", "answer"):
            result = await ask_fields(request.fields, conversation)
            return None if result is None else self._approval(request, approve=True, result=result)
        if not is_question and reply in ("y", "yes"):
            return self._approval(request, approve=True)
        if reply in (("r", "reject") if is_question else ("n", "no")):
            note = await conversation.ask(tr("Why not? (one line, may be empty)") + " ")
            return self._approval(request, approve=False, note=note or "")
        if reply in ("v", "view"):
            conversation.say(plain(without_picture(request.text)))
        elif reply in ("e", "edit") and self._edit is not None and self._may_edit(request):
            if await self._edit(request, conversation):
                return await _wait_forever()  # this gate is closed now, and the next one asks
        else:
            keys = _QUESTION_HELP if is_question else _APPROVAL_HELP
            conversation.say("\n".join(f"  {key}  {tr(text)}" for key, text in keys.items() if key != "e" or self._may_edit(request)))
        return None

    def _may_edit(self, request: ApprovalRequest) -> bool:
        return self._edit is not None and request.step_id is None and request.run_id is not None

    def _approval(self, request: ApprovalRequest, *, approve: bool, note: str = "", result: JsonValue = None) -> Approval:
        decision = "approve" if approve else "reject"
        return answer_to(request, decision=decision, by=self._user, known_by="os_user", note=note, result=result)


def step_name(request: ApprovalRequest) -> str:
    """Return the name of the step in question, with the label of its item."""
    return f"`{call_name(str(request.step_id), request.item, request.label, kind=request.call_kind)}`"


def _proof_hint(request: ApprovalRequest) -> str:
    return tr("answer {ways}", ways=ways_to_answer(request, _without_account(request.gate_policy)))


def _without_account(gate_policy: GatePolicy) -> list[str]:
    """Return the proofs that the gate accepts, without the account, which has just been refused; of any proof, those that need no page."""
    accepted = ("ssh_signature", "totp") if gate_policy.known_by is None else gate_policy.known_by
    return [proof for proof in accepted if proof != "os_user"]


async def _wait_forever() -> Approval:
    """Wait forever. When somebody else answers, the caller cancels this wait."""
    return await asyncio.get_running_loop().create_future()
