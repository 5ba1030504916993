"""Tests of steps on a Dask cluster: each call starts at most once, even if its worker dies, and the run records it."""

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import LocalCluster, Queue

from plan_adapter.engine.dask import DaskCluster, _start_once
from plan_adapter.execution.worker import PackedCall
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.tools.imports import import_object
from tests.engine import dask_tools
from tests.execution.support import Execution, plan_of

pytestmark = pytest.mark.xdist_group("dask")


@pytest.fixture(scope="module")
def cluster() -> Iterator[DaskCluster]:
    """A cluster with one process on this machine."""
    cluster = DaskCluster(None, processes=1)
    yield cluster
    cluster.close()


def on_dask(tool: str, parameters: dict[str, Any], **options: Any) -> ExecutionPlan:
    """Return a plan whose only step `a` calls `tool` on Dask."""
    plan = plan_of({}, **options)
    plan.add_step(tool, "On Dask", parameters, id="a", runner="dask")
    return plan


async def wait_for_cancelled_calls(cluster: DaskCluster) -> None:
    """Wait until each call that was cancelled has taken back its ticket. The run itself does not wait for that."""
    loop = cluster._connect().loop.asyncio_loop

    async def wait() -> None:
        calls = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == "_call"]
        if calls:
            await asyncio.wait(calls)

    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(wait(), loop))


async def test_a_step_runs_in_a_worker_and_the_run_keeps_its_result_and_log_lines(cluster: DaskCluster):
    execution = Execution(on_dask("look", {"text": "正文"}, step_timeout_ms=60_000), [dask_tools.look], cluster=cluster)
    result: Any = (await execution.go()).step("a").result
    assert (result["text"], result["ahead"]) == ("正文", True)
    assert result["pid"] != os.getpid()
    assert [event.message for event in execution.events if event.kind == "log"] == ["printed 正文", "logged 正文"]
    assert [receipt.result for receipt in execution.recorder.receipts] == [result]


async def test_a_coroutine_runs_in_its_own_event_loop(cluster: DaskCluster):
    run = await Execution(on_dask("look_soon", {"text": "x"}), [dask_tools.look_soon], cluster=cluster).go()
    assert run.step("a").result == "x"


@pytest.mark.parametrize(
    ("how", "expected"), [("known", "坏了"), ("own", "ValueError: it broke"), ("unknown", "who knows")], ids=["known", "own", "unknown"]
)
async def test_an_error_on_dask_is_reported_as_in_the_process_of_the_run(cluster: DaskCluster, how: str, expected: str):
    here = await Execution(on_dask("fail", {"how": how}), [dask_tools.fail]).go()
    there = await Execution(on_dask("fail", {"how": how}), [dask_tools.fail], cluster=cluster).go()
    assert here.step("a").error == there.step("a").error == expected
    assert (here.reason, here.step("a").outcome) == (there.reason, there.step("a").outcome)


async def test_a_write_has_an_unknown_outcome_and_is_not_repeated_if_its_worker_is_killed(cluster: DaskCluster, tmp_path: Path):
    mark = tmp_path / "标记"
    run = await Execution(on_dask("write_and_die", {"mark": str(mark)}), [dask_tools.write_and_die], cluster=cluster).go()
    assert (run.reason, run.step("a").error) == (
        "unknown",
        "the worker was lost; Dask started the call again, and the second start did nothing",
    )
    assert mark.read_text(encoding="utf-8") == "written\n"


async def test_a_read_is_retried_if_its_worker_is_killed(cluster: DaskCluster, tmp_path: Path):
    plan = on_dask("write_and_die", {"mark": str(tmp_path / "mark")})
    plan.step("a").effect, plan.step("a").max_retries = "read", 1
    run = await Execution(plan, [dask_tools.write_and_die], cluster=cluster).go()
    assert (run.reason, run.step("a").attempts) == ("step_failed", 2)


def test_a_call_that_dask_starts_twice_runs_once(cluster: DaskCluster):
    # Dask restarts a task if the worker that keeps its result is lost before the run has the result.
    client = cluster._connect()
    tickets = Queue("plan-adapter-twice", client=client)
    tickets.put("twice")
    starts = [client.submit(_start_once, tickets.name, os.getpid, key=key).result() for key in ("first", "again")]
    assert (starts[0][0] != os.getpid(), starts[1]) == (True, None)


async def test_a_call_that_times_out_in_the_queue_never_starts(cluster: DaskCluster, tmp_path: Path):
    pipe, first, second = tmp_path / "pipe", tmp_path / "first", tmp_path / "second"
    os.mkfifo(pipe)
    tools = [dask_tools.write_and_hang, dask_tools.write, dask_tools.look]
    await Execution(on_dask("look", {"text": "the worker is up"}), tools, cluster=cluster).go()
    held = await Execution(
        on_dask("write_and_hang", {"mark": str(first), "pipe": str(pipe)}, step_timeout_ms=1000), tools, cluster=cluster
    ).go()
    waited = await Execution(on_dask("write", {"mark": str(second)}, step_timeout_ms=50), tools, cluster=cluster).go()
    assert (held.reason, waited.reason) == ("unknown", "unknown")
    await wait_for_cancelled_calls(cluster)
    pipe.write_text("", encoding="utf-8")
    await Execution(on_dask("look", {"text": "the worker is free"}), tools, cluster=cluster).go()
    assert (first.exists(), second.exists()) == (True, False)


async def test_a_write_on_dask_has_an_unknown_outcome_after_the_run_is_cancelled(cluster: DaskCluster, tmp_path: Path):
    pipe, mark = tmp_path / "pipe", tmp_path / "mark"
    os.mkfifo(pipe)
    os.mkfifo(mark)
    plan = on_dask("write_and_hang", {"mark": str(mark), "pipe": str(pipe)})
    execution = Execution(plan, [dask_tools.write_and_hang], cluster=cluster)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        mark.read_text(encoding="utf-8")
        loop.call_soon_threadsafe(lambda: execution.scope.stop.set("cancelled", "enough"))

    stopping = threading.Thread(target=stop)
    stopping.start()
    run = await execution.go()
    stopping.join()
    pipe.write_text("", encoding="utf-8")
    assert (run.status, run.step("a").error) == ("cancelled", "enough")
    assert execution.recorder.receipts == []


async def test_a_worker_that_cannot_import_the_tool_fails_the_step(cluster: DaskCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cluster._connect()
    monkeypatch.syspath_prepend(tmp_path)
    source = 'from plan_adapter import tool\n\n@tool(effect="write")\ndef act() -> None:\n    """Act."""\n'
    (tmp_path / "only_here.py").write_text(source, encoding="utf-8")
    run = await Execution(on_dask("act", {}), [import_object("only_here:act")], cluster=cluster).go()
    assert run.reason == "step_failed"
    assert "lacks the tool: `only_here:act`" in (run.step("a").error or "")
    sys.modules.pop("only_here")


def test_the_repr_of_a_packed_call_shows_no_arguments():
    assert "geheim" not in repr(PackedCall("a:b", b"geheim", None))


async def test_a_scheduler_that_does_not_answer_fails_the_step_and_is_named():
    cluster = DaskCluster("tcp://127.0.0.1:9", processes=1)
    with dask.config.set({"distributed.comm.timeouts.connect": "100ms"}):
        run = await Execution(on_dask("write", {"mark": "unused"}), [dask_tools.write], cluster=cluster).go()
    assert run.reason == "step_failed"
    assert "no Dask scheduler answers at tcp://127.0.0.1:9 (PLAN_ADAPTER_DASK_ADDRESS)" in (run.step("a").error or "")


@pytest.fixture
def existing_cluster() -> Iterator[Any]:
    """A cluster that the run did not start: without keys, in threads of this process."""
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=":0"
    ) as found:
        yield found


async def test_an_existing_cluster_is_used_by_its_address_and_keeps_running(existing_cluster: Any):
    cluster = DaskCluster(existing_cluster.scheduler_address, processes=1)
    run = await Execution(on_dask("look_soon", {"text": "x"}), [dask_tools.look_soon], cluster=cluster).go()
    cluster.close()
    assert run.step("a").result == "x"
    assert existing_cluster.status.name == "running"


async def test_a_write_has_an_unknown_outcome_if_the_whole_cluster_dies(tmp_path: Path):
    cluster, mark = DaskCluster(None, processes=1), tmp_path / "mark"
    with dask.config.set({"distributed.comm.timeouts.connect": "2s"}):
        run = await Execution(on_dask("write_and_kill_all", {"mark": str(mark)}), [dask_tools.write_and_kill_all], cluster=cluster).go()
        cluster.close()
    assert run.reason == "unknown"
    assert "the Dask cluster lost the call" in (run.step("a").error or "")
    assert mark.read_text(encoding="utf-8") == "written\n"
