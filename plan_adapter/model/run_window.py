"""Run windows: when the window of a plan is open, and what is wrong with its definition. Cron expressions of other definitions, too."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from plan_adapter.model.options import RunWindow


def next_opening(window: RunWindow, now: datetime) -> datetime | None:
    """Return when the window opens next, in its time zone, or None if it is open at `now`."""
    here = now.astimezone(ZoneInfo(window.time_zone))
    if last_time(window.cron, here) + timedelta(milliseconds=window.duration_ms) > here:
        return None
    return next_time(window.cron, here)


def last_time(cron: str, at: datetime) -> datetime:
    """Return the last time of a cron expression that is not later than `at`, in the time zone of `at`."""
    from cronsim import CronSim  # needed only by plans with a run window and policies with a freeze

    return next(CronSim(cron, at + timedelta(seconds=1), reverse=True))


def next_time(cron: str, after: datetime) -> datetime:
    """Return the next time of a cron expression, in the time zone of `after`."""
    from cronsim import CronSim  # needed only by plans with a run window and policies with a freeze

    return next(CronSim(cron, after))


def find_window_problem(window: RunWindow) -> tuple[str, str, str] | None:
    """Return the problem of a run window as field, message and hint, or None."""
    return find_zone_problem(window.time_zone) or find_cron_problem(window.cron, window.time_zone)


def find_zone_problem(time_zone: str) -> tuple[str, str, str] | None:
    """Return the problem of a time zone as field, message and hint, or None."""
    try:
        ZoneInfo(time_zone)
    except (ValueError, OSError, KeyError):
        return "time_zone", f"there is no time zone {time_zone[:80]!r}", "write a name such as Europe/Berlin"
    return None


def find_cron_problem(cron: str, time_zone: str) -> tuple[str, str, str] | None:
    """Return the problem of a cron expression as field, message and hint, or None."""
    from cronsim import CronSimError

    try:
        next_time(cron, datetime.now(ZoneInfo(time_zone)))
    except CronSimError as error:
        return "cron", f"{cron[:80]!r} is not a cron expression: {error}", "write five fields, as in `0 22 * * 1-5`"
    except StopIteration:
        return "cron", f"{cron[:80]!r} never happens", "write a date that exists"
    return None
