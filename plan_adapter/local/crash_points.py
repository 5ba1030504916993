"""The points at which a process must be able to die safely. Fault tests end the process exactly at one of them.

Otherwise nothing happens there: no setting and no environment variable sets `listener`.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

CrashPoint: TypeAlias = Literal[
    "gate-opened",  # the gate's row exists, and nobody was asked yet
    "gate-answered",  # the answer is recorded, and the run has not resumed yet
    "claimed",  # this process owns the lease
    "before-intent",
    "in-transaction",  # a commit about a run is fully written, its audit entry last, and not committed yet
    "after-intent",
    "mid-effect",  # inside the tool, which calls `reached` itself
    "command-started",  # inside the tool: its command runs, and no row names its process yet
    "command-recorded",  # likewise, and a row does
    "after-effect",  # the tool has returned
    "after-receipt",
    "after-prefect-state",  # Prefect shows the end of the step
    "before-end",  # all steps have ended
    "after-end",  # the run has ended as well
]

listener: Callable[[CrashPoint, str], None] | None = None
"""Called at each point that is reached, from any thread. Only tests set it."""


def reached(point: CrashPoint, detail: str = "") -> None:
    """Report to `listener` that this point is reached.

    For a call, `detail` is its effect, preceded by the word `rollback` for a rollback, or `finally` for a `finally` step. For a
    transaction, it is the newest audit log entry; for a command, the id of the attempt.
    """
    if listener is not None:
        listener(point, detail)
