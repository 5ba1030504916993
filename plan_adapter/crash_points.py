"""The places at which it matters that a process may end there; the fault tests end it exactly at one of them.

Nothing happens at them otherwise: no setting and no variable of the environment reaches `listener`.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

CrashPoint: TypeAlias = Literal[
    "gate-opened",  # a gate's row is there, nobody was asked yet
    "gate-answered",  # the answer is a row, the run does not go on yet
    "claimed",  # the lease is this process's
    "before-intent",
    "in-transaction",  # everything of a commit about a run is written, its audit last, and nothing of it is committed
    "after-intent",
    "mid-effect",  # inside the tool, which says so itself
    "after-effect",  # the tool has returned
    "after-receipt",
    "after-prefect-state",  # Prefect shows the end of the step
    "before-end",  # all steps have ended
    "after-end",  # so has the run
]

listener: Callable[[CrashPoint, str], None] | None = None
"""What is told of each place that is reached, from whatever thread; a test's own."""


def reached(point: CrashPoint, detail: str = "") -> None:
    """Tell `listener` that this place is reached.

    `detail` is of a call its effect, for what undoes a step after the word `rollback`; of a transaction the newest entry of the audit.
    """
    if listener is not None:
        listener(point, detail)
