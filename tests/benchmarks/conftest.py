"""Fixtures of the benchmarks."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _without_garbage_of_other_benchmarks() -> Iterator[None]:
    """Keep the garbage collector away from what earlier benchmarks left, so that their order does not change a figure."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
