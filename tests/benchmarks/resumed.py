"""The tool for `plan resume --tools`: it writes the time of its first call to the file FIRST_CALL, and fails."""

import os
import time
from pathlib import Path

from plan_adapter.tools.tool import tool


@tool(effect="read")
async def work(ms: int = 0) -> dict[str, bool]:
    """Do nothing, and fail."""
    now, file = time.time(), Path(os.environ["FIRST_CALL"])
    if not file.exists():
        file.write_text(repr(now), encoding="utf-8")
    raise ValueError("enough for this time")


TOOLS = [work]
