"""Tests of the runs that a standing approval covers: content, inputs, schedules and time must all match."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan_adapter.gates.coverage import new_standing_approval, pattern_allows, pattern_fault, standing_digest, why_not_covered
from plan_adapter.model.approvals import StandingApproval
from plan_adapter.model.errors import InvalidPlanError
from plan_adapter.model.options import Input
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import BoundPlan, ValidatedPlan, bind_inputs, validate
from tests.validation.builders import TOOLS, plan, push, step

NOW = datetime(2026, 6, 1, tzinfo=UTC)
SCHEDULE = "backup/nightly"

INPUTS = {
    "host": Input(type="string"),
    "count": Input(type="integer", default=3),
    "force": Input(type="boolean", default=False),
    "tags": Input(type="array", default=["a"]),
    "note": Input(type="string", default="none"),
}


def runbook(**fields: Any) -> ExecutionPlan:
    """Return a runbook of two steps that uses every input."""
    values = {name: f"${{{{ inputs.{name} }}}}" for name in INPUTS}
    return plan(step("drain", parameters={"value": values}), step("restart"), **({"inputs": INPUTS, "name": "backup"} | fields))


VALIDATED = validate(runbook(), TOOLS)


def bound(validated: ValidatedPlan = VALIDATED, **inputs: Any) -> BoundPlan:
    return bind_inputs(validated, {"host": "web-1"} | inputs)


def standing(**fields: Any) -> StandingApproval:
    given_fields: dict[str, Any] = {
        "by": "ana",
        "known_by": "os_user",
        "at": NOW - timedelta(days=1),
        "schedules": [SCHEDULE],
        "inputs": {"host": "web-[0-9]+"},
        "max_runs": 10,
    }
    return new_standing_approval(VALIDATED, **(given_fields | fields))


def why_not(of: StandingApproval, run: BoundPlan | None = None, *, schedule: str | None = SCHEDULE, now: datetime = NOW) -> str | None:
    return why_not_covered(of, run or bound(), schedule=schedule, now=now)


COVERED: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a value that fits the pattern": ({}, {"host": "web-42"}),
    "a value written with its default": ({}, {"count": 3, "force": False, "tags": ["a"], "note": "none"}),
    "an alternative": ({"inputs": {"host": "web-1|web-2"}}, {"host": "web-2"}),
    "letters of any case": ({"inputs": {"host": "(?i)WEB-1"}}, {}),
    "another language": ({"inputs": {"host": "节点-\\d"}}, {"host": "节点-7"}),
    "a number by a pattern": ({"inputs": {"host": ".*", "count": "[1-5]"}}, {"count": 5}),
    "a boolean by a pattern": ({"inputs": {"host": ".*", "force": "true|false"}}, {"force": True}),
    "a number by its value": ({"inputs": {"host": ".*", "count": 7}}, {"count": 7}),
    "a list by its value": ({"inputs": {"host": ".*", "tags": ["x", "y"]}}, {"tags": ["x", "y"]}),
    "lines, where the pattern has them": ({"inputs": {"host": "(?s).*"}}, {"host": "a\nb"}),
    "a time that is not over": ({"until": NOW + timedelta(seconds=1)}, {}),
    "one of several schedules": ({"schedules": ["a/b", SCHEDULE]}, {}),
}


@pytest.mark.parametrize(("fields", "inputs"), COVERED.values(), ids=COVERED.keys())
def test_an_unchanged_run_is_covered(fields: dict[str, Any], inputs: dict[str, Any]) -> None:
    assert why_not(standing(**fields), bound(**inputs)) is None


REFUSED_INPUTS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    "a value that does not fit": ({}, {"host": "db-1"}, "this value of the input `host`"),
    "a prefix": ({}, {"host": "x web-1"}, "this value of the input `host`"),
    "a suffix": ({}, {"host": "web-1; rm"}, "this value of the input `host`"),
    "a trailing newline": ({}, {"host": "web-1\n"}, "this value of the input `host`"),
    "a line before": ({}, {"host": "x\nweb-1"}, "this value of the input `host`"),
    "half an alternative": ({"host": "web-1|web-2"}, {"host": "web-1 web-2"}, "this value of the input `host`"),
    "anchors of lines": ({"host": "(?m)^web-1$"}, {"host": "web-1\nrm"}, "this value of the input `host`"),
    "an empty pattern": ({"host": ""}, {}, "this value of the input `host`"),
    "an input that is not named": ({}, {"count": 4}, "does not name the input `count`"),
    "two inputs": ({}, {"host": "db-1", "count": 4}, "`count`"),
    "a number beside its pattern": ({"count": "[1-5]"}, {"count": 15}, "this value of the input `count`"),
    "true for one": ({"count": 1, "force": True}, {"count": 1, "force": False}, "this value of the input `force`"),
    "a list by a pattern": ({"tags": ".*"}, {"tags": ["a"]}, "this value of the input `tags`"),
    "another order": ({"tags": ["x", "y"]}, {"tags": ["y", "x"]}, "this value of the input `tags`"),
    "a list that is longer": ({"tags": ["x"]}, {"tags": ["x", "x"]}, "this value of the input `tags`"),
}


@pytest.mark.parametrize(("patterns", "inputs", "message"), REFUSED_INPUTS.values(), ids=REFUSED_INPUTS.keys())
def test_an_unapproved_input_is_not_covered(patterns: dict[str, Any], inputs: dict[str, Any], message: str) -> None:
    reason = why_not(standing(inputs={"host": "web-[0-9]+"} | patterns), bound(**inputs))
    assert reason is not None
    assert message in reason


MISMATCHES: Mapping[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another plan digest": (
        {"runbook_digest": "0" * 64},
        {},
        "it covers other content: the plan or a tool's definition is not what ana approved",
    ),
    "revoked": ({"revoked_at": NOW, "revoked_by": "bo"}, {}, "bo revoked it at 2026-06-01T00:00:00+00:00"),
    "over": ({"until": NOW}, {}, "it expired at 2026-06-01T00:00:00+00:00"),
    "used up": ({"runs": 10}, {}, "it is used up: 10 runs of 10"),
    "used too often": ({"runs": 11}, {}, "it is used up: 11 runs of 10"),
    "no limit at all": ({"max_runs": None}, {}, "it has no limit: neither a time nor a number of runs"),
    "another schedule": ({}, {"schedule": "backup/hourly"}, "it is not for the schedule of backup/hourly"),
    "a part of its name": ({}, {"schedule": "backup"}, "it is not for the schedule of backup"),
    "started by somebody": ({}, {"schedule": None}, "no schedule started this run"),
    "an input that the plan lost": (
        {"inputs": {"host": ".*", "gone": 1}},
        {},
        "it names the input `gone`, which the plan does not have",
    ),
    "an invalid pattern": ({"inputs": {"host": "("}}, {}, "it does not allow this value of the input `host`"),
}


@pytest.mark.parametrize(("fields", "run", "reason"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_an_expired_or_mismatched_standing_approval_covers_nothing(fields: dict[str, Any], run: dict[str, Any], reason: str) -> None:
    assert why_not(replace(standing(), **fields), **run) == reason


def test_every_reason_is_reported_at_once() -> None:
    of = replace(standing(), runbook_digest="0" * 64, revoked_at=NOW, runs=10, until=NOW)
    reason = why_not(of, bound(host="db-1", note="秘密"), schedule=None) or ""
    assert len(reason.split("; ")) == 7
    assert "db-1" not in reason
    assert "秘密" not in reason


@pytest.mark.parametrize(
    "other",
    [
        runbook(description="Push other things"),
        runbook(
            steps=[
                step("drain", parameters={"value": {name: f"${{{{ inputs.{name} }}}}" for name in INPUTS}}),
                step("restart", effect="write"),
            ]
        ),
        runbook(options={"allow_parallel": True}),
        runbook(inputs=INPUTS | {"note": Input(type="string", default="other")}),
    ],
    ids=["description", "effect", "options", "default"],
)
def test_an_edited_plan_is_not_covered(other: ExecutionPlan) -> None:
    assert "other content" in (why_not(standing(), bound(validate(other, TOOLS))) or "")


def test_an_edited_tool_is_not_covered() -> None:
    def changed(value: Any = None, more: int = 0) -> None:
        """Push a value."""

    changed.__name__ = "push"
    edited = validate(runbook(), ToolRegistry([changed]))
    assert "other content" in (why_not(standing(), bound(edited)) or "")
    assert why_not(standing(), bound(validate(runbook(), ToolRegistry([push])))) is None


digests = st.one_of(st.text(), st.text("0123456789abcdef", min_size=64, max_size=64), st.just(standing_digest(VALIDATED)))


@given(
    digest=digests,
    runs=st.integers(-5, 20),
    max_runs=st.none() | st.integers(-5, 20),
    days=st.none() | st.integers(-3, 3),
    revoked=st.booleans(),
    schedule=st.sampled_from([None, SCHEDULE, "backup/hourly"]),
    pattern=st.one_of(st.just(".*"), st.just("web-1"), st.text(max_size=8)),
)
def test_a_run_with_other_content_or_beyond_its_limits_is_not_covered(
    digest: str, runs: int, max_runs: int | None, days: int | None, revoked: bool, schedule: str | None, pattern: str
) -> None:
    until = None if days is None else NOW + timedelta(days=days)
    fields = {"runbook_digest": digest, "runs": runs, "max_runs": max_runs, "until": until, "inputs": {"host": pattern}}
    of = replace(standing(), **fields, revoked_at=NOW if revoked else None)  # type: ignore[arg-type]
    if why_not(of, schedule=schedule) is None:
        assert digest == standing_digest(VALIDATED)
        assert schedule == SCHEDULE
        assert not revoked
        assert max_runs is not None or until is not None
        assert max_runs is None or runs < max_runs
        assert until is None or until > NOW


texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8) | st.text("ab|()\\n", max_size=4)


@given(texts, texts, texts)
def test_a_pattern_matches_whole_values_only(one: str, other: str, value: str) -> None:
    assert pattern_allows(re.escape(one), value) == (value == one)
    assert pattern_allows(f"{re.escape(one)}|{re.escape(other)}", value) == (value in (one, other))
    assert pattern_allows(re.escape(one) + "|" + re.escape(other), other + one + "x") == (other + one + "x" in (one, other))


@pytest.mark.parametrize("pattern", ["a)|(?:b", r"\Qa", "a|b)|(c", "(", "a" * 1001, "(?=a)", r"(a)\1", "a\\"])
def test_an_incomplete_pattern_matches_nothing(pattern: str) -> None:
    assert not any(pattern_allows(pattern, value) for value in ("a", "b", "ab", "a)", "aa", "a" * 1001, pattern))


def test_a_catastrophic_pattern_is_evaluated_quickly() -> None:
    assert not pattern_allows("(a+)+", "a" * 100_000 + "b")


def test_an_invalid_standing_approval_is_refused_with_every_reason() -> None:
    with pytest.raises(InvalidPlanError) as error:
        new_standing_approval(
            VALIDATED,
            by=" ",
            known_by="os_user",
            at=NOW,
            schedules=["nightly", "a/b/c", "/"],
            inputs={"hots": "x", "count": "(", "force": "yes|no", "tags": [1, 2], "note": 5},
            steps=["drian", "drain"],
            until=NOW,
            max_runs=0,
        )
    assert [(problem.code, problem.at) for problem in error.value.problems] == [
        ("bad-value", "by"),
        ("bad-value", "schedules[0]"),
        ("bad-value", "schedules[1]"),
        ("bad-value", "schedules[2]"),
        ("bad-value", "until"),
        ("bad-value", "max_runs"),
        ("bad-value", "inputs.count"),
        ("unknown-input", "inputs.hots"),
        ("bad-input", "inputs.note"),
        ("missing-input", "inputs.host"),
        ("unknown-step", "steps[0]"),
    ]
    assert [(problem.message, problem.hint) for problem in error.value.problems] == [
        ("this cannot be a person's name", "write who approves"),
        ("`nightly` is not the name of a deployment", "write it as `flow/deployment`"),
        ("`a/b/c` is not the name of a deployment", "write it as `flow/deployment`"),
        ("`/` is not the name of a deployment", "write it as `flow/deployment`"),
        ("it would already have expired when it was given, at 2026-06-01T00:00:00+00:00", "write a later time"),
        ("it would cover no run", "write 1 or more"),
        (ANY, "patterns are those of RE2, without look-around"),
        ("the plan has no input `hots`", "did you mean `host`?"),
        (ANY, ANY),
        ("`host` has no default and no pattern, so the approval would cover no run", "add a pattern or a value for it"),
        ("no step is called `drian`", "did you mean `drain`?"),
    ]


def test_a_name_in_a_problem_is_cut_and_one_line() -> None:
    with pytest.raises(InvalidPlanError) as error:
        standing(schedules=["x" * 61, "\n/b"], inputs={"host": "a", "i" * 61: "x"}, steps=["s" * 61])
    assert [problem.message for problem in error.value.problems] == [
        f"`{'x' * 60}` is not the name of a deployment",
        "`/b` is not the name of a deployment",
        f"the plan has no input `{'i' * 60}`",
        f"no step is called `{'s' * 60}`",
    ]
    bare = validate(plan(step("drain", parameters={"value": 1})), TOOLS)
    with pytest.raises(InvalidPlanError) as error:
        new_standing_approval(bare, by="ana", known_by="totp", at=NOW, schedules=[SCHEDULE], inputs={"host": "x"}, max_runs=1)
    assert [problem.hint for problem in error.value.problems] == ["the plan declares no inputs"]


def test_a_value_that_is_no_json_and_a_wrong_pattern_are_reported_at_their_input() -> None:
    with pytest.raises(InvalidPlanError) as error:
        standing(inputs={"host": "(", "tags": [float("nan")]})
    assert [(problem.code, problem.at) for problem in error.value.problems] == [
        ("bad-value", "inputs.host"),
        ("not-a-number", "inputs.tags[0]"),
    ]
    fault = pattern_fault("(")
    assert fault == error.value.problems[0].message
    assert "missing )" in (fault or "")


def test_a_standing_approval_holds_what_was_given() -> None:
    until = NOW + timedelta(days=1)
    given = standing(schedules=[SCHEDULE, "a/b", SCHEDULE], steps=["drain", "restart", "drain"], until=until, max_runs=1, note="每晚")
    assert given == StandingApproval(
        id=given.id,
        runbook_digest=standing_digest(VALIDATED),
        name="backup",
        by="ana",
        known_by="os_user",
        at=NOW - timedelta(days=1),
        inputs={"host": "web-[0-9]+"},
        schedules=(SCHEDULE, "a/b"),
        steps=("drain", "restart"),
        until=until,
        max_runs=1,
        note="每晚",
    )
    assert given.id
    bare = validate(plan(step("drain", parameters={"value": 1})), TOOLS)
    least = new_standing_approval(bare, by="ana", known_by="totp", at=NOW, schedules=[SCHEDULE], until=NOW + timedelta(microseconds=1))
    assert (least.inputs, least.steps, least.max_runs, least.note) == ({}, (), None, "")


@pytest.mark.parametrize(("pattern", "is_usable"), [("a" * 1000, True), ("a" * 1001, False)])
def test_a_pattern_has_a_longest_length(pattern: str, is_usable: bool) -> None:
    assert pattern_allows(pattern, pattern) is is_usable
    assert pattern_fault(pattern) == (None if is_usable else "the regular expression is longer than 1000 characters")


def test_a_refusal_names_who_and_what_on_one_line() -> None:
    of = replace(standing(by="ana"), by="a\nna", runbook_digest="0" * 64, revoked_at=NOW)
    assert why_not(of, schedule="x\n/y") == (
        "it covers other content: the plan or a tool's definition is not what a na approved; "
        r"somebody revoked it at 2026-06-01T00:00:00+00:00; it is not for the schedule of x /y"
    )
    assert why_not(replace(standing(), revoked_at=NOW, revoked_by="b\no")) == "b o revoked it at 2026-06-01T00:00:00+00:00"
    assert why_not(replace(standing(), inputs={"host": ".*", "g\none": 1})) == "it names the input `g one`, which the plan does not have"
    assert why_not(replace(standing(), runs=1, max_runs=1)) == "it is used up: 1 run of 1"
    assert why_not(replace(standing(), runs=9)) is None


def test_one_equals_one_point_zero_but_not_true() -> None:
    assert pattern_allows(1, 1.0)
    assert not pattern_allows(1, True)
    assert not pattern_allows(".*", None)
    assert not pattern_allows(".*", "\ud800")
    assert not pattern_allows(".*", {})
    assert pattern_allows("1", 1.0)


def test_a_standing_approval_needs_an_end_and_a_schedule() -> None:
    with pytest.raises(InvalidPlanError) as error:
        standing(schedules=[], max_runs=None)
    assert [(problem.code, problem.at) for problem in error.value.problems] == [("missing-field", "until"), ("missing-field", "schedules")]
    for name in ("", "a\u200bna"):
        with pytest.raises(InvalidPlanError, match="this cannot be a person's name"):
            standing(by=name)
