"""Attacks run in the world of the gates' tests."""

from tests.gates.conftest import home, store_url, world

__all__ = ["home", "store_url", "world"]
