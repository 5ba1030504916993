"""Tests of the command line with a Prefect server."""

import json
import os
import signal
from pathlib import Path
from uuid import UUID

import pytest
from prefect import get_client
from prefect.logging.handlers import APILogWorker

from plan_adapter.engine.connection import Server, check_server
from tests.cli.conftest import Plan
from tests.cli.test_run import GREET, NEEDS_APPROVAL, TOOLS, document, step
from tests.cli.test_terminal import environment, piped

SAY = step("say", "say", parameters={"text": "写进日志"}, depends_on=["greet"])


def test_a_run_prints_the_link_to_its_flow_run_first(plan: Plan, prefect_server: Server) -> None:
    result = plan("run", document(GREET), *TOOLS, "--json")
    assert result.code == 0
    flow_run_id = result.run["flow_run_id"]
    assert result.lines[0]["flow_run_id"] == flow_run_id
    assert result.err.splitlines()[0] == check_server().run_url(flow_run_id)
    assert plan("runs", "--json").run["flow_run_id"] == flow_run_id
    assert plan("show", result.run["id"], "--json").run["flow_run_id"] == flow_run_id


async def test_the_flow_run_ends_in_prefect_with_the_status_of_the_run(prefect_server: Server) -> None:
    done = piped("run", document(GREET, step("b", "fail", depends_on=["greet"])), *TOOLS, "--json")
    assert done.returncode == 1
    run = json.loads(done.stdout.splitlines()[-1])
    async with get_client() as client:
        state = (await client.read_flow_run(UUID(run["flow_run_id"]))).state
    assert state is not None
    assert (state.type.value, state.name) == ("FAILED", "Partial")
    assert b"Traceback" not in done.stderr


def test_logs_come_from_prefect(plan: Plan, prefect_server: Server) -> None:
    run = plan("run", document(GREET, SAY), *TOOLS, "--json").run
    APILogWorker.drain_all(timeout=60)  # Prefect sends logs in batches
    for _ in range(200):  # and its server writes task runs a little later
        result = plan("logs", run["id"], "--json")
        assert result.err.endswith(f"lines from Prefect at {prefect_server.api_url}\n")
        if ("say", "写进日志") in [(line["step"], line["text"]) for line in result.lines]:
            return
    pytest.fail(result.out)


@pytest.mark.usefixtures("prefect_server")
def test_a_waiting_run_is_resumed_as_a_flow_run(plan: Plan) -> None:
    waiting = plan("run", document(GREET, **NEEDS_APPROVAL), *TOOLS, "--json", "--detach")
    assert (waiting.code, waiting.run["status"]) == (6, "pending_approval")
    resumed = plan("resume", waiting.run["id"], "--yes", "--json", *TOOLS)
    assert resumed.code == 0
    assert resumed.run["flow_run_id"] is not None


@pytest.mark.usefixtures("prefect_server")
def test_ctrl_c_cancels_the_flow_run_with_its_reason(plan: Plan) -> None:
    result = plan("run", document(step("a", "interrupt_and_wait")), *TOOLS, "--json")
    assert result.code == 130
    assert (result.run["status"], result.run["reason"]) == ("cancelled", "cancelled")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.thorough
async def test_a_signal_cancels_the_flow_run_with_its_reason(name: str, prefect_server: Server) -> None:
    plan = document(step("a", "signal_and_wait", parameters={"number": signal.Signals[name].value}))
    done = piped("run", plan, *TOOLS, "--json")
    assert (done.returncode, b"Traceback" in done.stderr) == (130, False)
    run = json.loads(done.stdout.splitlines()[-1])
    assert (run["status"], name in run["message"]) == ("cancelled", True)
    async with get_client() as client:
        state = (await client.read_flow_run(UUID(run["flow_run_id"]))).state
    assert state is not None
    assert (state.name, name in (state.message or "")) == ("Cancelled", True)


@pytest.mark.usefixtures("prefect_server")
def test_doctor_finds_no_problems(plan: Plan) -> None:
    result = plan("doctor")
    assert (result.code, "BAD" in result.out) == (0, False)


def test_an_unreachable_server_is_named_and_no_local_server_is_started(plan: Plan) -> None:
    elsewhere = environment(PREFECT_API_URL="http://127.0.0.1:9/api", PLAN_ADAPTER_LOCAL_SERVER="auto")
    done = piped("run", document(GREET), *TOOLS, env=elsewhere)
    assert done.returncode == 9
    assert b"http://127.0.0.1:9/api" in done.stderr
    assert b"Traceback" not in done.stderr
    assert not Path(os.environ["PLAN_ADAPTER_HOME"], "server").exists()
    assert plan("runs", "--json").lines == []


def test_a_dry_run_of_a_deployment_starts_no_server_and_says_what_it_cannot_know(home: Path) -> None:
    alone = environment(PLAN_ADAPTER_LOCAL_SERVER="auto")
    dry = piped("deploy", document(GREET), "--dry-run", *TOOLS, env=alone)
    assert (dry.returncode, dry.stdout.decode()) == (0, "试运行/试运行: checked\n")
    unknown = "no Prefect server is running: what would change there is not known, nor whether it has the work pool `plans`"
    assert unknown in dry.stderr.decode()
    printed = piped("deploy", document(GREET), "--dry-run", *TOOLS, "--json", env=alone).stdout
    assert json.loads(printed)["action"] == "checked"
    assert piped("deploy", document(step("a", "no_such_tool")), "--dry-run", env=alone).returncode == 2
    assert not (home / "server").exists()


@pytest.mark.thorough
def test_the_first_run_starts_a_local_server_the_next_one_reuses_it_and_down_stops_it(home: Path) -> None:
    alone = environment(PLAN_ADAPTER_LOCAL_SERVER="auto")
    try:
        first = piped("run", document(GREET), *TOOLS, "--json", env=alone)
        second = piped("run", document(GREET), *TOOLS, "--json", env=alone)
        doctor = piped("doctor", env=alone)
    finally:
        down = piped("down", env=alone)
    assert (first.returncode, second.returncode, doctor.returncode) == (0, 0, 0)
    started, link, *_ = first.stderr.decode().splitlines()
    assert started.startswith("started a local Prefect server: http://127.0.0.1:")
    assert "`plan down` stops it" in started
    assert json.loads(first.stdout.splitlines()[-1])["flow_run_id"] in link
    assert b"started a local" not in second.stderr
    assert b"Traceback" not in first.stderr + second.stderr
    assert (home / "server" / "server.log").exists()
    assert down.stdout == b"the local Prefect server is stopped\n"
    assert piped("down", env=alone).stdout == b"no local Prefect server was running\n"
