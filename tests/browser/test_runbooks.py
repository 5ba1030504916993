"""Tests of a deployed runbook in Prefect's UI: start a run in its form, approve the plan and answer its question."""

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests import installed
from tests.browser.pages import ANSWER_TITLE, BrowserUser
from tests.browser.running import Workspace, wait_until

INCIDENT = """\
name: incident-事故
description: Find out what is broken, ask what to do, and do it
inputs:
  site: {type: string, title: 站点, description: The site that is down, pattern: "^[a-z-]+$"}
  severity: {type: string, title: Severity, enum: [low, high], default: low}
  nodes: {type: integer, title: Nodes, default: 2, minimum: 1}
steps:
  - id: decide
    ask:
      question: "${{ inputs.site }} is down: switch to 备用站点?"
      fields:
        choice: {type: string, enum: [switch, wait], title: What now}
  - id: act
    tool_name: bash
    description: Do it
    parameters:
      command: echo "$SITE $SEVERITY $NODES $CHOICE" >> done.txt
      env:
        SITE: ${{ inputs.site }}
        SEVERITY: ${{ inputs.severity }}
        NODES: ${{ string(inputs.nodes) }}
        CHOICE: ${{ steps.decide.result.choice }}
"""

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.thorough]


@pytest_asyncio.fixture(loop_scope="session")
async def serve(workspace: Workspace) -> AsyncIterator[Callable[..., "RunbookServer"]]:
    """A function that serves a runbook from its own process, which ends after the test."""
    served: list[RunbookServer] = []

    def begin(document: str, *options: str) -> RunbookServer:
        path = workspace.write(f"runbook-{len(served)}.yaml", document)
        served.append(RunbookServer(workspace, path, options))
        return served[-1]

    yield begin
    for server in served:
        server.process.terminate()
        server.process.wait()


class RunbookServer:
    """A process of `plan serve`."""

    def __init__(self, workspace: Workspace, path: Path, options: tuple[str, ...]) -> None:
        self.out = path.with_suffix(".out")
        with self.out.open("wb") as out:
            command = [str(installed.folder / "plan"), "serve", str(path), *options]
            self.process = subprocess.Popen(
                command, cwd=workspace.folder, env=workspace.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    async def link(self) -> str:
        """Return the link to the form of the runbook."""

        def found() -> list[str]:
            return re.findall(r"\S*/deployments/deployment/\S+", self.out.read_text("utf-8"))

        await wait_until(lambda: bool(found()) or self.process.poll() is not None, lambda: self.out.read_text("utf-8"))
        assert found(), self.out.read_text("utf-8")
        return found()[0]


async def test_a_run_started_in_the_form_is_approved_and_its_question_answered(
    serve: Callable[..., RunbookServer], user: BrowserUser, workspace: Workspace
) -> None:
    served = serve(INCIDENT)
    older = await user.open_older_runbook(await served.link(), "runbook-v1")
    assert [text in older for text in ("站点", "The site that is down", "Severity", "Nodes")] == [True] * 4
    form = await user.open_runbook(await served.link())
    await form.fill({"站点": "web"})
    assert await form.choose("Severity", "high") == ["low", "high"]
    await form.screenshot("runbook-v2")
    await form.submit()
    page = await user.open_run(await flow_run_link(workspace, form.page.url))
    gate = await page.open_form()
    assert "Approve incident-事故?" in await gate.text()
    await gate.fill("approve", name="ana")
    await gate.submit()
    await page.wait_for_state("Running")
    answer = await (await page.open_gate_of("decide", verb="answer")).open_form(first=ANSWER_TITLE)
    assert "web is down: switch to 备用站点?" in await answer.text()
    await answer.fill("answer", name="ana")
    await answer.choose("What now", "switch")
    await answer.submit()
    await page.wait_for_state("Completed")
    await page.screenshot("runbook-v2-completed")
    assert (workspace.folder / "done.txt").read_text() == "web high 2 switch\n"


async def flow_run_link(workspace: Workspace, deployment: str) -> str:
    """Return the link to the page of the only run, once the run is recorded."""
    while not (runs := (await workspace.plan("runs", "--json")).lines):
        await asyncio.sleep(1)
    return f"{deployment.split('/', 3)[0]}//{deployment.split('/', 3)[2]}/v2/runs/flow-run/{runs[0]['flow_run_id']}"
