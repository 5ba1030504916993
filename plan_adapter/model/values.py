"""The JSON values that plans may contain: finite numbers, valid text, shallow trees, no keys that Prefect's server would interpret."""

import math
import re
from collections.abc import Iterable, Iterator
from operator import is_
from typing import Any, NoReturn, TypeAlias, cast

from plan_adapter.model.problems import Problem

MAX_DEPTH = 100
"""The most levels of lists and mappings in a document."""

MAX_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader parses exactly (RFC 8785)."""

Fault: TypeAlias = tuple[str, str, str]
"""Code, message and hint of a problem whose location the caller knows."""

_Tree: TypeAlias = dict[object, object] | list[object] | tuple[object, ...]

TOO_DEEP: Fault = ("too-deep", f"nested deeper than {MAX_DEPTH} levels", "flatten it")

_Trail: TypeAlias = tuple[str | int, "_Trail"] | None
"""The keys from a value up to the root, innermost first."""


_NORMALIZED_TYPES = frozenset({str, int, bool, type(None)})


class Unknown(str):
    """A value that a dry run cannot know: the expression that gives it in a run, as written. Only dry runs have such values."""

    __slots__ = ()


def has_unknown(value: object) -> bool:
    """Return whether `value` is an unknown value or contains one."""
    match value:
        case Unknown():
            return True
        case dict():
            return any(map(has_unknown, cast("dict[str, object]", value).values()))
        case list():
            return any(map(has_unknown, cast("list[object]", value)))
        case _:
            return False


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python's JSON reader accepts: its `parse_constant`. Raises ValueError."""
    raise ValueError(f"{name} is not a JSON number")


def normalize(value: Any) -> Any:
    """Return the JSON value `value` in the form that its digest covers: 1 for 1.0, 0 for -0.0, a list for a tuple.

    RFC 8785 writes 1 and 1.0 alike, so otherwise two plans with the same digest could call a tool with different values. Floats beyond 2^53
    stay floats, because integers of that size are refused. A value that needs no change is returned itself, not copied.
    """
    if type(value) in _NORMALIZED_TYPES:
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= MAX_INTEGER else float(value)
    if isinstance(value, dict):
        members = cast("dict[Any, Any]", value)
        changed = {
            key: new
            for key, member in members.items()
            if type(member) not in _NORMALIZED_TYPES and (new := normalize(member)) is not member
        }
        return {**members, **changed} if changed or type(members) is not dict else members
    if isinstance(value, list | tuple):
        items = cast("list[Any] | tuple[Any, ...]", value)
        new_items = [item if type(item) in _NORMALIZED_TYPES else normalize(item) for item in items]
        return items if type(items) is list and all(map(is_, new_items, items)) else new_items
    if isinstance(value, str):  # an enum; so are integers that get here
        return value if isinstance(value, Unknown) else str.__str__(value)
    return int(value) if isinstance(value, int) else value


def find_bad_values(value: object, at: str = "") -> list[Problem]:
    """Return a problem for everything in the tree `value` that a plan must not contain. Not recursive, so depth is safe."""
    return [Problem(code, at=place, message=message, hint=hint) for place, (code, message, hint) in _find_faults(value, at)]


def _find_faults(root: object, at: str) -> Iterator[tuple[str, Fault]]:
    """Yield the faults in document order. Paths are only built for faults."""
    stack: list[tuple[object, _Trail, int]] = [(root, None, 0)]
    while stack:
        value, trail, depth = stack.pop()
        if not isinstance(value, dict | list | tuple):
            if fault := scalar_fault(value):
                yield _path(at, trail), fault
            continue
        if depth >= MAX_DEPTH:
            yield _path(at, trail), TOO_DEEP
            continue
        if isinstance(value, dict):
            keys = cast("dict[object, object]", value)
            yield from ((_path(at, (_key_name(key), trail)), fault) for key in keys if (fault := key_fault(key)))
        items = list(_entries(cast("_Tree", value)))
        stack.extend((item, (key, trail), depth + 1) for key, item in reversed(items))


def key_fault(key: object) -> Fault | None:
    """Return the problem of a mapping's key, or None."""
    if not isinstance(key, str):
        return "wrong-type", f"a key must be text, not a {type(key).__name__}", "put it in quotes"
    if key.startswith("__prefect"):
        return "reserved-key", f"the key `{key[:60]}` starts with `__prefect`, which Prefect's server interprets", "rename it"
    return _text_fault(key)


def scalar_fault(value: object) -> Fault | None:
    """Return the problem of a single value, or None."""
    if isinstance(value, str):
        return _text_fault(value)
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, float):
        if math.isfinite(value):
            return _TOO_LARGE if MAX_INTEGER < abs(value) < 1e21 else None  # its canonical form is an integer
        return "not-a-number", f"`{value}` is not a JSON number", "write a finite number, or the text in quotes"
    if isinstance(value, int):
        if -MAX_INTEGER <= value <= MAX_INTEGER:
            return None
        return _TOO_LARGE
    return "wrong-type", f"a {type(value).__name__} is not a JSON value", "use text, numbers, true, false, null, lists and mappings"


def _text_fault(text: str) -> Fault | None:
    if text.isascii():
        return _NUL if "\0" in text else None
    try:
        text.encode()
    except UnicodeEncodeError:
        return "bad-text", "the text contains an unpaired surrogate, which UTF-8 cannot express", "remove or replace the character"
    return _NUL if "\0" in text else None


_TOO_LARGE: Fault = ("too-large", "the integer is beyond ±(2^53 - 1), where programs no longer agree on it", "write it as text, in quotes")
_NUL: Fault = ("bad-text", "the text contains a NUL character, which databases and commands refuse", "remove it")


def _entries(tree: _Tree) -> Iterable[tuple[str | int, object]]:
    return ((_key_name(key), value) for key, value in tree.items()) if isinstance(tree, dict) else enumerate(tree)


def _key_name(key: object) -> str:
    return key if isinstance(key, str) else f"<{type(key).__name__}>"


def _path(at: str, trail: _Trail) -> str:
    keys: list[str | int] = []
    while trail is not None:
        keys.append(trail[0])
        trail = trail[1]
    for key in reversed(keys):
        at = join(at, key)
    return at


def join(at: str, key: str | int) -> str:
    """Return the path of the entry `key` inside `at`, such as `steps[2].id`."""
    if isinstance(key, int):
        return f"{at}[{key}]"
    return f"{at}.{key}" if at else key


DURATION = r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+"
"""What a duration in a document looks like: `30s`, `1h30m`."""

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(text: str) -> int | None:
    """Return a duration such as `30s` or `1h30m` in milliseconds, or None if `text` is none."""
    if not re.fullmatch(DURATION, text):
        return None
    return round(sum(float(count) * _UNITS[unit] for count, unit in re.findall(r"([\d.]+)(ms|s|m|h|d)", text)))
