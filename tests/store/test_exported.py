"""Tests of exported runs: writing and verifying row by row gives the same result as reading all at once."""

import asyncio
import io
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.model.status import PlanStatus
from plan_adapter.store.proof import export
from plan_adapter.store.proof.export import read_exported, write_document
from plan_adapter.store.proof.verification import Verification, verify
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import a_receipt, an_attempt, begun


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[PlanStore]:
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        yield store


async def with_receipts(store: PlanStore, count: int) -> str:
    """Return the id of a run with `count` receipts."""
    run = await begun(store)
    recorder = await store.ledger.recorder(run)
    attempts = [replace(an_attempt(run, at=recorder.now()), item=item) for item in range(count)]
    for first in range(0, count, 500):
        await asyncio.gather(*(recorder.intent(attempt) for attempt in attempts[first : first + 500]))
    for attempt in attempts:
        recorder.receipt(a_receipt(attempt, {"状态": "好" * 20, "n": attempt.item}, at=recorder.now()))
    await recorder.flush()
    run.status, run.completed_at = PlanStatus.PARTIAL, recorder.now()
    await store.ledger.update(run)
    return run.id


async def written(store: PlanStore, run_id: str, **how: Any) -> str:
    text = io.StringIO()
    await store.read_export(run_id, lambda parts: write_document(parts, text.write, **how))
    return text.getvalue()


@pytest.mark.parametrize("only_ascii", [False, True])
@pytest.mark.parametrize("in_lines", [True, False])
async def test_a_streamed_document_equals_one_written_at_once(store: PlanStore, in_lines: bool, only_ascii: bool) -> None:
    run_id = await with_receipts(store, 5)
    whole = await store.export(run_id)
    assert await written(store, run_id, in_lines=in_lines, only_ascii=only_ascii) == (
        json.dumps(whole, ensure_ascii=only_ascii, sort_keys=True, indent=1 if in_lines else None) + "\n"
    )


async def test_a_row_with_invalid_unicode_is_escaped_and_others_are_not(sqlite: PlanStore, tmp_path: Path) -> None:
    run_id = await with_receipts(sqlite, 2)
    change = f"UPDATE receipts SET result = CAST(x'22ff22' AS TEXT) WHERE run_id = '{run_id}' AND item = 0"
    await Sql(f"sqlite:///{tmp_path / 'plans.db'}").change(change)
    text = await written(sqlite, run_id, in_lines=True)
    assert text.count("好" * 20) == 1
    assert json.loads(text)["receipts"][0]["result"] == '"\udcff"'
    found = await sqlite.verify(run_id)
    assert found.problem is not None and found.problem.table == "receipts" and found.problem.item == 0


@pytest.mark.parametrize("chunk", [1, 7, 64, 10**6])
@pytest.mark.parametrize("in_lines", [True, False])
async def test_a_file_is_read_in_chunks_of_any_size(
    sqlite: PlanStore, tmp_path: Path, in_lines: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = await written(sqlite, await with_receipts(sqlite, 2), in_lines=in_lines)
    path = tmp_path / "run.json"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(export, "CHUNK_BYTES", chunk)
    document = read_exported(path)
    assert document is not None
    for _ in range(2):  # lists can be read again
        assert {name: list(part) if isinstance(part, export.FileRows) else part for name, part in document.items()} == json.loads(text)
    assert verify(document).ok


@pytest.mark.parametrize("chunk", [1, 10**6])
@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{", "{}x", '{"a" 1}', '{"a": }', '{"audit": [1 2]}', '{"audit": [1', '{"audit": [1]', '{"a": "', "{1: 2}",
        '{"a": 1,}', "[1", b'{"a": "\xff"}',
    ],
    ids=repr,
)  # fmt: skip
def test_invalid_json_is_refused(text: str | bytes, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setattr(export, "CHUNK_BYTES", chunk)
    if str(text).strip() in ("", "[1"):
        assert read_exported(path) is None
    else:
        with pytest.raises(ValueError):
            read_exported(path)


def test_values_that_are_not_rows_are_kept_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('\n{"head": [1, {"a": []}], "run": -12.5e3 , "audit": "x", "plans":[ ]\t}\n ', encoding="utf-8")
    document = read_exported(path)
    assert document is not None
    assert (document["head"], document["run"], document["audit"], list(document["plans"])) == ([1, {"a": []}], -12500.0, "x", [])


TIMES = 4
"""How often a memory peak is measured; the smallest counts."""


def _peak(work: Callable[[], Verification]) -> int:
    """Return the smallest of several memory peaks of `work`, because other threads add to each."""
    return min(_peak_once(work) for _ in range(TIMES))


def _peak_once(work: Callable[[], Verification]) -> int:
    tracemalloc.start()
    try:
        assert work().ok
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.thorough
async def test_verifying_more_receipts_takes_no_more_memory(sqlite: PlanStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "CHUNK_BYTES", 16 * 1024)
    in_store, in_file, at_once = list[int](), list[int](), list[int]()
    path = tmp_path / "run.json"
    for count in (50, 400):
        run_id = await with_receipts(sqlite, count)
        path.write_text(await written(sqlite, run_id, in_lines=True), encoding="utf-8")
        in_store.append(min([await sqlite.read_export(run_id, lambda parts: _peak_once(lambda: verify(parts))) for _ in range(TIMES)]))
        in_file.append(_peak(lambda: verify(read_exported(path) or {})))
        at_once.append(_peak_once(lambda: verify(json.loads(path.read_bytes()))))
    assert in_store[1] < 2 * in_store[0]
    assert in_file[1] < 2 * in_file[0]
    assert at_once[1] > 6 * at_once[0]  # the measurement is sensitive enough


async def test_a_duplicate_row_in_a_file_is_detected(sqlite: PlanStore) -> None:
    run_id = await with_receipts(sqlite, 2)
    document: dict[str, Any] = await sqlite.export(run_id)
    document["receipts"] = [*document["receipts"], document["receipts"][0]]
    problem = verify(document).problem
    assert problem is not None and (problem.table, problem.item) == ("receipts", 0)
    assert "the audit log has no entry for this row" in problem.message


def test_rows_of_a_list_are_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"plans": ["多字节", 1], "audit": [2, 3]}', encoding="utf-8")
    document = read_exported(path)
    assert document is not None
    rows: Iterator[Any] = iter(document["audit"])
    assert (next(rows), list(document["plans"]), next(rows)) == (2, ["多字节", 1], 3)
