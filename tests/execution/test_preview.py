"""Tests of the preview after a write: what is published, and that a preview never fails a run."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from plan_adapter.execution import previewing
from plan_adapter.execution.redactor import RunSecrets
from plan_adapter.model.status import Outcome, PlanStatus
from plan_adapter.tools.tool import Tool, tool
from tests.execution.pursuing import ScriptedGates, ScriptedModel, ends, goal_plan, reads, writes
from tests.execution.support import Execution, plan_of
from tests.tools.examples import example


@dataclass
class Published:
    """Keeps what is published. Implements `scope.Publish`."""

    texts: list[tuple[str, str, str]] = field(default_factory=list)

    async def __call__(self, text: str, *, key: str, description: str) -> None:
        self.texts.append((key, description, text))


def writing(preview: Callable[..., object]) -> Tool[..., Any]:
    @tool(effect="write", preview=preview)
    def work(name: str) -> str:
        """Work."""
        return name

    return work


def execution(preview: Callable[..., object], published: Published | None) -> Execution:
    return Execution(plan_of({"build": []}), [writing(preview)], publish=published)


async def test_the_preview_of_the_guide_is_published_after_each_write_of_a_goal_but_no_read():
    library: dict[str, Any] = {}
    exec(example("preview"), library)

    @tool(effect="read")
    def look() -> list[str]:
        """Read the notes."""
        return library["notes"]

    model, published = ScriptedModel([reads(), writes(note="一"), writes(note="二"), ends("E3")]), Published()
    run = await Execution(goal_plan(), [look, library["post"]], goal_model=model, gates=ScriptedGates(), publish=published).go()
    assert run.status is PlanStatus.COMPLETED
    assert [text for text in published.texts if text[0] == "preview-report"] == [
        ("preview-report", "After report[round 2: post(note=一)]", "- 一"),
        ("preview-report", "After report[round 3: post(note=二)]", "- 一\n- 二"),
    ]


async def test_a_preview_gets_the_parameters_it_names_and_may_be_an_async_tool():
    @tool(effect="read")
    async def show(name: str) -> str:
        """Show."""
        return f"# {name}"

    published = Published()
    assert (await execution(show, published).go()).status is PlanStatus.COMPLETED
    assert published.texts == [("preview-build", "After build", "# build")]


def broken() -> str:
    """Fail."""
    raise ValueError("no week")


def exits() -> str:
    """Leave."""
    raise SystemExit(3)


def no_text() -> list[str]:
    """Return no text."""
    return []


@pytest.mark.parametrize(
    ("preview", "why"),
    [(broken, "ValueError: no week"), (exits, "the tool raised SystemExit(3)"), (no_text, "it returned list instead of text")],
)
async def test_a_failing_preview_is_only_logged(preview, why):
    published = Published()
    done = execution(preview, published)
    assert (await done.go()).status is PlanStatus.COMPLETED
    assert (published.texts, done.log) == ([], [f"the preview `{preview.__name__}` failed: {why}"])
    assert [receipt.outcome for receipt in done.recorder.receipts] == [Outcome.SUCCEEDED]


async def test_a_preview_that_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(previewing, "PREVIEW_SECONDS", 0.01)

    async def endless() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return ""

    done = execution(endless, Published())
    assert (await done.go()).status is PlanStatus.COMPLETED
    assert done.log == ["the preview `endless` gave no answer within 0.01 s"]


async def test_a_preview_is_redacted_and_only_logged_without_prefect(caplog):
    def show() -> str:
        """Show."""
        return "the password is hunter2-hunter2"

    caplog.set_level(logging.DEBUG, previewing.__name__)
    published = Published()
    for publish in (published, None):
        done = execution(show, publish)
        done.secrets = RunSecrets()
        done.secrets.redactor.add("hunter2-hunter2")
        await done.go()
    assert [text for _, _, text in published.texts] == ["the password is ***"]
    assert [record.getMessage() for record in caplog.records] == ["the preview of build: the password is ***"] * 2


async def test_a_write_that_failed_has_no_preview():
    @tool(effect="write", preview=broken)
    def work(name: str) -> str:
        """Fail."""
        raise ValueError(name)

    done = Execution(plan_of({"a": []}), [work], publish=Published())
    await done.go()
    assert done.log == []
