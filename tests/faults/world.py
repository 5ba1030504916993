"""The oracle world: an append-only file with one line per effect, and the tools that act in it."""

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
"""How the name of a call begins that undoes a step."""

Unit: TypeAlias = tuple[str, int | None]


@dataclass(frozen=True)
class Line:
    """One effect, as the world saw it."""

    run: str
    step: str  # its name; that of what undoes it begins with ROLLBACK
    item: int | None
    attempt: int
    effect: Effect
    key: str  # the idempotency key that came with it
    body: str
    secret: str  # only a digest of it
    token: str  # what the caller was told
    at: float
    pid: int
    epoch: int | None  # of the lease under which it was called

    @property
    def unit(self) -> Unit:
        """The step, or the item of it, that the effect belongs to."""
        return self.step, self.item


def lines_of(path: Path) -> list[Line]:
    """Return what has happened in the world at `path`, in its order."""
    return [Line(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def digest_of_secret(secret: str) -> str:
    """Return what the world keeps of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class RefusedError(Exception):
    """The world does not do it; nothing was done."""


@dataclass
class World:
    """Where the tools of this process act."""

    path: Path = Path("/nowhere")
    epoch_of: Callable[[str], int | None] = lambda _: None  # tells the lease of a run that this process holds

    def act(self, effect: Effect, token: str, said: tuple[str, str, int | None, int], context: ToolContext) -> dict[str, Any]:
        """Do what a tool does, and return what it returns."""
        body, secret, item, fails = said
        print(f"{context.step_id} uses {secret}")
        context.logger.info("%s uses %s", context.step_id, secret)
        if context.attempt <= fails:
            raise RefusedError(f"{secret} is refused, attempt {context.attempt}")
        reached("mid-effect", ROLLBACK + effect if context.kind == "rollback" else effect)
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
            os.write(file, (json.dumps(asdict(line)) + "\n").encode())  # one call: lines of several processes do not mix
        finally:
            os.close(file)
        return {"token": token, "authorization": f"Bearer {secret}"}


HERE = World()


@tool(effect="read")
def look(body: str, secret: str, context: ToolContext, item: int | None = None, fails: int = 0) -> dict[str, Any]:
    """Look; each look sees something else."""
    return HERE.act("read", os.urandom(6).hex(), (body, secret, item, fails), context)


@tool(effect="idempotent_write")
def put(body: str, secret: str, context: ToolContext, item: int | None = None, fails: int = 0) -> dict[str, Any]:
    """Put something there; under the same key it is the same thing."""
    return HERE.act("idempotent_write", context.idempotency_key[:12], (body, secret, item, fails), context)


@tool(effect="write")
def write(body: str, secret: str, context: ToolContext, item: int | None = None, fails: int = 0) -> dict[str, Any]:
    """Write; twice is once too often."""
    return HERE.act("write", os.urandom(6).hex(), (body, secret, item, fails), context)


TOOLS = ToolRegistry([look, put, write])
