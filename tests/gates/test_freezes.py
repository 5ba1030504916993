"""Tests of change freezes as definitions: when one is in force, and what is wrong with one."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan_adapter import ExecutionPlan
from plan_adapter.errors import InvalidPlanError, NotApprovedError
from plan_adapter.gates import calendars, freeze_problems
from plan_adapter.gates.freezes import Freeze, active_freezes, freeze_line, not_overridden, overrides_of, shown_freezes, why_refused
from plan_adapter.gates.policy import Policy, policy_of, read_policy
from plan_adapter.model.approvals import FreezeOverride
from plan_adapter.model.plan import Step

YEAR_END = {"name": "year-end", "from": "2026-12-20T00:00", "until": "2027-01-04T06:00"}
WEEKENDS = {"name": "weekends", "cron": "0 18 * * FRI", "duration": "62h", "time_zone": "Europe/Berlin"}
BERLIN = ZoneInfo("Europe/Berlin")


def freeze(**fields: Any) -> Freeze:
    (found,) = policy_of({"freezes": [{"name": "freeze", **fields}]}).freezes
    return found


def calendar(*events: str, time_zone: str = "UTC") -> Freeze:
    body = "\n".join(f"BEGIN:VEVENT\nUID:{number}\n{event}\nEND:VEVENT" for number, event in enumerate(events))
    return freeze(calendar=f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:tests\n{body}\nEND:VCALENDAR\n", time_zone=time_zone)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def ends(found: Freeze, when: str) -> str | None:
    """Return when the freeze ends that is in force, in its time zone."""
    period = found.period_at(at(when))
    return None if period is None else found.end_after(period).isoformat()


# Periods and rules


@pytest.mark.parametrize(
    ("when", "end"),
    [
        ("2026-12-19T22:59Z", None),
        ("2026-12-19T23:00Z", "2027-01-04T06:00:00+01:00"),
        ("2027-01-04T04:59:59Z", "2027-01-04T06:00:00+01:00"),
        ("2027-01-04T05:00Z", None),
    ],
)
def test_a_period_is_in_its_time_zone_and_its_end_does_not_belong_to_it(when: str, end: str | None) -> None:
    assert ends(freeze(**YEAR_END | {"time_zone": "Europe/Berlin"}), when) == end


def test_a_time_with_an_offset_is_that_time() -> None:
    found = freeze(**{"from": "2026-12-20T00:00+09:00", "until": "2026-12-20T12:00Z", "time_zone": "Europe/Berlin"})
    assert ends(found, "2026-12-19T15:00Z") == "2026-12-20T13:00:00+01:00"
    assert ends(found, "2026-12-19T14:59Z") is None


@pytest.mark.parametrize(
    ("when", "end"),
    [
        ("2026-10-23T15:59Z", None),
        ("2026-10-23T16:00Z", "2026-10-26T08:00:00+01:00"),  # the clocks change on the Sunday: 63 hours
        ("2026-10-26T06:59Z", "2026-10-26T08:00:00+01:00"),
        ("2026-10-26T07:00Z", None),
        ("2026-03-27T17:00Z", "2026-03-30T08:00:00+02:00"),  # 61 hours
        ("2026-03-30T06:00Z", None),
    ],
)
def test_a_rule_lasts_its_duration_on_the_clock(when: str, end: str | None) -> None:
    assert ends(freeze(**WEEKENDS), when) == end


def test_a_freeze_that_ends_in_a_repeated_hour_ends_at_its_second_time() -> None:
    found = freeze(**{"from": "2026-10-25T02:30", "until": "2026-10-25T02:45", "time_zone": "Europe/Berlin"})
    assert (found.period_at(at("2026-10-25T00:30Z")) is not None, ends(found, "2026-10-25T01:44Z")) == (True, "2026-10-25T02:45:00+01:00")


def test_periods_without_a_gap_are_one_freeze() -> None:
    assert ends(freeze(cron="0 0 * * SAT,SUN", duration="24h"), "2026-11-28T12:00Z") == "2026-11-30T00:00:00+00:00"


def test_a_freeze_that_never_ends_is_looked_at_again() -> None:
    assert ends(freeze(cron="0 * * * *", duration="1h"), "2026-11-28T12:30Z") == "2026-12-02T17:00:00+00:00"


@given(
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)),
    st.integers(0, 6),
    st.integers(0, 23),
    st.integers(1, 200),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"]),
)
def test_a_weekly_rule_is_in_force_as_a_walk_through_its_starts_finds(
    moment: datetime, weekday: int, hour: int, hours: int, time_zone: str
) -> None:
    """The other side walks through the days, and asks `zoneinfo` about both times of a repeated hour."""
    zone, now = ZoneInfo(time_zone), moment.replace(tzinfo=UTC)
    found = freeze(cron=f"0 {hour} * * {(weekday + 1) % 7}", duration=f"{hours}h", time_zone=time_zone)
    is_in_force, changes = False, False
    for back in range(20):
        day = now.astimezone(zone).date() - timedelta(days=back - 1)
        if day.weekday() != weekday:
            continue
        begins = datetime.combine(day, datetime.min.time()) + timedelta(hours=hour)
        over = begins + timedelta(hours=hours)
        start = begins.replace(tzinfo=zone).astimezone(UTC)
        end = max(over.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        is_in_force = is_in_force or start <= now < end
        changes = changes or begins.replace(tzinfo=zone).utcoffset() != begins.replace(tzinfo=zone, fold=1).utcoffset()
    if not changes:  # cron has its own rule for a start in such an hour
        assert (found.period_at(now) is not None) == is_in_force


# Calendars


@pytest.mark.parametrize(
    ("when", "end"),
    [
        ("2026-12-23T22:59Z", None),
        ("2026-12-23T23:00Z", "2026-12-27T00:00:00+01:00"),
        ("2026-12-26T22:59Z", "2026-12-27T00:00:00+01:00"),
        ("2026-12-26T23:00Z", None),
    ],
)
def test_an_all_day_event_is_in_the_time_zone_of_the_freeze(when: str, end: str | None) -> None:
    found = calendar("DTSTART;VALUE=DATE:20261224\nDTEND;VALUE=DATE:20261227", time_zone="Europe/Berlin")
    assert ends(found, when) == end


@pytest.mark.parametrize(
    ("when", "end"),
    [
        ("2026-10-16T16:00Z", "2026-10-19T08:00:00+02:00"),
        ("2026-10-23T16:00Z", None),  # left out
        ("2026-10-30T17:00Z", "2026-11-02T08:00:00+01:00"),  # 18:00 on the clock, after the change
        ("2026-10-30T16:59Z", None),
    ],
)
def test_a_repeated_event_follows_the_clock_of_its_zone_and_its_exceptions(when: str, end: str | None) -> None:
    start = "DTSTART;TZID=Europe/Berlin:20261016T180000\nDTEND;TZID=Europe/Berlin:20261019T080000"
    found = calendar(f"{start}\nRRULE:FREQ=WEEKLY\nEXDATE;TZID=Europe/Berlin:20261023T180000", time_zone="Europe/Berlin")
    assert ends(found, when) == end


def test_a_long_event_and_a_cancelled_one() -> None:
    long, cancelled = "DTSTART:20260101T000000Z\nDURATION:P100D\nSUMMARY:审计", "DTSTART:20260601T000000Z\nDURATION:P9D\nSTATUS:CANCELLED"
    found = calendar(long, cancelled)
    assert (ends(found, "2026-04-01T12:00Z"), ends(found, "2026-06-03T00:00Z")) == ("2026-04-11T00:00:00+00:00", None)
    (active,) = active_freezes(ExecutionPlan(description="any"), [found], at("2026-04-01T12:00Z"))
    assert active.reason == "审计"


@given(
    st.dates(date(2026, 1, 1), date(2026, 12, 31)),
    st.integers(1, 5),
    st.integers(1, 10),
    st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Auckland", "America/Los_Angeles"]),
    st.datetimes(datetime(2026, 1, 1), datetime(2028, 1, 1)),
)
def test_repeated_days_are_in_force_as_a_walk_through_them_finds(
    first: date, length: int, interval: int, time_zone: str, moment: datetime
) -> None:
    """The other side knows only days: those that are fewer than `length` days after a start."""
    days = f"DTSTART;VALUE=DATE:{first:%Y%m%d}\nDTEND;VALUE=DATE:{first + timedelta(days=length):%Y%m%d}"
    found = calendar(f"{days}\nRRULE:FREQ=DAILY;INTERVAL={interval}", time_zone=time_zone)
    now = moment.replace(tzinfo=UTC)
    after = (now.astimezone(ZoneInfo(time_zone)).date() - first).days
    assert (found.period_at(now) is not None) == (after >= 0 and after % interval < length)


def test_without_the_extra_nothing_starts_that_a_calendar_may_freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    found = calendar("DTSTART:20300101T000000Z\nDURATION:P1D")
    monkeypatch.setattr(calendars, "has_calendars", lambda: False)
    with pytest.raises(NotApprovedError, match=r"pip install 'prefect-plan-adapter\[calendars\]'"):
        active_freezes(ExecutionPlan(description="any"), [found], at("2026-04-01T12:00Z"))


# What a freeze is about, and how it reads


def test_a_freeze_is_about_plans_with_its_tags_also_inside_others() -> None:
    inner = ExecutionPlan(name="inner", description="inner", tags=["production"])
    outer = ExecutionPlan(name="outer", description="outer", steps=[Step(id="a", plan="store:inner@1", pinned=inner)])
    tagged = freeze(**YEAR_END, tags=["staging", "production"])
    assert [tagged.applies_to(plan) for plan in (inner, outer, ExecutionPlan(description="other", tags=["web"]))] == [True, True, False]
    assert freeze(**YEAR_END).applies_to(ExecutionPlan(description="other"))


def test_the_strictest_freeze_decides_and_each_says_who_overrides_it() -> None:
    wait = freeze(**YEAR_END | {"name": "waits", "when": "wait"})
    cab = freeze(**YEAR_END, reason="Year-end close", override={"approvers": ["ana", "ben"], "quorum": 2})
    active = active_freezes(ExecutionPlan(description="any"), [wait, cab], at("2026-12-24T00:00Z"))
    assert why_refused(active[:1]) is None
    assert why_refused(active, command="plan run …") == (
        "change freeze `year-end` until 2027-01-04 06:00 UTC (Year-end close): ana or ben can override it, 2 different people together"
    )
    assert (why_refused(active[1:], command="plan run …") or "").endswith("; `plan run …` asks for that")


def test_an_override_is_of_one_freeze_until_its_end() -> None:
    now = at("2026-12-24T00:00Z")
    active = active_freezes(ExecutionPlan(description="any"), [freeze(**YEAR_END)], now)
    (override,) = overrides_of(active)
    assert override == FreezeOverride("year-end", at("2027-01-04T06:00Z"))
    assert not_overridden(active, [override], now) == []
    assert not_overridden(active, [override], override.until) == active
    assert not_overridden(active, [FreezeOverride("other", override.until)], now) == active


def test_a_freeze_is_shown_two_weeks_ahead() -> None:
    found = freeze(**YEAR_END)
    assert shown_freezes([found], at("2026-12-05T00:00Z")) == []
    ((shown, in_force),) = shown_freezes([found], at("2026-12-07T00:00Z"))
    assert freeze_line(shown, in_force=in_force) == (
        "change freeze `year-end` until 2027-01-04 06:00 UTC: starts at 2026-12-20 00:00 UTC; runs are refused; nobody can override it"
    )
    ((shown, in_force),) = shown_freezes([freeze(**WEEKENDS)], at("2026-12-09T00:00Z"))
    assert (shown.since.isoformat(), in_force) == ("2026-12-11T18:00:00+01:00", False)
    days = calendar("DTSTART;VALUE=DATE:20261224\nRRULE:FREQ=YEARLY")
    ((shown, in_force),) = shown_freezes([days], at("2027-12-20T00:00Z"))
    assert (shown.since.isoformat(), in_force) == ("2027-12-24T00:00:00+00:00", False)


# What is wrong with one


@pytest.mark.parametrize(
    ("fields", "place", "message"),
    [
        ("from: 2026-12-20T00:00, until: 2026-12-19T00:00", "until", "`until` is not after `from`"),
        ("from: 2026-12-20, until: 2026-12-21T00:00", "from", "'2026-12-20' is not a time"),
        ("from: tomorrow, until: 2026-12-21T00:00", "from", "'tomorrow' is not a time"),
        ("from: 2026-12-20T00:00", "until", "`until` is missing"),
        ("tags: [web]", "name", "the freeze says none of `from` and `until`"),
        ("from: 2026-12-20T00:00, cron: '0 0 * * *', duration: 1h", "name", "the freeze says more than one of"),
        ("cron: '0 0 31 2 *', duration: 1h", "cron", "Bad day-of-month"),
        ("cron: often, duration: 1h", "cron", "is not a cron expression"),
        ("cron: '0 0 * * *'", "duration", "`duration` is missing"),
        ("duration: 1h", "cron", "`cron` is missing"),
        ("cron: '0 0 * * *', duration: 0s", "duration", "more than 0 and at most a year"),
        ("cron: '0 0 * * *', duration: 367d", "duration", "more than 0 and at most a year"),
        ("cron: '0 0 * * *', duration: long", "duration", "'long' is not a duration"),
        ("cron: '0 0 * * *', duration: 1h, time_zone: Mars/Olympus", "time_zone", "there is no time zone"),
        ("cron: '0 0 * * *', duration: 1h, override: {quorum: 2}", "override", "the override names no `approvers`"),
        ("calendar: none.ics", "calendar", "none.ics: the file does not exist"),
    ],
)
def test_a_wrong_freeze_is_one_problem_at_its_place(tmp_path: Path, fields: str, place: str, message: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(f"freezes:\n  - {{name: wrong, {fields}}}\n", encoding="utf-8")
    with pytest.raises(InvalidPlanError) as refused:
        read_policy(file)
    (problem,) = refused.value.problems
    assert (problem.code, problem.at, problem.line) == ("bad-freeze", f"freezes[0].{place}", 2)
    assert message in problem.message
    assert problem.hint


def test_two_freezes_of_one_name_and_too_few_people_to_override(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "groups: {cab: [ana]}\nfreezes:\n"
        "  - {name: a, cron: '0 0 * * *', duration: 1h, override: {approvers: [cab], quorum: 2}}\n"
        "  - {name: a, cron: '0 0 * * *', duration: 1h, timezone: UTC}\n",
        encoding="utf-8",
    )
    with pytest.raises(InvalidPlanError, match="did you mean `time_zone`"):
        read_policy(file)
    file.write_text(file.read_text().replace("timezone", "time_zone"), encoding="utf-8")
    with pytest.raises(InvalidPlanError) as refused:
        read_policy(file)
    assert [(problem.code, problem.at, problem.line) for problem in refused.value.problems] == [
        ("bad-quorum", "freezes[0].override.quorum", 3),
        ("bad-freeze", "freezes[1].name", 4),
    ]


EVENT = "BEGIN:VCALENDAR\nBEGIN:VEVENT\nUID:1\n{}\nEND:VEVENT\nEND:VCALENDAR\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("garbage", "blackout.ics, line 1: it is no iCalendar file"),
        ("", "blackout.ics, line 1: it is no iCalendar file"),
        ("BEGIN:VCALENDAR\nEND:VCALENDAR", "blackout.ics: it has no event"),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\nEND:VCALENDAR", "line 3: this ends a VCALENDAR that does not begin before it"),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\nEND:VEVENT", "line 1: the VCALENDAR that begins here does not end"),
        (EVENT.format("DTSTART:20260101T000000Z\nnonsense"), "line 5: this line is no property of a calendar: 'nonsense'"),
        (EVENT.format("DTSTART:banana"), "line 4: DTSTART cannot be read"),
        (EVENT.format("SUMMARY:no time"), "line 2: this event has no DTSTART"),
        (EVENT.format("DTSTART;TZID=Mars/Base:20260101T000000"), "line 4: there is no time zone 'Mars/Base'"),
        (EVENT.format("DTSTART:20260102T000000Z\nDTEND:20260101T000000Z"), "line 2: this event ends before it starts"),
        (EVENT.format("DTSTART:20260102T000000Z\nRRULE:FREQ=SOMETIMES"), "line 5: RRULE cannot be read"),
        (EVENT.format("DTSTART:20260102T000000Z\nRRULE:FREQ=SECONDLY"), "line 5: RRULE must be one rule, and repeat by the day"),
        (EVENT.format("DTSTART:00010102T000000Z\nRRULE:FREQ=DAILY"), "line 2: its repeated events began too long ago"),
    ],
)
def test_a_wrong_calendar_is_one_problem_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("freezes:\n  - name: blackout\n    calendar: blackout.ics\n", encoding="utf-8")
    (tmp_path / "blackout.ics").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidPlanError) as refused:
        read_policy(file)
    (problem,) = refused.value.problems
    assert (problem.code, problem.at, problem.line) == ("bad-freeze", "freezes[0].calendar", 3)
    assert message in problem.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "blackout.ics: byte 0xff is not UTF-8 text"),
        (b"BEGIN:VCALENDAR\n" + b" " * 2**20, "blackout.ics: the document is larger than 1 MB"),
        (
            EVENT.replace("END:VCALENDAR", "BEGIN:VEVENT\nDTSTART:20260101T000000Z\nEND:VEVENT\n" * 1000 + "END:VCALENDAR")
            .format("DTSTART:20260101T000000Z")
            .encode(),
            "line 3003: it has 1,001 events, and 1,000 are allowed",
        ),
    ],
    ids=["no text", "too large", "too many events"],
)
def test_a_calendar_that_cannot_be_read_or_is_too_large(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("freezes:\n  - name: blackout\n    calendar: blackout.ics\n", encoding="utf-8")
    (tmp_path / "blackout.ics").write_bytes(content)
    with pytest.raises(InvalidPlanError) as refused:
        read_policy(file)
    (problem,) = refused.value.problems
    assert message in problem.message


def test_without_the_extra_a_policy_with_a_calendar_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("freezes:\n  - name: blackout\n    calendar: blackout.ics\n", encoding="utf-8")
    (tmp_path / "blackout.ics").write_text(EVENT.format("DTSTART:20260101T000000Z"), encoding="utf-8")
    monkeypatch.setattr(freeze_problems, "has_calendars", lambda: False)
    with pytest.raises(InvalidPlanError, match=r"pip install 'prefect-plan-adapter\[calendars\]'"):
        read_policy(file)


def test_the_policy_keeps_the_text_of_a_calendar(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "blackout.ics").write_bytes(EVENT.format("DTSTART:20260101T000000Z\nDURATION:P1D").replace("\n", "\r\n").encode())
    file = tmp_path / "policy.yaml"
    file.write_text("freezes:\n  - {name: 变更冻结, calendar: sub/blackout.ics}\n", encoding="utf-8")
    policy = read_policy(file)
    assert policy_of(policy.to_document()) == policy
    assert policy.to_document() == {"freezes": [{"name": "变更冻结", "calendar": EVENT.format("DTSTART:20260101T000000Z\nDURATION:P1D")}]}
    with pytest.raises(InvalidPlanError, match="the text of the calendar is missing"):
        policy_of({"freezes": [{"name": "a", "calendar": "sub/blackout.ics"}]})


def test_a_policy_without_freezes_has_the_same_document_as_before() -> None:
    assert Policy(approvers=["ana"]).to_document() == {"approvers": ["ana"]}
