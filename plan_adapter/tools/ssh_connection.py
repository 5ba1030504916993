"""`Target` and `SshConnection`: a host, and programs for its `sh` that one connection of OpenSSH runs."""

import contextlib
import logging
import os
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import IO, Annotated, TypeAlias

from pydantic import Field

from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import ToolError
from plan_adapter.tools.processes import CommandResult, run_group
from plan_adapter.tools.remote_programs import PREFIX
from plan_adapter.tools.tool import ToolContext

LOST = 255
"""The exit code of `ssh` if the connection failed. A command may end with it as well, so the record decides."""

OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "PasswordAuthentication=no",
    "KbdInteractiveAuthentication=no",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "ControlMaster=no",
    "ControlPath=none",
    "RequestTTY=no",
    "EscapeChar=none",
    "LogLevel=ERROR",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=3",
)
"""Nothing is asked, no unknown host is trusted, and the host gets nothing of this machine."""

CONNECT_SECONDS = 10

Port: TypeAlias = Annotated[int, Field(ge=1, le=65535)] | None

READS_PROGRAM = "exec sh"
"""Takes the program from stdin, to its end."""

_SILENT = logging.Logger("ssh", logging.CRITICAL + 1)
"""For connections whose output belongs to no step's log."""


def reads_program_of(size: int) -> str:
    """Return the command that takes a program of `size` bytes from stdin. The program reads what follows."""
    return f"exec sh -c 'eval \"$(dd bs=1 count={size} 2>/dev/null)\"'"


@dataclass(frozen=True, slots=True)
class Target:
    """A host and how to connect to it. Raises ToolError for what OpenSSH could take for an option."""

    host: str
    user: str | None = None
    port: int | None = None
    jump: str | None = None

    def __post_init__(self) -> None:
        for name, text in (("host", self.host), ("user", self.user), ("jump", self.jump)):
            if text is not None and (not text or text.startswith("-") or not text.isprintable() or " " in text):
                rule = "it starts with `-`, is empty, or has spaces or control characters"
                raise ToolError(f"{text!r} cannot be the {name} of an SSH connection: {rule}")

    def texts(self) -> list[str]:
        """Return the texts that the local process list shows."""
        return [text for text in (self.host, self.user, self.jump) if text is not None]

    def argv(self, *words: str, options: Sequence[str] = ()) -> list[str]:
        """Return the command that connects and runs `words`."""
        config = Settings().ssh_config
        return [
            "ssh",
            *(("-F", str(config.expanduser())) if config is not None else ()),
            *(part for option in options for part in ("-o", option)),
            *(("-l", self.user) if self.user is not None else ()),
            *(("-p", str(self.port)) if self.port is not None else ()),
            *(("-J", self.jump) if self.jump is not None else ()),
            "--",
            self.host,
            *words,
        ]


class SshConnection:
    """Connections of one attempt of a step to a host. Each runs one program."""

    def __init__(self, target: Target, context: ToolContext) -> None:
        """Connect to nothing yet. Raises ToolError if a text of `target` holds a secret, because process lists show it."""
        self.target = target
        self._context = context
        refuse_secrets(target.texts(), context)

    async def run_command(self, program: str) -> CommandResult:
        """Run a program that is a command of the step: its output is logged, and the record names the process."""
        return await self._connect(READS_PROGRAM, program, self._context)

    async def read(self, program: str) -> CommandResult:
        """Run a program whose output is redacted and kept, but not logged."""
        return await self._connect(READS_PROGRAM, program, self._silent)

    async def ask(self, program: str, *, connect_seconds: int = CONNECT_SECONDS) -> CommandResult:
        """Run a program that answers to us: a secret that is a number must not be redacted in it."""
        return await self._connect(READS_PROGRAM, program, self._plain, connect_seconds=connect_seconds)

    async def transfer(self, command: str, stdin: Iterable[bytes], *, stdout: IO[bytes] | None = None) -> CommandResult:
        """Run `command`, which reads `stdin`, and write what it prints to `stdout`. Raises OSError if `stdin` cannot be read."""
        # Through a pipe: if this process dies, the host gets the end of the input too early, and not the rest later than a resume.
        with _piped(stdin) as pipe:
            return await self._connect(command, pipe, self._plain, stdout=stdout)

    async def _connect(
        self,
        command: str,
        stdin: IO[bytes] | str,
        context: ToolContext,
        *,
        stdout: IO[bytes] | None = None,
        connect_seconds: int = CONNECT_SECONDS,
    ) -> CommandResult:
        argv = self.target.argv(command, options=(*OPTIONS, f"ConnectTimeout={connect_seconds}"))
        # Without a terminal, ssh would ask about an unknown host in a window.
        env = {"SSH_ASKPASS_REQUIRE": "never"}
        return await run_group(argv, cwd=None, env=env, stdin=stdin, stdout=stdout, context=context)

    @property
    def _silent(self) -> ToolContext:
        return replace(self._context, commands=None, logger=_SILENT)

    @property
    def _plain(self) -> ToolContext:
        return replace(self._silent, redaction=None)

    def why_failed(self, result: CommandResult) -> str:
        """Return why a connection failed, and what to do."""
        host, port, printed = self.target.host, self.target.port, " ".join(result.stderr.split())
        if result.exit_code != LOST:
            return f"{host} does not run programs for `sh`: {printed or result.stdout.strip()[-200:] or f'exit code {result.exit_code}'}"
        known, scanned = (host, host) if port is None else (f"'[{host}]:{port}'", f"-p {port} {host}")
        adds = f"`ssh-keyscan {scanned} >> ~/.ssh/known_hosts` adds it, once you have compared it"
        if "IDENTIFICATION HAS CHANGED" in printed:
            return f"the host key of {host} has changed. If that is expected, `ssh-keygen -R {known}` removes the old one; {adds}"
        if "host key is known for" in printed or "Host key verification failed" in printed:
            return f"the host key of {host} is not in known_hosts: {adds} ({printed})"
        if "Permission denied" in printed:
            return f"{host} accepts no key of this account: add one to its authorized_keys, or name one in the SSH config ({printed})"
        return f"no connection to {host}: {printed or 'ssh gave no reason'}"


@contextlib.contextmanager
def _piped(chunks: Iterable[bytes]) -> Generator[IO[bytes]]:
    """Yield the end of a pipe from which `chunks` can be read. What is not read is dropped."""
    reading, writing = os.pipe()
    with ThreadPoolExecutor(1) as thread, os.fdopen(reading, "rb") as pipe:
        written = thread.submit(_write_all, writing, chunks)
        yield pipe
    written.result()


def _write_all(descriptor: int, chunks: Iterable[bytes]) -> None:
    """Write to a pipe and close it. It may have no reader any more."""
    with os.fdopen(descriptor, "wb", buffering=0) as pipe, contextlib.suppress(BrokenPipeError):
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                view = view[pipe.write(view) :]


def refuse_secrets(texts: Iterable[str], context: ToolContext) -> None:
    """Raise ToolError if a text that process lists show holds a secret."""
    if any(context.redact(text) != text for text in texts):
        raise ToolError(
            "process lists show `argv`, `host`, `user`, `jump` and paths, so they may hold no secret; a command gets one with env or stdin"
        )


def answer_in(printed: str) -> list[str]:
    """Return the words that a program printed for us."""
    lines = [line.removeprefix(PREFIX) for line in printed.splitlines() if line.startswith(PREFIX)]
    return lines[-1].split() if lines else []
