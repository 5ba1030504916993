"""What the programs share: the steps of the work, the places where a process is killed, and the loop that forks one for each trial.

Only the standard library is used. A program calls `serve`, which reads one JSON object a line and answers each with the exit of a child.
"""

import json
import os
import signal
import sys
import threading
import traceback
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ORDER = "order-7"


@dataclass
class Trial:
    """One order, and the place where the process that works on it is killed."""

    folder: Path  # what must outlive the process
    world: str  # the URL of the outside world
    place: str = ""
    seconds: float = 0.0  # after the call, until it is killed

    def ask(self) -> None:
        """Ask the person for the approval of the charge, who always gives it."""
        reach("at the gate")

    def report_unknown(self) -> bool:
        """Tell the person that the outcome of the charge is unknown. Return what the person sees: whether it was charged."""
        with (self.folder / "unknown").open("a", encoding="utf-8") as file:
            file.write("charge\n")
        with urllib.request.urlopen(self.world) as reply:
            return int(reply.read()) > 0


TRIAL = Trial(Path(), "")
"""The trial of this process."""


def store(name: str, text: str) -> None:
    """Write a file that must outlive the process, as a whole or not at all."""
    written = TRIAL.folder / f"{name}.new"
    written.write_text(text, encoding="utf-8")
    written.replace(TRIAL.folder / name)


def reach(place: str) -> None:
    """Die, if this is the place of the trial."""
    if TRIAL.place == place:
        _die()


def reach_inside(place: str) -> None:
    """Die, if this is the place of the trial: one inside a library. The place `list` lists them all in a file."""
    if TRIAL.place == "list":
        with (TRIAL.folder / "places").open("a", encoding="utf-8") as file:
            file.write(f"{place}\n")
    reach(place)


def check(order: str) -> str:
    """Read the order."""
    reach("before the gate")
    return f"{order} is open"


def charge(order: str) -> str:
    """Charge the order: the write that was approved."""
    reach("before the effect")
    kill = str(os.getpid()) if TRIAL.place == "in the effect" else ""  # the world does it, before it replies
    with urllib.request.urlopen(urllib.request.Request(TRIAL.world, data=order.encode(), headers={"X-Kill": kill})) as reply:
        receipt = reply.read().decode()
    reach("after the effect")
    if TRIAL.place == "after the call":
        timer = threading.Timer(TRIAL.seconds, _die)
        timer.daemon = True
        timer.start()
    return receipt


def tell(order: str) -> str:
    """Read what to tell the customer."""
    reach("in the next step")
    return f"{order} is charged"


def serve(work: Callable[[Trial], None]) -> None:
    """Fork a process for each line, which calls `work`, and print how it ended."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(work, json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(work: Callable[[Trial], None], order: dict[str, str | float]) -> None:
    TRIAL.folder, TRIAL.world = Path(str(order["folder"])), str(order["world"])
    TRIAL.place, TRIAL.seconds = str(order["place"]), float(order["seconds"])
    log = os.open(TRIAL.folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        work(TRIAL)
    except BaseException:  # the log says what happened, and the exit code that it did
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
