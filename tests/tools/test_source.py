"""Tests of the digest of a tool's code. It covers the source, or else the origin and version."""

from hashlib import sha256
from importlib.metadata import version
from types import FunctionType

import pytest
import rfc8785

from plan_adapter import tool
from plan_adapter.tools import Tool
from plan_adapter.tools.tool import code_digest


def function_without_source(body: str) -> FunctionType:
    """Return a function that is not defined in a file."""
    scope: dict[str, object] = {"__name__": "nowhere"}
    exec(f"def made() -> int:\n    {body}", scope)
    found = scope["made"]
    assert isinstance(found, FunctionType)
    return found


@tool(effect="read")
def one(text: str) -> str:
    """Say something."""
    return text


@tool(effect="read", name="one")
def other(text: str) -> str:
    """Say something."""
    return text + "!"


def test_the_digest_covers_only_the_source() -> None:
    assert code_digest(one) not in (None, code_digest(other))
    assert code_digest(one) == code_digest(Tool(one.fn, effect="write", name="elsewhere"))
    assert one.definition() == other.definition()


def test_a_function_without_source_or_origin_has_no_digest() -> None:
    assert code_digest(Tool(function_without_source("return 1"))) is None


def test_the_digest_of_a_function_without_source_covers_its_origin_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    found = function_without_source("return 1")
    found.__module__, found.__qualname__ = "rfc8785", "made"
    monkeypatch.setattr(rfc8785, "made", found, raising=False)
    expected = f"rfc8785:made\nrfc8785=={version('rfc8785')}"
    assert code_digest(Tool(found)) == sha256(expected.encode()).hexdigest()
