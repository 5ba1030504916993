"""Tests of signed standing approvals in a store: the signature stays valid after a round trip through a database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plan_adapter import PlanStore
from plan_adapter.gates.policy import effective_policy
from plan_adapter.gates.standing_files import read_signed_standing, sign_standing, standing_path, verify_standing, write_signed_standing
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import StandingApproval
from plan_adapter.model.errors import NotApprovedError
from plan_adapter.model.plan import new_id
from tests.identity.conftest import Key, allowed, ana, bo, settings
from tests.store.conftest import on_both_databases

__all__ = ["allowed", "ana", "bo", "settings"]

AT = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)


def standing() -> StandingApproval:
    return StandingApproval(
        id=new_id(),
        runbook_digest="a" * 64,
        name="每晚备份",
        by="ana",
        known_by="os_user",
        at=AT,
        inputs={"z": 1.0, "host": "节点-[0-9]+", "b": {"long key": 1e-7, "a": [1.5, None, True]}, "a": 1e22},
        schedules=("backup/nightly", "a/b"),
        steps=("restart", "drain"),
        until=AT + timedelta(days=36_500, microseconds=7),
        max_runs=30,
        note="two\nlines ",
    )


@on_both_databases
async def test_a_signature_is_still_valid_after_a_round_trip_through_the_store(store_url: str, ana: Key, settings: Settings) -> None:
    async with PlanStore(store_url) as store:
        await store.standing.add(sign_standing(standing(), key=ana.path))
        (kept,) = await store.standing.find()
    verify_standing(kept, policy=effective_policy(settings))
    with pytest.raises(NotApprovedError):
        verify_standing(replace(kept, max_runs=31), policy=effective_policy(settings))


async def test_a_file_is_identified_by_its_content(store_url: str, ana: Key, settings: Settings, tmp_path: Path) -> None:
    path = standing_path(tmp_path / "nightly.yaml")
    write_signed_standing(sign_standing(standing(), key=ana.path), path)
    read = read_signed_standing(path, policy=effective_policy(settings))
    async with PlanStore(store_url) as store:
        await store.standing.add(read)
        (kept,) = await store.standing.find()
    verify_standing(kept, policy=effective_policy(settings))
    assert kept.id == read_signed_standing(path, policy=effective_policy(settings)).id
