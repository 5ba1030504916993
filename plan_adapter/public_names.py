"""The public names of a package: listed once, in its stub, and imported when they are first used."""

import ast
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from warnings import warn


def offer_names(module_name: str) -> None:
    """Offer the names that the stub of this module imports, such as `tools/__init__.pyi` of `plan_adapter.tools`.

    `from place import Name as Name` in the stub makes `Name` a public name: it is in `__all__`, and is imported from that place when it is
    first used. `from place import *` keeps the names of a place that were here before usable, with a warning.
    """
    module = sys.modules[module_name]
    places, former_places = _read_stub(Path(str(module.__file__)).with_suffix(".pyi"))

    def find(name: str) -> object:
        if name in places:
            value = getattr(import_module(places[name]), name)
            setattr(module, name, value)
            return value
        return _former_name(module, name, former_places)

    names: dict[str, Any] = {"__getattr__": find, "__all__": sorted(places), "__dir__": lambda: sorted({*vars(module), *places})}
    vars(module).update(names)


def _read_stub(stub: Path) -> tuple[dict[str, str], list[str]]:
    """Return the place of each name that a stub imports, and the places from which it imports everything."""
    imports = [node for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    found = [(alias.name, str(node.module)) for node in imports for alias in node.names]
    return {name: place for name, place in found if name != "*"}, [place for name, place in found if name == "*"]


def _former_name(module: ModuleType, name: str, former_places: list[str]) -> object:
    """Return a name that moved to one of these places, with a warning. Raises AttributeError for other names."""
    for place in former_places:
        if name in import_module(place).__all__:
            warn(f"`{name}` moved: write `from {place} import {name}`", DeprecationWarning, stacklevel=3)
            return getattr(import_module(place), name)
    raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
