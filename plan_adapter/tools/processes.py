"""Runs a command in its own process group: streams its output, waits for its end, and ends the whole group on cancellation."""

import asyncio
import codecs
import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import Logger
from pathlib import Path
from typing import IO

from plan_adapter.local.crash_points import reached
from plan_adapter.local.credentials import environment_without_credentials
from plan_adapter.model.errors import ToolError
from plan_adapter.model.host_process import MARKER, TERM_SECONDS
from plan_adapter.tools.tool import Redaction, ToolContext

STRAGGLER_SECONDS = 0.5
"""How long to wait for output after the command has ended. A process that inherited the pipe may hold it open forever."""

KEPT_CHARACTERS = 8_000
"""How many characters to keep from the start of each output, and again from its end."""

LOGGED_LINES = 10_000
LINE_CHARACTERS = 4_000
CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. A negative exit code is the signal that ended it."""

    exit_code: int
    stdout: str
    stderr: str


async def run_group(
    argv: Sequence[str],
    *,
    cwd: str | None,
    env: Mapping[str, str],
    stdin: IO[bytes] | str | None,
    stdout: IO[bytes] | None = None,
    context: ToolContext,
) -> CommandResult:
    """Run a command to its end, and log its output lines to the step's log. Raises ToolError if it cannot be started.

    The record names the process and its host, so that a command that outlives its run is found. With `stdout`, a file takes what the
    command prints, and the result does not have it.

    On cancellation, it ends the whole group before it returns: SIGTERM, then SIGKILL. If the command ends by itself, processes that it left
    in the background are not touched.
    """
    marker = {} if context.commands is None else {MARKER: context.commands.command_marker}
    process = _start(argv, cwd=cwd, env={**env, **marker}, stdin=stdin, stdout=stdout)
    if context.commands is not None:
        reached("command-started", context.commands.command_marker)
        context.commands.command_started(process.pid)
    loop = asyncio.get_running_loop()
    exited = _watch_exit(process, loop)
    outputs = [Output(pipe, context, loop) for pipe in (process.stdout, process.stderr) if pipe is not None]
    try:
        await asyncio.wait((exited,))
        await asyncio.wait([output.ended for output in outputs], timeout=STRAGGLER_SECONDS)
    except asyncio.CancelledError:
        await _end_group(process.pid, exited, context.logger)
        raise
    finally:
        for output in outputs:
            output.close()
    *printed, errors = (output.text for output in outputs)
    return CommandResult(exited.result(), "".join(printed), errors)


class RedactedText:
    """Redacts text that arrives in pieces, including secrets that span several pieces."""

    def __init__(self, redaction: Redaction | None) -> None:
        """Redact nothing if `redaction` is None."""
        self._redaction = redaction
        self._held = ""

    def take(self, text: str, *, is_last: bool = False) -> str:
        """Return the text so far, up to a possible start of a secret at its end. With `is_last`, return all of it."""
        if self._redaction is None:
            return text
        self._held += text
        reach = self._redaction.longest
        if not is_last and reach and len(self._held) < CHUNK + 2 * reach:
            return ""
        redacted = self._redaction.text(self._held)
        ready = len(redacted) if is_last else max(0, len(redacted) - reach)
        self._held = redacted[ready:]
        return redacted[:ready]


class Output:
    """One pipe of a command: read as it fills, logged by line, its start and end kept. Text is redacted before it is cut."""

    def __init__(self, pipe: IO[bytes], context: ToolContext, loop: asyncio.AbstractEventLoop) -> None:
        self._pipe, self._logger, self._redaction, self._loop = pipe, context.logger, context.redaction, loop
        self._redacted = RedactedText(context.redaction)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._beginning, self._end, self._dropped = "", "", 0
        self._line, self._lines = "", 0
        self.ended: asyncio.Future[None] = loop.create_future()
        os.set_blocking(pipe.fileno(), False)
        loop.add_reader(pipe.fileno(), self._read)

    def _read(self) -> bool:
        """Read one piece. Return whether there may be more already."""
        try:
            chunk = os.read(self._pipe.fileno(), CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._stop()
            return False
        # PostgreSQL cannot store a NUL in a text.
        text = self._decode(chunk).replace("\0", "\ufffd")
        self._keep(self._redacted.take(text))
        self._log(text)
        return True

    def _stop(self) -> None:
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        """Read the rest of the pipe, which is everything an ended command wrote, and close it."""
        for _ in range(16):  # a pipe holds at most 1 MB, but another process may keep filling it
            if self.ended.done() or not self._read():
                break
        if not self.ended.done():
            self._stop()
        rest = self._decode(b"", final=True)
        self._keep(self._redacted.take(rest, is_last=True))
        if self._line or rest:
            self._log(rest + "\n")

    def _keep(self, text: str) -> None:
        room = KEPT_CHARACTERS - len(self._beginning)
        self._beginning += text[:room]
        end = self._end + text[room:]
        self._dropped += max(0, len(end) - KEPT_CHARACTERS)
        self._end = end[-KEPT_CHARACTERS:]

    def _log(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        reach = 0 if self._redaction is None else self._redaction.longest
        if len(self._line) > LINE_CHARACTERS + reach:
            line = self._redact(self._line)
            ready = max(0, len(line) - reach)  # the rest may be the start of a secret
            lines += [line[:ready]] if ready else []
            self._line = line[ready:]
        for line in map(self._redact, lines):
            self._lines += 1
            if self._lines <= LOGGED_LINES:
                # If a progress bar rewrites its line, log the last version, as a terminal shows it.
                self._logger.info("%s", line.rstrip("\r").rpartition("\r")[2][:LINE_CHARACTERS])
            elif self._lines == LOGGED_LINES + 1:
                self._logger.warning("more than %d lines of output: the rest is not logged", LOGGED_LINES)

    def _redact(self, text: str) -> str:
        return text if self._redaction is None else self._redaction.text(text)

    @property
    def text(self) -> str:
        """The output, with a note if its middle was left out."""
        if not self._dropped:
            return self._beginning + self._end
        return f"{self._beginning}\n… {self._dropped} characters left out …\n{self._end}"


def _start(
    argv: Sequence[str], *, cwd: str | None, env: Mapping[str, str], stdin: IO[bytes] | str | None, stdout: IO[bytes] | None
) -> subprocess.Popen[bytes]:
    command = argv[0]
    try:
        # A file instead of a pipe: nothing has to be written while the command runs, and a command that reads nothing blocks nothing.
        with tempfile.TemporaryFile() as input_file:
            if isinstance(stdin, str):
                input_file.write(stdin.encode())
                input_file.seek(0)
            return subprocess.Popen(  # noqa: S603  # an argv, no shell
                argv,
                stdin=subprocess.DEVNULL if stdin is None else input_file if isinstance(stdin, str) else stdin,
                stdout=subprocess.PIPE if stdout is None else stdout,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=cwd,
                env={**environment_without_credentials(os.environ), **env},
                start_new_session=True,
            )
    except OSError as error:
        folder = Path(cwd or "").absolute()
        if cwd is not None and not folder.is_dir():
            raise ToolError(f"`{command}` cannot be started: there is no folder {cwd!r} (cwd){_place(cwd, Path.cwd())}") from error
        reason = "no command of this name is found" if isinstance(error, FileNotFoundError) else error.strerror
        if "/" in command:
            reason = f"{reason}{_place(command, folder)}"
        raise ToolError(f"`{command}` cannot be started: {reason}") from error
    except ValueError as error:  # a NUL, an unpaired surrogate, a `=` in the name of a variable
        raise ToolError(f"`{command}` cannot be started: {error}") from error


def _place(path: str, folder: Path) -> str:
    """Return where `path` was looked for, if it is relative: a deployed run works in a folder that people do not expect."""
    return "" if Path(path).is_absolute() else f" in {folder}"


def _watch_exit(process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
    """Return a future of the exit code. A thread waits, because asyncio's own `wait` also waits for pipes that others hold open."""
    exited: asyncio.Future[int] = loop.create_future()

    def wait() -> None:
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody is waiting
            loop.call_soon_threadsafe(lambda: exited.done() or exited.set_result(code))

    threading.Thread(target=wait, name=f"wait for {process.pid}", daemon=True).start()
    return exited


async def _end_group(group: int, exited: "asyncio.Future[int]", logger: Logger) -> None:
    """End every process of the group, immediately if this is cancelled as well."""
    try:
        _signal(group, signal.SIGTERM, logger)
        await _wait_until_gone(group, TERM_SECONDS, logger)
    finally:
        _signal(group, signal.SIGKILL, logger)
    await asyncio.wait((exited,), timeout=1.0)
    await _wait_until_gone(
        group, 0.2, logger
    )  # a killed process takes a moment to end; without a reaper for orphans, the group lasts longer


async def _wait_until_gone(group: int, seconds: float, logger: Logger) -> None:
    """Return once the group is empty, or after `seconds`."""
    for _ in range(int(seconds / 0.05)):
        if not _signal(group, 0, logger):
            return
        await asyncio.sleep(0.05)


def _signal(group: int, number: int, logger: Logger) -> bool:
    """Send a signal to a group. Return whether it has any process."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        if number == signal.SIGKILL:
            logger.warning("the processes of group %d belong to another user and could not be ended", group)
    return True
