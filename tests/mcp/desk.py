"""`Desk`: the agent's side and the person's side of one store."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plan_adapter import ExecutionPlan, OpenAIModel, PlanRun, PlanStore, RunContext, load_plan
from plan_adapter.approvals import Decision
from plan_adapter.cli.mcp.offers import EFFECTS, Offers, Runbook
from plan_adapter.cli.mcp.operations import Agent, Operations
from plan_adapter.cli.mcp.worker import resume_run
from plan_adapter.cli.mcp.workers import Workers
from plan_adapter.gates.approval import answer_to
from plan_adapter.gates.gate import request_of
from plan_adapter.settings import Settings
from tests.mcp.some_tools import deploy, look, registry

IMPORTS = ("tests.mcp.some_tools:registry",)

DEPLOY = """
description: 部署一个版本
name: deploy
options: {require_approval: false, auto_approve: true}
inputs: {version: {type: string, pattern: "^[0-9.]+$", description: Which one}}
steps:
  - {id: deploy, tool_name: deploy, description: Deploy, parameters: {version: "${{ inputs.version }}"}}
"""


class CountedWorkers(Workers):
    """Workers that are noted and not started: the test goes on with the run itself, where it wants to."""

    started: list[str] = []  # noqa: RUF012  # each desk sets its own

    def start(self, run_id: str) -> None:
        """Note the run."""
        self.started.append(run_id)


@dataclass
class Desk:
    """One store, one folder, one agent."""

    folder: Path
    started: list[str] = field(default_factory=list[str])

    @property
    def url(self) -> str:
        """The URL of the store that the settings name."""
        return Settings().store_url

    @property
    def deployed(self) -> list[str]:
        """What was deployed in the world."""
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
    ) -> AsyncIterator["Talk"]:
        """Yield a client of the SDK, connected to a server in this process."""
        from mcp import Client

        from plan_adapter.cli.mcp.server import plan_server

        who = Agent(name, context or RunContext())
        workers = CountedWorkers(Settings().home, who.by, IMPORTS, offline=offline)
        workers.started = self.started
        async with PlanStore(self.url, tenant_id=who.context.tenant_id) as store:
            operations = Operations(store, type(registry)([deploy, look]), who, workers, Settings(), model, secrets)
            offers = Offers(operations, names, [Runbook(source, registry) for source in plans])
            async with Client(plan_server(offers)) as client:
                yield Talk(client)

    async def save(self, document: str, *, name: str | None = None) -> ExecutionPlan:
        """Save a plan, as a person does."""
        plan = load_plan(document)
        async with PlanStore(self.url) as store:
            await store.save(plan, author="ana", name=name)
        return plan

    async def answer(self, run_id: str, decision: Decision = "approve") -> None:
        """Answer at every open gate of a run, as a person does."""
        async with PlanStore(self.url) as store:
            for gate in await store.gates.find(run_id=run_id):
                request = request_of(await store.gates.get(gate.id))
                await store.gates.answer(gate.id, answer_to(request, decision=decision, by="ana", known_by="os_user"))

    async def work(self, run_id: str, *, by: str = "mcp/agent", offline: bool = True) -> PlanRun:
        """Do what the process of a run does, in this one."""
        await resume_run(run_id, by, IMPORTS, offline=offline)
        return await self.run(run_id)

    async def run(self, run_id: str) -> PlanRun:
        """Return a run as it is now."""
        async with PlanStore(self.url) as store:
            return await store.run(run_id)


@dataclass
class Talk:
    """What an agent says, and what it is told."""

    client: Any

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return what a tool answers; fails where that is an error."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.structured_content
        return result.structured_content

    async def refused(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the error that a tool answers with."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        return result.structured_content
