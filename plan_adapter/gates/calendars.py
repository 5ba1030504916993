"""iCalendar files: what is wrong with one, and the periods of its events around a day. Needs the extra `calendars`."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, cast
from zoneinfo import ZoneInfo

from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.readable import one_line

INSTALL_CALENDARS = "pip install 'prefect-plan-adapter[calendars]'"

MAX_EVENTS = 1_000
MAX_DAYS = 366_000
"""How many days the repeated events of a calendar may have passed since they began, in total: to expand them takes about 2 seconds."""

_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")

# The types of icalendar's values depend on the property, so they are checked where they are read.
Event = Any
Query = Any


@dataclass(frozen=True, slots=True)
class Period:
    """From when to when something lasts, in UTC. The end does not belong to it."""

    start: datetime
    end: datetime
    title: str = ""  # of the event in a calendar

    def has(self, at: datetime) -> bool:
        """Return whether `at` is in the period."""
        return self.start <= at < self.end


class CalendarError(ValueError):
    """A calendar cannot be read. `line` is that of its text, or 0."""

    def __init__(self, message: str, line: int = 0) -> None:
        """Store the line."""
        self.line = line
        super().__init__(message)


def has_calendars() -> bool:
    """Return whether the packages of the extra `calendars` are installed."""
    return find_spec("recurring_ical_events") is not None


def is_calendar(text: str) -> bool:
    """Return whether `text` is that of a calendar, rather than the path of one."""
    return text.lstrip("\ufeff \t\r\n").upper().startswith("BEGIN:VCALENDAR")


def check_calendar(text: str, zone: ZoneInfo) -> None:
    """Raise CalendarError, with the line, if the events of a calendar cannot be read, or are too many."""
    lines = _content_lines(text)
    _check_lines(lines)
    starts = [index for index, (_, line) in enumerate(lines) if line.upper() == "BEGIN:VEVENT"]
    if not starts:
        raise CalendarError("it has no event")
    if len(starts) > MAX_EVENTS:
        raise CalendarError(f"it has {len(starts):,} events, and {MAX_EVENTS:,} are allowed", lines[starts[MAX_EVENTS]][0])
    days = 0
    for event, start in zip(_parsed(text).walk("VEVENT"), starts, strict=True):
        days += _check_event(event, lines[start:], zone)
        if days > MAX_DAYS:
            raise CalendarError("its repeated events began too long ago: let them begin later", lines[start][0])
    try:
        events_on(text, zone.key, datetime.now(UTC).date())
    except Exception as error:  # of the library, about events that it cannot expand
        raise CalendarError(f"its events cannot be expanded: {one_line(str(error))[:200]}") from error


@lru_cache(maxsize=256)
def events_on(text: str, time_zone: str, day: date) -> tuple[Period, ...]:
    """Return the periods of the events in a calendar that touch `day` in UTC. Days and times without a zone are in `time_zone`.

    Cancelled events do not count. Raises NotApprovedError without the extra `calendars`.
    """
    zone, found = ZoneInfo(time_zone), list[Period]()
    start = datetime.combine(day, time(), UTC)
    # No zone is further than a day from UTC, so two more days on both sides have all that can touch the day.
    for event in _query(text).between(start - timedelta(days=2), start + timedelta(days=3)):
        if str(event.get("STATUS", "")).upper() == "CANCELLED":
            continue
        period = Period(_instant(event.start, zone), _instant(event.end, zone), one_line(str(event.get("SUMMARY", ""))))
        if period.start < start + timedelta(days=1) and period.end > start:
            found.append(period)
    return tuple(found)


def _instant(moment: date | datetime, zone: ZoneInfo) -> datetime:
    """Return a day or time of an event in UTC. Of the two times in an hour that a clock change repeats, it is the first."""
    if not isinstance(moment, datetime):
        moment = datetime.combine(moment, time())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return moment.astimezone(UTC)


@lru_cache(maxsize=16)
def _parsed(text: str) -> Any:
    if not has_calendars():
        raise NotApprovedError(f"a change freeze of the policy is a calendar, and nothing here reads calendars: `{INSTALL_CALENDARS}`")
    from icalendar import Calendar  # an extra

    try:
        return Calendar.from_ical(text)
    except ValueError as error:
        raise CalendarError(one_line(str(error))[:200]) from error


@lru_cache(maxsize=16)
def _query(text: str) -> Query:
    calendar = _parsed(text)
    from recurring_ical_events import of  # pyright: ignore[reportMissingTypeStubs]  # an extra

    return of(calendar)


def _content_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines with their numbers. One that begins with white space continues the line before it."""
    found = list[tuple[int, str]]()
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        if line[:1] in (" ", "\t") and found:
            found[-1] = (found[-1][0], found[-1][1] + line[1:])
        elif line.strip():
            found.append((number, line.rstrip()))
    return found


def _check_lines(lines: list[tuple[int, str]]) -> None:
    """Raise CalendarError for a line that is no property, and for a part that does not end where it should."""
    opened = list[tuple[int, str]]()
    for number, line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise CalendarError(f"this line is no property of a calendar: {one_line(line)[:80]!r}", number)
        match name.upper():
            case "BEGIN":
                opened.append((number, value.upper()))
            case "END" if opened and opened[-1][1] == value.upper():
                opened.pop()
            case "END":
                raise CalendarError(f"this ends a {value[:40]} that does not begin before it", number)
            case _ if not opened:
                raise CalendarError("this is outside BEGIN:VCALENDAR and END:VCALENDAR", number)
            case _:
                pass
    if opened:
        raise CalendarError(f"the {opened[-1][1]} that begins here does not end", opened[-1][0])


def _check_event(event: Event, lines: list[tuple[int, str]], zone: ZoneInfo) -> int:
    """Return how many days an event has repeated so far, 0 for one that does not repeat. `lines` begin with it.

    Raises CalendarError.
    """
    for name, message in event.errors:
        raise CalendarError(f"{name or 'the event'} cannot be read: {one_line(str(message))[:200]}", _line_of(name, lines))
    if event.get("DTSTART") is None:
        raise CalendarError("this event has no DTSTART", lines[0][0])
    for name, value in _times(event):
        zone_name = value.params.get("TZID")
        if zone_name is not None and getattr(value.dt, "tzinfo", zone) is None:
            raise CalendarError(f"there is no time zone {one_line(str(zone_name))[:80]!r}", _line_of(name, lines))
    try:
        start, end = (_instant(moment, zone) for moment in (event.start, event.end))
    except ValueError as error:  # of icalendar, about a DTEND or DURATION
        raise CalendarError(one_line(str(error))[:200], lines[0][0]) from error
    if end < start:
        raise CalendarError("this event ends before it starts", lines[0][0])
    rule = event.get("RRULE")
    if rule is None:
        return 0
    if isinstance(rule, list) or str(rule.get("FREQ", [""])[0]).upper() not in _FREQUENCIES:
        raise CalendarError("RRULE must be one rule, and repeat by the day, week, month or year", _line_of("RRULE", lines))
    return max((datetime.now(UTC) - start).days, 0) + 1


def _times(event: Event) -> Iterator[tuple[str, Any]]:
    """Yield the times that an event is made of, with the names of their properties."""
    for name in ("DTSTART", "DTEND", "RECURRENCE-ID"):
        if (value := event.get(name)) is not None:
            yield name, value
    for name in ("EXDATE", "RDATE"):
        given = event.get(name, [])
        lists: list[Any] = cast("list[Any]", given) if isinstance(given, list) else [given]
        yield from ((name, moment) for each in lists for moment in each.dts)


def _line_of(name: str | None, lines: list[tuple[int, str]]) -> int:
    """Return the line of a property of the event that begins with the first line, or that first line."""
    for number, line in lines[1:]:
        if name is not None and line.upper().startswith((f"{name}:", f"{name};")):
            return number
        if line.upper() == "END:VEVENT":
            break
    return lines[0][0]
