"""Tests of plans whose hosts are in an inventory: each command reads it, beside the document."""

from pathlib import Path

import pytest

from tests.cli.conftest import Plan
from tests.cli.test_run import TOOLS, document

YAML = "web:\n  hosts:\n    web-1: {ansible_host: 10.0.0.1}\n    主机:\n"
INI = "[web]\nweb-1 ansible_host=10.0.0.1\n主机\n"
GREET_ALL = {
    "id": "greet",
    "description": "Greet every host",
    "tool_name": "greet",
    "parameters": {"who": "${{ item.host }}"},
    "for_each": "${{ hosts('web') }}",
}


@pytest.fixture(params=["inventory.yaml", "inventory.ini"])
def path(request: pytest.FixtureRequest) -> Path:
    """The document of a plan, in another folder, beside its inventory."""
    Path("ops").mkdir()
    Path("ops", request.param).write_text(YAML if request.param.endswith("yaml") else INI, encoding="utf-8")
    written = document(GREET_ALL, hosts=request.param, options={"require_approval": False})
    return Path(written).rename(Path("ops", "plan.json"))


def test_every_command_reads_the_inventory(plan: Plan, path: Path) -> None:
    assert plan("validate", path, *TOOLS).code == 0
    assert "   - on web-1, 主机\n" in plan("preview", path, *TOOLS).out
    assert plan("save", path, *TOOLS).code == 0
    run = plan("run", path, "--offline", "--json", "--on", "主机", *TOOLS).run
    assert (run["status"], run["inputs"]) == ("completed", {"on": "主机"})
    stored = plan("run", "store:试运行", "--offline", "--json", *TOOLS).run
    assert stored["status"] == "completed"


def test_a_sub_plan_has_its_own_inventory(plan: Plan, path: Path) -> None:
    outer = document({"id": "all", "plan": str(path)}, options={"require_approval": False})
    assert plan("run", outer, "--offline", "--json", *TOOLS).run["status"] == "completed"


def test_a_missing_inventory_is_a_problem_of_the_document(plan: Plan) -> None:
    path = document(GREET_ALL, hosts="missing.yaml", options={"require_approval": False})
    result = plan("validate", path, *TOOLS)
    assert (result.code, "at hosts: `missing.yaml`: the file does not exist" in result.out) == (2, True), result
