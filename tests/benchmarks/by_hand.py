"""Hand-written flows for workers, with the same shapes as the runbooks that they are compared with."""

from typing import Any

from prefect import flow, suspend_flow_run, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture

from tests.benchmarks.shapes import layered

SHAPE = layered(4, 5)


@task(cache_policy=NO_CACHE, persist_result=False)
def noop() -> dict[str, bool]:
    """Do nothing."""
    return {"ok": True}


@flow(persist_result=False)
def by_hand() -> None:
    """Run the steps of SHAPE."""
    futures: dict[str, PrefectFuture[Any]] = {}
    for step, (dependencies, _) in SHAPE.steps.items():
        futures[step] = noop.with_options(name=step).submit(wait_for=[futures[dependency] for dependency in dependencies])
    for future in futures.values():
        future.result()


@flow(persist_result=False)
def wait_by_hand() -> None:
    """Wait without a process until somebody resumes this flow run, then run one task."""
    suspend_flow_run(timeout=86400)
    noop()
