"""`uncollected`: reading much at once without looking for garbage in it all the time."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Generator[None]:
    """Let Python not look for garbage within, for the moment in which a run is read.

    What is read stays; a run of thousands of steps would be looked through several times before its first step is called, which takes as
    long as to read it. Within others of its kind the first that ends lets Python look again, which costs only time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
