"""`Harness`: one store, used by an agent through MCP and by a person directly."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plan_adapter import ExecutionPlan, PlanRun, PlanStore
from plan_adapter.agent import OpenAIModel
from plan_adapter.cli.mcp.offers import EFFECTS, Offers, Runbook
from plan_adapter.cli.mcp.operations import Agent, Operations
from plan_adapter.cli.mcp.run_process import resume_run
from plan_adapter.cli.mcp.workers import Workers
from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.gate import request_of
from plan_adapter.local.settings import Settings
from plan_adapter.model.approvals import Decision
from plan_adapter.store import RunContext, load_plan
from tests.mcp.some_tools import deploy, look, registry

SERVER = "the-server-of-the-harness"
IMPORTS = ("tests.mcp.some_tools:registry",)

DEPLOY = """
description: 部署一个版本
name: deploy
options: {require_approval: false, auto_approve: true}
inputs: {version: {type: string, pattern: "^[0-9.]+$", description: Which one}}
steps:
  - {id: deploy, tool_name: deploy, description: Deploy, parameters: {version: "${{ inputs.version }}"}}
"""


class RecordingWorkers(Workers):
    """Records the runs whose workers should start, and starts none. The test executes the runs itself."""

    started: list[str] = []  # noqa: RUF012  # each harness sets its own

    def start(self, run_id: str) -> None:
        """Record the run."""
        self.started.append(run_id)


@dataclass
class Harness:
    """One folder and one store, with methods for what an agent, a person and a worker do."""

    folder: Path
    started: list[str] = field(default_factory=list[str])

    @property
    def url(self) -> str:
        """Return the URL of the store that the settings name."""
        return Settings().store_url

    @property
    def deployed(self) -> list[str]:
        """Return the versions that `deploy` has deployed."""
        path = self.folder / "deployed.txt"
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    @asynccontextmanager
    async def agent(
        self,
        *,
        names: Sequence[str] = tuple(EFFECTS),
        plans: Sequence[str] = (),
        context: RunContext | None = None,
        model: OpenAIModel | None = None,
        name: str = "agent",
        secrets: Sequence[str] = (),
        offline: bool = True,
        is_new: bool = False,
    ) -> AsyncIterator["AgentClient"]:
        """Yield an agent whose SDK client is connected to a server in this process.

        Without an agent id, all servers of a harness are one, unless `is_new`.
        """
        from mcp import Client

        from plan_adapter.cli.mcp.server import plan_server

        context = context or RunContext()
        who = Agent(name, context if context.agent_id or is_new else replace(context, agent_id=SERVER))
        workers = RecordingWorkers(Settings().home, who.by, IMPORTS, offline=offline)
        workers.started = self.started
        async with PlanStore(self.url, tenant_id=who.context.tenant_id) as store:
            operations = Operations(store, type(registry)([deploy, look]), who, workers, Settings(), model, secrets)
            offers = Offers(operations, names, [Runbook(source, registry) for source in plans])
            async with Client(plan_server(offers)) as client:
                yield AgentClient(client)

    async def save(self, document: str, *, name: str | None = None) -> ExecutionPlan:
        """Save a plan, as a person does."""
        plan = load_plan(document)
        async with PlanStore(self.url) as store:
            await store.save(plan, author="ana", name=name)
        return plan

    async def answer(self, run_id: str, decision: Decision = "approve") -> None:
        """Answer every open gate of a run, as a person does."""
        async with PlanStore(self.url) as store:
            for gate in await store.gates.find(run_id=run_id):
                request = request_of(await store.gates.get(gate.id))
                await store.gates.answer(gate.id, answer_to(request, decision=decision, by="ana", known_by="os_user"))

    async def execute(self, run_id: str, *, by: str = "mcp/agent", offline: bool = True) -> PlanRun:
        """Execute a run in this process, as its worker would, and return it."""
        await resume_run(run_id, by, IMPORTS, offline=offline)
        return await self.run(run_id)

    async def run(self, run_id: str) -> PlanRun:
        """Return the current state of a run."""
        async with PlanStore(self.url) as store:
            return await store.run(run_id)


@dataclass
class AgentClient:
    """Calls the tools of the server as an agent."""

    client: Any

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer of a tool. Fails if it is an error."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.structured_content
        return result.structured_content

    async def refused(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the error of a tool. Fails if the call succeeds."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        return result.structured_content
