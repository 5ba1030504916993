"""`ToolRegistry`: tools by name, loaded from objects, import strings, entry points and the built-in ones."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import metadata
from types import ModuleType
from typing import Any, TypeAlias, cast

from pydantic import JsonValue

from plan_adapter.model.errors import ToolDefinitionError
from plan_adapter.model.problems import did_you_mean
from plan_adapter.tools.imports import import_module_of_tools, import_object
from plan_adapter.tools.tool import Tool, as_tool

ENTRY_POINT_GROUP = "plan_adapter.tools"


class ToolRegistry:
    """The tools that a plan may name.

    Accepts tools, typed functions, Prefect tasks and flows, other registries, lists of these, modules, and import strings of any of them
    (`package.module:name`, or `package.module` for a module). Of a module it takes the tools and registries among its public names. Raises
    ToolDefinitionError for anything else, and for two tools of the same name.
    """

    def __init__(self, items: Iterable[object] = ()) -> None:
        self._tools: dict[str, Tool[..., Any]] = {}
        for item in items:
            self.add(item)

    @classmethod
    def with_builtins(cls, items: Iterable[object] = ()) -> "ToolRegistry":
        """Return a registry of the built-in tools and `items`."""
        return cls((*_builtins(), *items))

    @classmethod
    def from_settings(cls, imports: Iterable[str]) -> "ToolRegistry":
        """Return a registry of the built-in tools, the entry point group `plan_adapter.tools`, and the tools that `imports` name."""
        return cls((*_builtins(), cls.named(imports)))

    @classmethod
    def named(cls, imports: Iterable[str]) -> "ToolRegistry":
        """Return a registry of the entry point group and the tools that `imports` name: everything that is not built in."""
        return cls((*_entry_points(), *imports))

    @classmethod
    def for_drafts(cls, imports: Iterable[str], names: Collection[str]) -> "ToolRegistry":
        """Return the tools that a model may plan with: all of `named`, and the built-in tools in `names`.

        If one of `names` is not built in, only the tools in `names` are returned. Raises ToolDefinitionError for an unknown name.
        """
        own_tools = cls.named(imports)
        chosen = cls((*_builtins(), own_tools)).subset(*names)
        own_names = set(own_tools.names()).difference(cls(_builtins()).names())
        return chosen if own_names.intersection(names) else cls([own_tools, chosen])

    def add(self, item: object) -> None:
        """Add a tool, or all tools of a registry, list or module. Adding the same tool twice has no effect."""
        for tool in _tools_of(item):
            known = self._tools.setdefault(tool.name, tool)
            if known is not tool and known.source is tool.source and _parts(known) != _parts(tool):
                raise ToolDefinitionError(
                    f"the tool `{tool.name}` ({tool.origin}) was added twice, with different probes, previews or guards; add it once"
                )
            if known is not tool and (known.source is not tool.source or known.effect != tool.effect):
                raise ToolDefinitionError(
                    f"two tools are called `{tool.name}`: {known.origin} ({known.effect}) and {tool.origin} ({tool.effect}); "
                    "give one of them another name"
                )

    def get(self, name: str) -> Tool[..., Any] | None:
        """Return the tool called `name`, or None."""
        return self._tools.get(name)

    def names(self) -> list[str]:
        """Return the names of the tools, sorted."""
        return sorted(self._tools)

    def subset(self, *names: str) -> "ToolRegistry":
        """Return a registry of only the tools called `names`. Raises ToolDefinitionError for an unknown name."""
        if unknown := [name for name in names if name not in self._tools]:
            hints = ", ".join(f"`{name}` ({did_you_mean(name, self.names())})" for name in unknown)
            raise ToolDefinitionError(f"no such tool: {hints}")
        return ToolRegistry(self._tools[name] for name in names)

    def definitions(self) -> list[dict[str, JsonValue]]:
        """Return name, description, effect, permissions and parameter schema of each tool, by name, for people and models to read."""
        return [
            {
                "name": tool.name,
                "description": tool.description,
                "effect": tool.effect,
                "permissions": [*sorted(tool.permissions)],
                "parameters": tool.parameters_schema,
            }
            for tool in self
        ]

    def __iter__(self) -> Iterator[Tool[..., Any]]:
        """Iterate over the tools, by name."""
        return iter([self._tools[name] for name in self.names()])

    def __contains__(self, name: object) -> bool:
        """Return whether a tool is called `name`."""
        return name in self._tools

    def __len__(self) -> int:
        """Return how many tools there are."""
        return len(self._tools)

    def __repr__(self) -> str:
        return f"<ToolRegistry {', '.join(self.names())}>"


Tools: TypeAlias = ToolRegistry | ModuleType | Iterable[object]
"""What functions take as `tools`: a registry, a module with tools, or an iterable of what `ToolRegistry` accepts."""


def as_registry(tools: Tools) -> ToolRegistry:
    """Return `tools` as a registry. Raises TypeError for what holds no tools, and ToolDefinitionError for what cannot be a tool."""
    if isinstance(tools, ToolRegistry):
        return tools
    if isinstance(tools, ModuleType):
        return ToolRegistry([tools])
    if isinstance(tools, str):
        raise TypeError(f"`tools` is the text {tools!r:.100}: pass a list, `tools=[{tools!r:.100}]`, to import what it names")
    if callable(tools):
        name = getattr(tools, "name", None) or getattr(tools, "__name__", "…")
        raise TypeError(f"`tools` is one tool: pass a list, `tools=[{name}]`")
    if isinstance(tools, Mapping) or not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # not checked by all
        what = "a mapping" if isinstance(tools, Mapping) else f"{tools!r:.100}"  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"`tools` is {what}: pass a ToolRegistry, a list of tools or functions, or a module")
    return ToolRegistry(tools)


def import_tool(import_string: str) -> Tool[..., Any]:
    """Return the single tool that `package.module:name` names. Raises ToolDefinitionError if there are none or several."""
    tools = _tools_of(import_string)
    if len(tools) != 1:
        raise ToolDefinitionError(f"`{import_string}` names {len(tools)} tools where one is needed")
    return tools[0]


def _tools_of(item: object) -> list[Tool[..., Any]]:
    if isinstance(item, str):
        item = import_object(item) if ":" in item else import_module_of_tools(item)
        if isinstance(item, str):
            raise ToolDefinitionError(f"an import string names the text {item!r}, not a tool")
    if isinstance(item, ModuleType):
        return _tools_of_module(item)
    if isinstance(item, ToolRegistry):
        return list(item)
    if isinstance(item, list | tuple):
        return [tool for part in cast("list[object]", item) for tool in _tools_of(part)]
    return [as_tool(item)]


def _tools_of_module(module: ModuleType) -> list[Tool[..., Any]]:
    """Return the tools and the tools of the registries among the public names of `module`. Plain functions in it may be helpers."""
    names: Iterable[str] = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    values: list[object] = [getattr(module, name, None) for name in names]
    found = [tool for value in values if isinstance(value, Tool | ToolRegistry) for tool in _tools_of(cast("object", value))]
    if not found:
        raise ToolDefinitionError(
            f"the module `{module.__name__}` has no tools: decorate its functions with `@tool`, or name them, as in "
            f"`{module.__name__}:name`"
        )
    return found


def _parts(tool: Tool[..., Any]) -> tuple[object, ...]:
    return tuple(None if part is None else part.source for part in (tool.probe, tool.preview, tool.guard))


def _entry_points() -> Iterator[object]:
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            yield point.load()
        except Exception as error:  # a module is code and may raise anything
            package = point.dist.name if point.dist else "?"
            what = f"the entry point `{point.name} = {point.value}` of the package `{package}`"
            raise ToolDefinitionError(f"{what} cannot be loaded: {type(error).__name__}: {error}") from error


def _builtins() -> tuple[Callable[..., object], ...]:
    # These build the schemas of their tools when they are imported.
    from plan_adapter.tools.copies import copy_from, copy_to
    from plan_adapter.tools.deployment import run_deployment
    from plan_adapter.tools.files import read_file, write_file
    from plan_adapter.tools.http import http_get, http_send
    from plan_adapter.tools.python import python
    from plan_adapter.tools.shell import bash, run_command
    from plan_adapter.tools.sql import sql_execute, sql_query
    from plan_adapter.tools.ssh import ssh

    commands, files = (run_command, bash, ssh), (read_file, write_file, copy_to, copy_from)
    return (http_get, http_send, *commands, sql_query, sql_execute, *files, python, run_deployment)
