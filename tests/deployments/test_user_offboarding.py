"""Tests of the runbook user-offboarding on a real SQLite file."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from plan_adapter.gates import ApprovalRequest
from plan_adapter.store import PlanStatus
from tests.deployments.conftest import RunRunbook

APPLICATION = """
CREATE TABLE users (id INTEGER PRIMARY KEY, login TEXT UNIQUE, active BOOLEAN NOT NULL, left_because TEXT);
CREATE TABLE documents (id INTEGER PRIMARY KEY, owner_id INTEGER NOT NULL REFERENCES users);
CREATE TABLE user_rights (user_id INTEGER NOT NULL REFERENCES users, role TEXT NOT NULL, PRIMARY KEY (user_id, role));
INSERT INTO users VALUES (1, 'wang', TRUE, 'until 2024, then rehired'), (2, 'ana', TRUE, NULL), (3, 'gone', FALSE, 'retired');
INSERT INTO documents VALUES (10, 1), (11, 2), (12, 1);
INSERT INTO user_rights VALUES (1, 'admin'), (1, '财务'), (2, 'admin');
"""


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "application.db"
    change(path, APPLICATION)
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_APPLICATION_DATABASE_URL", f"sqlite:///{path}")
    monkeypatch.chdir(tmp_path)
    return path


def change(path: Path, statements: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(statements)


def dump(path: Path) -> list[str]:
    """Return the whole database as SQL."""
    with closing(sqlite3.connect(path)) as database:
        return sorted(database.iterdump())


INPUTS = {"login": "wang", "successor": "ana", "reason": "离职", "report": "reports/wang.json"}


async def test_the_account_is_disabled_and_its_documents_are_transferred(
    run_runbook: RunRunbook, application: Path, opened: list[ApprovalRequest]
) -> None:
    run = await run_runbook("user-offboarding", **INPUTS)

    assert run.status is PlanStatus.COMPLETED, [(step.id, step.error) for step in run.steps]
    with closing(sqlite3.connect(application)) as database:
        assert database.execute("SELECT active, left_because FROM users WHERE login = 'wang'").fetchall() == [(0, "离职")]
        assert database.execute("SELECT id, owner_id FROM documents ORDER BY id").fetchall() == [(10, 2), (11, 2), (12, 2)]
        assert database.execute("SELECT user_id, role FROM user_rights").fetchall() == [(2, "admin")]
    report = json.loads(Path("reports/wang.json").read_text(encoding="utf-8"))
    assert report == {"login": "wang", "successor": "ana", "reason": "离职", "documents": [10, 12], "rights": ["admin", "财务"]}
    assert run.outputs == {"documents": 2, "rights": 2}
    assert (opened[-1].step_id, "10" in opened[-1].text) == ("transfer", True)


async def test_nothing_changes_if_a_right_cannot_be_revoked(run_runbook: RunRunbook, application: Path) -> None:
    change(application, "CREATE TRIGGER kept BEFORE DELETE ON user_rights BEGIN SELECT RAISE(ABORT, 'the last 财务'); END")
    before = dump(application)

    run = await run_runbook("user-offboarding", **INPUTS)

    assert run.status is PlanStatus.PARTIAL
    assert "the last 财务" in (run.step("revoke").error or "")
    assert (dump(application), Path("reports").exists()) == (before, False)


async def test_the_rights_are_restored_if_a_document_is_left(run_runbook: RunRunbook, application: Path) -> None:
    write = "INSERT INTO documents VALUES (13, old.user_id)"
    change(application, f"CREATE TRIGGER last AFTER DELETE ON user_rights WHEN old.role = 'admin' BEGIN {write}; END")
    before = dump(application)

    run = await run_runbook("user-offboarding", **INPUTS)

    assert run.status is PlanStatus.PARTIAL
    assert '"documents": 1' in (run.step("verify").error or "")
    assert set(dump(application)) - set(before) == {'INSERT INTO "documents" VALUES(13,1);'}  # what the trigger wrote


@pytest.mark.parametrize(("login", "successor", "step"), [("wang", "gone", "heir"), ("wang", "wang", "heir"), ("gone", "ana", "leaver")])
async def test_only_active_and_different_users_are_accepted(
    run_runbook: RunRunbook, application: Path, login: str, successor: str, step: str
) -> None:
    before = dump(application)

    run = await run_runbook("user-offboarding", **INPUTS | {"login": login, "successor": successor})

    assert "done_when is not met" in (run.step(step).error or "")
    assert dump(application) == before
