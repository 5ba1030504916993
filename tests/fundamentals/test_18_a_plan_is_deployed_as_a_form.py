"""`plan deploy` makes a plan a deployment of Prefect: a form with its inputs, which runs exactly the version that was deployed."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from prefect import get_client
from prefect.client.schemas.responses import DeploymentResponse
from prefect.flows import load_flow_from_entrypoint

from plan_adapter.cli.app import main

TOOLS = "tests.cli.some_tools:greet"
RUNBOOK = """\
name: greet-a-guest
description: {description}
inputs:
  who: {{type: string, description: The guest, pattern: "^[a-z]+$"}}
options: {{require_approval: false}}
steps:
  - id: greet
    tool_name: greet
    parameters: {{who: "${{{{ inputs.who }}}}"}}
outputs: {{text: "${{{{ steps.greet.result.text }}}}"}}
"""


def deploy(description: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Write the runbook, type `plan deploy` and return what it prints."""
    Path("greet.yaml").write_text(RUNBOOK.format(description=description), encoding="utf-8")
    assert main(["deploy", "greet.yaml", "--tools", TOOLS, "--yes", "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def deployment() -> DeploymentResponse:
    """Return the deployment as Prefect has it."""

    async def read() -> DeploymentResponse:
        async with get_client() as client:
            return await client.read_deployment_by_name("greet-a-guest/greet-a-guest")

    return asyncio.run(read())


@pytest.mark.usefixtures("prefect_server")
def test_the_inputs_are_a_form_and_each_deployment_is_one_version(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_TOOLS", TOOLS)
    assert deploy("Greet a guest", capsys)["action"] == "created"
    assert deploy("Greet a guest", capsys)["action"] == "unchanged"
    first = deployment()
    assert first.parameter_openapi_schema is not None
    assert first.parameter_openapi_schema["properties"]["who"] == {
        "type": "string", "pattern": "^[a-z]+$", "description": "The guest. Pattern `^[a-z]+$`.", "title": "who", "position": 0,
    }  # fmt: skip

    assert deploy("Greet a guest again", capsys)["changes"] == ["version", "description"]
    assert first.entrypoint is not None
    old = load_flow_from_entrypoint(first.entrypoint)
    new = load_flow_from_entrypoint(deployment().entrypoint or "")
    assert (old.description, new.description) == ("Greet a guest", "Greet a guest again")
    assert asyncio.run(old(who="ana")).outputs == {"text": "你好, ana"}

    assert main(["deploy", "--delete", "greet-a-guest"]) == 0
