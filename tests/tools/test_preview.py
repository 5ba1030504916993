"""Tests of previews and guards: which functions fit a tool, and which are refused."""

import pytest

from plan_adapter import ToolRegistry, tool
from plan_adapter.model.errors import ToolDefinitionError
from plan_adapter.tools import ToolContext


def send(order: int, to: str = "here") -> str:
    """Send an order."""
    return f"{order} {to}"


def show(order: int) -> str:
    """Show an order."""
    return f"{order}"


def show_all() -> str:
    """Show everything."""
    return ""


def show_week(week: int) -> str:
    """Show a week."""
    return f"{week}"


def test_a_preview_shares_parameters_with_its_tool_and_is_not_part_of_its_definition() -> None:
    shown = tool(effect="write", preview=show)(send)
    assert shown.preview is not None
    assert (shown.preview.name, shown.preview.effect) == ("show", "read")
    assert shown.definition() == tool(effect="write")(send).definition()
    read = tool(effect="read")(show_all)
    assert tool(effect="write", preview=read)(send).preview is read


def test_a_preview_that_does_not_fit_its_tool_is_refused_with_the_reason() -> None:
    with pytest.raises(ToolDefinitionError, match="`show_week` cannot be the preview of `send`: the tool has no parameter `week`"):
        tool(effect="write", preview=show_week)(send)
    with pytest.raises(ToolDefinitionError, match="its effect is write, and a preview only reads"):
        tool(effect="write", preview=tool(effect="write")(show))(send)
    with pytest.raises(ToolDefinitionError, match="the tool only reads, and a preview is for writes"):
        tool(effect="read", preview=show)(send)


def test_a_tool_cannot_be_added_with_two_previews() -> None:
    registry = ToolRegistry([tool(effect="write", preview=show)(send)])
    with pytest.raises(ToolDefinitionError, match="added twice, with different probes, previews or guards"):
        registry.add(tool(effect="write", preview=show_all)(send))


def test_a_guard_takes_no_parameters_except_the_context() -> None:
    def kept(context: ToolContext) -> None:
        """Look."""

    guarded = tool(effect="write", guard=kept)(send)
    assert guarded.guard is not None
    assert guarded.guard.effect == "read"
    with pytest.raises(ToolDefinitionError, match="`show` cannot be the guard of `send`: a guard takes no parameters"):
        tool(effect="write", guard=show)(send)
