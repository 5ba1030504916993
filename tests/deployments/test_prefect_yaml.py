"""Tests of deployments/prefect.yaml: every deployment names an existing flow and valid parameters."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.flows import load_flow_from_entrypoint

from plan_adapter.documents import is_test_file

ROOT = Path(__file__).parents[2]
DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]

REQUIRED = {"any-plan": {"plan": "x"}, "from-words": {"task": "x"}, "in-words": {"goal": "x"}}
"""The parameters that the person who starts a run must give."""


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_a_deployment_passes_valid_parameters_to_its_flow(deployment: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found: Flow[..., Any] = load_flow_from_entrypoint(deployment["entrypoint"])
    parameters = {**deployment["parameters"], **REQUIRED.get(deployment["name"], {})}
    assert found.validate_parameters(parameters).items() >= parameters.items()
    assert deployment["description"]


def test_every_runbook_and_every_flow_has_a_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    saved = {deployment["name"]: str(deployment["build"]) for deployment in DEPLOYMENTS if "build" in deployment}
    paths = {path.stem: path for path in Path("deployments/runbooks").iterdir() if not is_test_file(path)}
    assert {name: f"plan save {path}" in saved.get(name, "") for name, path in paths.items()} == dict.fromkeys(saved, True)
    by_path = {load_flow_from_entrypoint(f"{path}:{path.stem}").name for path in Path("flows").glob("*.py")}
    assert by_path == {load_flow_from_entrypoint(deployment["entrypoint"]).name for deployment in DEPLOYMENTS}
