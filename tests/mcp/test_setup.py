"""Tests of the options of `plan mcp`, and of its errors before it serves."""

import importlib.util
import json

import pytest

from plan_adapter.cli.app import main
from tests.mcp.harness import Harness


def test_the_error_without_the_sdk_says_how_to_install_it(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "mcp" else found(name, *more))
    assert main(["mcp"]) == 2
    assert "pip install 'prefect-plan-adapter[mcp]'" in capsys.readouterr().err


def test_offered_operations_can_be_listed_without_a_server(harness: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--json", "--offer", "run_plan", "--offer", "show_run"]) == 0
    offered = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(offer["name"], offer["effect"]) for offer in offered] == [("run_plan", "write"), ("show_run", "read")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--offer", "approve_run"], "no such operation"),
        (["--name", "a/b"], "use letters"),
        (["--allow-tool", "http_gte"], "did you mean `http_get`"),
    ],
)
def test_mistakes_are_reported_before_anything_is_served(
    harness: Harness, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["mcp", "--json", *arguments]) == 2
    assert message in capsys.readouterr().err
