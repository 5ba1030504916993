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


def read_whole(path: Path) -> dict[str, Any]:
    """Return the document in a file with all its rows."""
    document = read_exported(path)
    assert document is not None
    return {name: list(part) if isinstance(part, export.FileRows) else part for name, part in document.items()}


@pytest.mark.parametrize("only_ascii", [False, True])
async def test_a_document_read_from_its_lines_equals_the_one_of_the_store(store: PlanStore, tmp_path: Path, only_ascii: bool) -> None:
    run_id = await with_receipts(store, 5)
    text, path = await written(store, run_id, only_ascii=only_ascii), tmp_path / "run.jsonl"
    path.write_text(text, encoding="utf-8")
    document = read_exported(path)
    assert document is not None
    assert document["format"] == "plan-adapter-run/2"
    for _ in range(2):  # lists can be read again
        assert read_whole(path) | {"format": export.FORMAT} == await store.export(run_id)
    assert verify(document).ok
    assert text.isascii() == only_ascii


async def test_the_lines_are_a_header_and_one_row_each_with_the_audit_log_last(store: PlanStore) -> None:
    run_id = await with_receipts(store, 2)
    header, *rows = map(json.loads, (await written(store, run_id)).removesuffix("\n").split("\n"))
    assert (next(iter(header)), header["run"]["id"]) == ("format", run_id)
    assert {"run", "lease", "head", "witnessed", "format"} == header.keys()
    assert all(row.keys() == {"table", "row"} for row in rows)
    assert [row["table"] for row in rows].count("receipts") == 2
    assert rows[-1]["row"]["digest"] == header["head"]


async def test_a_file_cut_off_at_any_line_is_altered(sqlite: PlanStore, tmp_path: Path) -> None:
    lines = (await written(sqlite, await with_receipts(sqlite, 1))).splitlines(keepends=True)
    path = tmp_path / "run.jsonl"
    for count in range(1, len(lines)):
        path.write_text("".join(lines[:count]), encoding="utf-8")
        assert verify(read_exported(path) or {}).problem is not None, count


async def test_a_file_of_an_earlier_version_is_read_as_a_whole(sqlite: PlanStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, path = await sqlite.export(await with_receipts(sqlite, 2)), tmp_path / "run.json"
    for indent in (None, 1):
        path.write_text(json.dumps(whole, ensure_ascii=False, sort_keys=True, indent=indent) + "\n", encoding="utf-8")
        assert read_exported(path) == whole
    assert verify(whole).ok
    monkeypatch.setattr(export, "MAX_WHOLE_BYTES", 1000)
    with pytest.raises(ValueError, match="export the run again"):
        read_exported(path)


async def test_a_row_with_invalid_unicode_is_escaped_and_others_are_not(sqlite: PlanStore, tmp_path: Path) -> None:
    run_id = await with_receipts(sqlite, 2)
    change = f"UPDATE receipts SET result = CAST(x'22ff22' AS TEXT) WHERE run_id = '{run_id}' AND item = 0"
    await Sql(f"sqlite:///{tmp_path / 'plans.db'}").change(change)
    text, path = await written(sqlite, run_id), tmp_path / "run.jsonl"
    path.write_text(text, encoding="utf-8")
    assert text.count("好" * 20) == 1
    assert read_whole(path)["receipts"][0]["result"] == '"\udcff"'
    found = await sqlite.verify(run_id)
    assert found.problem is not None and found.problem.table == "receipts" and found.problem.item == 0


HEADER = '{"format": "plan-adapter-run/2", "run": {"id": "x"}}\n'
ROW = '{"table": "audit", "row": 1}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"), (" ", "Expecting value"), ("{", "Expecting"), ("[1", "Expecting"), ('{"a": 1,}', "property name"),
        (b'{"a": "\xff"}', "invalid start byte"),
        ('{"format": "plan-adapter-run/3"}\n', "plan-adapter-run/3.* newer version"),
        (HEADER + ROW + '{"table": "audit", "row": [1\n', "line 3 is not a row"),
        (HEADER + ROW + '{"table": "other", "row": 1}\n', "line 3 is not a row"),
        (HEADER + ROW + '{"table": [], "row": 1}\n', "line 3 is not a row"),
        (HEADER + '{"table": "audit"}\n', "line 2 is not a row"),
        (HEADER + "[1]\n", "line 2 is not a row"),
        (HEADER + ROW[:-3], "line 2 is not a row"),
    ],
)  # fmt: skip
def test_an_invalid_file_is_refused(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        read_exported(path)


def test_another_json_value_is_not_an_exported_run(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("[\n1]", encoding="utf-8")
    assert read_exported(path) is None


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
async def test_verifying_more_receipts_takes_no_more_memory(sqlite: PlanStore, tmp_path: Path) -> None:
    in_store, in_file, at_once = list[int](), list[int](), list[int]()
    path = tmp_path / "run.jsonl"
    for count in (50, 400):
        run_id = await with_receipts(sqlite, count)
        path.write_text(await written(sqlite, run_id), encoding="utf-8")
        in_store.append(min([await sqlite.read_export(run_id, lambda parts: _peak_once(lambda: verify(parts))) for _ in range(TIMES)]))
        in_file.append(_peak(lambda: verify(read_exported(path) or {})))
        at_once.append(_peak_once(lambda: verify(read_whole(path))))
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


def test_rows_of_a_table_are_read_in_place_wherever_its_lines_are(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    rows = [("plans", "多字节"), ("audit", 2), ("plans", 1), ("audit", 3)]
    lines = [HEADER, *(json.dumps({"table": table, "row": row}, ensure_ascii=False) + "\n" for table, row in rows)]
    path.write_text("".join(lines), encoding="utf-8")
    document = read_exported(path)
    assert document is not None
    audit: Iterator[Any] = iter(document["audit"])
    assert (next(audit), list(document["plans"]), next(audit), list(document["gates"])) == (2, ["多字节", 1], 3, [])
