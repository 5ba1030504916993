"""Tests of probes: which functions fit a tool, and which are refused."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest

from plan_adapter import ToolRegistry, tool
from plan_adapter.model.errors import ToolDefinitionError
from plan_adapter.tools import Done, NotDone, ToolContext, as_tool, command_tool


class Place(StrEnum):
    """Where."""

    HERE = "here"
    THERE = "there"


def send(order: int, to: Place = Place.HERE, note: str | None = None) -> str:
    """Send an order."""
    return f"{order} {to} {note}"


def fewer_parameters(order: int) -> Done:
    """Look."""
    return Done(order)


async def all_parameters(note: str | None = None, *, order: int, context: ToolContext, to: Place = Place.HERE) -> NotDone:
    """Look."""
    return NotDone(f"{note} {order} {context.attempt} {to}")


def other_name(id: int) -> None:
    """Look."""


def other_type(order: str) -> None:
    """Look."""


def other_default(order: int, to: Place = Place.THERE) -> None:
    """Look."""


def requires_more(order: int, note: str | None) -> None:
    """Look."""


def has_a_default(order: int = 1) -> None:
    """Look."""


def anything(**parameters: Any) -> None:
    """Look."""


def nothing() -> None:
    """Look at nothing."""


@pytest.mark.parametrize("probe", [fewer_parameters, all_parameters, nothing])
def test_a_probe_shares_parameters_with_its_tool_and_is_not_part_of_its_definition(probe: Callable[..., object]) -> None:
    found = tool(effect="write", probe=probe)(send)
    assert found.probe is not None
    assert found.definition() == tool(effect="write")(send).definition()


@pytest.mark.parametrize(
    ("probe", "why"),
    [
        (other_name, "the tool has no parameter `id`"),
        (other_type, '`order` is {"type": "string"}, but {"type": "integer"} in the tool'),
        (other_default, r"`to` is .*there.*, but .*here.* in the tool"),
        (requires_more, "`note`"),
        (has_a_default, "`order`"),
        (anything, "takes any number of arguments"),
    ],
)
def test_a_probe_whose_parameters_do_not_match_its_tool_is_refused(probe: Callable[..., object], why: str) -> None:
    with pytest.raises(ToolDefinitionError, match=why):
        tool(effect="write", probe=probe)(send)
    with pytest.raises(ToolDefinitionError, match=why):
        as_tool(send, effect="write", probe=probe)
    with pytest.raises(ToolDefinitionError, match=why):
        as_tool(tool(effect="write")(send), probe=probe)


def test_every_mismatch_is_reported_at_once() -> None:
    def wrong(id: int, order: str) -> None:
        """Look."""

    with pytest.raises(ToolDefinitionError, match=r"`wrong` cannot be the probe of `send`: .*`id`.*; .*`order`"):
        tool(effect="write", probe=wrong)(send)


def test_a_probe_can_be_added_to_a_tool_and_two_different_probes_are_refused() -> None:
    plain = tool(effect="write")(send)
    probing = as_tool(plain, probe=fewer_parameters)
    assert (plain.probe, probing.name, probing.effect) == (None, "send", "write")
    assert ToolRegistry([probing, as_tool(plain, probe=fewer_parameters)]).get("send") is probing
    with pytest.raises(ToolDefinitionError, match="with different probes"):
        ToolRegistry([plain, probing])
    assert as_tool(probing, name="other").probe is probing.probe
    assert command_tool("deploy", ["true"], probe=nothing).probe is not None
