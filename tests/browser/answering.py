"""The three ways to answer a form in Prefect: its API, as both UIs use it, and each of the UIs."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from pydantic import JsonValue

from plan_adapter.model.approvals import GateKind
from plan_adapter.model.language import tr
from tests.browser.pages import ANSWER_TITLE, BrowserUser
from tests.engine.gates import resume, wait_for_state

NO_ANSWER_HERE = "an answer as described above (this page takes none)"
DECISION_TITLES: dict[GateKind, str] = {"approval": "Decision", "question": ANSWER_TITLE, "outcome": "Your answer"}


def decision_title(kind: GateKind) -> str:
    """Return the title of the field of the decision, in the language that is spoken."""
    return tr(DECISION_TITLES[kind])


@dataclass(frozen=True)
class Page:
    """The page of a flow run that shows a form: `url` in the newer UI, and the name of the state that it shows."""

    url: str
    kind: GateKind = "approval"
    state: str = "Paused"

    @property
    def flow_run_id(self) -> UUID:
        """The id of the flow run."""
        return UUID(self.url.rpartition("/")[2])


class Respondent(Protocol):
    """Someone who answers forms."""

    async def answer(self, page: Page, decision: str, **fields: str) -> None:
        """Give this decision under the name of ana. `fields` are those of a question, by title."""
        ...

    async def press_resume(self, page: Page) -> None:
        """Press Resume on a page whose form takes no answer, and return once the server has refused that."""
        ...


@dataclass(frozen=True)
class ApiRespondent:
    """Answers through the API. `names` maps the titles of a question's fields to their names."""

    names: dict[str, str]

    async def answer(self, page: Page, decision: str, **fields: str) -> None:
        """Send the answer, again until the form exists."""
        await wait_for_state(page.flow_run_id, page.state)
        values: dict[str, JsonValue] = {"decision": decision, "approver": "ana"}
        result = await resume(page.flow_run_id, {**values, **{self.names[title]: value for title, value in fields.items()}})
        assert result.status.value == "ACCEPT", getattr(result.details, "reason", result)

    async def press_resume(self, page: Page) -> None:
        """Send an empty answer, and one with a field that no form has."""
        for run_input in (None, {}, {NO_ANSWER_HERE: "x"}):
            result = await resume(page.flow_run_id, run_input)
            assert result.status.value == "REJECT", result
            assert NO_ANSWER_HERE in str(getattr(result.details, "reason", "")), result


@dataclass(frozen=True)
class NewerUi:
    """Answers in the newer UI, V2."""

    user: BrowserUser

    async def answer(self, page: Page, decision: str, **fields: str) -> None:
        """Fill in the form and submit it."""
        run = await self.user.open_run(page.url)
        form = await run.open_form(state=page.state, first=decision_title(page.kind))
        await form.choose(decision_title(page.kind), decision)
        for title, value in fields.items():
            await form.choose(title, value)
        await form.field(tr("Your name")).fill("ana")
        await form.submit()
        await run.page.close()

    async def press_resume(self, page: Page) -> None:
        """Open the form and press its button."""
        run = await self.user.open_run(page.url)
        assert f"'{NO_ANSWER_HERE}' is a required property" in await run.press_resume(state=page.state)
        await run.page.close()


@dataclass(frozen=True)
class OlderUi:
    """Answers in the older UI, V1, which `prefect server start` opens."""

    user: BrowserUser

    async def answer(self, page: Page, decision: str, **fields: str) -> None:
        """Fill in the form and submit it."""
        run = await self.user.open_run(page.url)
        form = await run.open_older_form(first=decision_title(page.kind))
        await form.choose(decision_title(page.kind), decision)
        for title, value in fields.items():
            await form.choose(title, value)
        await form.write(tr("Your name"), "ana")
        await form.submit()
        await form.page.close()
        await run.page.close()

    async def press_resume(self, page: Page) -> None:
        """Open the form and press its button."""
        run = await self.user.open_run(page.url)
        await run.press_older_resume()
        await run.page.close()
