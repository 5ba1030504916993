"""What is wrong with the change freezes of a policy, and the texts of their calendars."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from plan_adapter.documents import read_content
from plan_adapter.gates.calendars import INSTALL_CALENDARS, CalendarError, check_calendar, has_calendars, is_calendar
from plan_adapter.gates.freezes import Freeze, instant, last_instant
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.problems import Problem
from plan_adapter.model.run_window import find_cron_problem, find_zone_problem
from plan_adapter.model.values import join, milliseconds

CODE = "bad-freeze"
MAX_DURATION = timedelta(days=366)
MAX_CALENDAR_BYTES = 2**20

_TIME_HINT = "write a date and a time of day, as in `2026-12-20T00:00`"
_KINDS = "`from` and `until`, `cron` and `duration`, or `calendar`"

Add = Callable[[str, str, str], Problem]
"""Returns a problem from the field, the message and the hint."""


def read_calendars(freezes: Sequence[Freeze], folder: Path) -> tuple[list[Freeze], list[Problem]]:
    """Return the freezes with the texts of their calendars, whose files are relative to `folder`, and the problems of these."""
    found, problems = list[Freeze](), list[Problem]()
    for index, freeze in enumerate(freezes):
        text, at = freeze.calendar, f"freezes[{index}].calendar"
        if text is None:
            found.append(freeze)
            continue
        where = "its text"
        try:
            if not is_calendar(text):
                where = text
                text = read_content(folder / text, max_bytes=MAX_CALENDAR_BYTES).replace("\r\n", "\n")
            problems += [_calendar_problem(error, at, where) for error in _calendar_errors(text, freeze)]
            found.append(freeze.model_copy(update={"calendar": text}))
        except InvalidPlanError as error:
            problems += [Problem(CODE, at=at, message=f"{where}: {one.message}", hint=one.hint) for one in error.problems]
    return found, problems


def _calendar_errors(text: str, freeze: Freeze) -> Iterator[CalendarError]:
    if not has_calendars():
        yield CalendarError(f"nothing here reads calendars: `{INSTALL_CALENDARS}`")
    elif not is_calendar(text):
        yield CalendarError("it is no iCalendar file: the first line must be BEGIN:VCALENDAR", 1)
    elif find_zone_problem(freeze.time_zone) is None:
        try:
            check_calendar(text, ZoneInfo(freeze.time_zone))
        except CalendarError as error:
            yield error


def _calendar_problem(error: CalendarError, at: str, where: str) -> Problem:
    line = f", line {error.line}" if error.line else ""
    return Problem(CODE, at=at, message=f"{where}{line}: {error}", hint="export the calendar again, or correct it")


def find_freeze_problems(freezes: Sequence[Freeze]) -> Iterator[Problem]:
    """Yield the problems of freezes, except those inside their calendars and of the names in them."""
    names = [freeze.name for freeze in freezes]
    for index, freeze in enumerate(freezes):
        at = f"freezes[{index}]"

        def add(field: str, message: str, hint: str, at: str = at) -> Problem:
            return Problem(CODE, at=join(at, field), message=message, hint=hint)

        if names.index(freeze.name) < index:
            yield add("name", f"two freezes are called {freeze.name[:80]!r}", "give each a name of its own: an override names it")
        yield from _kind_problems(freeze, add)
        if freeze.override is not None and not freeze.override.approvers:
            yield add("override", "the override names no `approvers`", "name who can override the freeze, or remove `override`")


def _kind_problems(freeze: Freeze, add: Add) -> Iterable[Problem]:
    period, rule = (freeze.start, freeze.until), (freeze.cron, freeze.duration)
    written = [any(part is not None for part in parts) for parts in (period, rule, (freeze.calendar,))]
    if sum(written) != 1:
        several = "more than one of" if sum(written) else "none of"
        return [add("name", f"the freeze says {several} {_KINDS}", "write one of the three")]
    if (wrong := find_zone_problem(freeze.time_zone)) is not None:
        return [add(*wrong)]
    if freeze.calendar is not None:
        return []
    return _period_problems(freeze, add) if written[0] else _rule_problems(freeze, add)


def _period_problems(freeze: Freeze, add: Add) -> Iterator[Problem]:
    zone, times = ZoneInfo(freeze.time_zone), dict[str, datetime]()
    for field, text in (("from", freeze.start), ("until", freeze.until)):
        if text is None:
            yield add(field, f"`{field}` is missing", _TIME_HINT)
            continue
        try:
            times[field] = instant(text, zone) if field == "from" else last_instant(datetime.fromisoformat(text), zone)
            is_date = len(text) < len("2026-12-20T00:00")  # the day may count or not
        except (ValueError, OverflowError):
            is_date = True
        if is_date:
            times.pop(field, None)
            yield add(field, f"{text[:80]!r} is not a time", _TIME_HINT)
    if len(times) == 2 and times["until"] <= times["from"]:
        yield add("until", "`until` is not after `from`", "exchange the two, or correct the year")


def _rule_problems(freeze: Freeze, add: Add) -> Iterator[Problem]:
    if freeze.cron is None:
        yield add("cron", "`cron` is missing", "write when the freeze starts, as in `0 18 * * FRI`")
    elif (wrong := find_cron_problem(freeze.cron, freeze.time_zone)) is not None:
        yield add(*wrong)
    lasts = None if freeze.duration is None else milliseconds(freeze.duration)
    hint = "write how long the freeze lasts, as in `62h` or `2d12h`"
    if freeze.duration is None:
        yield add("duration", "`duration` is missing", hint)
    elif lasts is None:
        yield add("duration", f"{freeze.duration[:80]!r} is not a duration", hint)
    elif not 0 < lasts <= MAX_DURATION.total_seconds() * 1000:
        yield add("duration", f"`duration` must be more than 0 and at most a year, not {freeze.duration[:80]}", hint)
