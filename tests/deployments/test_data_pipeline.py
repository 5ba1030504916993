"""Tests of the runbook data-pipeline on real SQLite files."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from plan_adapter.store import PlanStatus
from tests.deployments.conftest import RunRunbook

USERS = [(1, "  王小明 ", "Wang@Example.com"), (2, "Ana", " ANA@example.com "), (3, "Nobody", "no address")]
ORDERS = [
    (10, 1, 19.99, "2026-01-05 10:00:00"),
    (11, 2, 5, "2026-02-01 23:59:59"),
    (12, 3, 7, "2026-02-02 08:00:00"),
    (13, 2, -1, "2026-02-03 08:00:00"),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, email TEXT)")
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, user_id INTEGER, amount REAL, ordered_at TEXT)")
        database.executemany("INSERT INTO users VALUES (?, ?, ?)", USERS)
        database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", ORDERS)
        database.commit()
    return path


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


async def test_it_loads_clean_users_and_their_orders(run_runbook: RunRunbook, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"

    run = await run_runbook("data-pipeline", source=str(source), target=str(target))

    assert run.status is PlanStatus.COMPLETED, run.steps
    assert run.outputs == {"users": 2, "orders": 2}
    assert rows(target, "SELECT * FROM users ORDER BY id") == [(1, "王小明", "wang@example.com"), (2, "Ana", "ana@example.com")]
    assert rows(target, "SELECT * FROM orders ORDER BY id") == [(10, 1, 1999, "2026-01-05"), (11, 2, 500, "2026-02-01")]


async def test_a_second_run_loads_only_new_rows(run_runbook: RunRunbook, source: Path, tmp_path: Path) -> None:
    inputs = {"source": str(source), "target": str(tmp_path / "target.db")}
    await run_runbook("data-pipeline", **inputs)
    with closing(sqlite3.connect(source)) as database:
        database.execute("INSERT INTO users VALUES (4, 'Li', 'li@example.com')")
        database.commit()

    again = await run_runbook("data-pipeline", **inputs)

    assert again.outputs == {"users": 3, "orders": 2}


async def test_more_rows_than_a_result_can_hold_are_loaded(run_runbook: RunRunbook, source: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(source)) as database:
        database.executemany("INSERT INTO users VALUES (?, ?, ?)", [(n, f"user {n}", f"{n}@example.com") for n in range(100, 20_100)])
        database.commit()

    run = await run_runbook("data-pipeline", source=str(source), target=str(tmp_path / "target.db"))

    assert run.outputs == {"users": 20_002, "orders": 2}


async def test_a_missing_source_is_reported_and_not_created(run_runbook: RunRunbook, tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"

    run = await run_runbook("data-pipeline", source=str(missing), target=str(tmp_path / "target.db"))

    assert run.status is PlanStatus.FAILED
    assert "missing.db" in (run.step("extract_data").error or "")
    assert not missing.exists()


async def test_a_source_without_orders_leaves_the_target_unchanged(run_runbook: RunRunbook, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    await run_runbook("data-pipeline", source=str(source), target=str(target))
    before = rows(target, "SELECT name, sql FROM sqlite_master ORDER BY name")
    with closing(sqlite3.connect(source)) as database:
        database.execute("DROP TABLE orders")

    run = await run_runbook("data-pipeline", source=str(source), target=str(target))

    assert run.status is PlanStatus.FAILED
    assert "no such table: source.orders" in (run.step("extract_data").error or "")
    assert rows(target, "SELECT name, sql FROM sqlite_master ORDER BY name") == before
    assert rows(target, "SELECT count(*) FROM extracted_users") == [(3,)]
