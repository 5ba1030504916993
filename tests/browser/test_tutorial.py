"""`plan guide tutorial`, from its server on: a test types what the page says, and answers one gate in Prefect's UI."""

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.browser.answering import NewerUi, Page
from tests.browser.conftest import TIMEOUT_MS
from tests.browser.pages import BrowserUser
from tests.guide import GUIDE
from tests.guide.typist import Typist

if TYPE_CHECKING:
    from playwright.async_api import Browser

TUTORIAL = (GUIDE / "tutorial.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]


async def test_the_deployed_part_works_as_written(typist: Typist, chromium: "Browser") -> None:
    runbook = TUTORIAL.partition("## 9. ")[2].partition("```console")[0]
    before, _, after = TUTORIAL.partition("## 10. ")[2].partition("## 11. ")
    typist.environment["PREFECT_UI_API_URL"] = f"http://127.0.0.1:{typist.port}/api"  # without it, pages ask port 4200
    await asyncio.to_thread(typist.type_page, runbook + before)
    gate = await asyncio.to_thread(typist.waiting_gate)
    context = await chromium.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB")
    context.set_default_timeout(TIMEOUT_MS)
    page = Page(f"http://127.0.0.1:{typist.port}/v2/runs/flow-run/{gate.flow_run_id}")
    await NewerUi(BrowserUser(context)).answer(page, "approve")
    await context.close()
    assert len(await asyncio.to_thread(typist.type_page, after)) == 5
