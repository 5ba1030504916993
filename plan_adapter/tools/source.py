"""`code_digest`: what a tool's function was when it was called, to tell later whether it changed."""

import inspect
from functools import lru_cache
from hashlib import sha256
from importlib import metadata
from typing import Any

from plan_adapter.tools.tool import Tool


@lru_cache(maxsize=4096)
def code_digest(tool: Tool[..., Any]) -> str | None:
    """Return the SHA-256, in hex, of the source of the tool's function; None where nothing is known of it.

    Where there is no source (a compiled module) it is of the import string and the version of the distribution. What the function calls
    is not covered.
    """
    try:
        known = inspect.getsource(tool.source)
    except (OSError, TypeError, SyntaxError):
        known = _version_of(tool)
    return None if known is None else sha256(known.encode(errors="surrogatepass")).hexdigest()


def _version_of(tool: Tool[..., Any]) -> str | None:
    if tool.import_string is None:
        return None
    package = tool.source.__module__.partition(".")[0]
    distributions = metadata.packages_distributions().get(package, [])
    return "\n".join([tool.import_string, *(f"{name}=={metadata.version(name)}" for name in sorted(set(distributions)))])
