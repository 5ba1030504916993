"""A deployed runbook in Prefect's UI: its form is filled in, its plan approved and its question answered."""

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.browser.pages import Browsing
from tests.browser.running import PLAN, Workplace, until

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
async def serve(workplace: Workplace) -> AsyncIterator[Callable[..., "Served"]]:
    """Serves a runbook from a process of its own, which is ended after the test."""
    served: list[Served] = []

    def begin(document: str, *options: str) -> Served:
        path = workplace.write(f"runbook-{len(served)}.yaml", document)
        served.append(Served(workplace, path, options))
        return served[-1]

    yield begin
    for one in served:
        one.process.terminate()
        one.process.wait()


class Served:
    """A process of `plan serve`."""

    def __init__(self, workplace: Workplace, path: Path, options: tuple[str, ...]) -> None:
        self.out = path.with_suffix(".out")
        with self.out.open("wb") as out:
            command = [*PLAN, "serve", str(path), *options]
            self.process = subprocess.Popen(
                command, cwd=workplace.folder, env=workplace.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    async def link(self) -> str:
        """Return the link to the form of the runbook, which a person opens."""

        def found() -> list[str]:
            return re.findall(r"\S*/deployments/deployment/\S+", self.out.read_text("utf-8"))

        await until(lambda: bool(found()) or self.process.poll() is not None, lambda: self.out.read_text("utf-8"))
        assert found(), self.out.read_text("utf-8")
        return found()[0]


async def test_its_form_is_filled_in_it_is_approved_and_its_question_answered(
    serve: Callable[..., Served], browsing: Browsing, workplace: Workplace
) -> None:
    served = serve(INCIDENT)
    older = await browsing.see_older_runbook(await served.link(), "runbook-v1")
    assert [text in older for text in ("站点", "The site that is down", "Severity", "Nodes")] == [True] * 4
    form = await browsing.open_runbook(await served.link())
    await form.fill({"站点": "web"})
    assert await form.choose("Severity", "high") == ["low", "high"]
    await form.see("runbook-v2")
    await form.submit()
    page = await browsing.open_run(await flow_run_link(workplace, form.page.url))
    gate = await page.open_form()
    assert "Approve incident-事故?" in await gate.text()
    await gate.fill("approve", name="ana")
    await gate.submit()
    await page.until_state("Running")
    answer = await (await page.open_gate_of("decide", verb="answer")).open_form()
    assert "web is down: switch to 备用站点?" in await answer.text()
    await answer.fill("answer", name="ana")
    await answer.choose("What now", "switch")
    await answer.submit()
    await page.until_state("Completed")
    await page.see("runbook-v2-completed")
    assert (workplace.folder / "done.txt").read_text() == "web high 2 switch\n"


async def flow_run_link(workplace: Workplace, deployment: str) -> str:
    """Return the link to the page of the only run, once it is recorded."""
    while not (runs := (await workplace.plan("runs", "--json")).lines):
        await asyncio.sleep(1)
    return f"{deployment.split('/', 3)[0]}//{deployment.split('/', 3)[2]}/v2/runs/flow-run/{runs[0]['flow_run_id']}"
