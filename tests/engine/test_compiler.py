"""Tests of plans as Prefect flows: name, description, parameters, form, final states and repeated runs."""

import asyncio
import inspect
import pickle
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import cloudpickle
import pytest
from prefect import Flow, flow, get_client
from prefect.client.schemas.objects import State, StateType
from prefect.states import Cancelled, Cancelling

from plan_adapter.engine import tasks
from plan_adapter.engine.flow import build_flow, run_flow
from plan_adapter.engine.flow_runs import cancellation_reason
from plan_adapter.engine.states import state_of_run
from plan_adapter.engine.tasks import PrefectStepRunner
from plan_adapter.model.errors import InvalidPlanError, NotApprovedError, RunFailedError
from plan_adapter.model.readable import prose, safe_name
from plan_adapter.model.record import PlanRun, RollbackStatus
from plan_adapter.model.status import PlanStatus, RunReason, StepStatus
from tests.engine.calls import ScriptedCall, failed, flow_run, plan_run, step_run, task_runs, validated

INPUTS: dict[str, Any] = {
    "host": {"type": "string", "pattern": "^web-[0-9]+$", "description": "Node to\nrestart:  now"},
    "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast"},
    "share": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5},
    "times": {"type": "integer", "minimum": 1, "default": 1},
    "ports": {"type": "array", "items": "integer", "default": [80], "max_length": 3},
    "labels": {"type": "object", "default": {}},
    "force": {"type": "boolean", "default": False, "description": "即使有人在用"},
}


async def completed(_inputs: dict[str, Any], _flow_run_id: str) -> PlanRun:
    return plan_run()


def test_the_parameters_of_the_flow_are_the_plans_inputs() -> None:
    schema = build_flow(validated(inputs=INPUTS), completed).parameters
    assert schema.required == ["host"]
    assert schema.properties["host"] == {
        "type": "string",
        "pattern": "^web-[0-9]+$",
        "description": "Node to restart: now",
        "title": "host",
        "position": 0,
    }
    assert (schema.properties["mode"]["enum"], schema.properties["mode"]["default"]) == (["fast", "slow"], "fast")
    assert (schema.properties["share"]["minimum"], schema.properties["share"]["maximum"]) == (0, 1)
    assert (schema.properties["times"]["type"], schema.properties["times"]["minimum"]) == ("integer", 1)
    assert (schema.properties["ports"]["items"], schema.properties["ports"]["maxItems"]) == ({"type": "integer"}, 3)
    assert schema.properties["labels"]["type"] == "object"
    assert (schema.properties["force"]["default"], schema.properties["force"]["description"]) == (False, "即使有人在用")
    assert list(schema.properties) == list(INPUTS)


def test_required_inputs_may_follow_inputs_with_defaults() -> None:
    compiled = build_flow(validated(inputs={"a": {"default": "x"}, "b": {}}), completed)
    parameters = inspect.signature(compiled.fn).parameters
    assert [(name, parameter.default) for name, parameter in parameters.items()] == [("a", "x"), ("b", inspect.Parameter.empty)]


@pytest.mark.parametrize(
    ("declared", "schema"),
    [
        ({"min_length": 1, "max_length": 9}, {"type": "string", "minLength": 1, "maxLength": 9}),
        ({"type": "number", "enum": [0.5, 1.5]}, {"type": "number", "enum": [0.5, 1.5]}),
        ({"type": "array", "enum": [[1], [2]], "items": "integer"}, {"type": "array", "enum": [[1], [2]], "items": {"type": "integer"}}),
    ],
    ids=["lengths", "numbers", "lists"],
)
def test_the_form_has_every_limit_of_an_input(declared: dict[str, Any], schema: dict[str, Any]) -> None:
    properties = build_flow(validated(inputs={"a": declared}), completed).parameters.properties
    assert {key: value for key, value in properties["a"].items() if key not in ("title", "position")} == schema


@pytest.mark.parametrize("name", ["schema", "json", "copy", "model_config", "name", "body", "args", "kwargs", "parameters"])
def test_an_input_may_have_a_name_that_prefect_or_pydantic_uses(name: str, recwarn: pytest.WarningsRecorder) -> None:
    assert list(build_flow(validated(inputs={name: {}}), completed).parameters.properties) == [name]
    assert not recwarn.list


async def test_all_bad_inputs_are_reported_at_once(prefect_server: object) -> None:
    given = {"host": "db-1", "mode": "slower", "share": 1.5, "ports": ["http"]}
    with pytest.raises(InvalidPlanError) as raised:
        await run_flow(build_flow(validated(inputs=INPUTS), completed), given)
    assert {(problem.code, problem.at) for problem in raised.value.problems} == {
        ("bad-input", "inputs.host"),
        ("bad-input", "inputs.mode"),
        ("bad-input", "inputs.share"),
        ("bad-input", "inputs.ports"),
    }


@pytest.mark.parametrize("given", [{}, {"host": "web-1", "hots": "web-2"}], ids=["missing", "unknown"])
async def test_missing_and_unknown_inputs_raise_a_type_error_as_in_any_flow(prefect_server: object, given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="host"):
        await run_flow(build_flow(validated(inputs=INPUTS), completed), given)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("restart web", "restart web"),
        ("two\nlines\r\nand\ttabs", "two lines and tabs"),
        ("a/b <c> & 100%", "a b c 100"),
        ("部署\u2028计划", "部署 计划"),
        ("x" * 500, "x" * 200),
        ("{flow.name} %s", "{flow.name} s"),
        ("///", "plan"),
    ],
)
def test_a_flow_name_is_the_plan_name_without_forbidden_characters(name: str, safe: str) -> None:
    assert safe_name(name) == safe
    assert build_flow(validated(name=name, description="x"), completed).name == safe


def test_markdown_in_a_description_is_escaped() -> None:
    compiled = build_flow(validated(name="x", description="*Stop* <b>it</b>\n\n[now](http://x)"), completed)
    assert compiled.description == "\n\n".join([prose("*Stop* <b>it</b>"), prose("[now](http://x)")])


def test_the_version_of_a_flow_is_the_digest_of_its_plan() -> None:
    plan = validated()
    assert build_flow(plan, completed).version == plan.digest[:12]


def test_a_flow_of_importable_functions_can_be_pickled() -> None:
    copy = pickle.loads(cloudpickle.dumps(build_flow(validated(inputs=INPUTS), completed)))
    assert isinstance(copy, Flow)
    assert copy.parameters.required == ["host"]


STEPS = [step_run("a", StepStatus.COMPLETED), step_run("b", StepStatus.FAILED, error="exit code 1"), step_run("c", StepStatus.SKIPPED)]
FAILED = "0 of 1 step done, 1 failed"
SKIPPED = "0 of 1 step done, 1 skipped"


ENDS = {
    "completed": (plan_run(STEPS[:1]), (StateType.COMPLETED, "Completed", "1 of 1 step done")),
    "partial": (
        plan_run(STEPS, status=PlanStatus.PARTIAL, reason=RunReason.STEP_FAILED, message="`b` failed: exit code 1"),
        (StateType.FAILED, "Partial", "1 of 3 steps done, 1 failed, 1 skipped: `b` failed: exit code 1"),
    ),
    "failed": (plan_run(STEPS[1:2], status=PlanStatus.FAILED, reason=RunReason.STEP_FAILED), (StateType.FAILED, "Failed", FAILED)),
    "partial in time": (
        plan_run(STEPS[1:2], status=PlanStatus.PARTIAL, reason=RunReason.TIMED_OUT),
        (StateType.FAILED, "TimedOut", FAILED),
    ),
    "failed in time": (plan_run(STEPS[1:2], status=PlanStatus.FAILED, reason=RunReason.TIMED_OUT), (StateType.FAILED, "TimedOut", FAILED)),
    "unknown": (plan_run(STEPS[1:2], status=PlanStatus.FAILED, reason=RunReason.UNKNOWN), (StateType.FAILED, "UnknownOutcome", FAILED)),
    "rejected": (plan_run(STEPS[2:], status=PlanStatus.CANCELLED, reason=RunReason.REJECTED), (StateType.CANCELLED, "Rejected", SKIPPED)),
    "rejected with a note": (
        plan_run(
            STEPS[2:], status=PlanStatus.CANCELLED, reason=RunReason.REJECTED, message="rejected by bo", rejection_note="too late 太晚\n"
        ),
        (StateType.CANCELLED, "Rejected", SKIPPED + ": rejected by bo: too late 太晚"),
    ),
    "expired": (plan_run(STEPS[2:], status=PlanStatus.CANCELLED, reason=RunReason.EXPIRED), (StateType.CANCELLED, "Expired", SKIPPED)),
    "cancelled": (
        plan_run(STEPS[2:], status=PlanStatus.CANCELLED, reason=RunReason.CANCELLED, message="ana: wrong host"),
        (StateType.CANCELLED, "Cancelled", SKIPPED + ": ana: wrong host"),
    ),
}


UNDONE = [replace(STEPS[0], has_rollback=True, attempts=1, rolled_back=True), STEPS[1]]
LEFT = [replace(STEPS[0], has_rollback=True, attempts=1), STEPS[1]]
ROLLBACK: dict[str, Any] = {"rollback": RollbackStatus("it failed", can_continue=False)}

OUTCOMES = {
    "rolled back": (plan_run(UNDONE, status=PlanStatus.PARTIAL, reason=RunReason.STEP_FAILED, **ROLLBACK), "RolledBack"),
    "rolled back after a rejection": (
        plan_run(UNDONE, status=PlanStatus.CANCELLED, reason=RunReason.REJECTED, **ROLLBACK),
        "RolledBack (rejected)",
    ),
    "not rolled back": (plan_run(LEFT, status=PlanStatus.PARTIAL, reason=RunReason.STEP_FAILED, **ROLLBACK), "RollbackIncomplete"),
    "a rollback in the dark": (plan_run(LEFT, status=PlanStatus.PARTIAL, reason=RunReason.UNKNOWN, **ROLLBACK), "UnknownOutcome"),
    "exhausted": (plan_run(STEPS[1:2], status=PlanStatus.FAILED, reason=RunReason.EXHAUSTED), "Failed (exhausted)"),
    "interrupted": (plan_run(STEPS, status=PlanStatus.EXECUTING, reason=RunReason.INTERRUPTED), "Interrupted"),
    "running": (plan_run(STEPS, status=PlanStatus.EXECUTING), "executing"),
}


@pytest.mark.parametrize(("run", "text"), OUTCOMES.values(), ids=OUTCOMES)
def test_the_outcome_of_a_run_is_one_word_with_the_reason_that_it_hides(run: PlanRun, text: str) -> None:
    assert run.outcome_text == text
    assert run.outcome == (None if text == "executing" else text.partition(" ")[0])
    if run.status.has_ended:
        assert state_of_run(run).name == run.outcome


COMMON_ENDS = ("completed", "failed", "partial", "rejected with a note", "unknown")


@pytest.mark.parametrize(
    ("run", "expected"),
    [pytest.param(*end, id=name, marks=[] if name in COMMON_ENDS else [pytest.mark.thorough]) for name, end in ENDS.items()],
)
async def test_the_flow_run_ends_in_the_state_of_its_run(
    prefect_server: object, run: PlanRun, expected: tuple[StateType, str, str]
) -> None:
    async def body(_inputs: dict[str, Any], _flow_run_id: str) -> PlanRun:
        return run

    state = await run_flow(build_flow(validated(), body), {})
    assert state.state_details.flow_run_id is not None
    shown = (await flow_run(state.state_details.flow_run_id)).state
    assert shown is not None
    assert (shown.type, shown.name, shown.message) == expected
    assert shown.data is None


async def test_the_body_receives_the_inputs_and_the_flow_run_id(prefect_server: object) -> None:
    given: list[tuple[dict[str, Any], str]] = []

    async def body(inputs: dict[str, Any], flow_run_id: str) -> PlanRun:
        given.append((inputs, flow_run_id))
        return plan_run()

    state = await run_flow(build_flow(validated(name="deploy", inputs=INPUTS), body), {"host": "web-1"})
    assert state.state_details.flow_run_id is not None
    shown = await flow_run(state.state_details.flow_run_id)
    [(inputs, flow_run_id)] = given
    assert flow_run_id == str(shown.id)
    assert inputs == {"host": "web-1", "mode": "fast", "share": 0.5, "times": 1, "ports": [80], "labels": {}, "force": False}
    assert shown.parameters == inputs


async def test_awaiting_the_flow_returns_the_run_also_in_a_subflow(prefect_server: object) -> None:
    plan_flow = build_flow(validated(inputs={"host": {}}), completed)

    @flow
    async def around() -> str:
        return (await plan_flow(host="web-1")).id

    assert (await plan_flow(host="web-1")).status is PlanStatus.COMPLETED
    assert await around() == "r1"


async def test_awaiting_the_flow_of_a_failed_run_raises_an_error_with_the_run(prefect_server: object) -> None:
    run = plan_run(STEPS, status=PlanStatus.PARTIAL, reason=RunReason.STEP_FAILED)

    async def body(_inputs: dict[str, Any], _flow_run_id: str) -> PlanRun:
        return run

    with pytest.raises(RunFailedError) as raised:
        await build_flow(validated(), body)()
    assert raised.value.run is run


async def test_a_plan_adapter_error_in_the_body_fails_the_flow_run_without_a_traceback(
    prefect_server: object, caplog: pytest.LogCaptureFixture
) -> None:
    flow_run_ids: list[str] = []

    async def body(_inputs: dict[str, Any], flow_run_id: str) -> PlanRun:
        flow_run_ids.append(flow_run_id)
        raise NotApprovedError("have it approved")

    with pytest.raises(NotApprovedError, match="have it approved"):
        await run_flow(build_flow(validated(), body), {})
    async with get_client() as client:
        shown = (await client.read_flow_run(UUID(flow_run_ids[0]))).state
    assert shown is not None
    assert (shown.name, shown.message) == ("Failed", "have it approved")
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_bug_in_the_body_is_raised(prefect_server: object) -> None:
    async def body(_inputs: dict[str, Any], _flow_run_id: str) -> PlanRun:
        raise ZeroDivisionError("oops")

    with pytest.raises(ZeroDivisionError, match="oops"):
        await run_flow(build_flow(validated(), body), {})


@pytest.mark.parametrize(
    "first",
    [
        plan_run(status=PlanStatus.FAILED, reason=RunReason.STEP_FAILED),
        plan_run(status=PlanStatus.CANCELLED, reason=RunReason.CANCELLED),
        plan_run(status=PlanStatus.COMPLETED),
    ],
    ids=["failed", "cancelled", "completed"],
)
async def test_a_resumed_flow_run_keeps_its_id_and_its_task_runs(
    prefect_server: object, monkeypatch: pytest.MonkeyPatch, first: PlanRun
) -> None:
    monkeypatch.setattr(tasks, "CARRIED_DELAY", timedelta(milliseconds=1))

    async def body(_inputs: dict[str, Any], flow_run_id: str) -> PlanRun:
        steps = PrefectStepRunner()
        if flow_run_id in seen:
            await steps.show(step_run("a", StepStatus.COMPLETED, carried=True, completed_at=old["a"].end_time), ())
            await steps(ScriptedCall("b", upstream=("a",)))
            return plan_run()
        seen.append(flow_run_id)
        await steps(ScriptedCall("a"))
        await steps(ScriptedCall("b", upstream=("a",), ends=[failed()]))
        return first

    seen: list[str] = []
    compiled = build_flow(validated(), body)
    before = await run_flow(compiled, {})
    flow_run_id = before.state_details.flow_run_id
    assert flow_run_id is not None
    old = await task_runs(flow_run_id, ["a", "b"])
    after = await run_flow(compiled, {}, flow_run_id=seen[0])
    assert (after.name, after.state_details.flow_run_id) == ("Completed", flow_run_id)
    while (new := await task_runs(flow_run_id, ["a", "b"]))["b"].state_name != "Completed":
        await asyncio.sleep(0.1)
    assert {name: run.id for name, run in new.items()} == {name: run.id for name, run in old.items()}
    assert {name: (run.state_name, run.flow_run_run_count) for name, run in new.items()} == {"a": ("Carried", 2), "b": ("Completed", 2)}
    assert new["a"].start_time == old["a"].start_time and old["a"].end_time is not None
    assert new["a"].end_time == old["a"].end_time + timedelta(milliseconds=1), "Prefect's graph draws no bar over the wait"
    assert (await flow_run(flow_run_id)).run_count == 2


@pytest.mark.parametrize(
    "requested", [Cancelling(message="ana: wrong host"), Cancelled(message="ana: wrong host")], ids=["cancelling", "cancelled"]
)
async def test_the_run_sees_a_cancellation_in_prefect_and_its_reason(prefect_server: object, requested: State) -> None:
    async def body(_inputs: dict[str, Any], flow_run_id: str) -> PlanRun:
        assert await cancellation_reason(flow_run_id) is None
        async with get_client() as client:
            await client.set_flow_run_state(UUID(flow_run_id), requested)
        reason = await cancellation_reason(flow_run_id)
        return plan_run(STEPS[2:], status=PlanStatus.CANCELLED, reason=RunReason.CANCELLED, message=reason)

    state = await run_flow(build_flow(validated(), body), {})
    assert state.state_details.flow_run_id is not None
    shown = (await flow_run(state.state_details.flow_run_id)).state
    assert shown is not None
    assert (shown.type, shown.message) == (StateType.CANCELLED, SKIPPED + ": ana: wrong host")
