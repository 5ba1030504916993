"""Tests of deployments/compose.yaml: everything that it names exists, and its commands run as written."""

import json
import re
import shlex
from collections.abc import Iterator

import pytest
from prefect.settings import Settings as PrefectSettings
from prefect.settings.legacy import _get_valid_setting_names as prefect_setting_names

from plan_adapter.local.settings import Settings
from tests.cases import for_each
from tests.deployments.composed import COMPOSE, EXEC, FILE, ROOT, SERVICES, VARIABLE, Composed, composed

SERVICE_NAMES = sorted(SERVICES)
KNOWN = {*prefect_setting_names(PrefectSettings), *(f"PLAN_ADAPTER_{name.upper()}" for name in Settings.model_fields)}
POSTGRES_VARIABLES = {"POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB"}


@for_each(name=SERVICE_NAMES)
def test_a_service_has_a_pinned_image_known_settings_and_checked_dependencies(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[\w-]+:\d+\.\d+(\.\d+)?(-\w+)?", service["image"])
    assert set(service["environment"]) <= (POSTGRES_VARIABLES if name == "database" else KNOWN)
    for needed, how in service.get("depends_on", {}).items():
        assert how["condition"] == "service_completed_successfully" or "healthcheck" in SERVICES[needed]
    named = {volume.partition(":")[0] for volume in service.get("volumes", []) if not volume.startswith(".")}
    assert named <= set(COMPOSE["volumes"])
    assert {config["source"] for config in service.get("configs", [])} <= set(COMPOSE["configs"])


def test_every_required_variable_is_in_the_env_file() -> None:
    asked = set(VARIABLE.findall(FILE.read_text(encoding="utf-8")))
    offered = (ROOT / "deployments" / "compose.env").read_text(encoding="utf-8")
    assert asked == set(re.findall(r"^(\w+)=$", offered, re.MULTILINE))
    assert set(re.findall(r"COPY (.*) \S+$", SERVICES["server"]["build"]["dockerfile_inline"], re.MULTILINE)) == {
        "pyproject.toml README.md LICENSE requirements.lock",
        "plan_adapter",
    }


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    with composed(tmp_path_factory.mktemp("composed")) as found:
        yield found


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_commands_in_its_header_deploy_and_run_a_runbook(services: Composed) -> None:
    services.start_worker("worker-1")
    commands = EXEC.findall(FILE.read_text(encoding="utf-8"))
    assert [command.split()[1] for command in commands] == ["deploy", "run"]
    for command in commands:
        done = services.run(*shlex.split(services.here(command)))
        assert done.returncode == 0, done.stdout + done.stderr + (services.folder / "worker-1.log").read_text()
    listed = services.run("plan", "runs", "--json")
    assert [json.loads(line)["status"] for line in listed.stdout.splitlines()] == ["completed"], "in the store on PostgreSQL"
