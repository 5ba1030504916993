"""Run windows: when the window of a plan is open, and what is wrong with its definition."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from plan_adapter.model.options import RunWindow


def next_opening(window: RunWindow, now: datetime) -> datetime | None:
    """Return when the window opens next, in its time zone, or None if it is open at `now`."""
    from cronsim import CronSim  # needed only by plans with a run window

    here = now.astimezone(ZoneInfo(window.time_zone))
    opened = next(CronSim(window.cron, here + timedelta(seconds=1), reverse=True))
    if opened + timedelta(milliseconds=window.duration_ms) > here:
        return None
    return next(CronSim(window.cron, here))


def find_window_problem(window: RunWindow) -> tuple[str, str, str] | None:
    """Return the problem of a run window as field, message and hint, or None."""
    from cronsim import CronSim, CronSimError

    try:
        zone = ZoneInfo(window.time_zone)
    except (ValueError, OSError, KeyError):
        return "time_zone", f"there is no time zone {window.time_zone[:80]!r}", "write a name such as Europe/Berlin"
    try:
        next(CronSim(window.cron, datetime.now(zone)))
    except CronSimError as error:
        return "cron", f"{window.cron[:80]!r} is not a cron expression: {error}", "write five fields, as in `0 22 * * 1-5`"
    except StopIteration:
        return "cron", f"{window.cron[:80]!r} never happens", "write a date that exists"
    return None
