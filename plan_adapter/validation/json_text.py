"""Parses JSON text inside a plan or on a command line: strict JSON, without duplicate keys."""

import json

from pydantic import JsonValue

from plan_adapter.values import normalize


class NotJSONError(ValueError):
    """A text is not JSON. If it nearly is, `code` names the problem, and the message completes a sentence about the text."""

    def __init__(self, code: str = "", message: str = "") -> None:
        """Store `code`."""
        super().__init__(message)
        self.code = code


def parse_json(text: str) -> JsonValue:
    """Return the value of the JSON `text`. Raises NotJSONError."""
    try:
        return normalize(json.loads(text, object_pairs_hook=_build_object, parse_constant=_refuse_constant))
    except NotJSONError:
        raise
    except (ValueError, RecursionError):
        raise NotJSONError from None


def _build_object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for key, value in pairs:
        if key in found:
            raise NotJSONError("duplicate-key", f": it contains the key `{key[:60]}` twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> JsonValue:
    raise NotJSONError("not-a-number", f": {name} is not a JSON number")
