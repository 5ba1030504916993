"""Tests of standing approval files: what is read from one, and the position of every problem in it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan_adapter.gates.coverage import find_standing_problems
from plan_adapter.gates.standing_files import find_standing_file, read_standing_file, standing_file_text
from plan_adapter.model.approvals import StandingApproval
from plan_adapter.model.errors import InvalidPlanError

GOOD = f"""\
# the nightly backup
runbook_digest: {"a" * 64}
name: 每晚备份
by: 安娜
at: 2026-01-01T08:00:00+08:00
schedules: [backup/nightly]
inputs:
  host: web-[0-9]+
until: 2027-01-01T00:00:00Z
"""


def read(tmp_path: Path, text: str | bytes) -> StandingApproval:
    path = tmp_path / "nightly.approval.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    standing, text_read = read_standing_file(path)
    assert text_read.encode() == path.read_bytes()
    return standing


def problems(tmp_path: Path, text: str | bytes) -> list[tuple[str, str, int | None, int | None]]:
    with pytest.raises(InvalidPlanError) as error:
        read(tmp_path, text)
    assert all(problem.file == str(tmp_path / "nightly.approval.yaml") for problem in error.value.problems)
    return [(problem.code, problem.at, problem.line, problem.column) for problem in error.value.problems]


def test_reading_a_file_returns_an_unproven_approval(tmp_path: Path) -> None:
    standing = read(tmp_path, GOOD)
    assert standing == StandingApproval(
        id=standing.id,
        runbook_digest="a" * 64,
        name="每晚备份",
        by="安娜",
        known_by="unverified",
        at=datetime(2026, 1, 1, tzinfo=UTC),
        inputs={"host": "web-[0-9]+"},
        schedules=("backup/nightly",),
        until=datetime(2027, 1, 1, tzinfo=UTC),
        source=str(tmp_path / "nightly.approval.yaml"),
    )
    assert read(tmp_path, GOOD + "# a comment\n").id != standing.id


def test_all_problems_are_reported_at_once_with_their_positions(tmp_path: Path) -> None:
    text = """\
runbook_digest: 12ab
by: [ana]
at: yesterday
schedules: [nightly, 7]
input: {host: x}
inputs:
  host: "("
steps: drain
until: 2026-12-31
max_runs: "3"
note: {}
"""
    assert problems(tmp_path, text) == [
        ("bad-value", "runbook_digest", 1, 1),
        ("wrong-type", "by", 2, 1),
        ("bad-value", "at", 3, 1),
        ("wrong-type", "schedules[1]", 4, 22),
        ("unknown-field", "input", 5, 1),
        ("bad-value", "inputs.host", 7, 3),
        ("wrong-type", "steps", 8, 1),
        ("bad-value", "until", 9, 1),
        ("wrong-type", "max_runs", 10, 1),
        ("wrong-type", "note", 11, 1),
    ]


def test_all_missing_fields_are_reported_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, "name: x\n")
    assert {(code, at) for code, at, _, _ in found} == {
        ("missing-field", name) for name in ("runbook_digest", "by", "at", "schedules", "until")
    }


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "syntax"),
        ("# nothing\n", "syntax"),
        ("- a\n", "wrong-type"),
        ("a: [\n", "syntax"),
        (GOOD + "note: &a x\n", "anchor"),
        (GOOD + "note: !!str x\n", "tag"),
        (GOOD + "note: !python/object x\n", "tag"),
        (GOOD + "by: bo\n", "duplicate-key"),
        (GOOD + "---\nby: bo\n", "several-documents"),
        (GOOD + 'note: "a\\0b"\n', "bad-text"),
        (b"by: \xff\n", "not-utf8"),
        (GOOD + "note: " + "x" * 300_000, "too-large"),
        (GOOD + "max_runs: 0\n", "bad-value"),
        (GOOD + "max_runs: true\n", "wrong-type"),
        (GOOD + "max_runs: 1.5\n", "wrong-type"),
        (GOOD.replace("2027-", "2025-"), "bad-value"),
        (GOOD.replace("00:00:00Z", "00:00:00"), "bad-value"),
        (GOOD.replace("2027-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"), "bad-value"),
        (GOOD.replace("backup/nightly", "backup"), "bad-value"),
        (GOOD.replace("by: 安娜", 'by: "ana\\u202e"'), "bad-value"),
        (GOOD.replace("a" * 64, "A" * 64), "bad-value"),
        (GOOD + "revoked_at: 2026-01-01T00:00:00Z\n", "unknown-field"),
        (GOOD + "known_by: ssh_signature\n", "unknown-field"),
    ],
)
def test_a_file_with_one_problem_is_refused_with_its_code(tmp_path: Path, text: str | bytes, code: str) -> None:
    assert [found[0] for found in problems(tmp_path, text)] == [code]


def test_a_missing_or_unreadable_file_is_reported(tmp_path: Path) -> None:
    assert find_standing_file(tmp_path / "nightly.yaml") is None
    for path in (tmp_path / "none", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(InvalidPlanError, match="unreadable"):
            read_standing_file(path)


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from([*GOOD.splitlines(), "max_runs: 3", "at: 7", "- x", "by:", "  {"]), max_size=9).map("\n".join)
)
def test_arbitrary_text_is_refused_cleanly(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.approval.yaml"
    path.write_bytes(text.encode())
    try:
        standing, _ = read_standing_file(path)
    except InvalidPlanError as error:
        assert error.problems
    else:
        assert find_standing_problems(standing) == []


def test_an_unreadable_limit_is_not_also_reported_as_missing(tmp_path: Path) -> None:
    text = GOOD.replace("until: 2027-01-01T00:00:00Z", "max_runs: many")
    assert problems(tmp_path, text) == [("wrong-type", "max_runs", 9, 1)]


texts = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cf", "Zl", "Zp")), max_size=20)
times = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))


@given(
    by=texts.filter(str.strip),
    note=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30),
    at=times,
    inputs=st.dictionaries(st.sampled_from(["a", "host", "on"]), st.one_of(st.integers(-9, 9), st.booleans(), st.lists(texts), texts)),
    max_runs=st.integers(1, 99),
)
def test_a_written_file_reads_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, by: str, note: str, at: datetime, inputs: dict[str, object], max_runs: int
) -> None:
    standing = StandingApproval(
        id="made",
        runbook_digest="a" * 64,
        name="backup",
        by=by,
        known_by="unverified",
        at=at,
        inputs=inputs,  # type: ignore[arg-type]
        schedules=("backup/nightly", "备份/每晚"),
        until=at + timedelta(days=1, microseconds=1),
        max_runs=max_runs,
        note=note,
    )
    if find_standing_problems(standing):
        return
    path = tmp_path_factory.getbasetemp() / "written.approval.yaml"
    path.write_bytes(standing_file_text(standing).encode())
    read_back, text = read_standing_file(path)
    assert read_back == replace(standing, id=read_back.id, source=str(path))
    assert standing_file_text(read_back) == text
