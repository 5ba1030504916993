"""The block types: what Prefect asks of every one, and what ours give."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest
from prefect.blocks.core import Block
from prefect.testing.standard_test_suites import BlockStandardTestSuite
from pydantic import SecretStr

import blocks.plan_store
from plan_adapter import ExecutionPlan
from plan_adapter.blocks import PlanStoreDatabase


@pytest.mark.parametrize("block", [PlanStoreDatabase])
class TestEveryBlockMeetsPrefectsStandard(BlockStandardTestSuite):
    @pytest.fixture
    def block(self, block: type[Block]) -> type[Block]:
        return block


def test_prefect_finds_the_block_types_by_their_entry_point() -> None:
    (point,) = entry_points(group="prefect.collections", name="plan_adapter")
    assert point.load().PlanStoreDatabase is PlanStoreDatabase


async def test_the_store_of_a_block_keeps_plans_of_its_tenant_only(tmp_path: Path) -> None:
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


def test_the_deployments_block_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", "postgresql://plans:hunter2@127.0.0.1/plans")
    assert blocks.plan_store.block().url.get_secret_value() == "postgresql://plans:hunter2@127.0.0.1/plans"
