"""Tests of `load_plan` and `aload_plan`, which read files, texts and stored plans."""

import asyncio
from pathlib import Path

import pytest

from plan_adapter import PlanStore
from plan_adapter.errors import StoreError
from plan_adapter.store import aload_plan, dump_plan, load_plan
from tests.store.builders import a_plan


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of the default store, which has two versions of a plan."""
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", url)

    async def save() -> None:
        async with PlanStore(url) as store:
            for description in ("first", "second"):
                await store.save(a_plan(description), author="ana", name="重启@web")

    asyncio.run(save())
    return url


def test_a_stored_plan_is_loaded_by_name_and_version(saved: str) -> None:
    assert load_plan("store:重启@web@1").description == "first"
    assert load_plan("store:重启@web@2").description == "second"


def test_the_newest_version_is_loaded_by_name(saved: str) -> None:
    async def load() -> str:
        async with PlanStore(saved) as store:
            await store.save(a_plan("third"), author="ana", name="other")
            return (await aload_plan("store:other", store=store)).description

    assert asyncio.run(load()) == "third"
    assert load_plan("store:other").description == "third"


def test_files_and_texts_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(a_plan("文件")), encoding="utf-8")
    assert load_plan(path) == load_plan(str(path)) == load_plan(path.read_text(encoding="utf-8")) == asyncio.run(aload_plan(path))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("store:重启@newest", "a version is a number, as in `store:重启@3`"),
        ("store:重启@web@7", "there is no version 7 of a plan `重启@web`"),
        ("store:nothing", "no stored plan is called `nothing`"),
    ],
)
def test_loading_an_unknown_stored_plan_names_it(saved: str, source: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        load_plan(source)


async def test_load_plan_inside_an_event_loop_names_aload_plan(saved: str) -> None:
    with pytest.raises(RuntimeError, match="await `aload_plan` instead"):
        load_plan("store:重启@web@1")
    assert (await aload_plan("store:重启@web@1")).description == "first"
