"""Plans and their versions."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from plan_adapter.model.canonical import plan_digest
from plan_adapter.model.errors import RunConflictError, StoreError
from plan_adapter.model.options import ExecutionOptions, Input
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.model.record import RunContext
from plan_adapter.store.store import PlanStore
from tests.sql import Sql
from tests.store.builders import a_plan, a_run, created, validated


def a_rich_plan() -> ExecutionPlan:
    return ExecutionPlan(
        name="重启服务",
        description="重启一个节点\n不丢请求",
        inputs={"host": Input(pattern="^web-[0-9]+$"), "force": Input(type="boolean", default=False)},
        options=ExecutionOptions(allow_parallel=True, stop_on_error=False, step_timeout_ms=5000),
        steps=[
            Step(id="check", tool_name="http_get", parameters={"url": "${{ inputs.host }}", "n": 1.5, "deep": {"列": [1, None, True]}}),
            Step(tool_name="run_command", depends_on=["check"], retry_backoff=2.0, metadata={"owner": "平台"}),
        ],
        outputs={"ok": "${{ steps.check.status == 'completed' }}"},
        metadata={"team": "sre"},
    )


async def test_a_saved_plan_is_read_back_with_the_same_content_and_digest(store: PlanStore):
    plan = a_rich_plan()
    saved = await store.save(plan, author="ana")
    loaded = await store.get("重启服务")
    assert (saved.name, saved.version, saved.digest, saved.author) == ("重启服务", 1, plan_digest(plan), "ana")
    assert plan_digest(loaded) == saved.digest
    assert [step.id for step in loaded.steps] == ["check", "step_2"]
    assert loaded.options.continue_on_error is True


async def test_saving_the_newest_content_as_another_author_adds_a_version(store: PlanStore):
    first = await store.save(a_plan("one"), author="ana")
    again = await store.save(a_plan("one"), author="本")
    assert (again.version, again.digest, again.author, again.created_at > first.created_at) == (2, first.digest, "本", True)
    assert await store.save(a_plan("one"), author="本") == again
    assert await store.versions("site") == [again, first]


async def test_saving_the_newest_content_again_adds_no_version(store: PlanStore):
    first = await store.save(a_plan("one"), author="ana")
    assert await store.save(a_plan("one"), author="ana") == first
    second = await store.save(a_plan("two"), author="ben")
    third = await store.save(a_plan("one"), author="ana")
    assert [version.version for version in (first, second, third)] == [1, 2, 3]
    assert await store.versions("site") == [third, second, first]
    assert await store.versions("nothing") == []


async def test_a_plan_is_found_by_name_version_digest_or_digest_prefix(store: PlanStore):
    first = await store.save(a_plan("one"), author="ana")
    await store.save(a_plan("two"), author="ana")
    assert (await store.get("site")).description == "two"
    assert (await store.get("site", 1)).description == "one"
    assert (await store.get(first.digest)).description == "one"
    assert (await store.get(first.digest[:10])).description == "one"


async def test_a_digest_finds_its_content_even_if_another_plan_has_it_as_a_name(store: PlanStore):
    digest = (await store.save(a_plan("approved"), author="ana")).digest
    await store.save(a_plan("something else"), author="mallory", name=digest)
    assert plan_digest(await store.get(digest)) == digest


async def test_a_plan_can_be_saved_under_another_name(store: PlanStore):
    await store.save(a_plan(), author="ana", name="nightly")
    assert await store.names() == ["nightly"]
    assert (await store.get("nightly")).name == "site"


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("sity", None, "did you mean `site`?"),
        ("site", 7, "no version 7"),
        ("", None, "no stored plan is called ``"),
        ("%", None, "no stored plan is called `%`"),
    ],
)
async def test_a_missing_plan_is_named(store: PlanStore, name: str, version: int | None, message: str):
    await store.save(a_plan(), author="ana")
    with pytest.raises(StoreError, match="plan") as raised:
        await store.get(name, version)
    assert message in str(raised.value)


async def test_the_unsaved_plan_of_a_run_is_found_by_its_digest(store: PlanStore):
    plan = a_plan("never saved")
    run = a_run(plan)
    await store.ledger.create(run, validated(plan))
    assert plan_digest(await store.get(run.digest)) == run.digest
    assert await store.names() == []


async def test_concurrent_saves_of_one_name_get_distinct_version_numbers(store_url: str):
    stores = [PlanStore(store_url) for _ in range(4)]
    plans = [a_plan(f"change {number}") for number in range(12)]
    saved = await asyncio.gather(*(stores[index % 4].save(plan, author="ana") for index, plan in enumerate(plans)))
    assert sorted(version.version for version in saved) == list(range(1, 13))
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_tenant_sees_only_its_own_plans_and_runs(store_url: str):
    async with (
        PlanStore(store_url, tenant_id="acme") as acme,
        PlanStore(store_url, tenant_id="umbrella") as umbrella,
        PlanStore(store_url) as all_,
    ):
        saved = await acme.save(a_plan("acme's"), author="ana")
        await umbrella.save(a_plan("umbrella's"), author="ben")
        await all_.save(a_plan("nobody's"), author="cleo")
        plan = a_plan("run")
        run = a_run(plan)
        await acme.ledger.create(run, validated(plan))

        assert run.tenant_id == "acme"
        assert [(await store.get("site")).description for store in (acme, umbrella, all_)] == ["acme's", "umbrella's", "nobody's"]
        assert [(await store.versions("site"))[0].version for store in (acme, umbrella, all_)] == [1, 1, 1]
        assert [len(await store.runs()) for store in (acme, umbrella, all_)] == [1, 0, 1]
        assert (await all_.get(saved.digest)).description == "acme's"
        with pytest.raises(StoreError, match="no stored plan is called"):
            await umbrella.get(saved.digest)
        with pytest.raises(RunConflictError, match="no run"):
            await umbrella.run(run.id)
        with pytest.raises(RunConflictError, match="no run"):
            await umbrella.receipts(run.id)
        for write in (umbrella.ledger.update, umbrella.ledger.claim):
            with pytest.raises(RunConflictError, match="no run"):
                await write(run)
        await umbrella.ledger.request_cancel(run.id, "not yours")
        assert await acme.ledger.cancel_request(run.id) is None


async def test_a_tenants_store_writes_no_rows_of_another_tenant(store_url: str):
    async with PlanStore(store_url, tenant_id="acme") as store:
        with pytest.raises(RunConflictError, match="open for tenant acme, not for umbrella"):
            await store.save(a_plan(), author="ana", context=RunContext(tenant_id="umbrella"))
        assert await store.names() == []


async def test_an_altered_stored_plan_is_refused(tmp_path: Path):
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as store:
        await store.save(a_plan("pay 10"), author="ana")
        with sqlite3.connect(tmp_path / "plans.db") as database:
            database.execute("UPDATE plans SET document = replace(document, 'pay 10', 'pay 99')")
        with pytest.raises(StoreError, match="altered"):
            await store.get("site")


async def test_an_altered_or_deleted_version_is_named(store: PlanStore, sql: Sql):
    for description in ("one", "two", "three"):
        await store.save(a_plan(description), author="安娜", name="网站")
    await store.save(a_plan("one"), author="bo", name="other")
    assert await store.versions_problem() is None
    triggers = [f"versions_refuses_{change}" for change in ("update", "delete")]
    lift = (
        [f"DROP TRIGGER {name}" for name in triggers] if sql.dialect == "sqlite" else ["DROP TRIGGER versions_refuses_changes ON versions"]
    )
    with pytest.raises(DBAPIError, match="rows of versions cannot be changed or deleted"):
        await sql.change("UPDATE versions SET author = 'mallory'")
    await sql.change(*lift, "UPDATE versions SET author = 'mallory' WHERE version = 2")
    assert "version 2 of the plan `网站` was altered" in str(await store.versions_problem())
    await sql.change("DELETE FROM versions WHERE version = 2")
    assert "version 2 of the plan `网站` is missing" in str(await store.versions_problem())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE plans SET document = replace(document, 'two', 'evil')", "the document of the plan {digest} was altered"),
        ("UPDATE plans SET description = 'evil' WHERE description = 'two'", "the description of the plan {digest} was altered"),
        ("DELETE FROM plans WHERE description = 'two'", "the plan {digest}, version 2 of `site`, is missing"),
    ],
)
async def test_an_altered_or_deleted_document_of_a_version_is_named(change: str, message: str, store: PlanStore, store_url: str):
    await store.save(a_plan("one"), author="ana")
    saved = await store.save(a_plan("two"), author="ana")
    await _as_owner(store_url, change)
    assert message.format(digest=saved.digest) in str(await store.versions_problem())


@pytest.mark.parametrize("change", ["DELETE FROM versions", "DELETE FROM versions WHERE version = 2"])
async def test_a_run_witnesses_the_newest_version_of_its_plan(change: str, store: PlanStore, store_url: str):
    for description in ("one", "two"):
        await store.save(a_plan(description), author="ana")
    run, other = await created(store), await created(store, a_plan("three").model_copy(update={"name": "other"}))
    assert (await store.verify(run.id)).ok
    await _as_owner(store_url, change)
    assert (
        str((await store.verify(run.id)).problem) == "versions: row 2, the newest one when the run was created, is missing or was altered"
    )
    assert (await store.verify(other.id)).ok


async def _as_owner(store_url: str, change: str) -> None:
    """Change the tables as their owner, without triggers and foreign keys."""
    if store_url.startswith("postgresql"):
        await Sql(store_url).change("SET LOCAL session_replication_role = 'replica'", change)
    else:
        drop = [f"DROP TRIGGER IF EXISTS versions_refuses_{operation}" for operation in ("update", "delete")]
        with sqlite3.connect(store_url.removeprefix("sqlite:///")) as database:
            for statement in (*drop, change):
                database.execute(statement)
