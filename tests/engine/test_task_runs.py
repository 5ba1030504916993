"""Tests of what Prefect's API shows of steps: names, states, messages, edges, retries and logs, in both modes of the step runner."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import pytest
from prefect import flow, get_run_logger, tags, task
from prefect.client.schemas.objects import State, StateType, TaskRun
from prefect.states import Completed

from plan_adapter.engine.tasks import MAX_EDGES, PrefectStepRunner, log_to_prefect
from plan_adapter.execution.ports import AttemptEnd
from plan_adapter.model.errors import StoreError
from plan_adapter.model.status import Outcome, StepStatus
from tests.engine.calls import ScriptedCall, failed, logs_of, states_of, step_run, succeeded, task_runs

pytestmark = pytest.mark.usefixtures("prefect_server")

Shown = dict[str, TaskRun]
RunSteps = Callable[[Callable[[PrefectStepRunner], Awaitable[None]], Sequence[str]], Awaitable[Shown]]


@pytest.fixture(params=["direct", pytest.param("plain", marks=pytest.mark.thorough)])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def run_steps(mode: str) -> RunSteps:
    """Return a function that calls `work` with a PrefectStepRunner in a flow and returns the expected task runs by name."""

    async def run_steps(work: Callable[[PrefectStepRunner], Awaitable[None]], names: Sequence[str]) -> Shown:
        @flow(persist_result=False)
        async def steps() -> State:
            await work(PrefectStepRunner(plain=mode == "plain"))
            return Completed()

        state = await steps(return_state=True)
        assert state.state_details.flow_run_id is not None
        return await task_runs(state.state_details.flow_run_id, names)

    return run_steps


async def test_a_step_is_a_task_run_with_its_name_retry_policy_and_times(run_steps: RunSteps, mode: str) -> None:
    call = ScriptedCall("check", retry_delays=[0.5, 1.0], timeout_seconds=2.5)
    runs = await run_steps(lambda steps: _call_all(steps, call), ["check"])
    run = runs["check"]
    assert (run.state_name, run.state_type, run.run_count) == ("Completed", StateType.COMPLETED, 1)
    assert run.empirical_policy.retries == 2
    assert run.labels.get("timeout_seconds") == (2.5 if mode == "direct" else None)
    assert run.start_time and run.end_time and run.start_time <= run.end_time
    assert [state.name for state in (await states_of(run, 2))][-2:] == ["Running", "Completed"]


async def test_braces_and_brackets_in_a_step_name_are_kept(run_steps: RunSteps) -> None:
    runs = await run_steps(
        lambda steps: _call_all(steps, ScriptedCall("verify[0]"), ScriptedCall("{flow_run}")), ["verify[0]", "{flow_run}"]
    )
    assert runs.keys() == {"verify[0]", "{flow_run}"}


async def test_edges_lead_to_the_steps_and_loop_items_that_a_call_waited_for(run_steps: RunSteps) -> None:
    async def work(steps: PrefectStepRunner) -> None:
        await _call_all(steps, ScriptedCall("list"))
        await _call_all(steps, *(ScriptedCall(f"fetch[{item}]", upstream=("list",)) for item in range(3)))
        await steps.show(step_run("skipped", StepStatus.SKIPPED, reason="its condition is false"), ("list",))
        await _call_all(steps, ScriptedCall("report", upstream=("fetch", "skipped")))

    runs = await run_steps(work, ["list", "fetch[0]", "fetch[1]", "fetch[2]", "skipped", "report"])
    names = {run.id: name for name, run in runs.items()}
    assert {name: _upstream(run, names) for name, run in runs.items()} == {
        "list": set(),
        "fetch[0]": {"list"},
        "fetch[1]": {"list"},
        "fetch[2]": {"list"},
        "skipped": {"list"},
        "report": {"fetch[0]", "fetch[1]", "fetch[2]", "skipped"},
    }
    assert {run.state_name for name, run in runs.items() if name != "skipped"} == {"Completed"}


async def test_a_call_ends_in_the_state_of_its_last_attempt(run_steps: RunSteps) -> None:
    table = {
        "succeeded": (succeeded(), (StateType.COMPLETED, "Completed", "")),
        "failed": (failed(error="exit code 1"), (StateType.FAILED, "Failed", "exit code 1")),
        "unknown": (AttemptEnd("unknown", 1, error="no answer"), (StateType.FAILED, "UnknownOutcome", "no answer")),
        "cancelled": (AttemptEnd("cancelled", 1, error="by ana"), (StateType.CANCELLED, "Cancelled", "by ana")),
        "timed_out": (AttemptEnd("timed_out", 1, error="20 min are over"), (StateType.FAILED, "TimedOut", "20 min are over")),
        "long": (failed(error="错误：" + "长" * 5000), (StateType.FAILED, "Failed", "错误：" + "长" * 1996 + "…")),
    }
    runs = await run_steps(
        lambda steps: _call_all(steps, *(ScriptedCall(name, ends=[end]) for name, (end, _) in table.items())), list(table)
    )
    assert {name: _state(run) for name, run in runs.items()} == {name: state for name, (_, state) in table.items()}


async def test_a_step_without_a_call_is_shown_in_its_final_state(run_steps: RunSteps) -> None:
    carried = (StateType.COMPLETED, "Carried", "Its result comes from an earlier start of this run.")
    table = [
        (step_run("skipped", StepStatus.SKIPPED, reason="`b` failed"), (StateType.CANCELLED, "Skipped", "`b` failed")),
        (step_run("failed", StepStatus.FAILED, error="no such key"), (StateType.FAILED, "Failed", "no such key")),
        (step_run("unknown", StepStatus.FAILED, outcome=Outcome.UNKNOWN, error="began"), (StateType.FAILED, "UnknownOutcome", "began")),
        (step_run("carried", StepStatus.COMPLETED, carried=True), carried),
        (step_run("empty", StepStatus.COMPLETED), (StateType.COMPLETED, "Completed", "There was nothing to do: no items.")),
    ]

    async def work(steps: PrefectStepRunner) -> None:
        for step, _ in table:
            await steps.show(step, ())

    runs = await run_steps(work, [step.id for step, _ in table])
    assert {name: _state(run) for name, run in runs.items()} == {step.id: state for step, state in table}


async def test_each_failed_attempt_and_each_retry_wait_is_a_state(run_steps: RunSteps) -> None:
    ends = [failed(1, "first"), failed(2, "second"), succeeded(3)]
    call = ScriptedCall("check", ends=ends, retry_delays=[0.01, 0.0])
    run = (await run_steps(lambda steps: _call_all(steps, call), ["check"]))["check"]
    assert (run.state_name, run.run_count, call.made) == ("Completed", 3, 3)
    states = [state.name for state in await states_of(run, 5) if state.name != "Pending"]
    assert states == ["Running", "AwaitingRetry", "Retrying", "Retrying", "Completed"]
    log = [message for _, message in await logs_of(run, 2) if "Retry" in message]
    assert log == [
        "Task run failed with exception: ToolError('first') - Retry 1/2 will start 0.01 second(s) from now",
        "Task run failed with exception: ToolError('second') - Retry 2/2 will start immediately",
    ]


async def test_the_last_failed_attempt_fails_the_task_run(run_steps: RunSteps) -> None:
    call = ScriptedCall("check", ends=[failed(1, "first"), failed(2, "second")], retry_delays=[0.0, 0.0])
    run = (await run_steps(lambda steps: _call_all(steps, call), ["check"]))["check"]
    assert run.state is not None
    assert (run.state_name, run.state.message, call.made) == ("Failed", "second", 2)


async def test_stopping_the_run_ends_a_retry_wait_at_once(run_steps: RunSteps, mode: str) -> None:
    ends: list[AttemptEnd] = []

    async def work(steps: PrefectStepRunner) -> None:
        call = ScriptedCall("check", ends=[failed(), succeeded(2)], retry_delays=[3600.0])
        driven = asyncio.ensure_future(steps(call))
        await call.waiting.wait()
        call.stop.set_result(AttemptEnd("cancelled", 1, error="cancelled by ana"))
        ends.append(await driven)

    run = (await run_steps(work, ["check"]))["check"]
    assert run.state is not None
    assert run.state_type is (StateType.CRASHED if mode == "plain" else StateType.CANCELLED)
    assert mode == "plain" or (run.state_name, run.state.message) == ("Cancelled", "cancelled by ana")
    assert ends == [AttemptEnd("cancelled", 1, error="cancelled by ana")]


async def test_a_store_error_crashes_the_task_run_and_is_raised(run_steps: RunSteps, caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise StoreError("disk full")

    async def work(steps: PrefectStepRunner) -> None:
        with pytest.raises(StoreError, match="disk full"):
            await steps(ScriptedCall("check", before=broken))

    run = (await run_steps(work, ["check"]))["check"]
    assert run.state is not None
    assert (run.state_name, run.state.message) == ("Crashed", "StoreError: disk full")
    assert not [record for record in caplog.records if record.exc_info and record.exc_info[0]]


async def test_failed_attempts_leave_no_traceback_in_the_logs(run_steps: RunSteps, caplog: pytest.LogCaptureFixture) -> None:
    call = ScriptedCall("check", ends=[failed(1, "first"), failed(2, "second")], retry_delays=[0.0])
    await run_steps(lambda steps: _call_all(steps, call), ["check"])
    assert [record.getMessage() for record in caplog.records if record.exc_info and record.exc_info[0]] == []
    assert any("second" in record.getMessage() for record in caplog.records)


async def test_log_lines_of_a_step_are_in_the_log_of_its_task_run(run_steps: RunSteps) -> None:
    async def log_line() -> None:
        record = logging.LogRecord("step", logging.INFO, __file__, 1, "%s of {total}", ("一",), None)
        await asyncio.to_thread(log_to_prefect, record)

    run = (await run_steps(lambda steps: _call_all(steps, ScriptedCall("check", before=log_line)), ["check"]))["check"]
    assert (logging.INFO, "一 of {total}") in await logs_of(run, 1)


async def test_a_log_line_outside_a_run_is_dropped() -> None:
    log_to_prefect(logging.LogRecord("step", logging.INFO, __file__, 1, "lost", (), None))


async def test_tasks_and_flows_that_a_tool_calls_are_children_of_its_task_run(run_steps: RunSteps) -> None:
    @task
    async def inner() -> int:
        get_run_logger().debug("inside")
        return 1

    @flow
    async def below() -> int:
        return await inner.with_options(name="deep")()

    async def call_both() -> None:
        assert await inner() == 1
        assert await below() == 1

    runs = await run_steps(lambda steps: _call_all(steps, ScriptedCall("check", before=call_both)), ["check"])
    children = {
        name for name, run in runs.items() if any(parent.id == runs["check"].id for parent in run.task_inputs.get("__parents__", []))
    }
    assert {name.partition("-")[0] for name in children} >= {"inner"}


async def test_tags_set_around_a_flow_are_on_its_steps(prefect_server: object) -> None:
    @flow(persist_result=False)
    async def tagged() -> State:
        await PrefectStepRunner()(ScriptedCall("check"))
        return Completed()

    with tags("nightly"):
        state = await tagged(return_state=True)
    assert state.state_details.flow_run_id is not None
    assert (await task_runs(state.state_details.flow_run_id, ["check"]))["check"].tags == ["nightly"]


async def test_edges_beyond_the_limit_of_an_event_are_dropped() -> None:
    @flow(persist_result=False)
    async def wide() -> State:
        steps = PrefectStepRunner()
        for item in range(MAX_EDGES + 1):
            steps._task_run_ids["fetch"].append(UUID(int=item))
        await steps.show(step_run("report", StepStatus.SKIPPED), ("fetch",))
        return Completed()

    state = await wide(return_state=True)
    assert state.state_details.flow_run_id is not None
    run = (await task_runs(state.state_details.flow_run_id, ["report"]))["report"]
    assert len(run.task_inputs["wait_for"]) == MAX_EDGES


async def test_a_prefect_step_runner_needs_a_running_flow() -> None:
    with pytest.raises(RuntimeError, match="inside a running flow"):
        PrefectStepRunner()


async def _call_all(steps: PrefectStepRunner, *calls: ScriptedCall) -> None:
    await asyncio.gather(*(steps(call) for call in calls))


def _upstream(run: TaskRun, names: dict[UUID, str]) -> set[str]:
    return {names[edge.id] for edge in run.task_inputs.get("wait_for", []) if edge.input_type == "task_run"}


def _state(run: TaskRun) -> tuple[StateType, str | None, str | None]:
    assert run.state is not None
    return run.state.type, run.state.name, run.state.message
