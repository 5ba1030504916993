"""`TerminalApprover`: asks at the terminal of the process that runs the plan."""

import asyncio
import json
import os
import sys
import termios
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.commands import answer_command
from plan_adapter.gates.approval import answer_to, os_user, refusal
from plan_adapter.gates.text import IRREVERSIBLE, without_picture
from plan_adapter.readable import call_name, moment, one_line, visible
from plan_adapter.record import Answer, Approval, ApprovalRequest, Resolution

CLEARED_LINE = "\r\x1b[K"
CHUNK_BYTES = 4096


class Lines:
    """The lines of a file descriptor. Cancelling a wait for a line loses no input for the next one."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Read from `descriptor`: a terminal, a pipe or a file. None is stdin at the time of the first read."""
        self._given = descriptor
        self._rest = b""
        self._was_terminal = False

    @property
    def _descriptor(self) -> int:
        return sys.stdin.fileno() if self._given is None else self._given

    def forget(self) -> None:
        """Drop what was typed at a terminal before a question appeared. Input from a pipe is kept."""
        self._was_terminal = os.isatty(self._descriptor)
        if not self._was_terminal:
            return
        self._rest = b""
        with suppress(termios.error):  # the terminal is gone
            termios.tcflush(self._descriptor, termios.TCIFLUSH)

    @contextmanager
    def unseen(self) -> Generator[None]:
        """Do not show what is typed at the terminal while the block runs, except the end of the line."""
        before = termios.tcgetattr(self._descriptor)
        hiding = [*before[:3], (before[3] & ~termios.ECHO) | termios.ECHONL, *before[4:]]
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, hiding)
        try:
            yield
        finally:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, before)

    @property
    def has_hung_up(self) -> bool:
        """Whether the input was a terminal that is gone now."""
        return self._was_terminal and not os.isatty(self._descriptor)

    async def next(self) -> str | None:
        """Return the next line without its end, or None at the end of the input (Ctrl-D at a terminal)."""
        while b"\n" not in self._rest:
            chunk = await self._chunk()
            if not chunk:
                last, self._rest = self._rest, b""
                return last.decode(errors="replace") if last else None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")

    async def _chunk(self) -> bytes:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(self._descriptor, _wake, ready)
        except (OSError, NotImplementedError):  # a plain file is always ready
            return self._read()
        try:
            await ready
        finally:
            loop.remove_reader(self._descriptor)
        return self._read()

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, CHUNK_BYTES)
        except OSError:  # the terminal was closed
            return b""


class Conversation:
    """Questions at this process's terminal: shown on stderr, answered on stdin.

    A live display yields while a question is open. It sets `pause` and `resume`, and writes its lines through `above`. An asker that finds
    the terminal gone calls `hung_up`.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Read answers from `descriptor`. None is stdin."""
        self.pause: Callable[[], None] = _nothing
        self.resume: Callable[[], None] = _nothing
        self.hung_up: Callable[[], None] = _nothing
        self._lines = Lines(descriptor)
        self._question = ""
        self._turn = asyncio.Lock()

    @property
    def has_hung_up(self) -> bool:
        """Whether the terminal is gone, so that the end of the input came from nobody."""
        return self._lines.has_hung_up

    @property
    def turn(self) -> asyncio.Lock:
        """Held by the current asker."""
        return self._turn

    @contextmanager
    def foreground(self) -> Generator[None]:
        """Pause the live display while the block runs."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def say(self, text: str) -> None:
        """Write `text` and end the line."""
        self.above(lambda: _write(visible(text) + "\n"))

    async def ask(self, question: str, *, forget: bool = False, hidden: bool = False) -> str | None:
        """Return the line that answers `question`, or None at the end of the input. If cancelled, end the question's line.

        With `forget`, lines typed at the terminal before the question appeared are dropped. With `hidden`, the terminal does not show
        what is typed.
        """
        if forget:
            self._lines.forget()
        self._question = visible(question)
        try:
            with self._lines.unseen() if hidden else nullcontext():  # before the question, which may be answered at once
                _write(self._question)
                answer = await self._lines.next()
        except asyncio.CancelledError:
            _write("\n")
            raise
        finally:
            self._question = ""
        if answer is None:
            _write("\n")
        return None if answer is None else answer.strip()

    def above(self, write: Callable[[], object]) -> None:
        """Let `write` write whole lines. An open question is shown again below them."""
        if not self._question:
            write()
            return
        _write(CLEARED_LINE if os.environ.get("TERM", "dumb") != "dumb" else "\n")
        write()
        _write(self._question)


def _write(text: str) -> None:
    with suppress(OSError):  # nobody is watching any more
        sys.stderr.write(text)
        sys.stderr.flush()


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _nothing() -> None:
    """Do nothing: there is no live display."""


SHOWN_LINES = 50
DIGESTS = "\n### Digests\n"


def gate_summary(request: ApprovalRequest) -> str:
    """Return the start of the text, every line about what cannot be undone, the time limit and the approval digest."""
    text = without_picture(request.text).rpartition(DIGESTS)[0] or request.text
    lines, is_approval = list(_compact(text)), request.kind == "approval"
    shown, rest = lines[:SHOWN_LINES], lines[SHOWN_LINES:]
    if rest:
        shown += [line for line in rest if IRREVERSIBLE in line.casefold()]
        command = f", as does `plan approve {request.run_id} --show`" if is_approval else ""
        shown.append(f"… {len(rest)} more lines; v shows all of it{command}")
    if not lines:
        call = f", step {call_name(request.step_id, request.item, request.label, kind=request.call_kind)}" if request.step_id else ""
        shown.append(one_line(f"{request.name}{call}: {request.description}"))
    shown.append("")
    if request.expires_at is not None:
        shown.append(f"waiting for an answer until {moment(request.expires_at)}")
    if is_approval:
        shown.append(f"approval digest: `{request.approval_digest}`")
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

_HELP = {
    "y": "yes: run exactly this, once",
    "n": "no: run none of it; you can say why",
    "v": "view everything that you are asked about",
    "e": "edit the plan in your editor; you are then asked about the new version",
}


_OUTCOME_HELP = {
    "done": "it was done: the call is not repeated, and you are asked for its result",
    "again": "it was not done: the call is repeated",
    "abort": "end the run here, as cancelled",
    "v": "view everything that you are asked about",
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
                self._show(request)
                while True:
                    reply = await conversation.ask(self._question(request), forget=True)
                    if reply is None:
                        break
                    answer = await self._answer(reply.casefold(), request)
                    if answer is not None:
                        return answer
        if self._is_alone and conversation.has_hung_up:  # the terminal is gone, which is no answer
            conversation.hung_up()
            return await _never()
        if self._is_alone:
            return self._approval(request, approve=False, note=NO_ANSWER)
        conversation.say("the input has ended here; answer in the form or with `plan approve`")
        return await _never()

    async def ask_outcome(self, request: ApprovalRequest) -> Answer | None:
        """Return how the person resolves an unknown outcome, or None at the end of the input."""
        conversation = self._conversation
        async with conversation.turn:
            with conversation.foreground():
                self._show(request)
                question = f"How did {step_name(request)} end? Your answer as {self._user}: done, again, abort, [v]iew, [?] "
                while (reply := await conversation.ask(question, forget=True)) is not None:
                    if reply.casefold() in ("done", "again", "abort"):
                        return await self._outcome(cast("Resolution", reply.casefold()))
                    if reply.casefold() in ("v", "view"):
                        conversation.say(without_picture(request.text))
                    else:
                        conversation.say("\n".join(f"  {key:5}  {text}" for key, text in _OUTCOME_HELP.items()))
        if not self._is_alone:
            conversation.say("the input has ended here; answer in the form or with `plan resolve`")
        return None

    async def _outcome(self, resolution: Resolution) -> Answer | None:
        result: JsonValue = None
        while resolution == "done":
            text = await self._conversation.ask("What did it return? (JSON, empty for none) ")
            if text is None:
                return None
            try:
                result = json.loads(text) if text else None
                break
            except ValueError as error:
                self._conversation.say(f'that is not JSON ({error}); put quotes around a text, as in "v3"')
        note = await self._conversation.ask("How do you know? (one line, may be empty) ")
        return None if note is None else Answer(resolution, self._user, note=note, channel="os_user", result=result)

    def _show(self, request: ApprovalRequest) -> None:
        say = self._conversation.say
        if request.refused is not None:
            say(f"your answer was refused: {request.refused}")
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
        return f"Approve {what} as {self._user}? {', '.join(words)} "

    async def _answer(self, reply: str, request: ApprovalRequest) -> Approval | None:
        """Return the answer that the typed `reply` gives, or None if it is not an answer yet."""
        conversation = self._conversation
        if reply in ("y", "yes"):
            return self._approval(request, approve=True)
        if reply in ("n", "no"):
            note = await conversation.ask("Why not? (one line, may be empty) ")
            return self._approval(request, approve=False, note=note or "")
        if reply in ("v", "view"):
            conversation.say(without_picture(request.text))
        elif reply in ("e", "edit") and self._edit is not None and self._may_edit(request):
            if await self._edit(request, conversation):
                return await _never()  # this gate is closed now, and the next one asks
        else:
            conversation.say("\n".join(f"  {key}  {text}" for key, text in _HELP.items() if key != "e" or self._may_edit(request)))
        return None

    def _may_edit(self, request: ApprovalRequest) -> bool:
        return self._edit is not None and request.step_id is None and request.run_id is not None

    def _approval(self, request: ApprovalRequest, *, approve: bool, note: str = "") -> Approval:
        return answer_to(request, decision="approve" if approve else "reject", by=self._user, known_by="os_user", note=note)


def step_name(request: ApprovalRequest) -> str:
    """Return the name of the step in question, with the label of its item."""
    return f"`{call_name(str(request.step_id), request.item, request.label, kind=request.call_kind)}`"


def _other_ways(request: ApprovalRequest) -> str:
    return f"use `{answer_command(request)}` with --sign or --code"


async def _never() -> Approval:
    """Wait forever. When somebody else answers, the caller cancels this wait."""
    return await asyncio.get_running_loop().create_future()
