"""The tool of resumed runs, for `plan resume --tools`: it notes in the file FIRST_CALL when it was first called, and fails."""

import os
import time
from pathlib import Path

from plan_adapter.tools.tool import tool


@tool(effect="read")
async def work(ms: int = 0) -> dict[str, bool]:
    """Do nothing, as long as there is work left."""
    now, file = time.time(), Path(os.environ["FIRST_CALL"])
    if not file.exists():
        file.write_text(repr(now), encoding="utf-8")
    raise ValueError("enough for this time")


TOOLS = [work]
