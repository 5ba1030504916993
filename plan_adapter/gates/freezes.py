"""Change freezes: when the policy of a store keeps runs from starting, what is wrong with their definitions, and how people read them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Literal
from zoneinfo import ZoneInfo

from pydantic import ConfigDict, Field, JsonValue

from plan_adapter.gates.calendars import Period, events_on
from plan_adapter.model.approvals import FreezeOverride
from plan_adapter.model.language import tr
from plan_adapter.model.options import DocumentModel
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.readable import one_line
from plan_adapter.model.run_window import last_time, next_time
from plan_adapter.model.values import milliseconds

MOST_IN_A_ROW = 100
"""How many periods without a gap between them count as one. If there are more, a run that waits looks again after these."""

LOOK_AHEAD_DAYS = 14
"""How far ahead a coming freeze is shown."""


class Override(DocumentModel):
    """Who can override a freeze, and how many of them must approve."""

    model_config = ConfigDict(frozen=True, strict=True)

    noun: ClassVar[str] = "an override"
    null_is_absent: ClassVar[bool] = False

    approvers: list[str] = Field(default_factory=list)
    """The names and groups that may approve a run during the freeze. The approvers of its plan restrict them further."""
    quorum: int = Field(default=1, ge=1)
    """How many different people of them must approve, at least."""


class Freeze(DocumentModel):
    """When runs of some plans do not start: a period, a rule, or the events of a calendar."""

    model_config = ConfigDict(frozen=True, strict=True)

    noun: ClassVar[str] = "a freeze"
    null_is_absent: ClassVar[bool] = False

    name: str
    """What people call it."""
    tags: list[str] = Field(default_factory=list)
    """The plans that it applies to: those with any of these tags, or with such a plan inside. Empty means every plan."""
    start: str | None = Field(default=None, alias="from")
    """When it starts, as in `2026-12-20T00:00`."""
    until: str | None = None
    """When it ends."""
    cron: str | None = None
    """When it starts each time: minute, hour, day of the month, month and day of the week."""
    duration: str | None = None
    """How long it then lasts on the clock of the time zone, as in `62h`."""
    calendar: str | None = None
    """An iCalendar file next to the policy. The store keeps its text. Each event of it is a freeze."""
    time_zone: str = "UTC"
    """The time zone of its times, as in `Europe/Berlin`."""
    when: Literal["refuse", "wait"] = "refuse"
    """What happens to a run that would start: it is refused, or it waits until the freeze ends."""
    reason: str = ""
    """Why, for the people whose runs do not start."""
    override: Override | None = None
    """Who can let a run start all the same. By default nobody can."""

    def applies_to(self, plan: ExecutionPlan) -> bool:
        """Return whether the freeze is about `plan`: it has one of the tags, or a plan inside it has."""
        return not self.tags or any(tag in self.tags for each in plan.plans.values() for tag in each.tags)

    def period_at(self, at: datetime) -> Period | None:
        """Return the period of the freeze that `at` is in, or None. Of several, it is the one that ends last."""
        return max((period for period in self._periods_around(at) if period.has(at)), key=lambda period: period.end, default=None)

    def end_after(self, period: Period) -> datetime:
        """Return when the freeze ends that is in `period`, in its time zone. Periods that follow without a gap belong to it."""
        end = period.end
        for _ in range(MOST_IN_A_ROW):
            following = self.period_at(end)
            if following is None:
                break
            end = following.end
        return end.astimezone(ZoneInfo(self.time_zone))

    def next_start(self, after: datetime) -> datetime | None:
        """Return when the freeze starts next, in its time zone, or None if that is more than `LOOK_AHEAD_DAYS` away.

        It must not be in force at `after`.
        """
        zone, last = ZoneInfo(self.time_zone), after + timedelta(days=LOOK_AHEAD_DAYS)
        if self.cron is not None:
            starts = [next_time(self.cron, after.astimezone(zone))]
        elif self.calendar is not None:
            days = (after.astimezone(UTC).date() + timedelta(days=number) for number in range(LOOK_AHEAD_DAYS + 1))
            starts = [period.start for day in days for period in events_on(self.calendar, self.time_zone, day)]
        else:
            starts = [instant(self.start or "", zone)]
        found = min((start for start in starts if after < start <= last), default=None)
        return None if found is None else found.astimezone(zone)

    def _periods_around(self, at: datetime) -> Iterable[Period]:
        if self.calendar is not None:
            return events_on(self.calendar, self.time_zone, at.astimezone(UTC).date())
        zone = ZoneInfo(self.time_zone)
        if self.cron is None:
            return [Period(instant(self.start or "", zone), last_instant(datetime.fromisoformat(self.until or ""), zone))]
        start = last_time(self.cron, at.astimezone(zone))  # all of them last as long, so the last one ends last
        lasts = timedelta(milliseconds=milliseconds(self.duration or "") or 0)
        return [Period(start.astimezone(UTC), last_instant(start.replace(tzinfo=None) + lasts, zone))]


def instant(text: str, zone: ZoneInfo) -> datetime:
    """Return a time of a freeze in UTC. Without an offset it is in `zone`. Raises ValueError."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo is not None else found.replace(tzinfo=zone)).astimezone(UTC)


def last_instant(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return a time at which a freeze ends in UTC. Of the two times in an hour that a clock change repeats, it is the last."""
    if moment.tzinfo is not None:
        return moment.astimezone(UTC)
    return max(moment.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))


@dataclass(frozen=True, slots=True)
class ActiveFreeze:
    """A freeze that is in force."""

    freeze: Freeze
    since: datetime  # in its time zone
    until: datetime  # likewise
    reason: str = ""  # of the freeze, or the title of the event in its calendar

    @property
    def text(self) -> str:
        """The freeze in words: its name, its end and its reason."""
        reason = f" ({one_line(self.reason)})" if self.reason else ""
        return f"change freeze `{one_line(self.freeze.name)}` until {shown_time(self.until)}{reason}"

    @property
    def override_text(self) -> str:
        """Who can override it, in words."""
        override = self.freeze.override
        if override is None:
            return "nobody can override it"
        who = " or ".join(one_line(name) for name in override.approvers)
        return f"{who} can override it" + ("" if override.quorum == 1 else f", {override.quorum} different people together")


def shown_time(at: datetime) -> str:
    """Return a time of a freeze, with its time zone."""
    return f"{at:%Y-%m-%d %H:%M} {at.tzinfo}"


def active_freezes(plan: ExecutionPlan, freezes: Iterable[Freeze], now: datetime) -> list[ActiveFreeze]:
    """Return those of `freezes` that are in force for `plan`, the one that ends last first.

    Raises NotApprovedError if one of them is a calendar, and nothing here reads calendars.
    """
    found = [active for freeze in freezes if freeze.applies_to(plan) if (active := _active(freeze, now)) is not None]
    return sorted(found, key=lambda active: active.until, reverse=True)


def _active(freeze: Freeze, now: datetime) -> ActiveFreeze | None:
    period = freeze.period_at(now)
    if period is None:
        return None
    since = period.start.astimezone(ZoneInfo(freeze.time_zone))
    return ActiveFreeze(freeze, since, freeze.end_after(period), freeze.reason or period.title)


def not_overridden(active: Iterable[ActiveFreeze], overrides: Sequence[FreezeOverride], now: datetime) -> list[ActiveFreeze]:
    """Return the freezes that no override covers at `now`. An override is of the name of a freeze, until that freeze would have ended."""
    return [each for each in active if not any(one.name == each.freeze.name and one.until > now for one in overrides)]


def overrides_of(active: Iterable[ActiveFreeze]) -> tuple[FreezeOverride, ...]:
    """Return the overrides that an approval of a run has to contain while these freezes are in force."""
    return tuple(FreezeOverride(each.freeze.name, each.until.astimezone(UTC)) for each in active)


def why_refused(active: Sequence[ActiveFreeze], *, command: str = "") -> str | None:
    """Return why a run does not start because of these freezes, or None if it only waits. `command` asks for an override."""
    refusing = [each for each in active if each.freeze.when == "refuse"]
    if not refusing:
        return None
    can = command if command and all(each.freeze.override is not None for each in active) else ""
    return "; ".join(f"{each.text}: {each.override_text}" for each in refusing) + (f"; `{can}` asks for that" if can else "")


def freeze_notices(active: Iterable[ActiveFreeze], overrides: Sequence[FreezeOverride], *, started: bool, asked: str = "") -> list[str]:
    """Return a notice for a gate about each freeze in force. `overrides` are those that an approval there contains.

    `started`: the run has started. `asked` says who asks for the override, and why.
    """
    overridden, notices = {one.name for one in overrides}, list[str]()
    for each in active:
        reason = f" ({one_line(each.reason)})" if each.reason else ""
        notice = tr("FREEZE {name} until {until}:", name=one_line(each.freeze.name), until=shown_time(each.until) + reason) + " "
        if each.freeze.name in overridden:
            notice += tr("approving overrides it. Asked for by {asked}", asked=asked)
        elif started:
            notice += tr("this run has started and goes on.")
        elif each.freeze.when == "wait":
            notice += tr("an approved run waits until then.")
        else:
            notice += tr("an approved run does not start before.")
        notices.append(notice)
    return notices


def shown_freezes(freezes: Iterable[Freeze], now: datetime) -> list[tuple[ActiveFreeze, bool]]:
    """Return the freezes that are in force at `now` or start soon, and whether each is in force.

    Raises NotApprovedError if one of them is a calendar, and nothing here reads calendars.
    """
    found = list[tuple[ActiveFreeze, bool]]()
    for freeze in freezes:
        active = _active(freeze, now)
        coming = freeze.next_start(now) if active is None else None
        shown = _active(freeze, coming) if coming is not None else active
        if shown is not None:
            found.append((shown, active is not None))
    return found


def freeze_line(shown: ActiveFreeze, *, in_force: bool) -> str:
    """Return a line about a freeze that is in force, or that starts soon."""
    effect = "runs wait" if shown.freeze.when == "wait" else "runs are refused"
    starts = "in force" if in_force else f"starts at {shown_time(shown.since)}"
    return f"{shown.text}: {starts}; {effect}; {shown.override_text}"


def freeze_json(shown: ActiveFreeze, *, in_force: bool) -> dict[str, JsonValue]:
    """Return the object for a freeze in `--json`."""
    override = shown.freeze.override
    return {
        "name": shown.freeze.name,
        "from": shown.since.isoformat(),
        "until": shown.until.isoformat(),
        "in_force": in_force,
        "when": shown.freeze.when,
        "reason": shown.reason,
        "override": None if override is None else {"approvers": [*override.approvers], "quorum": override.quorum},
    }
