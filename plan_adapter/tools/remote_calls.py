"""`RemoteCall`: one attempt to run a command on a host through OpenSSH, found again after a lost connection or a killed run."""

import asyncio
import time
from dataclasses import dataclass, replace

from plan_adapter.model.errors import ToolError, UnknownOutcomeError
from plan_adapter.tools.processes import CommandResult
from plan_adapter.tools.remote_programs import RemoteCommand, ask_program, end_program, prepare_program, read_program, run_program
from plan_adapter.tools.ssh_connection import LOST, Port, SshConnection, Target, answer_in
from plan_adapter.tools.tool import ToolContext

WAIT_SECONDS = 5
"""How long one connection waits for the end of a command."""

PAUSE_SECONDS = 1.0
"""How long to wait before asking a host again, if the connection was lost."""

END_SECONDS = 4.5
"""How long to try to end a command. A cancelled tool is closed by force after 5 s."""


@dataclass(frozen=True, slots=True)
class _Record:
    """What a host knows about a call: `never`, `running`, `ended` or `gone`, with numbers that depend on it."""

    state: str
    numbers: tuple[int, ...]


class RemoteCall:
    """One attempt of a step, on a host. Its record there has the name of the attempt."""

    def __init__(self, target: Target, context: ToolContext) -> None:
        """Make the call of the attempt that `context` names. It has not begun."""
        self._host = target.host
        self._connection = SshConnection(target, context)
        self._context = context
        self._name = f"{context.idempotency_key}-{context.attempt}"

    async def run(self, command: RemoteCommand) -> CommandResult:
        """Run `command` to its end, also if the connection is lost. On cancellation, end it first.

        Raises ToolError if nothing was started, and UnknownOutcomeError if the host cannot be asked how the command ended.
        """
        program = run_program(self._name, command)
        await require_host(self._connection)
        try:
            result = await self._connection.run_command(program)
            if result.exit_code != LOST and result.exit_code >= 0:
                return result
            found = await self.follow()
        except asyncio.CancelledError:
            await self._end()
            raise
        if found is None:
            raise ToolError(f"nothing was started on {self._host}: {self._connection.why_failed(result)}")
        return found

    async def follow(self, *, deadline: float | None = None) -> CommandResult | None:
        """Wait for the end of the command and return how it ended. Return None if it has not begun; it can no longer begin.

        Raises UnknownOutcomeError if the host cannot be asked or does not know, or if the command still runs shortly before `deadline`.
        """
        host, is_told = self._host, False
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

    async def _ask(self, seconds: int) -> _Record:
        result = await self._connection.ask(ask_program(self._name, seconds=seconds))
        if result.exit_code == LOST:  # this connection may be lost like the first one, when a network fails for a moment
            await asyncio.sleep(PAUSE_SECONDS)
            result = await self._connection.ask(ask_program(self._name, seconds=seconds))
        if result.exit_code != 0 or not (answer := answer_in(result.stdout)):
            raise UnknownOutcomeError(f"how the command ended is not known: {self._connection.why_failed(result)}")
        return _Record(answer[0], tuple(map(int, answer[1:])))

    async def _read(self, exit_code: int) -> CommandResult:
        result = await self._connection.read(read_program(self._name))
        if result.exit_code != 0:
            error = f"the command ended with exit code {exit_code}, but its output cannot be read"
            raise UnknownOutcomeError(f"{error}: {self._connection.why_failed(result)}")
        return replace(result, exit_code=exit_code)

    async def _end(self) -> None:
        """End the command with all its processes. What its end was, its record says."""
        try:
            async with asyncio.timeout(END_SECONDS):
                result = await self._connection.ask(end_program(self._name), connect_seconds=3)
        except TimeoutError:
            why = "no answer in time"
        else:
            if result.exit_code == 0:
                return
            why = self._connection.why_failed(result)
        self._context.logger.warning("the command on %s could not be ended: %s", self._host, why)


async def require_host(connection: SshConnection) -> None:
    """Connect, and create the folder of calls on the host. Raises ToolError."""
    result = await connection.ask(prepare_program())
    if result.exit_code != 0 or answer_in(result.stdout) != ["ready"]:
        raise ToolError(connection.why_failed(result))


async def check_host(host: str, context: ToolContext, user: str | None = None, port: Port = None, jump: str | None = None) -> None:
    """Connect to a host, and check that it runs programs. Raises ToolError."""
    await require_host(SshConnection(Target(host, user, port, jump), context))
