"""Tests of what the functions of the Python API take as `plan` and as `tools`: paths, texts, stored plans; lists and modules."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, approve, compile_plan, resume_run, run_plan, tool
from plan_adapter.agent import Planner, PlanSession, as_functions
from plan_adapter.errors import InvalidPlanError
from plan_adapter.gates import reject
from plan_adapter.plans import find_problems, format_plan, lint, validate
from plan_adapter.runs import arevise_run, arun_plan, astart_run, start_run
from plan_adapter.store import PlanStatus, load_plan
from tests.tools import offered

TEXT = """\
name: greet
description: Greet somebody
inputs: {who: {default: Ana}}
steps:
  - {id: greet, tool_name: greet, parameters: {who: "${{ inputs.who }}"}}
"""
WRONG = """\
description: Greet somebody
steps:
  - {id: greet, tool_name: greeet, parameters: {who: Ana}, when_: x}
"""


@tool(effect="read")
def greet(who: str) -> str:
    """Greet somebody."""
    return f"Hello, {who}!"


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "greet.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    monkeypatch.setenv("PLAN_ADAPTER_DATABASE_URL", url)
    return url


def test_a_path_is_approved_run_and_resumed(document: Path, store: str) -> None:
    approval = approve(document, tools=[greet], by="ana", inputs={"who": "Bo"})
    run = run_plan(str(document), tools=[greet], inputs={"who": "Bo"}, approval=approval, offline=True)
    assert (run.status, run.steps[0].result) == (PlanStatus.COMPLETED, "Hello, Bo!")


def test_a_text_is_started(store: str) -> None:
    run = start_run(TEXT, tools=(greet,), offline=True)
    assert run.status is PlanStatus.PENDING_APPROVAL
    assert resume_run(run.id, tools=[greet], approval=approve(TEXT, tools=[greet]), offline=True).succeeded


async def test_a_stored_plan_is_run_and_a_run_gets_a_version_from_a_path(document: Path, store: str) -> None:
    async with PlanStore(store) as opened:
        await opened.save(load_plan(TEXT), author="ana")
        run = await astart_run("store:greet@1", tools=[greet], store=opened, offline=True)
        document.write_text(TEXT.replace("greet, parameters", "greet, description: Kindly, parameters"), encoding="utf-8")
        revised = await arevise_run(run.id, document, tools=[greet], store=opened)
        assert revised.digest == validate(document, [greet]).digest != run.digest


def test_a_stored_plan_is_validated_and_approved_without_an_event_loop(store: str) -> None:
    async def save() -> None:
        async with PlanStore(store) as opened:
            await opened.save(load_plan(TEXT), author="ana")

    asyncio.run(save())
    assert validate("store:greet", [greet]).digest == validate(TEXT, [greet]).digest
    assert approve("store:greet@1", tools=[greet]).approval_digest == approve(TEXT, tools=[greet]).approval_digest


async def test_in_an_event_loop_a_stored_plan_is_awaited_first(store: str) -> None:
    with pytest.raises(RuntimeError, match="an event loop is running here: await `aload_plan` instead"):
        approve("store:greet", tools=[greet])


def test_all_problems_of_a_document_have_their_places(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(WRONG, encoding="utf-8")
    expected = [
        f"{path}:3:17: error[unknown-tool] at steps[0].tool_name: no tool is called `greeet`; did you mean `greet`?",
        f"{path}:3:60: error[unknown-field] at steps[0].when_: a step has no field `when_`; did you mean `when`?",
    ]
    assert [str(problem) for problem in find_problems(path, [greet])] == expected
    assert [problem for problem in lint(path, [greet]) if problem.severity == "error"] == find_problems(path, [greet])
    calls: list[Callable[[], object]] = [
        lambda: validate(path, [greet]),
        lambda: approve(path, tools=[greet]),
        lambda: reject(path, tools=[greet]),
        lambda: run_plan(path, tools=[greet], offline=True),
        lambda: start_run(path, tools=[greet], offline=True),
        lambda: compile_plan(path, tools=[greet]),
    ]
    for call in calls:
        with pytest.raises(InvalidPlanError) as error:
            call()
        assert str(error.value).splitlines() == expected


def test_a_document_that_is_no_plan_is_one_problem(tmp_path: Path) -> None:
    (problem,) = find_problems(tmp_path / "missing.yaml", [greet])
    assert "missing.yaml" in str(problem)
    assert [problem.code for problem in find_problems("description: [", [greet])] == ["syntax"]


def test_a_plan_with_problems_is_formatted_and_used_by_a_session(document: Path) -> None:
    assert "Greet somebody" in format_plan(document)
    session = PlanSession(_NoModel(), [greet])
    session.use(document)
    assert session.problems() == []


def test_a_plan_is_compiled_from_a_path(document: Path) -> None:
    assert compile_plan(document, tools=[greet]).name == compile_plan(validate(document, [greet])).name
    with pytest.raises(TypeError, match="`tools` is missing: pass the tools of the plan, or a plan that `validate` returned"):
        compile_plan(document)


async def test_lists_and_modules_are_tools_everywhere(store: str) -> None:
    assert [function.__name__ for function in as_functions(offered)] == ["shout", "whisper"]
    assert Planner(_NoModel(), offered)._tools.names() == ["shout", "whisper"]
    plan = ExecutionPlan(description="Shout", options={"require_approval": False})  # type: ignore[arg-type]
    plan.add_step(offered.shout, text="hey")
    for tools in (offered, [offered], [offered.shout], ToolRegistry([offered])):
        run = await arun_plan(plan, tools=tools, offline=True)
        assert str(run.steps[0].result).endswith(": HEY")


class _NoModel:
    """A model that is never asked."""

    name = "none"

    async def complete(self, *_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("no test asks the model")
