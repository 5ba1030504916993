"""Fixtures of the attacks, shared with the tests of gates."""

from tests.gates.conftest import home, store_url, world

__all__ = ["home", "store_url", "world"]
