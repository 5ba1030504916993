"""A desk with tools that post and look, and what the tests of all agent libraries share: the store, and where the tools leave traces."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import PlanStore, ToolRegistry, tool
from plan_adapter.errors import ToolError, UnknownOutcomeError
from plan_adapter.gates import ApprovalRequest, CallbackApprover

SECRET = "sk-0123456789abcdef"


@dataclass
class Desk:
    """Tools for an agent, and the options with which it gets them."""

    store: PlanStore
    posted: list[str] = field(default_factory=list[str])

    @property
    def tools(self) -> ToolRegistry:
        """A tool that writes, one that reads, and one that needs a permission."""

        @tool
        def post(text: str, channel: str | None = None) -> dict[str, int]:
            """Post a message.

            Args:
                text: What to post.
                channel: Where; by default everywhere.
            """
            del channel
            self.posted.append(text)
            if text == "fails":
                raise ToolError(f"the channel refuses the key {SECRET}")
            if text == "lost":
                raise UnknownOutcomeError("the connection broke")
            return {"id": len(self.posted)}

        @tool(effect="read")
        def look(city: str) -> str:
            """Look up a city."""
            return f"{city} knows {SECRET}"

        @tool(effect="read", permissions=["allow_purge"])
        def purge() -> str:
            """Purge everything."""
            self.posted.append("purged")
            return "purged"

        return ToolRegistry([post, look, purge])

    @property
    def poster(self) -> ToolRegistry:
        """Only the tool that writes."""
        return ToolRegistry([tool for tool in self.tools if tool.name == "post"])

    def options(self, answer: Callable[[ApprovalRequest], Any] | None = None) -> dict[str, Any]:
        """Return the options of an agent whose calls `ana` answers: she rejects what says so, and approves all else."""
        return {"agent": "concierge", "store": self.store, "offline": True, "approver": CallbackApprover(answer or _decide, by="ana")}


def _decide(request: ApprovalRequest) -> Any:
    return ("reject", "not on a Friday") if "reject me" in request.text else True


@pytest.fixture
async def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLAN_ADAPTER_MODEL_KEY", SECRET)
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as opened:
        yield Desk(opened)
