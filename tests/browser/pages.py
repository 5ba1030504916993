"""What a person sees and does in Prefect's two UIs: the page of a flow run, and the form of the gate at which it waits.

All is done in the newer one, V2; of the older one, V1, which `prefect server start` opens, what a person sees of a form.
Roles and labels find things, as a person does; the few classes that are used beside them are those of the UIs' own components.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Locator, Page, Route


TITLES = {"name": "Your name", "note": "Note", "code": "One-time code"}
"""The fields beside the decision, by the words that tests use for them."""

SERVICE_UNAVAILABLE = 503
"""What Prefect's server on SQLite answers while others write."""

LOOKS = 20
"""How often a person looks whether a form has changed; each takes a second or more."""

OPTION_MS = 5000.0
"""How long an option may take to stand still before its list is opened anew."""


@dataclass
class Browsing:
    """A person at a browser; `refused` is what pages asked of other hosts."""

    context: "BrowserContext"
    screenshots: Path | None = None
    refused: list[str] = field(default_factory=list[str])

    async def refuse(self, route: "Route") -> None:
        """Answer nothing to a request that leaves this machine."""
        self.refused.append(route.request.url)
        await route.abort()

    async def open_run(self, url: str) -> "RunPage":
        """Follow the link of a flow run, in a tab of its own."""
        page = await self.context.new_page()
        await page.goto(url)
        return RunPage(page, self)

    async def keep(self, shown: "Page | Locator", name: str) -> None:
        """Keep a picture of a page, or of a part of it, if pictures are kept."""
        if self.screenshots is None:
            return
        self.screenshots.mkdir(parents=True, exist_ok=True)
        await shown.screenshot(path=self.screenshots / f"{name}.png", animations="disabled")


@dataclass(frozen=True)
class RunPage:
    """The page of a flow run."""

    page: "Page"
    browsing: Browsing

    async def until_state(self, name: str) -> None:
        """Return once the page says that the run is in this state; it looks every few seconds."""
        await self.page.locator("[data-slot=badge]").get_by_text(name, exact=True).first.wait_for()

    async def open_form(self) -> "GateForm":
        """Choose Resume in the menu of a paused run."""
        await self.page.bring_to_front()  # menus of a tab behind another one do not open
        await self.until_state("Paused")
        await self.page.get_by_role("button", name="Open menu").click()
        await self.page.get_by_role("menuitem", name="Resume").click()
        form = GateForm(self.page, self.page.get_by_role("dialog", name="Resume Flow Run"), self.browsing)
        # The fields and the text above them come one after the other.
        await form.field("Decision").wait_for()
        await form.description.get_by_role("heading").first.wait_for()
        return form

    async def open_older_form(self) -> "OlderForm":
        """Press Resume on the same page of the older UI, in a tab of its own."""
        page = await self.browsing.context.new_page()
        await page.goto(self.page.url.replace("/v2/", "/"))
        await page.get_by_role("button", name="Resume").click()
        form = OlderForm(page, page.locator(".p-modal__card"), self.browsing)
        await form.decision.wait_for()
        await form.description.get_by_role("heading").first.wait_for()
        return form

    async def open_next_form(self, read: str) -> "GateForm":
        """Look again until the form says something else than what was `read` in the one before."""
        for _ in range(LOOKS):
            await self.page.reload()
            form = await self.open_form()
            if await form.text() != read:
                return form
        raise AssertionError(f"the form still says:\n{read}")

    async def open_gate_of(self, step: str, *, verb: str = "approve") -> "RunPage":
        """Open the page of a step's gate, in a tab of its own, from the list of subflow runs."""
        await self.page.get_by_role("tab", name="Subflow Runs").click()
        # The flow's own name, `approve east`, is a link, too; the run is called `approve east of release`.
        link = self.page.get_by_role("link", name=re.compile(rf"^{verb} {re.escape(step)} of "))
        return await self.browsing.open_run(await link.evaluate("link => link.href"))

    async def see(self, name: str) -> None:
        """Keep a picture of the page."""
        await self.browsing.keep(self.page, name)


@dataclass(frozen=True)
class GateForm:
    """The form of an open gate."""

    page: "Page"
    dialog: "Locator"
    browsing: Browsing

    @property
    def description(self) -> "Locator":
        """What the form says above its fields."""
        return self.dialog.locator(".prose")

    def field(self, title: str) -> "Locator":
        """What is filled in or chosen under `title`; a field that may be left empty has more behind it."""
        listbox = self.dialog.get_by_role("button", name=f"Select {title}")
        return listbox.or_(self.dialog.get_by_role("textbox", name=re.compile(rf"^{re.escape(title)}( \(Optional\))?$")))

    async def text(self) -> str:
        """Return the description as a person reads it who unfolds the details."""
        await self.unfold()
        return await self.description.inner_text()

    async def unfold(self) -> None:
        """Open the details, which are folded at first."""
        folded = self.description.locator("details:not([open]) > summary")
        if await folded.count():
            await folded.click()

    async def top(self) -> str:
        """Return what is read first: some lines."""
        return "\n".join([line for line in (await self.text()).splitlines() if line.strip()][:4])

    async def items(self) -> list[str]:
        """Return the items of all lists of the description."""
        await self.unfold()
        return await self.description.locator("li").all_inner_texts()

    async def out_of_sight(self) -> list[str]:
        """Return what does not fit into the width that it has: a part of it can be read only by scrolling aside."""
        wide = """text => [text.parentElement, ...text.querySelectorAll('pre')]
            .filter(part => part.scrollWidth > part.clientWidth)
            .map(part => `${part.tagName}, ${part.scrollWidth} of ${part.clientWidth} px: ${part.innerText}`)"""
        return await self.description.evaluate(wide)

    @property
    def decision(self) -> "Locator":
        """The field that is filled in first."""
        return self.field("Decision")

    async def choices(self, title: str) -> list[str]:
        """Return what may be chosen under `title`."""
        await self.field(title).click()
        options = self.page.get_by_role("option")
        await options.first.wait_for()
        found = await options.all_inner_texts()
        await self.page.keyboard.press("Escape")
        await options.first.wait_for(state="hidden")
        return found

    async def fill(self, decision: str, **values: str) -> None:
        """Choose the decision, and choose or write what stands under other titles, named as in TITLES."""
        await self.page.bring_to_front()
        await self.choose("Decision", decision)
        for name, value in values.items():
            title = TITLES[name]
            if await self.field(title).get_attribute("aria-haspopup") == "listbox":
                await self.choose(title, value)
            else:
                await self.field(title).fill(value)

    async def submit(self) -> None:
        """Press Resume, again where Prefect's server says that it is busy, and see the form go; what else it says fails the test."""
        await self.page.bring_to_front()
        for _ in range(LOOKS):
            async with self.page.expect_response(re.compile("/resume$")) as answered:
                await self.dialog.get_by_role("button", name="Resume", exact=True).click()
            answer = await answered.value
            if answer.status != SERVICE_UNAVAILABLE:
                break
        assert answer.ok, f"{answer.status}: {await answer.text()}"
        await self.dialog.wait_for(state="hidden")

    async def submit_in_vain(self) -> str:
        """Press Resume, see that the form stays, and return what the server found wrong."""
        await self.dialog.get_by_role("button", name="Resume", exact=True).click()
        said = self.page.locator("[data-sonner-toast]").first
        await said.wait_for()
        assert await self.dialog.is_visible()
        return await said.inner_text()

    async def see(self, name: str) -> None:
        """Keep pictures of the form: as it opens, its whole length, the same in the dark."""
        if self.browsing.screenshots is None:
            return
        await self.browsing.keep(self.page, f"{name}-1-opened")
        await self.unfold()
        usual = self.page.viewport_size
        assert usual is not None
        await self.description.evaluate("text => text.parentElement.scrollTo(0, 0)")
        length = await self.description.evaluate("text => text.parentElement.scrollHeight")
        # The dialog takes four fifths of the window's height.
        await self.page.set_viewport_size({"width": usual["width"], "height": int((length + 250) / 0.8)})
        for scheme in ("light", "dark"):
            await self.page.emulate_media(color_scheme=scheme)
            await self.browsing.keep(self.dialog, f"{name}-2-{scheme}")
        await self.page.emulate_media(color_scheme="light")
        await self.page.set_viewport_size(usual)

    async def choose(self, title: str, option: str) -> None:
        """Choose an option under `title`."""
        from playwright.async_api import TimeoutError

        for _ in range(LOOKS):
            await self.field(title).click()
            try:
                return await self.page.get_by_role("option", name=option, exact=True).click(timeout=OPTION_MS)
            except TimeoutError:  # the list was drawn anew, and closed, while it was opened
                continue
        raise AssertionError(f"{option} cannot be chosen under {title}")


@dataclass(frozen=True)
class OlderForm:
    """The form of an open gate in the older UI."""

    page: "Page"
    dialog: "Locator"
    browsing: Browsing

    @property
    def description(self) -> "Locator":
        """What the form says above its fields, in a box of its own."""
        return self.dialog.locator(".markdown-renderer").first

    @property
    def decision(self) -> "Locator":
        """The field that is filled in first."""
        return self.dialog.locator(".schema-form-property").filter(has_text="Decision").locator(".p-select")

    async def see(self, name: str) -> None:
        """Keep a picture of the form as it opens."""
        await self.browsing.keep(self.page, f"{name}-1-opened")


async def is_in_sight(part: "Locator") -> bool:
    """Whether nothing of `part` is outside of the window, scrolled away or covered, as far as its middle and corners tell."""
    return await part.evaluate(
        """async part => {
            await Promise.all(document.getAnimations().map(animation => animation.finished.catch(() => null)))
            const boxes = [...part.getClientRects()]
            const points = boxes.flatMap(box => [box.left + 4, (box.left + box.right) / 2, box.right - 4].flatMap(
                x => [box.top + 3, (box.top + box.bottom) / 2, box.bottom - 3].map(y => [x, y])))
            return boxes.length > 0 && points.every(([x, y]) => part.contains(document.elementFromPoint(x, y)))
        }"""
    )


async def pictures_of(page: "Page") -> list[str]:
    """Return what the Mermaid pictures of a page say, once there is one."""
    drawn = page.locator("svg[id^=mermaid]")
    await drawn.first.wait_for(state="attached")
    return await drawn.evaluate_all("pictures => pictures.map(picture => picture.querySelector('.nodes').textContent)")
