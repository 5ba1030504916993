"""Tests of `plan serve`: it deploys runbooks without a work pool and starts their runs itself."""

from pathlib import Path
from uuid import uuid4

import pytest
from prefect.settings import PREFECT_RUNNER_POLL_FREQUENCY, temporary_settings

from plan_adapter.engine.connection import Server
from plan_adapter.engine.deployments import poll_seconds
from tests.cli.conftest import Plan
from tests.cli.test_deploy import COMMAND, SECRET_INPUTS, deployed, in_prefect, runbook
from tests.cli.test_run import GREET, TOOLS, document
from tests.cli.test_terminal import Terminal, terminals

__all__ = ["terminals"]

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def name() -> str:
    """Return a unique name, because all tests share the server."""
    return f"serve-{uuid4().hex[:8]}"


def served(terminals: list[Terminal], *arguments: str | Path) -> Terminal:
    """Start `plan serve` and wait until it serves its runbooks."""
    terminal = Terminal("serve", *arguments)
    terminals.append(terminal)
    terminal.wait_for("Ctrl-C stops\n")
    return terminal


def test_a_folder_and_a_file_are_served_without_a_work_pool_until_ctrl_c(plan: Plan, terminals: list[Terminal], name: str) -> None:
    folder = Path(name)
    folder.mkdir()
    for number in range(2):
        runbook(f"{name}-{number}", folder=folder)
    terminal = served(terminals, folder, runbook(f"{name}-2", tags=["web"]))
    assert [f"{name}-{number}/{name}-{number}: created" in terminal.shown for number in range(3)] == [True] * 3
    assert "serving 3 runbooks; Ctrl-C stops" in terminal.shown
    assert terminal.shown.count("form: http") == 3
    terminal.process.send_signal(2)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.shown
    found = in_prefect(f"{name}-2")
    assert (found.work_pool_name, found.tags, found.paused, found.entrypoint is not None) == (None, ["web"], False, True)
    again = served(terminals, folder / f"{name}-0.yaml")
    assert f"{name}-0/{name}-0: unchanged" in again.shown
    again.process.terminate()
    assert again.end() == 0
    assert again.shown.endswith("Ctrl-C stops\n"), "no warning and no traceback"


def test_serve_names_only_the_secrets_that_it_does_not_have(terminals: list[Terminal], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_SECRET_NODE_LOGIN", "Kolibri+7/vögel=&x")
    terminal = served(terminals, runbook(name, COMMAND, inputs=SECRET_INPUTS))
    assert "runs need the secret `health-token`, which this process does not have: `plan guide secrets`" in terminal.shown
    assert "this shell sets" not in terminal.shown


def test_a_runbook_is_served_on_a_schedule(terminals: list[Terminal], name: str) -> None:
    path = document(GREET, name=name, inputs={"who": {"default": "世界"}})
    served(terminals, path, "--cron", "0 3 * * *", "--time-zone", "Asia/Shanghai", *TOOLS)
    (entry,) = in_prefect(name).schedules
    assert (entry.schedule.cron, entry.schedule.timezone) == ("0 3 * * *", "Asia/Shanghai")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "serve what? `plan serve RUNBOOK`"),
        (["FILE", "FILE"], "several plans have the name"),
        (["FILE", "--concurrency-limit", "0"], "--concurrency-limit must be at least 1"),
        (["no-such-plan"], "no-such-plan"),
        (["no-such-plan.yaml"], "no-such-plan.yaml: error[unreadable]: the file does not exist"),
        (["FILE", "other", "--cron", "0 3 * * *"], "a schedule is for one runbook"),
    ],
    ids=["nothing", "twice", "no limit", "unknown", "no file", "a schedule for two"],
)
def test_invalid_arguments_are_refused_with_the_reason(plan: Plan, name: str, arguments: list[str], reason: str) -> None:
    path = runbook(name)
    result = plan("serve", *(path if word == "FILE" else word for word in arguments))
    assert (result.code, reason in result.err, result.out) == (2, True, ""), result.err


def test_a_deployment_with_a_work_pool_is_left_to_its_workers(plan: Plan, name: str) -> None:
    path = runbook(name)
    deployed(plan, path)
    result = plan("serve", path)
    assert result.code == 2
    assert f"workers of the pool `plans` run `{name}/{name}`: start one with `prefect worker start --pool plans`" in result.err
    assert f"`plan deploy --delete {name}`" in result.err
    assert in_prefect(name).work_pool_name == "plans"


def test_runs_that_are_due_are_looked_for_every_second_unless_prefect_is_told_otherwise() -> None:
    assert poll_seconds() == 1
    with temporary_settings({PREFECT_RUNNER_POLL_FREQUENCY: 10}):
        assert poll_seconds() == 10


@pytest.mark.thorough
def test_a_run_of_a_served_runbook_is_followed_to_its_end(plan: Plan, terminals: list[Terminal], name: str, prefect_server: Server) -> None:
    served(terminals, document(GREET, name=name, run_name="greet ${{ inputs.who }}", inputs={"who": {}}), *TOOLS)
    result = plan("run", name, "--on-server", "--input", "who=世界", "--json")
    assert (result.code, result.run["status"], result.run["steps"][0]["result"]) == (0, "completed", {"text": "你好, 世界"})
    assert result.err.splitlines()[0] == prefect_server.run_url(result.run["flow_run_id"])
