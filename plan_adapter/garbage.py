"""`uncollected`: reading much at once without looking for garbage in it all the time."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Generator[None]:
    """Let Python not look for garbage within, for the moment in which a run is read.

    What is read stays; a run of thousands of steps would be looked through several times before its first step is called, which takes as
    long as to read it. It counts as old at the end, so that it is not looked through right then, but with all the rest, later. Within
    others of its kind the first that ends lets Python look again, which costs only time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # what somebody else froze stays so
                gc.freeze()
                gc.unfreeze()
            gc.enable()
