"""Fixtures of the browser tests: one Chromium per session without access to other hosts, and screenshots for `make browser`.

They use Playwright's asynchronous interface. The synchronous one leaves an event loop running, and later asynchronous tests would fail.
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
from tests.browser.pages import BrowserUser
from tests.browser.running import RunningPlan, Workspace

if TYPE_CHECKING:
    from playwright.async_api import Browser

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
HOW_TO_INSTALL = "sudo apt-get install chromium fonts-noto-cjk"
ARGUMENTS = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    "--disable-3d-apis",  # the run graph is still drawn, at a third of the CPU cost without a graphics card
)
OTHER_HOSTS = re.compile(r"^(?!https?://127\.0\.0\.1[:/]|data:|blob:)")
TIMEOUT_MS = 120_000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", metavar="FOLDER", help="save screenshots here; only available when tests/browser is named")


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
async def user(chromium: "Browser", request: pytest.FixtureRequest, prefect_server: Server) -> AsyncIterator[BrowserUser]:
    """A logged-in user with their own browser context. Requests to other hosts are blocked and recorded."""
    context = await chromium.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB", timezone_id="UTC")
    context.set_default_timeout(TIMEOUT_MS)
    folder: str | None = request.config.getoption("--screenshots", default=None)
    browser_user = BrowserUser(context, screenshots=Path(folder) if folder else None)
    await context.route(OTHER_HOSTS, browser_user.block_request)
    if prefect_server.password is not None:  # as the login pages of both UIs store it
        await context.add_init_script(f"localStorage.setItem('prefect-password', btoa({json.dumps(prefect_server.password)}))")
    yield browser_user
    await context.close()


@pytest.fixture
def workspace(tmp_path: Path, prefect_server: Server) -> Workspace:
    """An empty folder with its own store, whose plans use the session's server as their local server."""
    return Workspace(folder=tmp_path, server=prefect_server)


@pytest_asyncio.fixture(loop_scope="session")
async def start(workspace: Workspace) -> AsyncIterator[Callable[..., RunningPlan]]:
    """A function that starts `plan run` of a document without a terminal. Processes that still run at the end are stopped."""
    running: list[RunningPlan] = []

    def begin(document: str, **settings: str) -> RunningPlan:
        running.append(workspace.run(document, **settings))
        return running[-1]

    yield begin
    for plan in running:
        await plan.stop()
