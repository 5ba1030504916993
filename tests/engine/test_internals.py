"""Tests of undocumented Prefect behavior that `engine/internals.py` relies on. If one fails after a Prefect upgrade, fix that file."""

import asyncio
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import httpx
import prefect
import pytest
from prefect import flow, get_client
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed

from plan_adapter.engine import internals, tasks
from plan_adapter.engine.diagnosis import TESTED_PREFECT
from plan_adapter.engine.internals import BUSY_SECONDS, BUSY_WAITS, PRIVATE_NAMES, add_retry_after, missing_prefect_features
from plan_adapter.engine.local_server import Server
from plan_adapter.engine.tasks import PrefectStepRunner
from tests.engine.calls import ScriptedCall, states_of, task_runs

ADVICE = (
    f"Prefect {prefect.__version__} differs from what engine/internals.py calls. Until that file is changed, steps run through Prefect's "
    "public calls, which is correct and slower."
)


def test_prefect_still_has_what_the_internals_rely_on() -> None:
    assert missing_prefect_features() == [], ADVICE


def test_every_private_name_is_listed_and_is_where_the_list_says() -> None:
    for private in PRIVATE_NAMES:
        module = importlib.import_module(f"prefect.{private.module}")
        source = inspect.getsource(module)
        lost = [name for name in private.names.split() if not hasattr(module, name) and not re.search(rf"\b{name}\b", source)]
        assert lost == [], f"prefect.{private.module}: {ADVICE}"
        assert private.seen in TESTED_PREFECT and private.used_for
    own = Path(internals.__file__).read_text("utf-8")
    listed = {name for private in PRIVATE_NAMES for name in private.names.split()}
    prefects = r"(?:session|queue|ended|client|flow_engine|control_listener|EventsWorker)"
    used = {*re.findall(rf"\b{prefects}\.(_[a-z]\w*)", own), *re.findall(r'(?:getattr|hasattr)\([^()]*?, "(_\w+)"', own)}
    assert used and used <= listed
    assert {private.module for private in PRIVATE_NAMES} >= set(re.findall(r'_optional\("([\w.]+)"', own))


def test_exactly_the_listed_names_of_prefect_are_replaced() -> None:
    own = Path(internals.__file__).read_text("utf-8")
    assigned = re.findall(r"^ +(?:session|flow_engine|recorder|sqlite)\.(\w+)(?:, flow_engine\.(\w+))? = (?!session)", own, re.MULTILINE)
    on_instances = re.findall(r'^ +vars\(client\)\["(\w+)"\] = ', own, re.MULTILINE)
    listed = {name for private in PRIVATE_NAMES if private.replaced for name in private.names.split()}
    assert {name for names in assigned for name in names if name} | set(on_instances) == listed


async def test_task_run_events_produce_the_same_record_as_prefects_own_engine(prefect_server: object) -> None:
    @flow(persist_result=False)
    async def both() -> State:
        await PrefectStepRunner()(ScriptedCall("direct"))
        await PrefectStepRunner(plain=True)(ScriptedCall("plain"))
        return Completed()

    state = await both(return_state=True)
    assert state.state_details.flow_run_id is not None
    runs = await task_runs(state.state_details.flow_run_id, ["direct", "plain"])
    direct, plain = (
        run.model_dump(
            include={
                "state_type",
                "state_name",
                "run_count",
                "flow_run_id",
                "flow_run_run_count",
                "task_inputs",
                "tags",
                "cache_key",
                "task_version",
            }
        )
        for run in (runs["direct"], runs["plain"])
    )
    assert direct == plain, ADVICE
    for run in runs.values():
        assert run.expected_start_time and run.start_time and run.end_time and run.expected_start_time <= run.start_time <= run.end_time, (
            ADVICE
        )
        assert run.total_run_time == (await states_of(run, 2))[-1].timestamp - run.start_time, ADVICE


def test_features_that_a_later_prefect_removed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def emit(*, task_run: object, validated_state: object, severity: int) -> None: ...

    monkeypatch.setattr(internals, "emit_task_run_state_change_event", emit)
    name = "`emit_task_run_state_change_event`"
    assert missing_prefect_features() == [f"{name} takes no `follows`", f"{name} takes no `initial_state`", f"{name} wants `severity`"]
    monkeypatch.setattr(internals, "attempt_control", None)
    assert missing_prefect_features("task runs") == missing_prefect_features()[:3]
    assert len(missing_prefect_features("cancellation")) == 3


async def test_a_missing_prefect_feature_falls_back_to_public_calls_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, prefect_server: object
) -> None:
    monkeypatch.setattr(tasks, "missing_prefect_features", lambda feature: ["TaskRun takes no `labels`"])

    @flow(persist_result=False)
    async def changed() -> State:
        call = ScriptedCall("check", timeout_seconds=5)
        await PrefectStepRunner()(call)
        return Completed()

    state = await changed(return_state=True)
    assert state.state_details.flow_run_id is not None
    run = (await task_runs(state.state_details.flow_run_id, ["check"]))["check"]
    assert "timeout_seconds" not in run.labels
    assert "steps run slower, because this version of Prefect differs: TaskRun takes no `labels`" in caplog.text


async def test_prefects_client_has_the_hook_that_shortens_retries_of_a_busy_server(prefect_server: object) -> None:
    async with internals.busy_retries(), get_client() as client:
        hooks = client._client.event_hooks["response"]
        assert add_retry_after in hooks, ADVICE
        await client.hello()


async def test_retries_of_a_busy_server_wait_briefly_and_are_free_for_a_minute() -> None:
    request = httpx.Request("POST", "http://127.0.0.1/api/flow_runs/")
    answers = [await _advised(request) for _ in range(len(BUSY_WAITS) + 2)]
    assert [float(wait or 0) for wait, _ in answers] == [*BUSY_WAITS, BUSY_WAITS[-1], BUSY_WAITS[-1]]
    assert [free for _, free in answers] == ["true"] * len(answers)
    request.extensions["busy_deadline"] -= BUSY_SECONDS
    assert await _advised(request) == (str(BUSY_WAITS[-1]), None)


async def _advised(request: httpx.Request) -> tuple[str | None, str | None]:
    response = httpx.Response(503, request=request)
    await add_retry_after(response)
    return response.headers.get("Retry-After"), response.headers.get("Prefect-Maintenance")


@pytest.mark.parametrize(("status", "headers"), [(200, {}), (429, {}), (503, {"Retry-After": "7"})])
async def test_other_responses_are_not_changed(status: int, headers: dict[str, str]) -> None:
    response = httpx.Response(status, headers=headers, request=httpx.Request("GET", "http://127.0.0.1/api/health"))
    await add_retry_after(response)
    assert response.headers.get("Retry-After") == headers.get("Retry-After")
    assert "Prefect-Maintenance" not in response.headers


@pytest.mark.parametrize("at_once", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["at_once", "in_turn"])
async def test_a_plan_runs_without_the_private_modules_of_prefect(at_once: bool, prefect_server: Server, tmp_path: Path) -> None:
    modules = sorted(set(re.findall(r'_optional\("([\w.]+)"', Path(internals.__file__).read_text("utf-8"))))
    assert {"_internal.control_listener", "_internal.attempt_control", "_internal.concurrency.services"} <= set(modules)
    missing = [",".join(modules)] if at_once else modules
    environment = os.environ | {"PREFECT_API_URL": prefect_server.api_url}
    command = [sys.executable, "-m", "tests.engine.without_private_module", str(tmp_path), *missing]
    child = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    printed, errors = await child.communicate()
    assert child.returncode == 0, errors.decode()
    ends = [json.loads(line) for line in printed.splitlines()]
    assert [end["without"] for end in ends] == missing
    for end in ends:
        assert end["steps"] == {"flaky": "completed", "skipped": "skipped", "last": "completed"}, end
        assert end["status"] == "completed", end
        names = {name for run in await _task_runs_of(end["flow_run_id"]) if (name := run.name)}
        assert names == {"flaky", "skipped", "last"}, end


async def _task_runs_of(flow_run_id: str) -> list[TaskRun]:
    return list((await task_runs(UUID(flow_run_id), ["flaky", "skipped", "last"])).values())
