"""A hand-written flow for workers, with the same shape as the runbook that it is compared with."""

from typing import Any

from prefect import flow, task
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
