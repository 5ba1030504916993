"""Spans of time in options, such as `90d`."""

import re
from datetime import timedelta

from plan_adapter.cli.exit_codes import UsageError

_SPAN = re.compile(r"(\d{1,5})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_span(text: str, *, option: str) -> timedelta:
    """Return the span that `text` names. Raises UsageError, which names `option`."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise UsageError(f"`{option} {text}`: write a number and s, m, h, d or w, as in {option} 90d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
