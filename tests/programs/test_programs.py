"""Runs each program of this folder as its users do: in a folder of its own, as the main program."""

import runpy
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent

PRINTED = {
    "greeting": ["completed Hello, Hello, Ana!!"],
    "runbook": ["touch Completed True"],
    "backend": ["pending_approval False", "refused: the content of the gate changed", "completed ana deployed 2.1", "['release']"],
    "shared_defaults": [
        "('step_1',)",
        "bo ana {'host': 'web-2', 'state': 'up'}",
        "True Restart one host, kindly",
        "Cancelled ['eve', 'bo', 'bo']",
    ],
    "follow": ["start hall", "start roof", "failed roof no signal", "end Partial", "21.5 True False False"],
    "own_approver": ["Completed change-system None", "Rejected None no change is planned"],
    "undo": ["Partial web-1 does not answer", "RolledBack set()"],
    "references": [
        "('step_1',) True",
        "['`steps.step_1.result` has no field `adress`']",
        "steps[2].parameters.text did you mean `address`?",
    ],
}


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_a_program_prints_what_it_should(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == PRINTED[name]


def test_every_program_is_run() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} - {"__init__", "test_programs"} == PRINTED.keys()
