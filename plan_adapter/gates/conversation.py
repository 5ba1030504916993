"""`Conversation`: questions and answers at the terminal of this process, also field by field."""

import asyncio
import json
import os
import sys
import termios
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress

from pydantic import JsonValue

from plan_adapter.model.language import tr
from plan_adapter.model.options import Input
from plan_adapter.model.readable import as_text, is_secret_name, one_line, visible
from plan_adapter.validation.inputs import limits_in_words, read_values, type_in_words

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

    def drop_typeahead(self) -> None:
        """Drop what was typed at a terminal before a question appeared. Input from a pipe is kept."""
        self._was_terminal = os.isatty(self._descriptor)
        if not self._was_terminal:
            return
        self._rest = b""
        with suppress(termios.error):  # the terminal is gone
            termios.tcflush(self._descriptor, termios.TCIFLUSH)

    @contextmanager
    def without_echo(self) -> Generator[None]:
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
            chunk = await self._read_chunk()
            if not chunk:
                last, self._rest = self._rest, b""
                return last.decode(errors="replace") if last else None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")

    async def _read_chunk(self) -> bytes:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(self._descriptor, _wake, ready)
        except (OSError, NotImplementedError):  # a plain file is always ready
            return self._read_available()
        try:
            await ready
        finally:
            loop.remove_reader(self._descriptor)
        return self._read_available()

    def _read_available(self) -> bytes:
        try:
            return os.read(self._descriptor, CHUNK_BYTES)
        except OSError:  # the terminal was closed
            return b""


class Conversation:
    """Questions at this process's terminal: shown on stderr, answered on stdin.

    A live display yields while a question is open. It sets `pause` and `resume`, and writes its lines through `write_above`. Whoever asks
    and finds the terminal gone calls `on_hang_up`.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Read answers from `descriptor`. None is stdin."""
        self.pause: Callable[[], None] = _do_nothing
        self.resume: Callable[[], None] = _do_nothing
        self.on_hang_up: Callable[[], None] = _do_nothing
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
        self.write_above(lambda: _write(visible(text) + "\n"))

    async def ask(self, question: str, *, drop_typeahead: bool = False, hidden: bool = False) -> str | None:
        """Return the line that answers `question`, or None at the end of the input. If cancelled, end the question's line.

        With `drop_typeahead`, lines typed at the terminal before the question appeared are dropped. With `hidden`, the terminal does not
        show what is typed.
        """
        if drop_typeahead:
            self._lines.drop_typeahead()
        self._question = visible(question)
        try:
            with self._lines.without_echo() if hidden else nullcontext():  # before the question, which may be answered at once
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

    def write_above(self, write: Callable[[], object]) -> None:
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


def _do_nothing() -> None:
    """Do nothing: there is no live display."""


async def ask_fields(fields: Mapping[str, Input], conversation: Conversation) -> dict[str, JsonValue] | None:
    """Return the answer to a question, asked field by field, or None at the end of the input. An empty line takes the default."""
    texts = dict[str, str]()
    for name, definition in fields.items():
        empty = tr("`{command}` gives one", command=f"plan answer RUN STEP {name}=")
        text = await ask_value(name, definition, conversation, empty=empty)
        if text is None:
            return None
        if text:
            texts[name] = text
    return read_values(fields, texts, from_text=True, what="field")[0]


async def ask_value(name: str, definition: Input, conversation: Conversation, *, empty: str) -> str | None:
    """Return a text that fits an input or a field, or None at the end of the input. An empty line takes the default, if there is one.

    `empty` says how else an empty text is given.
    """
    choices = _choices_by_key(definition)
    conversation.say("\n".join(_field_lines(name, definition, choices)))
    is_hidden = is_secret_name(name) and definition.type != "secret"  # whose value is only a name
    while (typed := await conversation.ask(f"{name}: ", hidden=is_hidden)) is not None:
        if not typed and not definition.is_required:
            return ""
        text = choices.get(typed, typed)
        problems = read_values({name: definition}, {name: text}, from_text=True, what="field")[1]
        if typed and not problems:
            return text
        for problem in problems:
            hint = f"; {problem.hint}" if problem.hint and problem.hint != definition.description else ""
            conversation.say(f"  {problem.message}{hint}")
        if not problems:
            conversation.say("  " + tr("an empty text is not accepted here; {hint}", hint=empty))
    return None


def _field_lines(name: str, definition: Input, choices: Mapping[str, str]) -> Iterator[str]:
    """Yield what a person sees of an input, as in the form: its title, type, description, limits and choices."""
    named = f"{one_line(definition.title)} ({name})" if definition.title else name
    yield f"{named}: {type_in_words(definition)}"
    if definition.description:
        yield f"  {one_line(definition.description)}"
    if limits := list(limits_in_words(definition)):
        yield f"  {', '.join(limits)}"
    if not definition.is_required:
        yield "  " + tr("default: {value}", value=one_line(as_text(definition.default)))
    for key, text in choices.items():
        yield f"  {one_line(text)}" if key == text else f"  {key}) {one_line(text)}"


def _choices_by_key(definition: Input) -> dict[str, str]:
    """Map what a person can type to the text of each choice: its number, or only its text if any choice is itself a number."""
    texts = [member if isinstance(member, str) else json.dumps(member, ensure_ascii=False) for member in definition.enum or ()]
    if any(text.isdecimal() for text in texts):
        return {text: text for text in texts}
    return {str(number): text for number, text in enumerate(texts, start=1)}
