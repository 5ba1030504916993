"""The examples in the help of verbs that need a Prefect server."""

from collections.abc import Callable, Iterator, Mapping

import pytest
from prefect import get_client
from prefect.blocks.notifications import SlackWebhook
from pydantic import SecretStr

from plan_adapter.engine.connection import Server
from tests.agent.conftest import forget_model_servers
from tests.agent.server import says, scripted
from tests.cli.conftest import Plan
from tests.cli.drafting import configure
from tests.cli.scenes import at_a_step, at_its_gate, failed, files, ran, stored
from tests.cli.test_examples import ON_SERVER, words_of
from tests.cli.test_terminal import Terminal, terminals
from tests.engine.test_notifications import applied

__all__ = ["forget_model_servers", "terminals"]

pytestmark = pytest.mark.usefixtures("prefect_server")


def deployed(plan: Plan) -> Mapping[str, str]:
    """A deployed runbook."""
    stored(plan)
    ran(plan, 0, "deploy", "restart.yaml", "--yes")
    return {}


@pytest.fixture
def channel() -> Iterator[None]:
    """A block that posts to Slack; nothing is posted here."""
    SlackWebhook(url=SecretStr("http://127.0.0.1:9/hook")).save("oncall", overwrite=True)
    yield
    with get_client(sync_client=True) as client:
        for automation in applied():
            client.delete_automation(automation.id)
    SlackWebhook.delete("oncall")


SCENES: Mapping[str, Callable[[Plan], Mapping[str, str]]] = {
    "run": files,
    "deploy": deployed,
    "gates": at_its_gate,
    "resume": failed,
    "rollback": at_a_step,
    "doctor": files,
    "reconcile": at_its_gate,
    "notify": files,
}

SERVING = [command for command in ON_SERVER if command.startswith("plan serve ")]


@pytest.mark.parametrize("command", [command for command in ON_SERVER if command not in SERVING])
def test_an_example_runs(command: str, plan: Plan, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if command.startswith("plan notify "):
        request.getfixturevalue("channel")
    words = words_of(command, SCENES[command.split()[1]](plan))
    with scripted(says({})) as server:
        configure(monkeypatch, server.url)
        ran(plan, 0, *words)


@pytest.mark.parametrize("command", SERVING)
def test_an_example_serves_until_ctrl_c(command: str, plan: Plan, terminals: list[Terminal], prefect_server: Server) -> None:
    files(plan)
    terminal = Terminal(*words_of(command, {}))
    terminals.append(terminal)
    terminal.wait_for("Ctrl-C stops\n")
    terminal.process.send_signal(2)
    assert terminal.end() == 130
