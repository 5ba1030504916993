"""The external world: an append-only file with one line for each effect, and the tools that write to it."""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from plan_adapter import ToolRegistry, tool
from plan_adapter.local.crash_points import reached
from plan_adapter.model.options import Effect
from plan_adapter.model.readable import call_name
from plan_adapter.tools import ToolContext
from plan_adapter.tools.processes import run_group

ROLLBACK = "rollback "
"""The prefix of the names of rollback calls, and of the details of their crash points."""

FINALLY = "finally "
"""The prefix of the details of the crash points of `finally` steps."""
FINAL = "f"
"""How the ids of `finally` steps begin, and of no other step."""

Unit: TypeAlias = tuple[str, int | None]


@dataclass(frozen=True)
class Line:
    """One effect in the world."""

    run: str
    step: str  # its name, with the prefix ROLLBACK for a rollback call
    item: int | None
    attempt: int
    effect: Effect
    key: str  # the idempotency key of the call
    body: str
    secret: str  # a digest of the secret
    token: str  # in the result of the call
    at: float
    pid: int
    epoch: int | None  # of the lease of the calling process

    @property
    def unit(self) -> Unit:
        """The step and item of the effect."""
        return self.step, self.item


def lines_of(path: Path) -> list[Line]:
    """Return the effects in the world at `path`, in order."""
    return [Line(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def digest_of_secret(secret: str) -> str:
    """Return the digest of a secret that the world stores."""
    return hashlib.sha256(secret.encode()).hexdigest()


class RefusedError(Exception):
    """The world refuses a call, without an effect."""


@dataclass
class World:
    """The world of this process's tools."""

    path: Path = Path("/nowhere")
    epoch_of: Callable[[str], int | None] = lambda _: None  # returns the epoch of this process's lease on a run

    def act(self, effect: Effect, token: str, arguments: tuple[str, str, int | None, int], context: ToolContext) -> dict[str, Any]:
        """Perform the effect of a tool call and return its result."""
        body, secret, item, fails = arguments
        print(f"{context.step_id} uses {secret}")
        context.logger.info("%s uses %s", context.step_id, secret)
        if context.attempt <= fails:
            raise RefusedError(f"{secret} is refused, attempt {context.attempt}")
        prefix = ROLLBACK if context.kind == "rollback" else FINALLY if context.step_id.startswith(FINAL) else ""
        reached("mid-effect", prefix + effect)
        self.append(self.line(effect, token, (body, secret, item, fails), context))
        return {"token": token, "authorization": f"Bearer {secret}"}

    async def command(
        self, effect: Effect, token: str, arguments: tuple[str, str, int | None, int], context: ToolContext
    ) -> dict[str, Any]:
        """Perform the effect of a tool call in a command, which runs until it is released, and return its result."""
        _, secret, item, _ = arguments
        line = json.dumps(asdict(self.line(effect, token, arguments, context)))
        call = f"{call_name(context.step_id, None, kind=context.kind)}-{item}"
        argv = [sys.executable, "-I", "-S", "-c", COMMAND, str(self.path), str(self.commands), call, line]
        await run_group(argv, cwd=None, env={}, stdin=None, context=context)
        return {"token": token, "authorization": f"Bearer {secret}"}

    @property
    def commands(self) -> Path:
        """The folder of the commands: a lock for each call, a file for each attempt that is released, and the calls that overlapped."""
        return self.path.parent / "commands"

    def release(self, attempt_id: str) -> None:
        """Let the command of an attempt end."""
        self.commands.mkdir(exist_ok=True)
        (self.commands / attempt_id).touch()

    def line(self, effect: Effect, token: str, arguments: tuple[str, str, int | None, int], context: ToolContext) -> Line:
        """Return the line of an effect."""
        body, secret, item, _ = arguments
        return Line(
            run=context.run_id,
            step=call_name(context.step_id, None, kind=context.kind),
            item=item,
            attempt=context.attempt,
            effect=effect,
            key=context.idempotency_key,
            body=body,
            secret=digest_of_secret(secret),
            token=token,
            at=time.time(),
            pid=os.getpid(),
            epoch=self.epoch_of(context.run_id),
        )

    def append(self, line: Line) -> None:
        """Append an effect to the world."""
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, (json.dumps(asdict(line)) + "\n").encode())  # one call, so that lines of several processes do not mix
        finally:
            os.close(file)


COMMAND = """
import fcntl, os, sys, time
world, folder, call, line = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
lock = open(os.path.join(folder, "lock " + call), "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    with open(os.path.join(folder, "overlaps"), "a") as file:
        file.write(call + chr(10))
with open(world, "ab", buffering=0) as file:
    file.write((line + chr(10)).encode())
until = time.monotonic() + 300  # a trial that ends at a violation releases nothing
while time.monotonic() < until and not os.path.exists(os.path.join(folder, os.environ["PLAN_ADAPTER_ATTEMPT"])):
    time.sleep(0.005)
"""
"""The program of a command: performs its effect, notes if another command of its call still runs, and ends once it is released."""

HERE = World()


@tool(effect="read")
def look(body: str, secret: str, context: ToolContext, item: int | None = None, fails: int = 0) -> dict[str, Any]:
    """Look. Each call returns a new token."""
    return HERE.act("read", os.urandom(6).hex(), (body, secret, item, fails), context)


@tool(effect="idempotent_write")
def put(body: str, secret: str, context: ToolContext, item: int | None = None, fails: int = 0) -> dict[str, Any]:
    """Put something. Calls with the same key return the same token."""
    return HERE.act("idempotent_write", context.idempotency_key[:12], (body, secret, item, fails), context)


@tool(effect="write")
def write(body: str, secret: str, context: ToolContext, item: int | None = None, fails: int = 0) -> dict[str, Any]:
    """Write, which must not be repeated."""
    return HERE.act("write", os.urandom(6).hex(), (body, secret, item, fails), context)


@tool(effect="write")
async def command(effect: Effect, body: str, secret: str, context: ToolContext, item: int | None = None, fails: int = 0) -> dict[str, Any]:
    """Act in a command, with the effect that its step declares. Idempotent calls with the same key return the same token."""
    token = context.idempotency_key[:12] if effect == "idempotent_write" else os.urandom(6).hex()
    return await HERE.command(effect, token, (body, secret, item, fails), context)


COMMAND_TOOL = "command"

TOOLS = ToolRegistry([look, put, write, command])
