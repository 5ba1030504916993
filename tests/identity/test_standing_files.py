"""Standing approvals that are signed: in the store, and in a file beside a runbook."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plan_adapter.approvals import StandingApproval
from plan_adapter.errors import NotApprovedError
from plan_adapter.gates.policy import effective_policy
from plan_adapter.gates.standing_files import (
    find_standing_file,
    sign_standing,
    signature_path,
    signed_standing,
    standing_path,
    verify_standing,
    write_signed,
)
from plan_adapter.settings import Settings
from tests.identity.conftest import Key

AT = datetime(2026, 1, 1, 12, 30, 15, 250, tzinfo=UTC)

STANDING = StandingApproval(
    id="made",
    runbook_digest="a" * 64,
    name="每晚备份",
    by="ana",
    known_by="os_user",
    at=AT,
    inputs={"host": "web-[0-9]+", "count": 3, "tags": ["a"]},
    schedules=("backup/nightly",),
    steps=("drain",),
    until=AT + timedelta(days=30),
    max_runs=30,
    note="merged in !42",
)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """Where the standing approval of a runbook stands."""
    return standing_path(tmp_path / "nightly.yaml")


def test_a_signed_file_says_what_was_written_and_who_signed(ana: Key, settings: Settings, beside: Path) -> None:
    signed = sign_standing(STANDING, key=ana.path)
    write_signed(signed, beside)
    assert find_standing_file(beside.with_name("nightly.yaml")) == beside
    read = signed_standing(beside, policy=effective_policy(settings))
    assert read == replace(signed, id=read.id, source=str(beside))
    verify_standing(read, policy=effective_policy(settings))


def test_a_file_without_a_signature_approves_nothing(ana: Key, settings: Settings, beside: Path) -> None:
    write_signed(sign_standing(STANDING, key=ana.path), beside)
    signature_path(beside).unlink()
    with pytest.raises(NotApprovedError, match="is not signed"):
        signed_standing(beside, policy=effective_policy(settings))


@pytest.mark.parametrize(
    "change",
    [("max_runs: 30", "max_runs: 31"), ("web-[0-9]+", "web-.*"), ("by: ana", "by: bo"), ("note: ", "# x\nnote: "), ("\n", "\r\n")],
    ids=["runs", "pattern", "by", "comment", "line ends"],
)
def test_a_changed_file_is_refused(ana: Key, settings: Settings, beside: Path, change: tuple[str, str]) -> None:
    write_signed(sign_standing(STANDING, key=ana.path), beside)
    content = beside.read_bytes().decode()
    assert change[0] in content
    beside.write_bytes(content.replace(*change).encode())
    with pytest.raises(NotApprovedError, match="the signature does not belong to this answer"):
        signed_standing(beside, policy=effective_policy(settings))


def test_a_file_signed_by_somebody_else_is_refused(bo: Key, settings: Settings, beside: Path) -> None:
    write_signed(sign_standing(STANDING, key=bo.path), beside)
    with pytest.raises(NotApprovedError, match="the key of bo, not of ana"):
        signed_standing(beside, policy=effective_policy(settings))


def test_nothing_unsigned_is_written(beside: Path) -> None:
    with pytest.raises(NotApprovedError, match="must be signed"):
        write_signed(STANDING, beside)
    assert find_standing_file(beside.with_name("nightly.yaml")) is None


@pytest.mark.parametrize(
    "change",
    [{"max_runs": 99}, {"by": "bo"}, {"inputs": {}}, {"steps": ("drain", "wipe")}, {"until": None}, {"signature": None}],
    ids=str,
)
@pytest.mark.parametrize("handwritten", [False, True], ids=["of the store", "of a file written by hand"])
def test_a_row_that_was_changed_in_the_store_is_refused(
    ana: Key, settings: Settings, beside: Path, change: dict[str, object], handwritten: bool
) -> None:
    kept = sign_standing(STANDING, key=ana.path)
    if handwritten:
        write_signed(kept, beside)
        text = "# by hand\n" + beside.read_text(encoding="utf-8")
        beside.write_text(text, encoding="utf-8")
        signature_path(beside).write_text(ana.signs(text))
        kept = signed_standing(beside, policy=effective_policy(settings))
    verify_standing(kept, policy=effective_policy(settings))
    verify_standing(replace(kept, runs=3), policy=effective_policy(settings))
    with pytest.raises(NotApprovedError):
        verify_standing(replace(kept, **change), policy=effective_policy(settings))  # type: ignore[arg-type]


def test_one_that_claims_no_signature_is_not_looked_at(settings: Settings) -> None:
    verify_standing(STANDING, policy=effective_policy(settings))
