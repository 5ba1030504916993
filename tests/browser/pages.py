"""Page objects for Prefect's two UIs: the page of a flow run, the forms of its gates, and the form of a runbook.

The tests act in the newer UI, V2. In the older one, V1, which `prefect server start` opens, they only look at forms.
Elements are found by role and label where possible, otherwise by the CSS classes of the UIs' own components.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Locator, Page, Route


TITLES = {"name": "Your name", "note": "Note", "code": "One-time code"}
"""The titles of the fields other than the decision, by the names that tests use."""

ANSWER_TITLE = "Answer or reject"
"""The title of the field of the decision in the form of a question."""

SERVICE_UNAVAILABLE = 503
"""The answer of Prefect's server on SQLite while other requests write."""

MAX_TRIES = 20
"""How often an action is tried. Opening a form takes a second or more."""

OPTION_MS = 5000.0
"""How long an option may take to become stable before its list is opened again."""


@dataclass
class BrowserUser:
    """A user with a browser context. `blocked` has the URLs of the requests that pages sent to other hosts."""

    context: "BrowserContext"
    screenshots: Path | None = None
    blocked: list[str] = field(default_factory=list[str])

    async def block_request(self, route: "Route") -> None:
        """Block and record a request to another host."""
        self.blocked.append(route.request.url)
        await route.abort()

    async def open_run(self, url: str) -> "RunPage":
        """Open the page of a flow run in a new tab."""
        page = await self.context.new_page()
        await page.goto(url)
        return RunPage(page, self)

    async def open_runbook(self, url: str) -> "RunbookForm":
        """Open the form of a runbook in the newer UI."""
        page = await self.context.new_page()
        await page.goto(url.replace("/deployments/", "/v2/deployments/", 1))
        await page.get_by_role("button", name="Submit").wait_for()
        return RunbookForm(page, self)

    async def open_older_runbook(self, url: str, name: str) -> str:
        """Open the form of a runbook in the older UI, save a screenshot, and return its text."""
        page = await self.context.new_page()
        await page.goto(url)
        await page.get_by_role("button", name="Submit").wait_for()
        await self.save_screenshot(page, name)
        return await page.locator("form").first.inner_text()

    async def save_screenshot(self, part: "Page | Locator", name: str) -> None:
        """Save a screenshot of a page, or of a part of it, if there is a folder for screenshots."""
        if self.screenshots is None:
            return
        self.screenshots.mkdir(parents=True, exist_ok=True)
        await part.screenshot(path=self.screenshots / f"{name}.png", animations="disabled")


@dataclass(frozen=True)
class RunPage:
    """The page of a flow run."""

    page: "Page"
    user: BrowserUser

    async def wait_for_state(self, name: str) -> None:
        """Return once the page shows this state; the page polls every few seconds."""
        await self.page.locator("[data-slot=badge]").get_by_text(name, exact=True).first.wait_for()

    async def open_form(self, *, state: str = "Paused", first: str = "Decision") -> "GateForm":
        """Open the gate's form, whose first field has the title `first`, with Resume in the menu of a run in `state`."""
        form = await self._open_dialog(state)
        # The fields and the text above them load one after the other.
        await form.field(first).wait_for()
        await form.description.get_by_role("heading").first.wait_for()
        return form

    async def press_resume(self, *, state: str) -> str:
        """Press the button of a form that takes no answer, and return the server's error message."""
        form = await self._open_dialog(state)
        await form.description.get_by_text("cannot be answered on this page").wait_for()
        return await form.submit_invalid()

    async def _open_dialog(self, state: str) -> "GateForm":
        await self.page.bring_to_front()  # menus do not open in a background tab
        await self.wait_for_state(state)
        await self.page.get_by_role("button", name="Open menu").click()
        await self.page.get_by_role("menuitem", name="Resume").click()
        return GateForm(self.page, self.page.get_by_role("dialog", name="Resume Flow Run"), self.user)

    async def open_older_form(self, *, first: str = "Decision", width: int | None = None) -> "OlderForm":
        """Open the gate's form, which has a field with the title `first`, on the same page of the older UI, in a new tab.

        `width` is that of a narrow window, which has the button in a menu.
        """
        form = await self._open_older_dialog(width)
        await form.field(first).wait_for()
        await form.description.get_by_role("heading").first.wait_for()
        return form

    async def press_older_resume(self) -> None:
        """Press the button of a form that takes no answer in the older UI, and check that it keeps the form open and sends nothing."""
        form, sent = await self._open_older_dialog(), list[str]()
        form.page.on("request", lambda request: sent.append(request.url) if request.url.endswith("/resume") else None)
        await form.description.get_by_text("cannot be answered on this page").wait_for()
        await form.dialog.get_by_role("button", name="Submit").click()
        await form.dialog.get_by_role("button", name="Close", exact=True).click()
        assert sent == []
        await form.page.close()

    async def _open_older_dialog(self, width: int | None = None) -> "OlderForm":
        page = await self.user.context.new_page()
        if width is not None:
            await page.set_viewport_size({"width": width, "height": 900})
        await page.goto(self.page.url.replace("/v2/", "/"))
        if width is None:
            await page.get_by_role("button", name="Resume").click()
        else:
            await page.locator(".p-icon-button-menu").first.click()
            await page.locator(".p-overflow-menu-item").get_by_text("Resume").click()
        return OlderForm(page, page.locator(".p-modal__card"), self.user)

    async def open_next_form(self, previous: str) -> "GateForm":
        """Reload until the text of the form differs from `previous`, and return the form."""
        for _ in range(MAX_TRIES):
            await self.page.reload()
            form = await self.open_form()
            if await form.text() != previous:
                return form
        raise AssertionError(f"the form still says:\n{previous}")

    async def open_gate_of(self, step: str, *, verb: str = "approve") -> "RunPage":
        """Open the page of a step's gate from the list of subflow runs, in a new tab."""
        await self.page.get_by_role("tab", name="Subflow Runs").click()
        # The name of the flow, `approve east`, is also a link. The run is named `approve east of release`.
        link = self.page.get_by_role("link", name=re.compile(rf"^{verb} {re.escape(step)} of "))
        return await self.user.open_run(await link.evaluate("link => link.href"))

    async def screenshot(self, name: str) -> None:
        """Save a screenshot of the page."""
        await self.user.save_screenshot(self.page, name)


@dataclass(frozen=True)
class GateForm:
    """The form of an open gate."""

    page: "Page"
    dialog: "Locator"
    user: BrowserUser

    @property
    def description(self) -> "Locator":
        """The text above the fields of the form."""
        return self.dialog.locator(".prose")

    def field(self, title: str) -> "Locator":
        """The field with this title, which has a suffix if the field is optional."""
        listbox = self.dialog.get_by_role("button", name=f"Select {title}")
        return listbox.or_(self.dialog.get_by_role("textbox", name=re.compile(rf"^{re.escape(title)}( \(Optional\))?$")))

    async def text(self) -> str:
        """Return the description with its details expanded."""
        await self.expand_details()
        return await self.description.inner_text()

    async def expand_details(self) -> None:
        """Expand the details of the description."""
        collapsed = self.description.locator("details:not([open]) > summary")
        if await collapsed.count():
            await collapsed.click()

    async def top(self) -> str:
        """Return the first lines of the description."""
        return "\n".join([line for line in (await self.text()).splitlines() if line.strip()][:4])

    async def items(self) -> list[str]:
        """Return the items of all lists of the description."""
        await self.expand_details()
        return await self.description.locator("li").all_inner_texts()

    async def overflowing(self) -> list[str]:
        """Return the parts that are wider than their box and need horizontal scrolling."""
        wide = """text => [text.parentElement, ...text.querySelectorAll('pre')]
            .filter(part => part.scrollWidth > part.clientWidth)
            .map(part => `${part.tagName}, ${part.scrollWidth} of ${part.clientWidth} px: ${part.innerText}`)"""
        return await self.description.evaluate(wide)

    @property
    def decision(self) -> "Locator":
        """The field of the decision."""
        return self.field("Decision")

    async def choices(self, title: str) -> list[str]:
        """Return the options of the field `title`."""
        await self.field(title).click()
        options = self.page.get_by_role("option")
        await options.first.wait_for()
        found = await options.all_inner_texts()
        await self.page.keyboard.press("Escape")
        await options.first.wait_for(state="hidden")
        return found

    async def fill(self, decision: str, **values: str) -> None:
        """Choose the decision and fill in other fields, named as in TITLES."""
        await self.page.bring_to_front()
        await self.choose(ANSWER_TITLE if decision == "answer" else "Decision", decision)
        for name, value in values.items():
            title = TITLES[name]
            if await self.field(title).get_attribute("aria-haspopup") == "listbox":
                await self.choose(title, value)
            else:
                await self.field(title).fill(value)

    async def submit(self) -> None:
        """Press Resume, again if Prefect's server is busy, until the form closes. Any other error fails the test."""
        await self.page.bring_to_front()
        for _ in range(MAX_TRIES):
            async with self.page.expect_response(re.compile("/resume$")) as answered:
                await self.dialog.get_by_role("button", name="Resume", exact=True).click()
            answer = await answered.value
            if answer.status != SERVICE_UNAVAILABLE:
                break
        assert answer.ok, f"{answer.status}: {await answer.text()}"
        await self.dialog.wait_for(state="hidden")

    async def submit_invalid(self) -> str:
        """Press Resume, check that the form stays open, and return the server's error message."""
        await self.dialog.get_by_role("button", name="Resume", exact=True).click()
        message = self.page.locator("[data-sonner-toast]").first
        await message.wait_for()
        assert await self.dialog.is_visible()
        return await message.inner_text()

    async def screenshot(self, name: str) -> None:
        """Save screenshots of the form: as it opens, at full length, and at full length in dark mode."""
        if self.user.screenshots is None:
            return
        await self.user.save_screenshot(self.page, f"{name}-1-opened")
        await self.expand_details()
        usual = self.page.viewport_size
        assert usual is not None
        await self.description.evaluate("text => text.parentElement.scrollTo(0, 0)")
        length = await self.description.evaluate("text => text.parentElement.scrollHeight")
        # The dialog takes four fifths of the window's height.
        await self.page.set_viewport_size({"width": usual["width"], "height": int((length + 250) / 0.8)})
        for scheme in ("light", "dark"):
            await self.page.emulate_media(color_scheme=scheme)
            await self.user.save_screenshot(self.dialog, f"{name}-2-{scheme}")
        await self.page.emulate_media(color_scheme="light")
        await self.page.set_viewport_size(usual)

    async def choose(self, title: str, option: str) -> None:
        """Choose an option of the field `title`."""
        from playwright.async_api import TimeoutError

        for _ in range(MAX_TRIES):
            await self.field(title).click()
            try:
                return await self.page.get_by_role("option", name=option, exact=True).click(timeout=OPTION_MS)
            except TimeoutError:  # the list was redrawn and closed while it opened
                continue
        raise AssertionError(f"{option} cannot be chosen under {title}")


@dataclass(frozen=True)
class OlderForm:
    """The form of an open gate in the older UI."""

    page: "Page"
    dialog: "Locator"
    user: BrowserUser

    @property
    def description(self) -> "Locator":
        """The text above the fields of the form, in a box of its own."""
        return self.dialog.locator(".markdown-renderer").first

    def field(self, title: str) -> "Locator":
        """The field with this title."""
        return self.dialog.locator(".schema-form-property").filter(has_text=title)

    @property
    def decision(self) -> "Locator":
        """The field of the decision."""
        return self.field("Decision").locator(".p-select")

    async def choose(self, title: str, option: str) -> None:
        """Choose an option of the field `title`. A click opens the list only sometimes, a key always."""
        await self.page.bring_to_front()
        await self.field(title).locator(".p-select-button__control").press("ArrowDown")
        await self.page.locator(".p-select-option").filter(has_text=re.compile(rf"^{re.escape(option)}$")).click()

    async def write(self, title: str, text: str) -> None:
        """Write `text` into the field `title`."""
        await self.field(title).locator("textarea").fill(text)

    async def submit(self) -> None:
        """Press Submit, again if Prefect's server is busy, and check that the server accepts the answer."""
        for _ in range(MAX_TRIES):
            async with self.page.expect_response(re.compile("/resume$")) as answered:
                await self.dialog.get_by_role("button", name="Submit").click()
            answer = await answered.value
            if answer.status != SERVICE_UNAVAILABLE:
                break
        assert answer.ok, f"{answer.status}: {await answer.text()}"
        assert (await answer.json())["status"] == "ACCEPT", await answer.text()

    async def screenshot(self, name: str) -> None:
        """Save a screenshot of the form as it opens."""
        await self.user.save_screenshot(self.page, f"{name}-1-opened")


async def is_in_viewport(part: "Locator") -> bool:
    """Whether `part` is neither outside the window nor scrolled away nor covered, judged by its middle and corners."""
    return await part.evaluate(
        """async part => {
            await Promise.all(document.getAnimations().map(animation => animation.finished.catch(() => null)))
            const boxes = [...part.getClientRects()]
            const points = boxes.flatMap(box => [box.left + 4, (box.left + box.right) / 2, box.right - 4].flatMap(
                x => [box.top + 3, (box.top + box.bottom) / 2, box.bottom - 3].map(y => [x, y])))
            return boxes.length > 0 && points.every(([x, y]) => part.contains(document.elementFromPoint(x, y)))
        }"""
    )


async def mermaid_texts(page: "Page") -> list[str]:
    """Return the node texts of the Mermaid diagrams of a page, once there is one."""
    drawn = page.locator("svg[id^=mermaid]")
    await drawn.first.wait_for(state="attached")
    return await drawn.evaluate_all("pictures => pictures.map(picture => picture.querySelector('.nodes').textContent)")


@dataclass(frozen=True)
class RunbookForm:
    """The form of a deployed runbook, which starts a run."""

    page: "Page"
    user: BrowserUser

    async def fill(self, values: dict[str, str]) -> None:
        """Fill in text fields by title."""
        for title, value in values.items():
            await self.page.get_by_role("textbox", name=title).fill(value)

    async def choose(self, title: str, value: str) -> list[str]:
        """Choose `value` in the field `title`, and return its options."""
        await self.page.get_by_role("button", name=f"Select {title}").click()
        options = self.page.get_by_role("option")
        await options.first.wait_for()
        found = await options.all_inner_texts()
        await options.filter(has_text=value).click()
        return [text.strip() for text in found]

    async def submit(self) -> None:
        """Start the run, and check that the server accepts it."""
        async with self.page.expect_response(re.compile("/create_flow_run$")) as answered:
            await self.page.get_by_role("button", name="Submit").click()
        answer = await answered.value
        assert answer.ok, f"{answer.status}: {await answer.text()}"

    async def screenshot(self, name: str) -> None:
        """Save a screenshot of the page."""
        await self.user.save_screenshot(self.page, name)
