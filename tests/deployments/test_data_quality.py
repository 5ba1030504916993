"""Tests of the runbook data-quality on a real PostgreSQL."""

import asyncio
import json
from pathlib import Path

import pytest
from sqlalchemy import make_url

from plan_adapter.store import PlanStatus
from tests.deployments.conftest import RunRunbook
from tests.postgres import PostgresServer

WAREHOUSE = """
CREATE TABLE users (id int, name text);
CREATE TABLE "Orders 订单" (id int, "user id" int);
INSERT INTO users VALUES (1, 'Ana'), (2, '王小明');
INSERT INTO "Orders 订单" VALUES (10, 1), (11, 2), (12, 2);
"""
TABLES = [
    {"table": "users", "key": "id", "required": ["id", "name"], "min_rows": 2},
    {"table": "Orders 订单", "key": "id", "required": ["user id"], "min_rows": 1},
]


@pytest.fixture
def database(postgres_server: PostgresServer, postgres_database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_WAREHOUSE_URL", postgres_database)
    monkeypatch.chdir(tmp_path)
    name = make_url(postgres_database).database or ""
    postgres_server.execute(WAREHOUSE, database=name)
    return name


@pytest.mark.usefixtures("database")
async def test_valid_tables_pass_and_their_row_counts_are_the_outputs(run_runbook: RunRunbook) -> None:
    run = await run_runbook("data-quality", tables=TABLES, report="report.json")

    assert run.status is PlanStatus.COMPLETED, [(step.id, step.error) for step in run.steps]
    assert run.outputs == {"tables": [{"table": "users", "rows": 2}, {"table": "Orders 订单", "rows": 3}]}
    assert json.loads(Path("report.json").read_text(encoding="utf-8"))["status"] == "completed"


async def test_every_table_is_checked_and_every_problem_reported(
    run_runbook: RunRunbook, postgres_server: PostgresServer, database: str
) -> None:
    bad = """INSERT INTO users VALUES (2, NULL); INSERT INTO "Orders 订单" VALUES (13, NULL)"""
    await asyncio.to_thread(postgres_server.execute, bad, database=database)
    missing = {"table": "robert'); DROP TABLE users; --", "key": "id", "required": ["id"], "min_rows": 1}

    run = await run_runbook("data-quality", tables=[missing, *TABLES], report="report.json")

    assert run.status is PlanStatus.FAILED
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert report["status"] == "failed"
    passed = {table["label"]: list(table["results"]) for table in report["tables"]}
    assert passed == {missing["table"]: [], "users": ["rows"], "Orders 订单": ["rows", "keys"]}
    assert "result.rows[0].bad is 1" in report["error"]
    assert '"missing": 1' in report["error"]
