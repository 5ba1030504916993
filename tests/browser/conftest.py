"""One Chromium for the session, which reaches nothing beyond loopback, and pages whose screenshots `make browser` keeps.

Playwright's asynchronous interface: the synchronous one leaves a running event loop behind, in which no other asynchronous test can run.
"""

import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from plan_adapter.engine.connection import Server
from tests.browser.pages import Browsing
from tests.browser.running import RunningPlan, Workplace

if TYPE_CHECKING:
    from playwright.async_api import Browser

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
HOW_TO_INSTALL = "sudo apt-get install chromium fonts-noto-cjk"
ARGUMENTS = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    "--disable-3d-apis",  # the picture of a run's progress is drawn all the same, and at a third of the price where no graphics card is
)
ELSEWHERE = re.compile(r"^(?!https?://127\.0\.0\.1[:/]|data:|blob:)")
PATIENCE_MS = 120_000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", metavar="FOLDER", help="keep pictures of what the browser shows; known when tests/browser is named")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> "AsyncIterator[Browser]":
    """The system's Chromium, driven by Playwright."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no Chromium here ({', '.join(PROGRAMS)}): {HOW_TO_INSTALL}")
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed: make clean test")
    as_root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=[*ARGUMENTS, *as_root])
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def browsing(chromium: "Browser", request: pytest.FixtureRequest, prefect_server: Server) -> AsyncIterator[Browsing]:
    """A person at a browser of their own, logged in; what a page asks of other hosts is refused and noted."""
    context = await chromium.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB", timezone_id="UTC")
    context.set_default_timeout(PATIENCE_MS)
    folder: str | None = request.config.getoption("--screenshots", default=None)
    person = Browsing(context, screenshots=Path(folder) if folder else None)
    await context.route(ELSEWHERE, person.refuse)
    if prefect_server.password is not None:  # as the login page of either UI keeps it
        await context.add_init_script(f"localStorage.setItem('prefect-password', btoa({json.dumps(prefect_server.password)}))")
    yield person
    await context.close()


@pytest.fixture
def workplace(tmp_path: Path, prefect_server: Server) -> Workplace:
    """An empty folder with a store of its own, whose plans run on the session's server as on a local one."""
    assert prefect_server.log_path is not None
    return Workplace(folder=tmp_path, server_home=prefect_server.log_path.parent.parent)


@pytest_asyncio.fixture(loop_scope="session")
async def start(workplace: Workplace) -> AsyncIterator[Callable[..., RunningPlan]]:
    """Starts `plan run` of a document as a process without a terminal; those that still run at the end are ended."""
    running: list[RunningPlan] = []

    def begin(document: str, **settings: str) -> RunningPlan:
        running.append(workplace.run(document, **settings))
        return running[-1]

    yield begin
    for plan in running:
        await plan.stop()
