"""Tools that another process can import."""

import os
import signal
import time
from pathlib import Path

from pydantic import JsonValue

from plan_adapter.tools.tool import tool


@tool(effect="write")
def stubborn(folder: str) -> None:
    """Never end, whatever is asked."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (Path(folder) / "pid").write_text(str(os.getpid()))
    while True:
        time.sleep(60)


@tool(effect="write")
def die() -> None:
    """End the process at once."""
    os._exit(9)


@tool(effect="read")
def echo(value: JsonValue) -> JsonValue:
    """Return `value`."""
    return value
