"""Times in options: spans such as `90d`, days and moments."""

import re
from datetime import UTC, datetime, time, timedelta

from plan_adapter.cli.exit_codes import UsageError

_SPAN = re.compile(r"(\d{1,5})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_span(text: str, *, option: str) -> timedelta:
    """Return the span that `text` names. Raises UsageError, which names `option`."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise UsageError(f"`{option} {text}`: write a number and s, m, h, d or w, as in {option} 90d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def parse_time(text: str, *, option: str, time_of_day: time) -> datetime:
    """Return the moment that `text` names, in the local time zone unless it names one. A day means this time of that day.

    Raises UsageError, which names `option`.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text}: write a day (2026-12-31) or a time (2026-12-31T18:00)") from None
    if len(text) <= len("2026-12-31"):
        at = datetime.combine(at, time_of_day)
    try:
        return at.astimezone(UTC)  # one without a zone is taken as local
    except (OverflowError, ValueError, OSError):
        raise UsageError(f"{option} {text}: no such moment in the local time zone") from None
