"""Tests of `plan desk` in Chromium, on a phone and on a wide screen: an answer without scrolling sideways and with buttons for thumbs."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from plan_adapter.cli.desk.sign_in import PROXY_SECRET_HEADER
from plan_adapter.model.options import ApprovalPolicy, Input, Question
from plan_adapter.model.plan import ExecutionPlan, Step
from plan_adapter.store.store import PlanStore
from tests.browser.test_report import FITS
from tests.desk.people import HEADER, SECRET, Desk, running_desk
from tests.gates.world import World

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCREENS = {"phone": (390, 844, "dark"), "wide": (1440, 900, "light")}

LOW = """[...document.querySelectorAll('button,input:not([type=hidden]),select,textarea,main summary,.card>a,nav a')]
.filter(each => each.offsetParent && each.getBoundingClientRect().height < 44).map(each => each.outerHTML)"""
"""What a thumb could miss."""


@pytest_asyncio.fixture(loop_scope="session")
async def world(migrated_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A store with a run, a step and a question that wait."""
    monkeypatch.setenv("PLAN_ADAPTER_LOCAL_SERVER", "never")
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    url = f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'plans.db')}"
    async with PlanStore(url) as store:
        world = World(store, url, tmp_path)
        yield world
        await world.close()


@pytest_asyncio.fixture(loop_scope="session")
async def desk(world: World) -> AsyncIterator[Desk]:
    """A desk behind a proxy."""
    async with running_desk(world.store, world.settings) as desk:
        yield desk


def restart() -> ExecutionPlan:
    plan = ExecutionPlan(
        name="restart-web",
        description="Restart one web node without dropping requests, as asked for in #ops",
        inputs={"target": Input(default="web-1.fra.example.org")},
        approval=ApprovalPolicy(approvers=["ana@example.org", "bo@example.org"], known_by=["proxy"], quorum=2),
    )
    plan.add_step("look", "Check that it answers", {"target": "${{ inputs.target }}"}, id="check")
    plan.add_step("strike", "Take it out of the pool", {"target": "${{ steps.check.result }}"}, id="drain")
    plan.add_step("strike", "Restart it", {"target": "${{ inputs.target }}"}, id="restart", depends_on=["drain"])
    plan.options.approval_timeout_ms = 1_800_000
    return plan


def failover() -> ExecutionPlan:
    fields = {"site": Input(enum=["fra", "ams"], description="The site that takes over"), "minutes": Input(type="integer", default=5)}
    plan = ExecutionPlan(name="failover", description="Switch the site")
    plan.steps.append(Step(id="decide", ask=Question(question="Which site should take over, and for how long?", fields=fields)))
    plan.options.require_approval = False
    return plan


@pytest.mark.parametrize("screen", SCREENS)
async def test_an_approver_reads_and_answers(
    screen: str, world: World, desk: Desk, chromium: "Browser", request: pytest.FixtureRequest
) -> None:
    await world.detached(restart())
    question = world.start(failover())
    await world.gate(step="decide")
    width, height, scheme = SCREENS[screen]
    folder: str | None = request.config.getoption("--screenshots", default=None)
    headers = {HEADER: "ana@example.org", PROXY_SECRET_HEADER: SECRET}
    context = await chromium.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        extra_http_headers=headers,
        locale="en-GB",  # type: ignore[arg-type]
    )
    page, problems = await context.new_page(), list[str]()
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)

    async def check(name: str) -> None:
        await page.wait_for_load_state()
        assert await page.evaluate(FITS), name
        assert await page.evaluate(LOW) == [], name
        await save(page, folder, f"desk-{screen}-{name}")

    try:
        await page.goto(desk.address)
        await check("1-list")
        await page.get_by_role("link", name="restart-web").click()
        await page.get_by_role("button", name="Approve").wait_for()
        await check("2-gate")
        await page.get_by_text("All details").click()
        assert await page.evaluate(FITS)
        await page.get_by_label("Note").fill("go")
        await page.get_by_role("button", name="Approve").click()
        await page.get_by_text("1 of 2 approvals; the gate waits for bo@example.org").first.wait_for()
        await check("3-approved")
        await page.goto(desk.address)
        await page.get_by_role("link", name="failover").click()
        await check("4-question")
        await page.get_by_label("site").select_option("ams")
        await page.get_by_label("minutes").press("Enter")  # answers nothing
        await page.get_by_role("button", name="Answer").click()
        await page.get_by_text("answered by ana@example.org (proxy)").wait_for()
        await check("5-answered")
        assert (await question).step("decide").result == {"site": "ams", "minutes": 5}
        await page.get_by_role("link", name="Runs").click()
        await check("6-runs")
        await page.get_by_role("link", name="restart-web").click()
        await page.get_by_role("heading", name="Steps", exact=True).wait_for()
        assert await page.get_by_text("may not answer here").count() == 0
        assert await page.get_by_role("link", name="Answer").count() == 1
        await check("7-run")
        assert problems == []
    finally:
        await context.close()


async def save(page: "Page", folder: str | None, name: str) -> None:
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
