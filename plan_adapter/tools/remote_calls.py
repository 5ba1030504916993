"""`RemoteCall`: one attempt to run a command on a host through OpenSSH, found again after a lost connection or a killed run."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import ToolError, UnknownOutcomeError
from plan_adapter.tools.processes import CommandResult, run_group
from plan_adapter.tools.remote_programs import (
    PREFIX,
    RemoteCommand,
    ask_program,
    end_program,
    prepare_program,
    read_program,
    run_program,
)
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
WAIT_SECONDS = 5
"""How long one connection waits for the end of a command."""

END_SECONDS = 4.5
"""How long to try to end a command. A cancelled tool is closed by force after 5 s."""

_SILENT = logging.Logger("ssh", logging.CRITICAL + 1)
"""For connections whose output belongs to no step's log."""


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


@dataclass(frozen=True, slots=True)
class _Record:
    """What a host knows about a call: `never`, `running`, `ended` or `gone`, with numbers that depend on it."""

    state: str
    numbers: tuple[int, ...]


class RemoteCall:
    """One attempt of a step, on a host. Its record there has the name of the attempt."""

    def __init__(self, target: Target, context: ToolContext) -> None:
        """Make the call of the attempt that `context` names. It has not begun."""
        self._target = target
        self._context = context
        self._name = f"{context.idempotency_key}-{context.attempt}"

    async def run(self, command: RemoteCommand) -> CommandResult:
        """Run `command` to its end, also if the connection is lost. On cancellation, end it first.

        Raises ToolError if nothing was started, and UnknownOutcomeError if the host cannot be asked how the command ended.
        """
        program = run_program(self._name, command)
        await self._prepare()
        try:
            result = await self._connect(program, self._context)
            if result.exit_code != LOST and result.exit_code >= 0:
                return result
            found = await self.follow()
        except asyncio.CancelledError:
            await self._end()
            raise
        if found is None:
            raise ToolError(f"nothing was started on {self._target.host}: {self._why_not_connected(result)}")
        return found

    async def follow(self, *, deadline: float | None = None) -> CommandResult | None:
        """Wait for the end of the command and return how it ended. Return None if it has not begun; it can no longer begin.

        Raises UnknownOutcomeError if the host cannot be asked or does not know, or if the command still runs shortly before `deadline`.
        """
        host, is_told = self._target.host, False
        while True:
            seconds = WAIT_SECONDS if deadline is None else min(WAIT_SECONDS, int((deadline - time.monotonic()) / 2))
            record = await self._ask(max(0, seconds))
            if record.state == "never":
                return None
            if record.state == "ended":
                return await self._read(*record.numbers)
            if record.state == "gone":
                raise UnknownOutcomeError(f"process {record.numbers[0]} on {host} has ended, and left no exit code: it was killed")
            pid, age = record.numbers
            still = f"the command still runs on {host} (process {pid}, for {age} s)"
            if seconds <= 0:
                raise UnknownOutcomeError(still)
            if not is_told:
                self._context.logger.info("%s; waiting for its end", still)
            is_told = True

    async def _prepare(self) -> None:
        """Connect, and create the folder of calls. Raises ToolError."""
        result = await self._connect(prepare_program(), self._plain)
        if result.exit_code == 0 and _answer(result) == ["ready"]:
            return
        raise ToolError(self._why_not_connected(result))

    async def _ask(self, seconds: int) -> _Record:
        result = await self._connect(ask_program(self._name, seconds=seconds), self._plain)
        if result.exit_code != 0 or not (answer := _answer(result)):
            raise UnknownOutcomeError(f"how the command ended is not known: {self._why_not_connected(result)}")
        return _Record(answer[0], tuple(map(int, answer[1:])))

    async def _read(self, exit_code: int) -> CommandResult:
        result = await self._connect(read_program(self._name), self._silent)
        if result.exit_code != 0:
            error = f"the command ended with exit code {exit_code}, but its output cannot be read"
            raise UnknownOutcomeError(f"{error}: {self._why_not_connected(result)}")
        return replace(result, exit_code=exit_code)

    async def _end(self) -> None:
        """End the command with all its processes. What its end was, its record says."""
        try:
            async with asyncio.timeout(END_SECONDS):
                result = await self._connect(end_program(self._name), self._plain, connect_seconds=3)
        except TimeoutError:
            why = "no answer in time"
        else:
            if result.exit_code == 0:
                return
            why = self._why_not_connected(result)
        self._context.logger.warning("the command on %s could not be ended: %s", self._target.host, why)

    async def _connect(self, program: str, context: ToolContext, *, connect_seconds: int = CONNECT_SECONDS) -> CommandResult:
        argv = self._target.argv("exec sh", options=(*OPTIONS, f"ConnectTimeout={connect_seconds}"))
        # Without a terminal, ssh would ask about an unknown host in a window.
        return await run_group(argv, cwd=None, env={"SSH_ASKPASS_REQUIRE": "never"}, stdin=program, context=context)

    @property
    def _silent(self) -> ToolContext:
        """The context for connections that are no command of the step."""
        return replace(self._context, commands=None, logger=_SILENT)

    @property
    def _plain(self) -> ToolContext:
        """Likewise, for answers to us: a secret that is a number must not be redacted in them."""
        return replace(self._silent, redaction=None)

    def _why_not_connected(self, result: CommandResult) -> str:
        """Return why a connection failed, and what to do."""
        host, port, printed = self._target.host, self._target.port, " ".join(result.stderr.split())
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


def _answer(result: CommandResult) -> list[str]:
    """Return the words that a program printed for us."""
    lines = [line.removeprefix(PREFIX) for line in result.stdout.splitlines() if line.startswith(PREFIX)]
    return lines[-1].split() if lines else []
