"""`python`: a function named by import string, from modules that the settings allow."""

import inspect
from collections.abc import Callable
from typing import Any, cast

from pydantic import JsonValue

from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import ToolDefinitionError, ToolError
from plan_adapter.tools.imports import import_object
from plan_adapter.tools.tool import Tool, ToolContext, tool


@tool(effect="write", literal_parameters=("function",))
def python(function: str, context: ToolContext, arguments: dict[str, JsonValue] | None = None) -> Any:
    """Call a Python function and return what it returns.

    The module must match a prefix in `PLAN_ADAPTER_PYTHON_PREFIXES`, which is empty by default. If the function is a tool, its arguments
    are checked, and it receives a `ToolContext` if it asks for one.

    Args:
        function: The function, as `package.module:name`. It must be public and sync.
        arguments: Keyword arguments.
    """
    function_or_tool = _import_allowed(function)
    given = arguments or {}
    if isinstance(function_or_tool, Tool):
        known_tool = cast("Tool[..., Any]", function_or_tool)
        return _require_sync(known_tool.fn, function)(**known_tool.bind(given, context))
    call = _require_sync(getattr(function_or_tool, "fn", function_or_tool), function)
    try:
        inspect.signature(call).bind(**given)
    except (TypeError, ValueError) as error:
        raise ToolError(f"the arguments do not match `{function}`: {error}") from error
    return call(**given)


def _import_allowed(import_string: str) -> object:
    prefixes = Settings().python_prefixes
    if not prefixes:
        raise ToolError(
            "`python` is disabled: PLAN_ADAPTER_PYTHON_PREFIXES is empty; set it to module prefixes, as in package,other.module"
        )
    module, _, path = import_string.partition(":")
    if not _is_below(module, prefixes):
        raise ToolError(f"`{module}` matches none of the allowed prefixes {', '.join(prefixes)} (PLAN_ADAPTER_PYTHON_PREFIXES)")
    if not path.isidentifier() or path.startswith("_"):
        raise ToolError(f"`{import_string}` is not a public function of a module: write `package.module:name`")
    try:
        function_or_tool = import_object(import_string)
    except ToolDefinitionError as error:
        raise ToolError(str(error)) from error
    # An allowed module's own imports (`from os import system`) are not part of it.
    home = str(getattr(function_or_tool, "__module__", "?"))
    if not _is_below(home, prefixes):
        raise ToolError(f"`{import_string}` is defined in `{home}`, which matches none of the allowed prefixes")
    return function_or_tool


def _is_below(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def _require_sync(function: object, import_string: str) -> Callable[..., Any]:
    if not callable(function) or inspect.isclass(function):
        raise ToolError(f"`{import_string}` is not a function")
    if inspect.iscoroutinefunction(function):
        raise ToolError(f"`{import_string}` is async; make it a tool of its own (`@tool`, --tools)")
    return function
