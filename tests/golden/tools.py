"""Tools of the golden plans and runs. Approvals cover their definitions, so they may not change."""

from plan_adapter import ToolRegistry, tool
from plan_adapter.errors import UnknownOutcomeError


@tool(effect="read")
def look(text: str = "") -> dict[str, str]:
    """Look."""
    return {"text": text}


@tool(effect="write")
def do(text: str = "") -> dict[str, str]:
    """Do it."""
    return {"text": text}


@tool(effect="idempotent_write", permissions=["allow_reorder"])
def put(text: str = "") -> str:
    """Put it in order."""
    return text


@tool(effect="write")
def undo(text: str = "") -> None:
    """Undo it."""


@tool(effect="read")
def fail(text: str = "it broke") -> None:
    """Fail."""
    raise RuntimeError(text)


@tool(effect="write")
def get_lost() -> None:
    """Start a write and report an unknown outcome."""
    raise UnknownOutcomeError("the line went dead")


registry = ToolRegistry([look, do, put, undo, fail, get_lost])
