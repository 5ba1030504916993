"""Tests of flow runs whose parameters do not match the current inputs of the plan."""

import asyncio
import logging
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from prefect import Flow, get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.flow_engine import run_flow, run_flow_in_subprocess

from plan_adapter import flows
from plan_adapter.engine.flow import build_flow
from plan_adapter.model.record import PlanRun
from tests.engine.calls import flow_run as flow_run_of
from tests.engine.calls import plan_run, validated

INPUTS: dict[str, Any] = {"environment": {"type": "string"}, "times": {"type": "integer", "default": 1}}


async def completed(_inputs: dict[str, Any], _flow_run_id: str) -> PlanRun:
    return plan_run()


async def deployed(flow: Flow[..., Any], parameters: dict[str, Any]) -> FlowRun:
    """Return a flow run of a deployment that accepts any parameters, like one of an earlier version of the plan."""
    async with get_client() as client:
        flow_id = await client.create_flow(flow)
        deployment_id = await client.create_deployment(flow_id=flow_id, name=uuid4().hex, enforce_parameter_schema=False)
        return await client.create_flow_run_from_deployment(deployment_id, parameters=parameters)


async def ended(flow: Flow[..., Any], parameters: dict[str, Any]) -> State:
    """Return the final state of a deployment's flow run that was executed as in a worker's process."""
    flow_run = await deployed(flow, parameters)
    return await cast("Any", run_flow(flow, flow_run=flow_run, return_type="state"))


RARE = [
    ({"environment": "prod", "zone": "eu"}, ["the plan has no input `zone`; known: `environment`, `times`"]),
    ({"zone": "eu"}, ["no value for `environment`", "the plan has no input `zone`"]),
    (
        {"environment": "prod", "__class__": 1, "__dict__": 2, "__init__": 3},
        ["no input `__class__`", "no input `__dict__`", "no input `__init__`"],
    ),
    ({"flow": "x", "self_": 1, "parameters": {}}, ["no input `flow`", "no input `self_`", "no input `parameters`"]),
]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, ["no value for `environment`; give text"]),
        (
            {"environment": 3, "times": "many"},
            ["inputs.environment: the value `3` is an integer", "inputs.times: the value `many` is text"],
        ),
        ({"environmnet": "生产"}, ["no value for `environment`", "did you mean `environment`?"]),
        *(pytest.param(*case, marks=pytest.mark.thorough) for case in RARE),
    ],
)
async def test_a_run_with_wrong_parameters_fails_and_says_what_is_wrong(
    prefect_server: object, caplog: pytest.LogCaptureFixture, parameters: dict[str, Any], expected: list[str]
) -> None:
    with caplog.at_level(logging.INFO):
        state = await ended(build_flow(validated(inputs=INPUTS), completed), parameters)
    assert (state.type, state.name) == (StateType.FAILED, "Failed")
    for text in expected:
        assert text in (state.message or "")
    assert "Traceback" not in caplog.text
    assert not any(record.exc_info for record in caplog.records)


async def test_valid_parameters_are_completed_with_the_defaults_of_the_plan(prefect_server: object) -> None:
    given = list[dict[str, Any]]()

    async def keep(inputs: dict[str, Any], _flow_run_id: str) -> PlanRun:
        given.append(inputs)
        return plan_run()

    state = await ended(build_flow(validated(inputs=INPUTS), keep), {"environment": "生产"})
    assert (state.type, given) == (StateType.COMPLETED, [{"environment": "生产", "times": 1}])


@pytest.mark.thorough
async def test_a_served_flow_reports_wrong_parameters_from_the_process_of_the_run(prefect_server: object) -> None:
    flow = build_flow(validated(inputs=INPUTS), completed)
    flow_run = await deployed(flow, {"zone": "eu"})
    process = run_flow_in_subprocess(flow, flow_run)
    await asyncio.to_thread(process.join)
    state = (await flow_run_of(UUID(str(flow_run.id)))).state
    assert state is not None and state.type is StateType.FAILED
    assert "the plan has no input `zone`" in (state.message or "")


@pytest.mark.parametrize(
    "inputs", ["environment=prod", pytest.param(["prod"], marks=pytest.mark.thorough), pytest.param(3, marks=pytest.mark.thorough)]
)
async def test_inputs_of_the_deployed_flow_that_are_not_a_mapping_are_refused(
    prefect_server: object, caplog: pytest.LogCaptureFixture, inputs: object
) -> None:
    state = await ended(flows.run_plan, {"plan": "description: x\nsteps: []", "inputs": inputs})
    assert (state.type, state.message) == (
        StateType.FAILED,
        '`inputs` is not a mapping: give the inputs by name, as in {"environment": "prod"}',
    )
    assert "Traceback" not in caplog.text
