"""The external world: an append-only file with one line for each effect, and the tools that write to it."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from plan_adapter import ToolContext, ToolRegistry, tool
from plan_adapter.crash_points import reached
from plan_adapter.options import Effect
from plan_adapter.readable import call_name

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
        line = Line(
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
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, (json.dumps(asdict(line)) + "\n").encode())  # one call, so that lines of several processes do not mix
        finally:
            os.close(file)
        return {"token": token, "authorization": f"Bearer {secret}"}


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


TOOLS = ToolRegistry([look, put, write])
