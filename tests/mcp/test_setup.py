"""What `plan mcp` is given, and what it says where that cannot be served."""

import importlib.util
import json

import pytest

from plan_adapter.cli.app import main
from tests.mcp.desk import Desk


def test_without_the_sdk_it_says_how_to_install_it(desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "mcp" else found(name, *more))
    assert main(["mcp"]) == 2
    assert "pip install 'prefect-plan-adapter[mcp]'" in capsys.readouterr().err


def test_what_would_be_offered_can_be_listed_without_it(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--json", "--offer", "run_plan", "--offer", "show_run"]) == 0
    offered = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(offer["name"], offer["effect"]) for offer in offered] == [("run_plan", "write"), ("show_run", "read")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--offer", "approve_run"], "no such operation"),
        (["--name", "a/b"], "use letters"),
        (["--tool", "http_gte"], "did you mean `http_get`"),
    ],
)
def test_mistakes_are_reported_before_anything_is_served(
    desk: Desk, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["mcp", "--json", *words]) == 2
    assert said in capsys.readouterr().err
