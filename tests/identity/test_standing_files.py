"""Tests of signed standing approvals in the store and in a file beside a runbook."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plan_adapter.gates.policy import effective_policy
from plan_adapter.gates.standing_files import (
    find_standing_file,
    read_signed_standing,
    sign_standing,
    signature_path,
    standing_path,
    verify_standing,
    write_signed_standing,
)
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import StandingApproval
from plan_adapter.model.errors import NotApprovedError
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
def approval_path(tmp_path: Path) -> Path:
    """Return the path of the standing approval file of a runbook."""
    return standing_path(tmp_path / "nightly.yaml")


def test_a_signed_file_returns_its_content_and_its_signer(ana: Key, settings: Settings, approval_path: Path) -> None:
    signed = sign_standing(STANDING, key=ana.path)
    write_signed_standing(signed, approval_path)
    assert find_standing_file(approval_path.with_name("nightly.yaml")) == approval_path
    read = read_signed_standing(approval_path, policy=effective_policy(settings))
    assert read == replace(signed, id=read.id, source=str(approval_path))
    verify_standing(read, policy=effective_policy(settings))


def test_a_file_without_a_signature_is_refused(ana: Key, settings: Settings, approval_path: Path) -> None:
    write_signed_standing(sign_standing(STANDING, key=ana.path), approval_path)
    signature_path(approval_path).unlink()
    with pytest.raises(NotApprovedError, match="is not signed"):
        read_signed_standing(approval_path, policy=effective_policy(settings))


@pytest.mark.parametrize(
    "change",
    [("max_runs: 30", "max_runs: 31"), ("web-[0-9]+", "web-.*"), ("by: ana", "by: bo"), ("note: ", "# x\nnote: "), ("\n", "\r\n")],
    ids=["runs", "pattern", "by", "comment", "line ends"],
)
def test_a_changed_file_is_refused(ana: Key, settings: Settings, approval_path: Path, change: tuple[str, str]) -> None:
    write_signed_standing(sign_standing(STANDING, key=ana.path), approval_path)
    content = approval_path.read_bytes().decode()
    assert change[0] in content
    approval_path.write_bytes(content.replace(*change).encode())
    with pytest.raises(NotApprovedError, match="the signature does not belong to this answer"):
        read_signed_standing(approval_path, policy=effective_policy(settings))


def test_a_file_signed_by_somebody_else_is_refused(bo: Key, settings: Settings, approval_path: Path) -> None:
    write_signed_standing(sign_standing(STANDING, key=bo.path), approval_path)
    with pytest.raises(NotApprovedError, match="the key of bo, not of ana"):
        read_signed_standing(approval_path, policy=effective_policy(settings))


def test_an_unsigned_approval_is_not_written(approval_path: Path) -> None:
    with pytest.raises(NotApprovedError, match="must be signed"):
        write_signed_standing(STANDING, approval_path)
    assert find_standing_file(approval_path.with_name("nightly.yaml")) is None


@pytest.mark.parametrize(
    "change",
    [{"max_runs": 99}, {"by": "bo"}, {"inputs": {}}, {"steps": ("drain", "wipe")}, {"until": None}, {"signature": None}],
    ids=str,
)
@pytest.mark.parametrize("handwritten", [False, True], ids=["of the store", "of a file written by hand"])
def test_a_row_changed_in_the_store_is_refused(
    ana: Key, settings: Settings, approval_path: Path, change: dict[str, object], handwritten: bool
) -> None:
    kept = sign_standing(STANDING, key=ana.path)
    if handwritten:
        write_signed_standing(kept, approval_path)
        text = "# by hand\n" + approval_path.read_text(encoding="utf-8")
        approval_path.write_text(text, encoding="utf-8")
        signature_path(approval_path).write_text(ana.signs(text))
        kept = read_signed_standing(approval_path, policy=effective_policy(settings))
    verify_standing(kept, policy=effective_policy(settings))
    verify_standing(replace(kept, runs=3), policy=effective_policy(settings))
    with pytest.raises(NotApprovedError):
        verify_standing(replace(kept, **change), policy=effective_policy(settings))  # type: ignore[arg-type]


def test_a_standing_approval_without_a_signature_is_not_verified(settings: Settings) -> None:
    verify_standing(STANDING, policy=effective_policy(settings))
