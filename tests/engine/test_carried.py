"""Tests of how a resumed run shows its carried steps: one task run per step, or one for all."""

from collections.abc import Sequence
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.engine.connection import Server
from plan_adapter.engine.states import MAX_MESSAGE_CHARACTERS, state_of_carried
from plan_adapter.engine.tasks import PrefectStepRunner
from plan_adapter.model.record import StepRun
from plan_adapter.model.status import StepStatus
from plan_adapter.runs import aresume_run, arun_plan
from plan_adapter.store import PlanStatus
from tests.engine.calls import ScriptedCall, step_run, task_runs

pytestmark = pytest.mark.thorough


def carried(names: Sequence[str]) -> list[StepRun]:
    return [step_run(name, StepStatus.COMPLETED, carried=True) for name in names]


@pytest.mark.parametrize("count", [1, 5, 5000])
def test_the_carried_state_names_as_many_steps_as_its_message_holds(count: int) -> None:
    state = state_of_carried(carried([f"step_{number}" for number in range(count)]))
    assert (state.name, state.is_completed()) == ("Carried", True)
    message = state.message or ""
    assert message.startswith(f"The results of {count} steps") and "step_0" in message and len(message) <= MAX_MESSAGE_CHARACTERS
    named = message.count("step_")
    assert named == count or message.endswith(f"and {count - named} more")


def test_the_message_stays_within_its_limit_with_long_step_names() -> None:
    assert len(state_of_carried(carried(["x" * 64] * 200)).message or "") <= MAX_MESSAGE_CHARACTERS


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("mode", ["direct", "plain"])
@pytest.mark.parametrize(("limit", "shown"), [(3, {"a", "b", "c", "next"}), (2, {"Carried", "next"})])
async def test_above_the_limit_one_task_run_represents_all_carried_steps(mode: str, limit: int, shown: set[str]) -> None:
    @flow(persist_result=False)
    async def steps() -> State:
        step_runner = PrefectStepRunner(plain=mode == "plain", carried_task_runs=limit)
        await step_runner.show_carried(
            ["a", "b", "c"], {run.id: run for run in carried(["a", "b", "c"])}, {"a": (), "b": ("a",), "c": ("a",)}
        )
        await step_runner(ScriptedCall("next", upstream=("b", "c")))
        return Completed()

    state = await steps(return_state=True)
    assert state.state_details.flow_run_id is not None
    runs = await task_runs(state.state_details.flow_run_id, sorted(shown))
    assert runs.keys() == shown
    assert {run.state_name for name, run in runs.items() if name != "next"} == {"Carried"}
    names = {run.id: name for name, run in runs.items()}
    assert _upstream(runs["next"], names) == ({"b", "c"} if limit == 3 else {"Carried"})


async def test_a_resumed_run_shows_its_carried_steps_as_one_task_run(
    prefect_server: Server, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_CARRIED_TASK_RUNS", "3")
    broken = [True]

    @tool(effect="read")
    def look(name: str) -> str:
        """Look, but not at the last one at first."""
        if name == "last" and broken.pop():
            raise ValueError("not yet")
        return name

    plan = ExecutionPlan(description="Look at many things")
    plan.options.require_approval = False
    for number in range(5):
        plan.add_step("look", "Look", {"name": f"{number}"}, id=f"s{number}")
    plan.add_step("look", "Look at the last", {"name": "last"}, id="last", depends_on=["s3", "s4"])
    async with PlanStore(f"sqlite:///{tmp_path_factory.mktemp('store')}/plans.db") as store:
        run = await arun_plan(plan, tools=ToolRegistry([look]), store=store)
        assert run.status is PlanStatus.PARTIAL and run.flow_run_id is not None
        broken.append(False)
        again = await aresume_run(run.id, tools=ToolRegistry([look]), store=store)
        assert (again.status, again.flow_run_id) == (PlanStatus.COMPLETED, run.flow_run_id)
        kept = await store.run(run.id)
    assert [step.carried for step in kept.steps] == [True] * 5 + [False]
    assert [step.completed_at for step in kept.steps[:5]] == [step.completed_at for step in run.steps[:5]], (
        "carried steps keep their end times"
    )
    runs = await task_runs(UUID(run.flow_run_id), ["Carried", "last"])
    assert runs["Carried"].state_name == "Carried"
    assert _upstream(runs["last"], {run.id: name for name, run in runs.items()}) == {"Carried"}


def _upstream(run: TaskRun, names: dict[UUID, str]) -> set[str]:
    return {names[edge.id] for edge in run.task_inputs.get("wait_for", []) if edge.input_type == "task_run" and edge.id in names}  # type: ignore[union-attr]
