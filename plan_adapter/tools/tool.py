"""`Tool`, the decorator `@tool`, and `ToolContext`, which a tool may ask for by annotation."""

import logging
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know about the call that it serves."""

    run_id: str
    step_id: str
    attempt: int
    idempotency_key: str
    agent_id: str | None
    org_id: str | None
    tenant_id: str | None
    logger: logging.Logger
    deadline: float | None  # seconds on time.monotonic()'s clock; None: no limit
