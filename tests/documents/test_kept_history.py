"""Tests of plans that another program wrote: `load_plan` keeps what they record about an execution, as `plan import` does."""

import json
from pathlib import Path
from typing import Any

import pytest

from plan_adapter.documents import read_document
from plan_adapter.documents.recorded_runs import MEANING, import_plan
from plan_adapter.store import dump_plan, load_plan

STEP = {"Id": "s1", "ToolName": "bash", "Description": "D", "Parameters": {"command": "true"}, "Status": "completed", "Result": "secret!"}
PASCAL: dict[str, Any] = {
    "ID": "p1", "Description": "From Aster", "UserApproved": True, "ApprovedBy": "安娜", "Status": "completed", "Steps": [STEP]
}  # fmt: skip
SNAKE = {"description": "From Aster", "user_approved": True, "metadata": {"history": "mine"}, "steps": [{**STEP, "Status": "failed"}]}


@pytest.mark.parametrize("document", [PASCAL, SNAKE], ids=["PascalCase", "history is taken"])
def test_a_loaded_plan_has_the_history_that_an_import_gives_it(tmp_path: Path, document: dict[str, Any]) -> None:
    file = tmp_path / "aster.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    loaded = load_plan(file)
    read, problems = read_document(file.read_text(encoding="utf-8"), file=str(file))
    assert read is not None and problems == []
    imported = import_plan(read, source=file.name).plan
    assert loaded.metadata == imported.metadata
    key = "history_2" if "metadata" in document else "history"
    assert loaded.metadata[key]["meaning"] == MEANING  # type: ignore[index,call-overload]
    assert loaded.metadata[key]["record"]["user_approved"] is True  # type: ignore[index,call-overload]
    assert "secret!" not in dump_plan(loaded)
    assert load_plan(dump_plan(loaded)).metadata == loaded.metadata
    assert "secret!" in str(import_plan(read, source=file.name, results=True).plan.metadata)


def test_a_plan_of_ours_gets_no_history() -> None:
    assert load_plan("description: x\nstatus: draft\nsteps: [{id: a, tool_name: bash, parameters: {command: 'true'}}]\n").metadata == {}
