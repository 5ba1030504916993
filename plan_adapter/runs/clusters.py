"""The Dask cluster behind the steps of a run that have `runner: dask`."""

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager, nullcontext

from plan_adapter.engine.dask import INSTALL_DASK, dask_cluster, has_dask
from plan_adapter.errors import InvalidPlanError
from plan_adapter.execution.ports import Cluster
from plan_adapter.settings import Settings
from plan_adapter.validation import ValidatedPlan
from plan_adapter.validation.findings import Findings


def refuse_without_dask(validated: ValidatedPlan, *, done: Collection[str] = ()) -> None:
    """Raise InvalidPlanError if steps run on Dask, which is not installed here. `done` are the steps that a resume does not call."""
    if has_dask():
        return
    findings, on_dask = Findings(), {*validated.steps_on_dask}.difference(done)
    for at, step in validated.plan.places.items():
        if step.id in on_dask:
            findings.add("no-dask", f"{at}.runner", "the step runs on Dask, which is not installed here", INSTALL_DASK)
    if problems := findings.sorted(validated.plan):
        raise InvalidPlanError(problems)


def cluster_of(validated: ValidatedPlan, settings: Settings) -> AbstractAsyncContextManager[Cluster | None]:
    """Return the cluster of one start of a run, or None if no step uses it. It is opened at the first call, and closed with the block."""
    if not validated.steps_on_dask:
        return nullcontext()
    return dask_cluster(settings.dask_address, processes=validated.plan.options.parallel_limit)
