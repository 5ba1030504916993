"""Tests of `plan run NAME --on-server`: it starts a deployed runbook and follows the run on a worker."""

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import yaml
from prefect import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled, Crashed

from plan_adapter.cli.servers import worker_command
from plan_adapter.engine.connection import Server
from tests.cli.conftest import Plan
from tests.cli.test_terminal import Terminal, piped, terminals
from tests.workers import worker

__all__ = ["terminals"]

TEST = {
    "id": "test",
    "tool_name": "run_command",
    "description": "Test it",
    "parameters": {"argv": ["test", "${{ inputs.one }}", "=", "${{ inputs.other }}"]},
}

RELATIVE = """\
name: {name}-relative
description: Deploy what is in a folder
options: {{require_approval: false}}
steps:
  - {{id: script, tool_name: run_command, description: Run a script, parameters: {{argv: [./deploy.sh]}}}}
finally:
  - {{id: count, tool_name: sql_query, description: Count, parameters: {{url: "sqlite:///shop.db", statement: SELECT 1}}}}
"""

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def name() -> str:
    """Return a unique name, because all tests share the server."""
    return f"同-{uuid4().hex[:8]}"


def deploy(plan: Plan, name: str, *arguments: str, **fields: Any) -> dict[str, Any]:
    """Deploy a runbook that compares two inputs and return the JSON object that `plan deploy` prints."""
    inputs = {"one": {"title": "左"}, "other": {}}
    document = {"name": name, "description": "Compare", "inputs": inputs, "options": {"require_approval": False}, "steps": [TEST], **fields}
    Path("same.yaml").write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    result = plan("deploy", "same.yaml", "--yes", "--json", *arguments)
    assert result.code == 0, result.err
    return result.lines[0]


def in_prefect(flow_run_id: str) -> FlowRun:
    """Return the flow run from Prefect."""

    async def read() -> FlowRun:
        async with get_client() as client:
            return await client.read_flow_run(UUID(flow_run_id))

    return asyncio.run(read())


def test_a_detached_run_starts_with_its_inputs_and_those_of_the_deployment(plan: Plan, name: str, prefect_server: Server) -> None:
    made = deploy(plan, name, "--pool", name, "--input", "other=x")
    result = plan("run", name, "--on-server", "--input", "one=甲", "--detach", "--json")
    assert result.code == 0
    flow_run_id = result.run["flow_run_id"]
    page = prefect_server.run_url(flow_run_id)
    made_by = {"deployment": f"{name}/{name}", "deployment_id": made["id"]}
    assert result.run == {"type": "flow_run", **made_by, "flow_run_id": flow_run_id, "run_url": page}
    assert in_prefect(flow_run_id).parameters == {"one": "甲", "other": "x"}
    missing = f"no worker has polled the pool `{name}` in the last minute: `{worker_command(name, prefect_server)}` starts one"
    assert result.err.splitlines() == [page, missing]


def test_an_invalid_start_is_refused_with_the_reason(plan: Plan, name: str) -> None:
    deploy(plan, name)
    refused = [
        (["NAME"], "no value for `one`"),
        (["NAME", "--input", "two=2"], "the plan has no input `two`"),
        (["no-such-runbook"], "Prefect has no deployment `no-such-runbook/no-such-runbook`: `plan deploy` makes one"),
        (["NAME", "--yes"], "--yes is for a run of this process"),
        (["NAME", "--offline"], "--offline is for a run of this process"),
        (["NAME", "--tools", "tests.cli.some_tools:greet"], "--tools is for a run of this process"),
    ]
    for arguments, reason in refused:
        result = plan("run", "--on-server", *(name if word == "NAME" else word for word in arguments))
        assert (result.code, reason in result.err, result.out) == (2, True, ""), result.err


@pytest.mark.parametrize(
    ("state", "code", "line"),
    [
        pytest.param(Cancelled(message="不需要"), 4, "Cancelled: 不需要", id="cancelled"),
        pytest.param(Crashed(message="no such image"), 1, "Crashed: no such image", id="crashed", marks=pytest.mark.thorough),
    ],
)
def test_the_command_ends_if_the_flow_run_ends_before_it_starts(
    plan: Plan, terminals: list[Terminal], name: str, state: Any, code: int, line: str
) -> None:
    flow_run_id, terminal = start_and_follow(plan, terminals, name)

    async def end() -> None:
        async with get_client() as client:
            await client.set_flow_run_state(UUID(flow_run_id), state, force=True)

    asyncio.run(end())
    assert terminal.end() == code
    assert f"flow run {flow_run_id}: {line}" in terminal.shown


def test_ctrl_c_stops_following_but_not_the_run(plan: Plan, terminals: list[Terminal], name: str) -> None:
    flow_run_id, terminal = start_and_follow(plan, terminals, name)
    terminal.process.send_signal(2)
    assert terminal.end() == 130
    assert f"the run continues on the server; `prefect flow-run cancel {flow_run_id}` cancels it" in terminal.shown
    state = in_prefect(flow_run_id).state
    assert state is not None
    assert state.is_scheduled()


def start_and_follow(plan: Plan, terminals: list[Terminal], name: str) -> tuple[str, Terminal]:
    """Start a flow run that no worker picks up; return its id and the terminal that follows it."""
    deploy(plan, name, "--pool", name)
    terminal = Terminal("run", name, "--on-server", "--input", "other=x")
    terminals.append(terminal)
    terminal.wait_for("左 (one): text\none: ")
    terminal.type("甲\n")
    terminal.wait_for(" starts one\n")
    flow_run_id = terminal.shown.partition("/runs/flow-run/")[2].split()[0]
    return flow_run_id, terminal


def test_a_first_deployment_on_ones_own_server_runs_with_the_commands_as_printed(plan: Plan, name: str, tmp_path: Path) -> None:
    deploy(plan, name, "--pool", name)
    Path("relative.yaml").write_text(RELATIVE.format(name=name), encoding="utf-8")
    deployed = plan("deploy", "relative.yaml", "--pool", name)
    assert "write absolute paths for `./deploy.sh` (steps[0].parameters.argv[0]), `shop.db` (finally[0].parameters.url)" in deployed.err
    command = re.findall("`(.* worker start .*)` starts a worker", deployed.err)[0]
    (tmp_path / "elsewhere").mkdir()
    with started(command, folder=tmp_path / "elsewhere"):
        done = plan("run", name, "--on-server", "--input", "one=甲", "--input", "other=甲")
        assert (done.code, done.err.count("completed")) == (0, 1), done.err
        failed = plan("run", f"{name}-relative", "--on-server", "--json").run
    assert failed["status"] == "failed"
    assert re.search(r"`./deploy.sh` cannot be started: no command of this name is found in /\S+", failed["steps"][0]["error"])
    assert re.search(r"the database file /\S+/shop.db does not exist", failed["steps"][1]["error"])


@pytest.mark.thorough
def test_a_worker_that_lacks_the_store_fails_the_run_and_says_what_to_set(plan: Plan, name: str, tmp_path: Path) -> None:
    deploy(plan, name, "--pool", name, "--job-variable", "env.PLAN_ADAPTER_STORE_HOST=elsewhere")
    another = (f"env.PLAN_ADAPTER_DATABASE_URL=sqlite:///{tmp_path / 'another.db'}", "env.PLAN_ADAPTER_ALLOW_LOCAL_STORE=true")
    deploy(plan, f"{name}2", "--pool", name, "--job-variable", another[0], "--job-variable", another[1])
    command = re.findall("`(.* worker start .*)` starts a worker", plan("deploy", f"{name}2", "--pool", name).err)[0]
    with started(command, folder=tmp_path):
        for runbook, reason in (
            (name, "the store is a file of the machine elsewhere, and this worker runs on "),
            (f"{name}2", "the runbook was deployed with another store: set PLAN_ADAPTER_DATABASE_URL for the worker"),
        ):
            failed = plan("run", runbook, "--on-server", "--input", "one=甲", "--input", "other=甲")
            assert (failed.code, reason in failed.out, ": Failed: " in failed.out) == (1, True, True), failed.out


@contextmanager
def started(command: str, *, folder: Path) -> Generator[None]:
    """Run `command` as typed in a terminal without settings of Prefect or this package, until the block ends."""
    settings = ("PREFECT_API_URL", "PLAN_ADAPTER_HOME", "PLAN_ADAPTER_DATABASE_URL")
    environment = {name: value for name, value in os.environ.items() if name not in settings} | {"PREFECT_WORKER_QUERY_SECONDS": "1"}
    with (folder / "worker.log").open("w") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec env {command}"], cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=60)


@pytest.mark.thorough
def test_a_run_on_a_worker_is_followed_to_its_end(plan: Plan, name: str, prefect_server: Server, tmp_path: Path) -> None:
    deploy(plan, name, "--pool", name)
    with worker(prefect_server, pool=name, log=tmp_path / "worker.log", environment={}):
        done = piped("run", name, "--on-server", "--input", "one=甲", "--input", "other=甲")
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.decode().startswith(f"{name}: Completed in ")
        assert f" of {name}: 1 step\ntest: started\ntest: completed in " in done.stderr.decode()
        failed = plan("run", name, "--on-server", "--input", "one=甲", "--input", "other=乙", "--json")
        assert (failed.code, failed.run["status"], failed.run["steps"][0]["status"]) == (1, "failed", "failed")
        assert [line.get("event") for line in failed.lines] == ["run_started", "step_started", "step_failed", None]
    assert "no worker has polled" not in failed.err


@pytest.mark.thorough
def test_steps_and_gates_of_a_run_on_a_worker_are_shown_in_order(
    plan: Plan, terminals: list[Terminal], name: str, prefect_server: Server, tmp_path: Path
) -> None:
    steps = [{"id": at, "tool_name": "run_command", "description": at, "parameters": {"argv": ["true"]}} for at in ("first", "then")]
    steps[1] |= {"depends_on": ["first"], "requires_approval": True}
    deploy(plan, name, "--pool", name, steps=steps, inputs={})
    terminal = Terminal("run", name, "--on-server", "--json")
    terminals.append(terminal)
    with worker(prefect_server, pool=name, log=tmp_path / "worker.log", environment={}):
        terminal.wait_for('"gate_opened"')
        (gate,) = plan("gates", "--json").lines
        assert plan("approve", gate["run_id"], "--step", "then", "--yes").code == 0
        assert terminal.end() == 0
    events = [json.loads(line) for line in terminal.shown.splitlines() if line.startswith('{"type": "event"')]
    assert [(event["event"], event.get("step", {}).get("id")) for event in events] == [
        ("run_started", None),
        ("step_started", "first"),
        ("step_completed", "first"),
        ("gate_opened", "then"),
        ("gate_answered", "then"),
        ("step_started", "then"),
        ("step_completed", "then"),
    ]
