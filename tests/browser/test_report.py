"""Tests of the report of a run in Chromium: its first screen, wide and narrow, light and dark, in each language."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plan_adapter.model.language import LANGUAGES, Language
from tests.browser.pages import is_in_viewport
from tests.cli.conftest import Plan, home, plan
from tests.cli.test_show_run import restart

if TYPE_CHECKING:
    from playwright.async_api import Browser

__all__ = ["home", "plan"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCREENS = {"wide": (1440, 900, "light"), "narrow": (480, 900, "dark")}
FIRST: dict[Language, tuple[str, ...]] = {
    "en": ("RolledBack: rolling-restart", "connect to web-3 port 8080 refused", "every change was undone", "starts a new one"),
    "zh": ("已回滚: rolling-restart", "connect to web-3 port 8080 refused", "所有更改都已撤销", "开始新的运行"),
}
"""What a person reads first: the outcome, the cause, what is left behind, and what to type."""

FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
"""Whether the page does not scroll sideways. Pictures and wide tables scroll on their own."""


@pytest.fixture
def reports(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Language, Path]:
    """The report of a run that failed at its third node and was rolled back, in each language."""
    restart(plan, rolls_back=True)
    found = dict[Language, Path]()
    for language in LANGUAGES:
        monkeypatch.setenv("PLAN_ADAPTER_LANGUAGE", language)
        found[language] = tmp_path / f"run-{language}.html"
        assert plan("report", "last", "--output", found[language]).code == 0
    return found


@pytest.mark.parametrize("screen", SCREENS)
async def test_the_first_screen_of_a_report_says_what_happened_and_what_to_do(
    screen: str, reports: dict[Language, Path], chromium: "Browser", request: pytest.FixtureRequest
) -> None:
    width, height, scheme = SCREENS[screen]
    context = await chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, locale="en-GB")  # type: ignore[arg-type]
    folder: str | None = request.config.getoption("--screenshots", default=None)
    try:
        for language, path in reports.items():
            page, asked = await context.new_page(), list[str]()
            page.on("request", lambda made, asked=asked: asked.append(made.url))
            await page.goto(path.as_uri())
            assert asked == [path.as_uri()]
            for text in FIRST[language]:
                assert await is_in_viewport(page.get_by_text(text).first), (language, text)
            assert await page.evaluate(FITS), language
            assert await page.locator("svg").count() == 2, language  # the picture and the timeline
            ink = "rgb(34, 34, 34)" if scheme == "light" else "rgb(232, 232, 232)"
            assert await page.evaluate("getComputedStyle(document.body).color") == ink
            if folder is not None:
                await page.screenshot(path=Path(folder) / f"report-{language}-{screen}.png", full_page=True)
            await page.close()
    finally:
        await context.close()
