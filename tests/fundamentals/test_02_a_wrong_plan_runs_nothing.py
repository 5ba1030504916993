"""Every problem in a plan is reported before anything runs, with its line and a suggested fix."""

import pytest

from plan_adapter import ToolRegistry, run_plan, tool
from plan_adapter.errors import InvalidPlanError
from plan_adapter.plans import find_problems
from plan_adapter.store import load_plan, read_document

DOCUMENT = """\
description: Two mistakes
steps:
  - id: check
    tool_name: lok
    parameters: {path: a.txt}
  - id: report
    tool_name: look
    parameters: {path: b.txt}
    depends_on: [chekc]
"""

called: list[str] = []


@tool(effect="read")
def look(path: str) -> str:
    """Look at a file."""
    called.append(path)
    return path


def test_all_problems_are_reported_at_once_with_their_lines_and_hints() -> None:
    plan, problems = read_document(DOCUMENT)
    assert plan is not None and problems == []
    found = find_problems(plan, ToolRegistry([look]))
    assert [(problem.code, problem.line) for problem in found] == [("unknown-tool", 4), ("unknown-step", 9)]
    assert [problem.hint for problem in found] == ["did you mean `look`?", "did you mean `check`?"]


def test_a_wrong_plan_is_refused_before_any_step_runs() -> None:
    with pytest.raises(InvalidPlanError) as refused:
        run_plan(load_plan(DOCUMENT), tools=ToolRegistry([look]), offline=True)
    assert len(refused.value.problems) == 2
    assert called == []
