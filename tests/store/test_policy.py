"""Tests of the store's policy (append-only, chained versions set by operators) and of the history of one-time code seeds."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from plan_adapter.gates.identity import recorded_identity
from plan_adapter.gates.policy import Policy
from plan_adapter.local.settings import Settings
from plan_adapter.model.errors import NotApprovedError, RunConflictError, StoreError
from plan_adapter.store.policies import NewPolicy
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import an_approval

OPERATED = Policy(operators=["ops", "run-plan/nightly"], groups={"ops": ["ana"]}, approvers=["小明"])


def new(policy: Policy = OPERATED, number: int = 1, *, by: str = "ana", known_by: str = "os_user") -> NewPolicy:
    return NewPolicy(policy, number, by, known_by)


async def altered(sql: Sql, *statements: str) -> None:
    """Change rows with the rights of the table owner."""

    def work(connection) -> None:
        if connection.dialect.name == "sqlite":
            connection.execute(text("DROP TRIGGER policy_history_refuses_update"))
            connection.execute(text("DROP TRIGGER policy_history_refuses_delete"))
        else:
            connection.execute(text("ALTER TABLE policy_history DISABLE TRIGGER USER"))
        for statement in statements:
            connection.execute(text(statement))
        if connection.dialect.name == "postgresql":
            connection.execute(text("ALTER TABLE policy_history ENABLE TRIGGER USER"))

    await sql.run(work)


async def test_the_newest_policy_applies_and_every_version_is_kept(store: PlanStore):
    assert await store.policy.current() is None
    assert (await store.policy.effective(Settings())).number is None
    first = await store.policy.set(new(by="zoe"))
    second = await store.policy.set(new(Policy(operators=["ana"], self_approval=False), 2))
    assert await store.policy.current() == second
    assert await store.policy.history() == ([first, second], None)
    assert (first.by, first.policy.approvers, second.number) == ("zoe", ["小明"], 2)
    held = await store.policy.effective(Settings())
    assert (held.number, held.operators, held.self_approval, held.approvers) == (2, ("ana",), False, None)


async def test_only_operators_can_set_the_next_policy(store: PlanStore):
    await store.policy.set(new(by="anybody", known_by="unverified"))
    for by in ("bo", "", "ops", "小明"):
        with pytest.raises(NotApprovedError, match="may not set the policy; its operators may: ana, run-plan/nightly"):
            await store.policy.set(new(Policy(), 2, by=by))
    assert (await store.policy.set(new(Policy(), 2))).number == 2
    assert (await store.policy.set(new(OPERATED, 3, by="bo"))).number == 3  # version 2 named no operators


async def test_the_environment_cannot_name_policy_operators(store: PlanStore, monkeypatch: pytest.MonkeyPatch):
    await store.policy.set(new())
    monkeypatch.setenv("PLAN_ADAPTER_OPERATORS", "mallory")
    monkeypatch.setenv("PLAN_ADAPTER_GROUPS", '{"ops": ["mallory"]}')
    with pytest.raises(NotApprovedError):
        await store.policy.set(new(Policy(), 2, by="mallory"))


async def test_a_policy_that_requires_a_proof_requires_it_for_the_next_version_too(store: PlanStore):
    await store.policy.set(new(Policy(known_by=["ssh_signature", "totp"])))
    with pytest.raises(NotApprovedError, match="identified by unverified only, but setting the policy needs ssh_signature or totp"):
        await store.policy.set(new(Policy(), 2))
    with pytest.raises(NotApprovedError, match="ana is identified by unverified only"):
        await store.policy.set(new(Policy(), 2, known_by="totp"))
    checked = recorded_identity(an_approval(by="ana", known_by="totp"))
    assert (await store.policy.set(new(Policy(), 2), identity=checked)).known_by == "totp"


async def test_concurrent_policy_changes_do_not_overwrite_each_other(store: PlanStore):
    outcomes = await asyncio.gather(*(store.policy.set(new(by=f"p{n}")) for n in range(8)), return_exceptions=True)
    kept = [version for version in outcomes if not isinstance(version, BaseException)]
    assert len(kept) == 1
    assert all(isinstance(error, RunConflictError | NotApprovedError) for error in outcomes if isinstance(error, BaseException))
    assert await store.policy.history() == (kept, None)


async def test_a_tenants_store_follows_the_policy_and_cannot_set_one(store: PlanStore, store_url: str):
    await store.policy.set(new())
    async with PlanStore(store_url, tenant_id="a") as tenant:
        assert (await tenant.policy.effective(Settings())).operators == ("ana", "run-plan/nightly")
        with pytest.raises(StoreError, match="holds for all tenants"):
            await tenant.policy.set(new(number=2))


@pytest.mark.parametrize("table", ["policy_history", "totp_history"])
@pytest.mark.parametrize("change", ["UPDATE {} SET by = 'mallory'", "DELETE FROM {}"])
async def test_the_database_refuses_to_change_a_policy_or_seed(store: PlanStore, sql: Sql, table: str, change: str):
    await store.policy.set(new())
    await store.codes.enroll("ana", "sealed", by="ana", replaces=False)
    with pytest.raises(DBAPIError, match=f"rows of {table} cannot be changed or deleted"):
        await sql.change(change.format(table))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE policy_history SET document = '{}' WHERE number = 2", "version 2 of the store's policy was altered"),
        ("UPDATE policy_history SET by = 'bo' WHERE number = 2", "version 2 of the store's policy was altered"),
        ("UPDATE policy_history SET digest = 'x' WHERE number = 1", "version 1 of the store's policy was altered"),
        ("DELETE FROM policy_history WHERE number = 1", "version 2 of the store's policy does not follow the one before"),
        ("UPDATE policy_history SET number = 7 WHERE number = 2", "version 7 of the store's policy does not follow the one before"),
    ],
    ids=["document", "who", "digest", "deleted", "renumbered"],
)
async def test_an_altered_policy_is_reported_and_not_applied(store: PlanStore, sql: Sql, statement: str, message: str):
    await store.policy.set(new())
    await store.policy.set(new(Policy(operators=["ana"], gate_effects=["write"]), 2))
    await altered(sql, statement)
    _, problem = await store.policy.history()
    assert message in str(problem)
    with pytest.raises(StoreError, match="of the store's policy"):
        await store.policy.effective(Settings())
    with pytest.raises(StoreError, match="of the store's policy"):
        await store.policy.set(new(Policy(), 3))


async def test_seeds_are_append_only_and_the_newest_one_is_used(store: PlanStore, sql: Sql):
    assert await store.codes.seed("安娜") is None
    await store.codes.enroll("安娜", "one", by="bo", replaces=False)
    with pytest.raises(RunConflictError, match="has one-time codes already"):
        await store.codes.enroll("安娜", "two", by="安娜", replaces=False)
    await store.codes.enroll("安娜", "two", by="安娜", replaces=True)
    assert await store.codes.seed("安娜") == "two"
    rows = await sql.rows("SELECT number, by, seed FROM totp_history")
    assert sorted(tuple(row.values()) for row in rows) == [(1, "bo", "one"), (2, "安娜", "two")]
