"""Tests of `plan show --draft`: the newest drafts, and one draft with all its messages."""

import asyncio
import json
from pathlib import Path

import pytest

from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.agent.planner import Planner
from plan_adapter.cli.app import main
from plan_adapter.store.store import PlanStore
from tests.agent.server import says, scripted
from tests.agent.test_planner import GOOD, TASK, TOOLS, done, step


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", url)
    return url


async def _drafted(url: str) -> str:
    with scripted(says(done(step("deploi", {}))), says(GOOD)) as server:
        model = OpenAIModel("m", base_url=server.url)
        async with PlanStore(url) as store:
            draft = await Planner(model, TOOLS, keep=store.drafts).drafted(TASK)
        await model.aclose()
    return draft.id


def test_no_drafts(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    del url
    assert main(["show", "--draft"]) == 0
    assert capsys.readouterr().err == "no drafts yet\n"


def test_nothing_to_show_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show"]) == 2
    assert "`--draft` for the newest drafts" in capsys.readouterr().err


async def test_a_draft_is_listed_and_shown_with_all_its_messages(url: str, capsys: pytest.CaptureFixture[str]) -> None:

    draft_id = await _drafted(url)
    assert await asyncio.to_thread(main, ["show", "--draft"]) == 0
    assert capsys.readouterr().out.startswith(draft_id)
    assert await asyncio.to_thread(main, ["show", draft_id[:13], "--draft"]) == 0
    shown = capsys.readouterr().out
    for part in ("`backup` completes before `deploy` starts", "### Round 2: asked", "unknown-tool", "1 correction", "You plan work"):
        assert part in shown
    assert await asyncio.to_thread(main, ["show", draft_id, "--draft", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["id"], len(printed["calls"]), printed["plan"]["description"]) == (draft_id, 2, "Deploy 2.1")
    assert await asyncio.to_thread(main, ["show", "nothing", "--draft"]) == 2
    assert "no draft begins with `nothing`" in capsys.readouterr().err
