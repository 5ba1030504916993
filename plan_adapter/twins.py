"""The sync twins of async functions, for code without an event loop."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def sync_twin(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the sync twin of an async function: `run_plan` for `arun_plan`, with the same signature and documentation."""
    signature = inspect.signature(function)

    @wraps(function)
    def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        if unknown := next((name for name in kwargs if name not in signature.parameters), None):
            near = get_close_matches(unknown, signature.parameters, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"it takes {', '.join(f'`{name}`' for name in signature.parameters)}"
            raise TypeError(f"`{twin.__name__}` has no parameter `{unknown}`; {hint}")
        return run_sync(function(*args, **kwargs), twin=function.__name__)

    owner, dot, _ = function.__qualname__.rpartition(".")
    twin.__name__ = function.__name__.removeprefix("a")
    twin.__qualname__ = f"{owner}{dot}{twin.__name__}"
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
