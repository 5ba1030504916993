"""Tests of `PlanStore.attest`: both databases attest the same, and the installation's key is created once."""

import asyncio
import json
from base64 import b64decode
from pathlib import Path

import pytest

from plan_adapter.local.attestation_key import installation_key, installation_public_key
from plan_adapter.local.settings import Settings
from plan_adapter.store.proof.attestation import verified_attestation
from plan_adapter.store.store import PlanStore
from tests.store.builders import a_receipt, an_attempt, begun


async def test_a_run_is_attested_with_its_calls(store: PlanStore) -> None:
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    attempts = [an_attempt(run, at=recorder.now(), item=item) for item in range(3)]
    for attempt in attempts:
        await recorder.intent(attempt)
        recorder.receipt(a_receipt(attempt, {"状态": "好", "n": attempt.item, "float": 0.1}, at=recorder.now()))
    await recorder.flush()
    signed = await store.attest(run.id)
    found = verified_attestation(signed.envelope, installation_public_key(Settings()))
    assert (found.run.id, found.run.status, found.audit.digest) == (run.id, "executing", (await store.verify(run.id)).digest)
    assert [(call.item, call.receipt and call.receipt.result) for call in found.calls] == [
        (item + 1, {"状态": "好", "n": item, "float": 0.1}) for item in range(3)
    ]
    statement = json.loads(b64decode(json.loads(signed.envelope)["payload"]))
    assert [subject["digest"]["sha256"] for subject in statement["subject"]] == [run.digest, found.audit.digest]


async def test_concurrent_first_uses_create_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(home=tmp_path / "home")
    keys = await asyncio.gather(*(asyncio.to_thread(installation_key, settings) for _ in range(8)))
    assert len({key.public.fingerprint for key in keys}) == 1
    assert sorted(path.name for path in settings.home.iterdir()) == ["attestation_key", "attestation_key.pub"]
