"""Tests of inputs with a `variable`: Prefect variables that are read once, when a run starts."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect import get_client
from prefect.variables import Variable

from plan_adapter import ExecutionPlan, PlanStore
from plan_adapter.engine.connection import override_settings
from plan_adapter.errors import InvalidPlanError, NoServerError
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus
from plan_adapter.runner import compile_plan
from plan_adapter.runs import aresume_run, arun_plan
from plan_adapter.runs.variables import with_variables_here
from plan_adapter.store import load_plan
from plan_adapter.tools.registry import ToolRegistry
from plan_adapter.validation import find_problems, validate
from plan_adapter.validation.inputs import form_schema
from tests.cli.conftest import Plan
from tests.cli.some_tools import greet

pytestmark = pytest.mark.usefixtures("prefect_server")

TOOLS = ToolRegistry([greet])


@pytest.fixture
async def store(home: Path) -> AsyncIterator[PlanStore]:
    """The default store."""
    async with PlanStore() as opened:
        yield opened


@pytest.fixture
def variable() -> Iterator[str]:
    """The name of a Prefect variable that no other test has."""
    name = f"who_{uuid4().hex[:8]}"
    yield name
    Variable.unset(name)


def document(variable: str, **definition: Any) -> str:
    plan = {
        "name": "greet",
        "description": "Greet somebody",
        "inputs": {"who": {"variable": variable, **definition}},
        "options": {"require_approval": False},
        "run_name": "greet ${{ inputs.who }}",
        "steps": [{"id": "greet", "tool_name": "greet", "parameters": {"who": "${{ string(inputs.who) }}"}}],
        "outputs": {"who": "${{ inputs.who }}"},
    }
    return yaml.safe_dump(plan, allow_unicode=True, sort_keys=False)


def problem_of(error: InvalidPlanError) -> tuple[str, str, str]:
    (problem,) = error.problems
    return problem.code, problem.at, f"{problem.message} ({problem.hint})"


async def run(text: str, store: PlanStore, **arguments: Any) -> PlanRun:
    return await arun_plan(load_plan(text), tools=TOOLS, store=store, **arguments)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [("小林", "string", "小林"), ("7", "integer", 7), (7, "integer", 7), (["a", "b"], "array", ["a", "b"]), ('["a"]', "array", ["a"])],
)
async def test_the_value_is_read_when_the_run_starts_and_recorded(
    value: Any, kind: str, expected: Any, variable: str, store: PlanStore
) -> None:
    await Variable.aset(variable, value)
    text = document(variable, type=kind, default=None).replace("string(inputs.who)", "string(inputs.who)" if kind != "array" else "'x'")
    ended = await run(text, store)
    assert (ended.status, ended.inputs, ended.outputs) == (PlanStatus.COMPLETED, {"who": expected}, {"who": expected})


async def test_a_given_value_wins_and_a_default_counts_if_there_is_no_variable(variable: str, store: PlanStore) -> None:
    assert (await run(document(variable, default="ben"), store)).inputs == {"who": "ben"}
    await Variable.aset(variable, "ana")
    assert (await run(document(variable, default="ben"), store)).inputs == {"who": "ana"}
    assert (await run(document(variable, default="ben"), store, inputs={"who": "chi"})).inputs == {"who": "chi"}
    assert [await store.ledger.variables(run.id) for run in await store.runs()] == [{}, {"who": variable}, {}]


async def test_what_does_not_fit_is_refused_before_anything_runs(variable: str, store: PlanStore) -> None:
    with pytest.raises(InvalidPlanError) as missing:
        await run(document(variable), store)
    assert problem_of(missing.value) == (
        "missing-input",
        "inputs.who",
        f"no value for `who`: the Prefect variable `{variable}` gives none here "
        f"(set it: `prefect variable set {variable} VALUE`, or give a value: --input who=…)",
    )
    await Variable.aset(variable, "nobody")
    with pytest.raises(InvalidPlanError) as wrong:
        await run(document(variable, enum=["ana", "ben"]), store)
    assert problem_of(wrong.value)[:2] == ("bad-input", "inputs.who")
    assert await store.runs() == []


async def test_offline_a_default_does_not_replace_the_variable(variable: str, store: PlanStore) -> None:
    with pytest.raises(InvalidPlanError, match=f"the Prefect variable `{variable}` is not read offline"):
        await run(document(variable, default="ben"), store, offline=True)
    assert (await run(document(variable), store, offline=True, inputs={"who": "ana"})).inputs == {"who": "ana"}


async def test_a_compiled_flow_reads_it_and_a_resume_keeps_what_was_read(variable: str, store: PlanStore) -> None:
    await Variable.aset(variable, "ana")
    ended = await compile_plan(validate(load_plan(document(variable)), TOOLS), tools=TOOLS, store=store)()
    assert ended.inputs == {"who": "ana"}
    assert await store.ledger.variables(ended.id) == {"who": variable}
    async with get_client() as client:
        assert (await client.read_flow_run(ended.flow_run_id)).name == "greet ana"

    failing = document(variable).replace("tool_name: greet", "tool_name: read_file").replace("who: ${{ string(", "path: ${{ string(")
    first = await arun_plan(load_plan(failing), tools=ToolRegistry.from_settings(()), store=store)
    assert first.status is PlanStatus.FAILED
    await Variable.aunset(variable)
    again = await aresume_run(first.id, tools=ToolRegistry.from_settings(()), store=store)
    assert again.inputs == {"who": "ana"}


def test_the_command_line_reads_it_and_says_where_it_comes_from(variable: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_TOOLS", "tests.cli.some_tools:greet")
    Path("greet.yaml").write_text(document(variable), encoding="utf-8")
    missing = plan("preview", "greet.yaml")
    assert (missing.code, "who" in missing.out) == (0, True)
    dry = plan("run", "greet.yaml", "--dry-run")
    assert dry.code == 2
    assert f"the Prefect variable `{variable}` gives none here" in dry.err
    Variable.set(variable, "ana")
    assert '"ana"' in json.dumps(plan("preview", "greet.yaml", "--json").lines)
    assert plan("run", "greet.yaml", "--dry-run").code == 0
    ended = plan("run", "greet.yaml", "--json").run
    assert ended["inputs"] == {"who": "ana"}
    assert plan("show", ended["id"], "--json").run["variables"] == {"who": variable}
    for option in ([], ["--all"]):
        assert "the input who came from the Prefect variable" in plan("show", ended["id"], *option).out.replace("`", "")
    assert plan("verify", ended["id"]).code == 0
    shown = plan("save", "greet.yaml")
    assert shown.code == 0
    assert f"Prefect variable `{variable}`" in plan("show", "greet.yaml").out


def test_a_deployment_asks_nobody_for_it(variable: str) -> None:
    form = form_schema(load_plan(document(variable, description="Whom to greet")).inputs)
    assert form["required"] == []
    assert form["properties"] == {
        "who": {"type": "string", "description": f"Whom to greet. Empty: the Prefect variable `{variable}`", "title": "who", "position": 0}
    }


def plan_with(**fields: Any) -> ExecutionPlan:
    return load_plan(yaml.safe_dump({"description": "A plan", "steps": [{"tool_name": "greet", "parameters": {"who": "x"}}], **fields}))


def test_where_no_variable_can_be_read_validation_says_so() -> None:
    wrong_name = plan_with(inputs={"who": {"variable": "No-Name"}})
    asked = plan_with(steps=[{"id": "a", "ask": {"question": "Who?", "fields": {"who": {"variable": "who"}}}}])
    assert {(problem.code, problem.at) for problem in find_problems(wrong_name, TOOLS)} == {("bad-input-definition", "inputs.who.variable")}
    assert [(problem.code, problem.at) for problem in find_problems(asked, TOOLS)] == [
        ("bad-input-definition", "steps[0].ask.fields.who.variable")
    ]
    direct = plan_with(steps=[{"tool_name": "greet", "parameters": {"who": "${{ vars.who }}"}}])
    (problem,) = find_problems(direct, TOOLS)
    assert (problem.code, problem.hint) == ("unknown-reference", "declare an input with `variable: <name>`, and write inputs.<name>")


def test_a_plan_that_a_step_runs_gets_its_value_from_that_step(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text(document("who", default="ben"), encoding="utf-8")
    outer = {"description": "Outer", "steps": [{"id": "inner", "plan": "inner.yaml"}]}
    (tmp_path / "outer.yaml").write_text(yaml.safe_dump(outer), encoding="utf-8")
    (problem,) = find_problems(load_plan(tmp_path / "outer.yaml"), TOOLS)
    assert (problem.code, problem.at) == ("missing-input", "steps[0].inputs")


async def test_a_server_that_does_not_answer_is_named(variable: str) -> None:
    away = override_settings({"api.url": "http://127.0.0.1:9/api"})
    with pytest.raises(NoServerError, match=f"the Prefect variable `{variable}` cannot be read"), away:
        await with_variables_here(load_plan(document(variable)), {})
