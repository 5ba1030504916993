"""Tests of the block types: Prefect's standard suite, and what our blocks return."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest
from prefect.blocks.core import Block
from prefect.testing.standard_test_suites import BlockStandardTestSuite
from pydantic import SecretStr

import blocks.plan_store
from plan_adapter import ExecutionPlan
from plan_adapter.blocks import LanguageModel, PlanStoreDatabase
from tests.agent.server import says, scripted


@pytest.mark.parametrize("block", [PlanStoreDatabase, LanguageModel])
class TestEveryBlockMeetsPrefectsStandard(BlockStandardTestSuite):
    @pytest.fixture
    def block(self, block: type[Block]) -> type[Block]:
        return block


def test_prefect_finds_the_block_types_by_their_entry_point() -> None:
    (point,) = entry_points(group="prefect.collections", name="plan_adapter")
    assert (point.load().PlanStoreDatabase, point.load().LanguageModel) == (PlanStoreDatabase, LanguageModel)


async def test_the_store_of_a_block_sees_only_plans_of_its_tenant(tmp_path: Path) -> None:
    plan = ExecutionPlan(description="Check the site")
    plan.add_step("http_get", "Ask", {"url": "http://127.0.0.1/"})
    url = SecretStr(f"sqlite:///{tmp_path / 'plans.db'}")
    async with PlanStoreDatabase(url=url, tenant_id="north").get_store() as north:
        await north.save(plan, author="ana")
        assert await north.names() == ["Check the site"]
    async with PlanStoreDatabase(url=url, tenant_id="south").get_store() as south:
        assert await south.names() == []


def test_a_block_shows_no_password() -> None:
    block = PlanStoreDatabase(url=SecretStr("postgresql://plans:hunter2@127.0.0.1/plans"))
    assert "hunter2" not in f"{block!r} {block} {block.model_dump_json()} {block.get_store()!r}"


async def test_the_model_of_a_block_uses_its_url_and_key_and_never_shows_the_key() -> None:
    with scripted(says({"ready": True})) as server:
        block = LanguageModel(model="模型-1", base_url=server.url, api_key=SecretStr("sk-canary"))
        model = block.get_model()
        probe = await model.probe()
        await model.aclose()
        assert (server.requests[0]["model"], probe.model, probe.rung) == ("模型-1", "模型-1", "strict_schema")
        assert "Bearer sk-canary" in server.headers[0].values()
    assert "sk-canary" not in f"{block!r} {block} {block.model_dump_json()} {model!r}"


def test_a_block_with_a_local_path_warns_and_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAN_ADAPTER_DATABASE_URL", raising=False)
    assert "set PLAN_ADAPTER_DATABASE_URL=postgresql://… and run `make blocks` again" in (blocks.plan_store.warning() or "")
    monkeypatch.setenv("PLAN_ADAPTER_ALLOW_LOCAL_STORE", "true")
    assert blocks.plan_store.warning() is None
    monkeypatch.delenv("PLAN_ADAPTER_ALLOW_LOCAL_STORE")
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", "postgresql://plans:hunter2@127.0.0.1/plans")
    assert blocks.plan_store.warning() is None


def test_the_deployments_block_uses_the_database_url_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", "postgresql://plans:hunter2@127.0.0.1/plans")
    assert blocks.plan_store.block().url.get_secret_value() == "postgresql://plans:hunter2@127.0.0.1/plans"
