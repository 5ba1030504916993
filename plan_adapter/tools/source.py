"""`code_digest`: a digest of a tool's function at call time, to detect later changes."""

import inspect
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from importlib import metadata
from types import CodeType
from typing import Any

from plan_adapter.tools.tool import Tool


@lru_cache(maxsize=4096)
def code_digest(tool: Tool[..., Any]) -> str | None:
    """Return the SHA-256, in hex, of the source of the tool's function, or None if nothing is known about it.

    Without a source (a compiled module), it covers the import string and the version of the distribution. Functions that it calls are not
    covered.
    """
    try:
        known = _version_of(tool) if _is_from_string(tool.source) else inspect.getsource(tool.source)
    except (OSError, TypeError, SyntaxError):
        known = _version_of(tool)
    return None if known is None else sha256(known.encode(errors="surrogatepass")).hexdigest()


def _is_from_string(function: Callable[..., Any]) -> bool:
    """Return whether `exec` made `function`. In a program that `python -c` runs, Python 3.13 takes that program for its source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return isinstance(code, CodeType) and code.co_filename == "<string>"


def _version_of(tool: Tool[..., Any]) -> str | None:
    if tool.import_string is None:
        return None
    package = tool.source.__module__.partition(".")[0]
    distributions = metadata.packages_distributions().get(package, [])
    return "\n".join([tool.import_string, *(f"{name}=={metadata.version(name)}" for name in sorted(set(distributions)))])
