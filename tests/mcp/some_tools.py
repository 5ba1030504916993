"""Tools that the tests' plans import. Importing this module prints, as careless modules do."""

import os
import time
from pathlib import Path

from plan_adapter import ToolRegistry, tool

print("imported, and says so on stdout")
os.write(1, b"and once more, past Python\n")


@tool(effect="write")
def deploy(version: str) -> str:
    """Deploy a version by writing it to the file that DEPLOYED names."""
    print("deploying on stdout", version)
    with Path(os.environ["DEPLOYED"]).open("a", encoding="utf-8") as file:
        file.write(f"{version}\n")
    return version


@tool(effect="read")
def look(text: str = "", times: int = 1) -> str:
    """Return the text, repeated."""
    return text * times


@tool(effect="read")
def until_there(path: str) -> str:
    """Return once a file exists. Fails after a minute, so that no test leaves a process behind."""
    for _ in range(3000):
        if Path(path).exists():
            return path
        time.sleep(0.02)
    raise TimeoutError(path)


registry = ToolRegistry([deploy, look, until_there])
