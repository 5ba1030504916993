"""`import_object`: import the object that an import string `package.module:name` names. `import_module_of_tools`: import a module."""

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from plan_adapter.model.errors import ToolDefinitionError, error_text
from plan_adapter.model.problems import did_you_mean


def import_object(import_string: str) -> object:
    """Return the object that `package.module:name` names. Raises ToolDefinitionError with the nearest existing name.

    The current folder is searched last, so a file in it never replaces an installed module.
    """
    module_name, colon, path = import_string.strip().partition(":")
    if not colon or not module_name or not path:
        raise ToolDefinitionError(f"`{import_string}` is not an import string: write `package.module:name`")
    module = _import_module(module_name, import_string)
    found: object = module
    for name in path.split("."):
        if not hasattr(found, name):
            offered = [known for known in dir(found) if not known.startswith("_") and _may_hold_tools(getattr(found, known))]
            hint = _shadowed_file_hint(module) or did_you_mean(name, offered)
            raise ToolDefinitionError(f"`{import_string}`: `{module_name}` has no `{name}`" + (f"; {hint}" if hint else ""))
        found = getattr(found, name)
    return found


def import_module_of_tools(name: str) -> ModuleType:
    """Return the module `package.module`. Raises ToolDefinitionError; the current folder is searched last."""
    if not all(part.isidentifier() for part in name.strip().split(".")):
        raise ToolDefinitionError(f"`{name}` is not an import string: write `package.module:name`, or `package.module` for a module")
    return _import_module(name.strip(), name)


def _shadowed_file_hint(module: ModuleType) -> str:
    """Return a hint if `module` is installed and the current folder has a file of the same name, else an empty text."""
    file, place = Path(f"{module.__name__.replace('.', '/')}.py"), getattr(module, "__file__", None)
    if not file.exists() or (place is not None and file.resolve() == Path(place).resolve()):
        return ""
    return f"this is the installed module ({place or 'built in'}), which takes precedence over ./{file}: rename that file"


def _may_hold_tools(value: object) -> bool:
    """Return whether `value` may be a tool or a collection of tools, such as a registry or list."""
    return callable(value) or (isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping))


def _import_module(module_name: str, import_string: str) -> ModuleType:
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise ToolDefinitionError(f"`{import_string}`: `{module_name}` needs the module `{missing}`, which is not installed") from error
        raise ToolDefinitionError(f"`{import_string}`: there is no module `{missing}`; {_module_hint(missing)}") from error
    except Exception as error:  # a module is code and may raise anything
        raise ToolDefinitionError(f"`{import_string}`: `{module_name}` cannot be imported: {error_text(error)}") from error


def _module_hint(missing: str) -> str:
    package, _, name = missing.rpartition(".")
    paths = getattr(sys.modules.get(package), "__path__", []) if package else None
    siblings = [known.name for known in pkgutil.iter_modules(paths)]
    near = did_you_mean(name, siblings)
    if near.startswith("did you mean"):
        return near.replace("`", f"`{package}.", 1) if package else near
    return "it is neither installed nor in the current folder"
