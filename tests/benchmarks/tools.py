"""Tools that the benchmarks' plans use, by import string."""

from plan_adapter import tool


@tool(effect="read")
async def noop() -> dict[str, bool]:
    """Do nothing."""
    return {"ok": True}
