"""The sync twins of async functions, for code without an event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def sync_twin(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the sync twin of an async function: `run_plan` for `arun_plan`, with the same signature and documentation."""

    @wraps(function)
    def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(function(*args, **kwargs), twin=function.__name__)

    twin.__name__ = twin.__qualname__ = function.__name__.removeprefix("a")
    twin.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    Inside a running event loop, await `{function.__name__}`.\n    "
    return twin


def run_sync(work: Coroutine[Any, Any, T], *, twin: str) -> T:
    """Return the result of `work`. Raises RuntimeError, which names the async `twin`, inside a running event loop."""
    if _is_in_event_loop():
        work.close()
        raise RuntimeError(f"an event loop is running here: await `{twin}` instead")
    return asyncio.run(work)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
